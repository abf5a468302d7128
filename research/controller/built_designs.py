"""What code builds of a planner's word: an exploration of what it wants to try, an earlier claim put to the test again.

Values, constants, steps and direction of a replication are those of the lock; seeds and level are the new round's. A
study that reproduces another one has the level of its lock, too.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from research.design.compiler import DesignCompiler, PricedExploration
from research.errors import BadInput, DesignRefused
from research.planners.history import CampaignFacts
from research.proposals import actions
from research.proposals.arms import arm_text, constant_value, require_known_environment, set_knobs, value_text
from research.proposals.metric_choice import RequestedMetric
from research.proposals.slots import SLOTS
from research.text import describe, format_seconds
from studies import StudyState
from studies.records.design import KNOB, MODEL, Arm, Design, Metric, Schedule
from studies.records.runs import screen_metric
from studies.records.verdict import Reproduction
from swarm.job import Job
from swarm.models import model_place

MOST_OF_A_ROUND: Final = 3
"""Explorations before one question."""
_PLAYS_BETWEEN: Final = 64
"""Evaluation episodes in the middle of what is explored: plays to read, and a point of the curve."""
_SHARE: Final = 0.25
"""Most of the time left that one exploration may take: what it hints at is still to be shown."""


def price_exploration(compiler: DesignCompiler, explored: int, action: actions.Explore) -> PricedExploration:
    """Return what a planner wants to try, or raise DesignRefused: for settings, or for what it would cost. The job as
    it is is tried too, where there is room: nothing else says what a setting changes."""
    if explored >= MOST_OF_A_ROUND:
        raise DesignRefused(
            f"expected at most {MOST_OF_A_ROUND} explorations before a question; found one more; propose, or conclude"
        )
    require_known_environment(action.environment)
    base = compiler.base or Job()
    steps = action.steps or max(1, base.steps // 2)
    job = base.model_copy(update={"environment": action.environment, "steps": steps})
    named = {arm.name: arm for arm in map(_build_arm, (*action.tried, actions.Tried()))}
    arms = tuple(named.values())[: actions.MOST_TRIED]
    jobs = []
    for arm in arms:
        values: dict[str, Any] = {**job.model_dump(), **arm.overrides}
        try:
            jobs.append(Job.model_validate(values))
        except ValidationError as error:
            raise DesignRefused(f"{arm.name}: {describe(error)}; try other values") from error
        set_knobs(action.environment, jobs[-1].environment_args)
    episodes = compiler.requirements.hidden_episodes
    half = -(-job.episodes_per_step * steps // 2)
    metric = Metric(
        meaning=f"share of {episodes} hidden tasks solved after the last step", episodes=episodes,
        schedule=Schedule(every=half, episodes=min(episodes, _PLAYS_BETWEEN)) if steps > 1 else None,
    )  # fmt: skip
    if any(name.startswith(KNOB) for arm in arms for name in arm.overrides):
        held = {f"{KNOB}{name}": value for name, value in base.environment_args.items()}
        metric = metric.model_copy(update={"knobs": held})
    seconds = max(compiler.price.run_with_evaluations(variant, metric) for variant in jobs)
    runs = len(arms) * action.seeds
    need, left = -(-runs // compiler.price.parallel) * seconds, compiler.left
    if need > _SHARE * left:
        raise DesignRefused(
            f"expected an exploration of at most a quarter of the {format_seconds(left)} left; found {runs} runs of "
            f"about {format_seconds(seconds)}; try less, or shorter"
        )
    most = compiler.budget.max_runs
    if most is not None and compiler.runs_made + runs > most:
        raise DesignRefused(
            f"expected at most {most} runs in all; found {compiler.runs_made} made and {runs} more; try less"
        )
    return PricedExploration(action.why, job, arms, screen_metric(metric), seconds, action.seeds)


def _build_arm(tried: actions.Tried) -> Arm:
    overrides = {entry.field: constant_value(entry.field, entry.value) for entry in tried.settings}
    if "steps" in overrides or "environment" in overrides:
        raise DesignRefused("expected steps and environment once, for all that is tried; found them among its settings")
    name = "+".join(f"{field}={value_text(value)}" for field, value in overrides.items()) or "as-it-is"
    try:
        return Arm(name=name.lower(), overrides=overrides)
    except ValidationError as error:
        raise DesignRefused(f"expected fewer settings, or shorter ones, of one try; found {name[:80]!r}") from error


_NO_CONSTANTS: Final = ("environment", "steps", "seed", "tracking", MODEL)
"""Fields of a job that a design names elsewhere, or that no planner sets."""
_MOST_CONSTANTS: Final = 8
PREDICTED: Final = {"predicted_low", "predicted_high", "probability"}
_SAME: Final = (
    "mechanism", "variable", "control", "treatment", "direction", "smallest_effect", "falsifier", "kill_if",
    "confounds", "matched", "sought", "ladder", "contrast", "moderator", "mediators",
)  # fmt: skip
"""Fields that a hypothesis has as it was proposed."""


def build_replication(
    action: actions.Replicate, campaign: CampaignFacts | None, compiler: DesignCompiler
) -> tuple[actions.Propose, actions.ProposeDesign]:
    """Return the comparison of an earlier claim once more; raise DesignRefused for one that cannot be had again."""
    known = {
        entry.claim.id: (told, entry.claim) for told in (campaign.rounds if campaign else ()) for entry in told.claims
    }
    if action.claim not in known:
        names = ", ".join(known) or "none"
        raise DesignRefused(f"expected a claim of an earlier round ({names}); found {action.claim!r}")
    told, claim = known[action.claim]
    design = told.design
    judged = design.metric
    named = judged.kind and compiler.requirements.metric is None
    metric = RequestedMetric(judged.kind, judged.threshold, judged.of).text if named else ""
    constants, usual = list[actions.Constant](), (compiler.base or Job()).model_dump(mode="json")
    for name, value in design.base_job.items():
        if name in _NO_CONSTANTS or name in claim.varied or value == usual.get(name):
            continue
        if not isinstance(value, bool | int | float | str):
            raise DesignRefused(f"{claim.id} was tested with a {name} that no design can hold; propose it anew")
        constants.append(actions.Constant(field=name, value=value))
    if len(constants) > _MOST_CONSTANTS:
        raise DesignRefused(f"{claim.id} was tested with {len(constants)} fields held, more than a design can hold")
    same = claim.model_dump(include=set(_SAME))
    if claim.variable == MODEL:
        same |= {"control": arm_text(claim.control), "treatment": arm_text(claim.treatment)}
    try:
        again = actions.ProposedHypothesis.model_validate(same | {
            "statement": claim.said, "predicted_low": claim.prediction.low, "predicted_high": claim.prediction.high,
            "probability": claim.prediction.probability,
            "code": design.code.get(str(claim.treatment)) if claim.variable in SLOTS else None,
            **action.model_dump(include=PREDICTED, exclude_none=True),
        })  # fmt: skip
    except ValidationError as error:
        raise DesignRefused(f"{claim.id} cannot be asked again as it was locked: {describe(error)}") from error
    why = action.why or f"{claim.id}, of round {told.number}, is put to the test once more."
    environment, steps = action.environment or design.environment, int(design.base_job["steps"])
    apart: actions.EvaluateApart = "both" if judged.also_own else bool(judged.evaluates_apart(claim.declared))
    apart = "agent" if judged.evaluate_by else apart
    held = tuple(constants)
    wish = actions.ProposeDesign(environment=environment, steps=steps, constants=held, evaluate_apart=apart)
    return actions.Propose(hypotheses=(again,), metric=metric, why=why), wish


def _model_here(model: Mapping[str, Any], models: Path) -> Mapping[str, Any]:
    """Return a model as this home has it: in its place, or by its name, where the hash says whether it is the same."""
    if "path" not in model or model_place(model["path"], models).is_dir():
        return model
    return {**model, "path": Path(model["path"]).name}


def build_reproduction(state: StudyState, named: Sequence[str], models: Path) -> Reproduction:
    """Return what a study's claims are put to the test by again, all that it decided where none is named; BadInput."""
    found = {verdict.hypothesis: (each, verdict) for each in state.rounds for verdict in each.verdicts}
    judged = {name: both for name, both in found.items() if both[1].verdict not in ("inconclusive", "invalid")}
    names = [name for name in judged if name in (named or judged)]
    rounds = {each.round: each for each, _ in (judged[name] for name in names)}
    if state.status not in ("concluded", "stopped") or not {*named} <= judged.keys() or len(rounds) != 1:
        known = ", ".join(f"{name} of round {each.round}" for name, (each, _) in judged.items()) or "none"
        raise BadInput(
            f"expected --claims of one round of a study that is over; {state.id} is {state.status}, decided {known}; "
            f"found {', '.join(named) or 'all of these'}"
        )
    ((number, each),) = rounds.items()
    assert each.design is not None
    design, price = each.design, each.design.price
    claims, base = [design.hypothesis(name) for name in names], dict(design.base_job)
    used = {design.control_arm}.union(*map(design.contrast_of, claims))
    arms = [arm for arm in design.arms if arm.name in used]
    base[MODEL] = _model_here(base[MODEL], models)
    if base.get("verl"):
        base["verl"] = {**base["verl"], "address": None}  # a cluster is joined where the user names it
    arms = [
        arm.model_copy(update={"overrides": {**arm.overrides, MODEL: _model_here(arm.overrides[MODEL], models)}})
        if MODEL in arm.overrides
        else arm
        for arm in arms
    ]
    runs, rules = len(arms) * len(design.seeds), design.decision_table
    changed = dict.fromkeys(("inquiry", "pilot", "extension", "replication")) | {
        "hypotheses": claims, "arms": arms, "base_job": base, "repairs": 0, "repaired": "",
        "code": {arm.code: design.code[arm.code] for arm in arms if arm.code},
        "price": price.model_copy(update={"runs": runs, "total_s": price.total_s * runs / max(1, price.runs)}),
        "decision_table": [r.model_copy(update={"then": "settle"}) if r.then == "replicate" else r for r in rules],
    }  # fmt: skip
    return Reproduction(
        study=state.id, round=number, lock=str(each.design_hash), head=state.head_hash,
        design=Design.model_validate(dict(design) | changed), verdicts=tuple(judged[name][1] for name in names),
    )  # fmt: skip

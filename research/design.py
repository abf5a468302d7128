"""The design compiler: what a planner wishes becomes a design that can be locked, or is refused with a reason.

A compiled design is sound (every arm is a valid job that differs from the control in one declared variable), sees its
smallest effect of interest with the promised power by the noise bank's word (`research.sizing`), and is affordable by
its own price at the worst. Everything that decides a verdict is in it before there are data: seeds, looks, test, noise,
margin, exclusions, collapse, decision table, screen and replication. Seeds come from the caller's source; no planner
sees them, and no two runs share one unless they are paired. The compiler is pure: it runs nothing.
"""

from __future__ import annotations

import hmac
import itertools
from collections.abc import Callable, Mapping, Sequence

from research.arms import common_controls, variable_value
from research.codes import EXCLUDED_CODES, WORST_CODES
from research.design_rules import table_of
from research.errors import DesignRefused
from research.headroom import require_headroom
from research.noise_bank import NOISE_SEEDS, NoiseBank, shipped_bank
from research.planner.actions import (
    LEAST_SEEDS,
    Action,
    Conclude,
    Decline,
    Propose,
    ProposeDesign,
    ProposedHypothesis,
)
from research.pricing import Pricing
from research.purse import Purse, Stage
from research.reward_code import check_reward
from research.shape import PREDICTION_LEVEL, Shape, check_prediction, shaped, smallest_effect, with_fears
from research.sight import ALPHA
from research.sizing import Refused, Sized, Sizing, metric_of
from research.terms import Terms
from research.watchdog import DEFAULT_WATCHDOG
from studies.procedure import CollapseRule, NoisePlan, Prediction, Promise, Replication
from studies.question import statement
from studies.records import REWARD, Budget, Design, Hypothesis, Price
from swarm.environments.registry import environments
from swarm.job import Job

MOST_EXCLUDED = 0.2
"""Largest share of an arm's runs that may be excluded: of five runs one, as with two the rest is a choice."""
_MOST_REDRAWS = 100


def accept_hypotheses(proposal: Propose) -> tuple[Hypothesis, ...]:
    """Return the proposal's hypotheses as records `h1`, `h2`, ...; raise DesignRefused if one cannot be tested."""
    accepted = tuple(_hypothesis(f"h{index}", entry) for index, entry in enumerate(proposal.hypotheses, start=1))
    common_controls(accepted)
    proposed_code(proposal)
    return accepted


def proposed_code(proposal: Propose) -> dict[str, str]:
    """Return the source of each reward a proposal names; raise DesignRefused where it is missing or not well formed."""
    code: dict[str, str] = {}
    for entry in proposal.hypotheses:
        if entry.variable == REWARD:
            code[str(entry.treatment)] = check_reward(entry.code or "")
        elif entry.code:
            raise DesignRefused(
                f"code: expected null beside the variable {entry.variable}; found a source; leave it out"
            )
    return code


def compile_design(
    question: str,
    hypotheses: Sequence[Hypothesis],
    proposal: ProposeDesign,
    *,
    price: Pricing,
    budget: Budget,
    draw_seed: Callable[[], int],
    seconds_left: float | None = None,
    runs_made: int = 0,
    base: Job | None = None,
    code: Mapping[str, str] | None = None,
    terms: Terms | None = None,
    bank: NoiseBank | None = None,
) -> Design:
    """Return the design that tests `hypotheses` (or runs the proposal's screen) and keeps the promise of `terms`.

    `draw_seed` gives the seeds (see `seed_source`); `seconds_left` is what remains of the budget's wall clock (default:
    all of it) and `runs_made` what is made of its runs; `base` is the job under all arms (default: `Job()`); `code` is
    what `proposed_code` returned for the hypotheses; `bank` is the installation's noise bank (default: the shipped
    one). Raises DesignRefused; where `noise_plan` returns a plan, its runs come first.
    """
    sizing = _sizing(price, budget, seconds_left, runs_made, terms, bank)
    shape = _shaped(hypotheses, proposal, base, sizing)
    sized = sizing.size(shape, proposal.seeds_per_arm)
    seeds = _distinct(draw_seed, sized.seeds * (2 if sized.shape.replication else 1) + bool(sized.shape.screen))
    return _locked(question, hypotheses, proposal, sized, sizing, tuple(seeds), code or {})


def noise_plan(
    hypotheses: Sequence[Hypothesis],
    proposal: ProposeDesign,
    *,
    price: Pricing,
    budget: Budget,
    draw_seed: Callable[[], int],
    seconds_left: float | None = None,
    runs_made: int = 0,
    base: Job | None = None,
    terms: Terms | None = None,
    bank: NoiseBank | None = None,
) -> NoisePlan | None:
    """Return the runs that a design must wait for; None where the bank has its word already.

    They are A/A runs of the control's job where the noise is not known, and one of it with a learning rate of 0 where
    nobody saw the machinery do nothing then; on seeds of their own. Raises DesignRefused where A/A runs, and the least
    that has to follow, are not affordable.
    """
    sizing = _sizing(price, budget, seconds_left, runs_made, terms, bank)
    shape = _shaped(hypotheses, proposal, base, sizing)
    job = shape.comparison.base
    known, unchecked = sizing.unknown(shape) is None, sizing.bank.unchecked(job)
    if known and not unchecked:
        return None
    if not known:
        sizing.noise_stage(shape)
    count = 0 if known else NOISE_SEEDS
    seeds = _distinct(draw_seed, count + unchecked)
    metric = metric_of(job.environment, sizing.terms.episodes)
    return NoisePlan(
        environment=job.environment,
        job=job.model_dump(mode="json", exclude={"seed", "tracking"}),
        seeds=seeds[:count],
        metric_key=metric.key,
        episodes=metric.episodes,
        plumbing=seeds[-1] if unchecked else None,
    )


def refusal(
    action: Action,
    hypotheses: Sequence[Hypothesis],
    *,
    price: Pricing,
    budget: Budget,
    seconds_left: float | None = None,
    runs_made: int = 0,
    base: Job | None = None,
    code_allowed: bool = False,
    terms: Terms | None = None,
    bank: NoiseBank | None = None,
    environment: str | None = None,
) -> DesignRefused | None:
    """Return why an action would be refused, or None; it draws no seed. `hypotheses` are those accepted before.

    `environment` is the one that is asked for: a proposal names none, and is refused by that one's noise and prices.
    `code_allowed` says whether the study's runs are in containers, so that a reward function may be proposed. A design
    that has to wait for A/A runs is not refused, if they are affordable.
    """
    try:
        sizing = _sizing(price, budget, seconds_left, runs_made, terms, bank)
        match action:
            case Propose():
                _refuse_code(action, code_allowed)
                _testable_at_all(accept_hypotheses(action), sizing, base, environment)
            case ProposeDesign():
                _sized_or_waiting(hypotheses, action, base, sizing)
            case Conclude() | Decline():
                pass
    except DesignRefused as error:
        return error
    return None


def seed_source(study: str, secret: bytes) -> Callable[[], int]:
    """Return the seeds of a study, one a call: 31 bits of HMAC-SHA256(secret, "study:index"), index 0, 1, ...

    With a secret that is drawn when the design is compiled, nobody can know the seeds before the design is locked.
    """
    index = itertools.count()

    def draw() -> int:
        code = hmac.digest(secret, f"{study}:{next(index)}".encode(), "sha256")
        return int.from_bytes(code[:4], "big") >> 1

    return draw


def _sizing(
    price: Pricing,
    budget: Budget,
    seconds_left: float | None,
    runs_made: int,
    terms: Terms | None,
    bank: NoiseBank | None,
) -> Sizing:
    known = shipped_bank() if bank is None else bank
    return Sizing(terms or Terms(), Purse(price, budget, seconds_left, runs_made), known)


def _shaped(hypotheses: Sequence[Hypothesis], proposal: ProposeDesign, base: Job | None, sizing: Sizing) -> Shape:
    """Return the shape of a design; raise DesignRefused where it is not sound, or its control leaves no room."""
    shape = shaped(hypotheses, proposal, base, sizing.terms)
    metric = metric_of(shape.comparison.base.environment, sizing.terms.episodes)
    sought = [claim.direction for claim in hypotheses if claim.sought == "difference"]
    require_headroom(shape, sizing.bank, metric, sought if hypotheses else ["increase"])
    return shape


def _sized_or_waiting(
    hypotheses: Sequence[Hypothesis], proposal: ProposeDesign, base: Job | None, sizing: Sizing
) -> None:
    """Raise DesignRefused unless the design can be compiled, now or after the A/A runs it has to wait for."""
    table_of(proposal)
    shape = _shaped(hypotheses, proposal, base, sizing)
    if sizing.unknown(shape) is None:
        sizing.size(shape, proposal.seeds_per_arm)
    else:
        sizing.noise_stage(shape)


def _testable_at_all(hypotheses: Sequence[Hypothesis], sizing: Sizing, base: Job | None, asked: str | None) -> None:
    """Refuse hypotheses that no design could test in any environment, however short the training.

    The reason is that of the environment that is asked for; of the dearest one where none is known.
    """
    if not hypotheses:
        return  # a search: its price depends on the knobs, which the design names
    smallest_effect(hypotheses, sizing.terms)
    refusals: dict[str, Refused] = {}
    for name in environments():
        wish = ProposeDesign(environment=name, seeds_per_arm=LEAST_SEEDS)
        try:
            _sized_or_waiting(hypotheses, wish, base, sizing)
        except Refused as error:
            if error.shorter:
                return
            refusals[name] = error
        except DesignRefused:
            return  # unsound with the default constants; the design may choose others, and is judged then
        else:
            return
    fewer = "; or propose fewer hypotheses" if len(hypotheses) > 1 else ""
    told = refusals.get(asked or "") or max(refusals.values(), key=lambda error: error.need_s)
    raise DesignRefused(told.message + fewer, for_planner=told.for_planner)


def _refuse_code(action: Propose, allowed: bool) -> None:
    if not allowed and any(entry.variable == REWARD or entry.code for entry in action.hypotheses):
        told = (
            "expected hypotheses about job fields; found a reward function, which is code and runs in containers only; "
            "vary job fields"
        )
        raise DesignRefused(f"{told}, or start the study with --sandbox docker", for_planner=f"{told}, or decline")


def _hypothesis(name: str, entry: ProposedHypothesis) -> Hypothesis:
    check_prediction(entry.direction, entry.predicted_low, entry.predicted_high)
    control, treatment = (variable_value(entry.variable, value) for value in (entry.control, entry.treatment))
    accepted = Hypothesis(
        id=name,
        statement=statement(entry.variable, control, treatment, entry.direction),
        said=entry.statement,
        mechanism=entry.mechanism,
        variable=entry.variable,
        control=control,
        treatment=treatment,
        direction=entry.direction,
        prediction=Prediction(
            low=entry.predicted_low,
            high=entry.predicted_high,
            level=PREDICTION_LEVEL,
            probability=entry.probability,
        ),
        smallest_effect=entry.smallest_effect,
        falsifier=entry.falsifier,
        kill_if=entry.kill_if,
        confounds=entry.confounds,
        matched=entry.matched,
        sought=entry.sought,
    )
    return with_fears(accepted)


def _locked(
    question: str,
    hypotheses: Sequence[Hypothesis],
    proposal: ProposeDesign,
    sized: Sized,
    sizing: Sizing,
    seeds: tuple[int, ...],
    code: Mapping[str, str],
) -> Design:
    shape, count = sized.shape, sized.seeds
    comparison, environment = shape.comparison, shape.comparison.base.environment
    test = sized.sight.test(count, shape.effect)
    screen = shape.screen.model_copy(update={"seed": seeds[-1]}) if shape.screen else None
    return Design(
        question=question,
        environment=environment,
        base_job=comparison.base.model_dump(mode="json", exclude={"seed", "tracking"}),
        arms=comparison.arms,
        control_arm=comparison.control_arm,
        hypotheses=tuple(hypotheses),
        seeds=seeds[:count],
        metric=metric_of(environment, sizing.terms.episodes),
        test=test,
        alpha=ALPHA,
        exclusions=EXCLUDED_CODES,
        budget=sizing.purse.budget,
        price=_price(sized.stages, sizing.purse),
        code=code,
        promise=Promise(power=sizing.terms.power, effect=shape.effect),
        noise=sized.noise,
        looks=sized.sight.looks(count),
        equivalence_margin=shape.effect,
        multiplicity="dunnett_bh" if shape.claims > 1 else "none",
        screen=screen,
        replication=_replication(proposal, seeds[count : 2 * count]),
        watchdog=DEFAULT_WATCHDOG,
        decision_table=table_of(proposal),
        counted_as_worst=WORST_CODES,
        most_excluded=MOST_EXCLUDED,
        collapse=CollapseRule(drop=sized.noise.drop),
        shared_seeds=test == "paired",
    )


def _replication(proposal: ProposeDesign, seeds: tuple[int, ...]) -> Replication | None:
    wish = proposal.replication
    return None if wish is None else Replication(environment=wish.environment, seeds=seeds)


def _distinct(draw_seed: Callable[[], int], count: int) -> tuple[int, ...]:
    seeds: dict[int, None] = {}
    for _ in range(count + _MOST_REDRAWS):
        seeds[draw_seed()] = None
        if len(seeds) == count:
            return tuple(seeds)
    raise ValueError(f"the source of seeds gave fewer than {count} different ones in {count + _MOST_REDRAWS} draws")


def _price(stages: Sequence[Stage], purse: Purse) -> Price:
    return Price(
        runs=sum(stage.runs for stage in stages),
        parallel=purse.price.parallel,
        seconds_per_run=max(stage.seconds_per_run for stage in stages),
        total_s=purse.cost(stages),
        basis=purse.price.basis,
    )

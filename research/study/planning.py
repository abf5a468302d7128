"""From a topic to a locked design: the planner's turns, each asked for once, and the events they become.

Propose, design, and, where the noise bank has nothing that fits, A/A runs before the design is compiled. A turn is
written to the study's folder before its first event, so that a controller killed in between continues with the same
answer (and, for a design, the same seeds) instead of paying for another. Once a design is locked nothing here fails for
want of a model.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import TypeAdapter

from research.design.compiler import DesignCompiler
from research.design.pricing import Pricing
from research.design.requirements import StatisticalRequirements
from research.errors import DesignRefused, HomeError, ResearchError
from research.files import read_json, write_json
from research.installation.home import Home
from research.isolation.mode import sandboxing_of
from research.llm_planner.closing_words import voiced
from research.noise.bank import NoiseBank, collapsed, model_key
from research.planner.digest import ArmFacts, Digest, Stage
from research.planner.protocol import Planner
from research.planner.quoted import quoted
from research.proposals.actions import Action, Conclude, Decline, Propose, ProposeDesign
from research.proposals.flags import RequestedComparison
from research.rule_planner.planner import RulesPlanner
from research.study.evaluation import (
    AcceptedProposal,
    ActionCheck,
    EvaluatedDesign,
    PlanningContext,
    TakenTurn,
    TakeTurn,
    ask,
    design,
    design_topic,
)
from studies import EventLog, EventType, StudyLog, StudyState
from studies.checks.plumbing import conditions, plumbing_run
from studies.log.lock_file import LOCK_FILE, write_lock
from studies.records.design import Budget
from studies.records.noise_plan import NoisePlan
from studies.records.planner_words import PlannerWords, who
from studies.records.run_specs import noise_hash
from studies.statistics.samples import mean_interval
from studies.verdicts.judge import collapsed_runs
from swarm.environments.registry import get_environment
from swarm.job import Job

_ACTION: TypeAdapter[Action] = TypeAdapter(Action)
DrawSecret = Callable[[int], str]
"""Returns so many random bytes in hex."""


DECLINED = "the planner declined the topic: nothing was tested"


class _Ended(Exception):
    """The planner declines."""

    def __init__(self, said: PlannerWords) -> None:
        super().__init__(said.text)
        self.said = said


class Planning:
    """Asks the planner of one study and writes what comes of it. `base` is the job under all arms.

    Prices and the noise bank are asked for whenever a design is compiled: other studies add to both meanwhile.
    """

    def __init__(
        self,
        home: Home,
        log: EventLog,
        record: StudyLog,
        planner: Planner,
        pricing: Callable[[], Pricing],
        base: Job,
        draw_secret: DrawSecret = secrets.token_hex,
        noise_bank: Callable[[EventLog], NoiseBank] = NoiseBank.of,
    ) -> None:
        self._study_folder = home.study(record.study)
        self._folder = self._study_folder / "planning"
        self._draw_secret = draw_secret
        self._noise_bank = noise_bank
        self._log = log
        self._record = record
        self._study = record.study
        self._planner = planner
        self._pricing = pricing
        self._base = base

    def plan(self, state: StudyState, seconds_left: Callable[[], float]) -> None:
        """Propose and design, and lock the design, or the A/A runs that it must wait for; go on from wherever it ended.

        After the A/A runs it is called once more, and the design is compiled with what they say of the noise. A design
        that cannot be had then is asked for once more. `seconds_left` is asked anew for each turn, as a slow planner
        spends the budget too. A planner that declines ends the study here. Raises BadTopic, DesignRefused,
        PlannerFailed; nothing is locked then.
        """
        try:
            self._plan(state, seconds_left)
        except _Ended as end:
            payload = {"reason": DECLINED, "said": end.said.model_dump(mode="json"), "declined": True}
            self._append(EventType.STUDY_CONCLUDED, payload)

    def _plan(self, state: StudyState, seconds_left: Callable[[], float]) -> None:
        context = self._context(state, seconds_left, self._noise_bank(self._log))
        for name in context.requested.brought:
            get_environment(name)  # a planner is shown all that are known
        designed = design_topic(context, self._taking(state, 1), lambda proposal: self._announce(state, proposal))
        if state.noise_plan is None and (plan := designed.noise_plan(self._study)) is not None:
            self._lock_noise(plan, context.compiler.price)
            return
        try:
            self._lock(state, designed)
        except DesignRefused as error:
            if state.noise_plan is None:
                raise
            self._lock(state, design(context, designed.proposal, self._taking(state, 2), error.for_planner))

    def conclusion(self, state: StudyState, seconds_left: float) -> PlannerWords | None:
        """Return the planner's last words, to be quoted; None when it has none, as rules have no voice of their own.

        They are about what the log holds: environments and models that were trained may be gone by now.
        """
        if not state.verdicts:
            return None  # nothing was claimed, so there is nothing to put in words
        context = self._context(state, lambda: seconds_left, NoiseBank())
        digest = replace(
            context.digest(),
            hypotheses=state.hypotheses or (state.design.hypotheses if state.design else ()),
            design=state.design,
            arms=arm_facts(state),
            verdicts=state.verdicts,
            warnings=tuple(dict.fromkeys(line for verdict in state.verdicts for line in verdict.violations)),
        )
        try:
            turn = self._turn(state, "conclude", 1, digest, ActionCheck(context, digest))
        except ResearchError:
            return None
        return None if self._planner.name == RulesPlanner.name else self._said(turn)

    def _context(self, state: StudyState, seconds_left: Callable[[], float], bank: NoiseBank) -> PlanningContext:
        requested = RequestedComparison.of(state.settings)
        compiler = DesignCompiler(
            price=self._pricing().after_noise(state),
            budget=Budget(wall_clock_s=state.budget_s, max_runs=state.settings["max_runs"]),
            runs_made=len(state.runs),
            base=self._base,
            requirements=StatisticalRequirements.of(state.settings),
            bank=bank,
            models=requested.models,
            measured_by=state.noise_plan.metric if state.noise_plan is not None else None,
        )
        notes = tuple(
            quoted((f"note-{a.seq}", a.amendment.reason) for a in state.amendments if a.amendment.kind == "note")
        )
        return PlanningContext(
            state.topic,
            compiler,
            seconds_left,
            requested,
            sandboxing_of(state.settings).isolates,
            notes,
            None if state.design is None else state.design.metric,
        )

    def _announce(self, state: StudyState, proposal: AcceptedProposal) -> None:
        """Append each hypothesis that is not in the log yet."""
        known = {hypothesis.id for hypothesis in state.hypotheses}
        for hypothesis in proposal.hypotheses:
            if hypothesis.id not in known:
                self._append(EventType.HYPOTHESIS_PROPOSED, hypothesis.model_dump(mode="json"))

    def _lock_noise(self, plan: NoisePlan, price: Pricing) -> None:
        job = Job.recorded(plan.job)
        seconds = price.judged(job, plan.judged) if plan.seeds else price.plumbing(job, plan.episodes)
        payload = {"plan": plan.model_dump(mode="json"), "hash": noise_hash(plan), "seconds_per_run": seconds}
        self._append(EventType.NOISE_PLANNED, payload)

    def _lock(self, state: StudyState, designed: EvaluatedDesign) -> None:
        """Lock a design; raise DesignRefused where it is refused, or the A/A runs left its noise unknown."""
        made = state.noise_plan
        left = None if made is None else designed.noise_plan(self._study)
        if made is not None and left is not None and (left.seeds or not _is_of_before(made, left)):
            raise _unknown_noise(state)
        locked = designed.locked(self._study)
        payload = {
            "design": locked.model_dump(mode="json"),
            "hash": write_lock(self._study_folder, locked),
            "file": LOCK_FILE,
        }
        self._append(EventType.DESIGN_LOCKED, payload)

    def _taking(self, state: StudyState, number: int) -> TakeTurn:
        """Return a function that takes a turn of the study, the `number`th of its stage, once."""

        def take(digest: Digest, check: ActionCheck) -> TakenTurn:
            turn = self._turn(state, digest.stage, number, digest, check)
            return TakenTurn(self._action(turn, digest.stage), bytes.fromhex(turn["secret"]))

        return take

    def _action(self, turn: Mapping[str, Any], stage: Stage) -> Action:
        """Return the action of a turn, which is that of the stage unless somebody exchanged the files of turns."""
        action = _ACTION.validate_python(turn["action"])
        if isinstance(action, Decline) and (said := self._said(turn)) is not None:
            raise _Ended(said)
        kind = Propose if stage == "propose" else ProposeDesign
        if not isinstance(action, kind):
            raise HomeError(
                f"expected the planner's turns in {self._folder} as they were taken; found {action.action!r} where "
                f"{kind.__name__} belongs; restore them from a backup"
            )
        return action

    def _said(self, turn: Mapping[str, Any]) -> PlannerWords | None:
        """Return the words with which a turn ends the study; None for a turn that does not."""
        action = _ACTION.validate_python(turn["action"])
        if not isinstance(action, Conclude | Decline):
            return None
        if turn["said"] is not None:
            return PlannerWords.model_validate(turn["said"])
        return PlannerWords(by=who(self._planner.name, self._planner.model), text=action.reason)

    def _turn(
        self, state: StudyState, stage: Stage, number: int, digest: Digest, check: ActionCheck
    ) -> Mapping[str, Any]:
        """Return the planner's turn of this stage and number, taken once, and see that its event is written."""
        path = self._folder / (f"{stage}.json" if number == 1 else f"{stage}-{number}.json")
        turn = _read_turn(path)
        if turn is None:
            turn = self._ask(digest, check)
            write_json(path, turn)
        # A planner that declines takes no other turn: its act stands in the place of the one that was due.
        if sum(act.action in (stage, "decline") for act in state.planner_acts) < number:
            self._append(EventType.PLANNER_ACTED, turn["acted"])
        return turn

    def _ask(self, digest: Digest, check: ActionCheck) -> dict[str, Any]:
        turn = ask(self._planner, digest, check)
        if turn.refused is not None:
            raise turn.refused
        action, said = turn.action.model_dump(mode="json"), None
        if isinstance(turn.action, Conclude | Decline):
            by = who(self._planner.name, self._planner.model)
            said = voiced(by, turn.action.reason, digest).model_dump(mode="json")
        return {"acted": turn.payload(), "action": action, "secret": self._draw_secret(32), "said": said}

    def _append(self, type: EventType, payload: Mapping[str, Any]) -> None:
        self._record.append(type, payload, actor="planner" if type is EventType.PLANNER_ACTED else "system")


def _is_of_before(made: NoisePlan, left: NoisePlan) -> bool:
    """Return whether a plan that was made asked for no run with a learning rate of 0, as plans once did not."""
    machinery = [(plan.environment, model_key(Job.recorded(plan.job))) for plan in (made, left)]
    return made.plumbing is None and machinery[0] == machinery[1]


def _unknown_noise(state: StudyState) -> DesignRefused:
    runs = state.runs_in("noise")
    measured = sum(run.status == "collected" for run in runs)
    codes = Counter(run.invalid[0] for run in runs if run.invalid is not None)
    why = ", ".join(f"{count} {code}" for code, count in sorted(codes.items()))
    wanted = "A/A runs that show the noise of the design"
    fallen = sum(collapsed(run) for run in runs)
    if fallen:
        why = ", ".join(filter(None, [f"{fallen} of them collapsed, which are no noise", why]))
    still = plumbing_run(state)
    if still is not None and still.status == "collected" and conditions(still).stillness is None:
        why = ", ".join(filter(None, ["what its weights did at a learning rate of 0 was not recorded", why]))
    if state.noise_plan is not None and state.noise_plan.plumbing is not None:
        wanted = f"{wanted}, and a training with a learning rate of 0 that changes nothing"
    told = (
        f"expected {wanted}; found {measured} of {len(runs)} measured, of "
        f"{state.noise_plan.environment if state.noise_plan else 'nothing'}{f' ({why})' if why else ''}"
    )
    return DesignRefused(
        f"{told}; look at them with `ajet study show {state.id}`, and start a new study{_again(fallen)}",
        for_planner=f"{told}; design the job that they were runs of, or decline",
    )


def _again(fallen: int) -> str:
    """Return what helps where A/A runs collapsed."""
    return ", which counts these runs too, or steady the job first (a lower learning rate, say)" if fallen else ""


def arm_facts(state: StudyState) -> tuple[ArmFacts, ...]:
    """Return what is measured of each arm of the design, by runs of the confirmation that did not collapse."""
    fallen = collapsed_runs(state)
    return tuple(
        _facts(arm.name, [value for run, value in state.values(arm.name).items() if run not in fallen])
        for arm in (state.design.arms if state.design is not None else ())
    )


def _facts(name: str, values: Sequence[float]) -> ArmFacts:
    if not values:
        return ArmFacts(name, 0)
    interval = mean_interval(values)
    ends = (interval.low, interval.high) if interval is not None else (None, None)
    return ArmFacts(name, len(values), fmean(values), *ends)


def _read_turn(path: Path) -> dict[str, Any] | None:
    """Return a turn that was taken before, None if none was; HomeError for a file that is no turn any more."""
    try:
        turn = read_json(path)
        if turn is None:
            return None
        _ACTION.validate_python(turn["action"])
        bytes.fromhex(turn["secret"])
        said = turn.get("said")  # turns of before it was kept have none
        if said is not None:
            PlannerWords.model_validate(said)
        return {"acted": dict(turn["acted"]), "action": turn["action"], "secret": turn["secret"], "said": said}
    except (ValueError, KeyError, TypeError) as error:
        raise HomeError(
            f"expected a planner's turn in {path}; found something else; restore it from a backup, or remove it to "
            "have the planner asked again"
        ) from error

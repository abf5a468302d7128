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
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TypedDict, TypeVar

from pydantic import TypeAdapter

from research.design import accept_hypotheses, compile_design, noise_plan, proposed_code, refusal, seed_source
from research.errors import DesignRefused, HomeError, PlannerFailed, ResearchError
from research.files import read_json, write_json
from research.home import Home
from research.noise_bank import NoiseBank, collapsed, model_key
from research.planner.actions import Action, Conclude, Decline, Propose, ProposeDesign
from research.planner.digest import ArmFacts, Digest, Stage
from research.planner.protocol import Planner
from research.planner.quoted import quoted
from research.planner.rules import RulesPlanner, environment_asked
from research.planner.stated import DECLINABLE
from research.planner.voice import voiced
from research.pricing import Pricing
from research.sandboxing import sandboxing_of
from research.sizing import metric_of
from research.terms import Terms
from research.wanted import Wanted
from studies import EventLog, EventType, StudyLog, StudyState
from studies.judging import collapsed_runs
from studies.lock import LOCK_FILE, write_lock
from studies.plumbing import conditions, plumbing_run
from studies.procedure import Noise, NoisePlan
from studies.records import Budget, Design, Hypothesis
from studies.said import Said, who
from studies.specs import noise_hash
from studies.statistics import mean_interval
from swarm.environments.registry import environments
from swarm.job import Job

_ACTION: TypeAdapter[Action] = TypeAdapter(Action)
_Planned = TypeVar("_Planned", Propose, ProposeDesign)
DrawSecret = Callable[[int], str]
"""Returns so many random bytes in hex."""


DECLINED = "the planner declined the topic: nothing was tested"


class _Ended(Exception):
    """The planner declines."""

    def __init__(self, said: Said) -> None:
        super().__init__(said.text)
        self.said = said


class Planning:
    """Asks the planner of one study and writes what comes of it. `base` is the job under all arms."""

    def __init__(
        self,
        home: Home,
        log: EventLog,
        record: StudyLog,
        planner: Planner,
        pricing: Pricing,
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
        asking = _Asking(
            state, self._pricing.after_noise(state), self._noise_bank(self._log), Terms.of(state.settings), seconds_left
        )
        proposal = self._proposed(asking)
        asking.accepted, asking.search = self._announced(state, proposal), proposal.search
        asking.not_tested = proposal.not_tested
        code = proposed_code(proposal)
        wish, secret = self._wish(asking, 1)
        if state.noise_plan is None and (plan := self._noise_first(asking, wish, secret)) is not None:
            self._lock_noise(plan, asking.price)
            return
        try:
            design = self._compiled(asking, wish, secret, code)
        except DesignRefused as error:
            if state.noise_plan is None:
                raise
            asking.refused = error.for_planner
            design = self._compiled(asking, *self._wish(asking, 2), code)
        lock = write_lock(self._study_folder, design)
        payload = {"design": design.model_dump(mode="json"), "hash": lock, "file": LOCK_FILE}
        self._append(EventType.DESIGN_LOCKED, payload)

    def conclusion(self, state: StudyState, seconds_left: float) -> Said | None:
        """Return the planner's last words, to be quoted; None when it has none, as rules have no voice of their own."""
        if not state.verdicts:
            return None  # nothing was claimed, so there is nothing to put in words
        price = self._pricing.after_noise(state)
        asking = _Asking(state, price, NoiseBank(), Terms.of(state.settings), lambda: seconds_left)
        asking.accepted = state.hypotheses or (state.design.hypotheses if state.design else ())
        try:
            turn = self._turn(asking, "conclude", "conclude", 1)
        except ResearchError:
            return None
        return None if self._planner.name == RulesPlanner.name else self._said(turn)

    def _proposed(self, asking: _Asking) -> Propose:
        return self._action(self._turn(asking, "propose", "propose", 1), Propose)

    def _announced(self, state: StudyState, proposal: Propose) -> tuple[Hypothesis, ...]:
        """Return the hypotheses as records, and see that each has its event."""
        accepted = accept_hypotheses(proposal)
        known = {hypothesis.id for hypothesis in state.hypotheses}
        for hypothesis in accepted:
            if hypothesis.id not in known:
                self._append(EventType.HYPOTHESIS_PROPOSED, hypothesis.model_dump(mode="json"))
        return accepted

    def _wish(self, asking: _Asking, number: int) -> tuple[ProposeDesign, bytes]:
        """Return the planner's design of this number, and the secret that its seeds follow from."""
        turn = self._turn(asking, "design" if number == 1 else f"design-{number}", "design", number)
        return self._action(turn, ProposeDesign), bytes.fromhex(turn["secret"])

    def _action(self, turn: Mapping[str, Any], kind: type[_Planned]) -> _Planned:
        """Return the action of a turn, which is of this kind unless somebody exchanged the files of turns."""
        action = _ACTION.validate_python(turn["action"])
        if isinstance(action, Decline) and (said := self._said(turn)) is not None:
            raise _Ended(said)
        if not isinstance(action, kind):
            raise HomeError(
                f"expected the planner's turns in {self._folder} as they were taken; found {action.action!r} where "
                f"{kind.__name__} belongs; restore them from a backup"
            )
        return action

    def _said(self, turn: Mapping[str, Any]) -> Said | None:
        """Return the words with which a turn ends the study; None for a turn that does not."""
        action = _ACTION.validate_python(turn["action"])
        if not isinstance(action, Conclude | Decline):
            return None
        if turn["said"] is not None:
            return Said.model_validate(turn["said"])
        return Said(by=who(self._planner.name, self._planner.model), text=action.reason)

    def _noise_first(self, asking: _Asking, wish: ProposeDesign, secret: bytes) -> NoisePlan | None:
        return noise_plan(
            asking.accepted, wish, draw_seed=seed_source(f"{self._study}:noise", secret), **self._means(asking)
        )

    def _lock_noise(self, plan: NoisePlan, price: Pricing) -> None:
        job = Job.recorded(plan.job)
        seconds = price.run(job, plan.episodes) if plan.seeds else price.plumbing(job, plan.episodes)
        payload = {"plan": plan.model_dump(mode="json"), "hash": noise_hash(plan), "seconds_per_run": seconds}
        self._append(EventType.NOISE_PLANNED, payload)

    def _compiled(self, asking: _Asking, wish: ProposeDesign, secret: bytes, code: Mapping[str, str]) -> Design:
        made = asking.state.noise_plan
        left = None if made is None else self._noise_first(asking, wish, secret)
        if made is not None and left is not None and (left.seeds or not _is_of_before(made, left)):
            raise _unknown_noise(asking.state)
        draw, means = seed_source(self._study, secret), self._means(asking)
        return compile_design(asking.state.topic, asking.accepted, wish, draw_seed=draw, code=code, **means)

    def _means(self, asking: _Asking) -> _Means:
        state = asking.state
        return {
            "price": asking.price,
            "budget": Budget(wall_clock_s=state.budget_s, max_runs=state.settings["max_runs"]),
            "seconds_left": asking.seconds_left(),
            "runs_made": len(state.runs),
            "base": self._base,
            "terms": asking.terms,
            "bank": asking.bank,
        }

    def _turn(self, asking: _Asking, name: str, action: Stage, number: int) -> Mapping[str, Any]:
        """Return the planner's turn of this name, taken once, and see that its event (of that number) is written."""
        path = self._folder / f"{name}.json"
        turn = _read_turn(path)
        if turn is None:
            turn = self._ask(asking)
            write_json(path, turn)
        # A planner that declines takes no other turn: its act stands in the place of the one that was due.
        if sum(act.action in (action, "decline") for act in asking.state.planner_acts) < number:
            self._append(EventType.PLANNER_ACTED, turn["acted"])
        return dict(turn)

    def _ask(self, asking: _Asking) -> dict[str, Any]:
        digest = self._digest(asking)

        def check(action: Action) -> DesignRefused | None:
            if action.action != digest.stage and not (isinstance(action, Decline) and digest.stage in DECLINABLE):
                return DesignRefused(f"expected the action {digest.stage!r} now; found {action.action!r}")
            if isinstance(action, ProposeDesign) and (action.screen is not None) != digest.search:
                told = ("a screen, as a search was proposed", "none") if digest.search else ("no screen", "one")
                return DesignRefused(
                    f"expected {told[0]}; found {told[1]}; a proposal with `search` is what a screen follows from"
                )
            if isinstance(action, ProposeDesign) and (other := digest.wanted.refuses(action.environment)) is not None:
                return other
            return refusal(
                action, digest.hypotheses, code_allowed=digest.code_allowed,
                environment=environment_asked(digest.topic, digest.wanted), **self._means(asking),
            )  # fmt: skip

        turn = self._planner.act(digest, check)
        if (wrong := check(turn.action)) is not None:
            raise PlannerFailed(f"the planner {self._planner.name} gave an action that is refused: {wrong.message}")
        action, said = turn.action.model_dump(mode="json"), None
        if isinstance(turn.action, Conclude | Decline):
            by = who(self._planner.name, self._planner.model)
            said = voiced(by, turn.action.reason, digest).model_dump(mode="json")
        return {"acted": turn.payload(), "action": action, "secret": self._draw_secret(32), "said": said}

    def _digest(self, asking: _Asking) -> Digest:
        state = asking.state
        return Digest(
            topic=state.topic,
            seconds_left=asking.seconds_left(),
            seconds_per_run=asking.price.run(self._base, asking.terms.episodes),
            parallel=asking.price.parallel,
            max_runs=state.settings["max_runs"],
            effect=asking.terms.effect,
            noise=self._noise(asking) if state.design is None else {},
            hypotheses=asking.accepted,
            not_tested=asking.not_tested,
            search=asking.search,
            design=state.design,
            arms=arm_facts(state),
            verdicts=state.verdicts,
            warnings=tuple(dict.fromkeys(line for verdict in state.verdicts for line in verdict.violations)),
            notes=quoted((f"note-{a.seq}", a.amendment.reason) for a in state.amendments if a.amendment.kind == "note"),
            rejected=asking.refused,
            wanted=Wanted.of(state.settings),
            code_allowed=sandboxing_of(state.settings).isolates,
        )

    def _noise(self, asking: _Asking) -> dict[str, Noise]:
        episodes = asking.terms.episodes
        found = {name: asking.bank.find(name, self._base, metric_of(name, episodes)) for name in environments()}
        return {name: noise for name, noise in found.items() if noise is not None}

    def _append(self, type: EventType, payload: Mapping[str, Any]) -> None:
        self._record.append(type, payload, actor="planner" if type is EventType.PLANNER_ACTED else "system")


@dataclass(slots=True)
class _Asking:
    """What the turns of one call on the planner share; it grows as they are taken."""

    state: StudyState
    price: Pricing
    """The price list, by what the study's A/A runs took where there were any."""
    bank: NoiseBank
    terms: Terms
    seconds_left: Callable[[], float]
    accepted: tuple[Hypothesis, ...] = ()
    search: bool = False
    not_tested: str = ""
    refused: str | None = None
    """Why the design before was refused."""


class _Means(TypedDict):
    """What the compiler judges a wish by."""

    price: Pricing
    budget: Budget
    seconds_left: float
    runs_made: int
    base: Job
    terms: Terms
    bank: NoiseBank


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
            Said.model_validate(said)
        return {"acted": dict(turn["acted"]), "action": turn["action"], "secret": turn["secret"], "said": said}
    except (ValueError, KeyError, TypeError) as error:
        raise HomeError(
            f"expected a planner's turn in {path}; found something else; restore it from a backup, or remove it to "
            "have the planner asked again"
        ) from error

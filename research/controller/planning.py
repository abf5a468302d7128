"""From a topic to a locked design: the planner's turns, each asked for once, and the events they become.

A turn is written to the study's folder before its first event, so that a controller killed in between continues with
the same answer (and, for a design, the same seeds) instead of paying for another. Once a design is locked nothing here
fails for want of a model.
"""

import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from pydantic import BaseModel, Field

from research.controller import evaluation
from research.controller.evaluation import ActionCheck, PlanningInputs
from research.design.comparison import StatisticalRequirements
from research.design.compiler import DesignCompiler, PricedExploration, draw_distinct, seed_source, zero_lr_plan
from research.design.known_findings import KnownFinding
from research.design.noise_bank import NoiseBank, model_key
from research.design.pricing import Pricing
from research.errors import BadTopic, DesignRefused, NotReady, PlannerFailed, TopicDeclined
from research.files import read_json, write_json
from research.installation.home import Home
from research.isolation.mode import UNISOLATED, Isolation, read_sandboxing
from research.planners.analysis import AnalyseRequest, try_code
from research.planners.context import Planner, PlannerContext, PlannerTurn, Stage
from research.planners.history import CampaignFacts, Notebook, list_explorations, quote_latest
from research.planners.looks import LOOKS, collect_recorded
from research.planners.memory import PapersRequest, PriorsRequest
from research.planners.rules import RulesPlanner
from research.planners.tools import MOST_FINDINGS, StudyTools, ToolRequest, find_related, shows_hidden_plays
from research.proposals import actions
from research.proposals.flags import ParsedTopic, RequestedComparison
from research.scheduler.steps import UNLOCKED
from studies import EventLog, EventType, RunState, StudyLog, StudyState
from studies.checks.conditions import find_zero_lr_run, list_untrained_runs
from studies.errors import ReportError
from studies.log.event_log import lock_name, write_lock
from studies.log.study import ASK_RULE, PAPERS
from studies.records.alpha import AlphaLedgers
from studies.records.design import Budget, Design, NoisePlan, task_seed_of
from studies.records.verdict import ANALYSE, PlannerMessage, Reproduction, WrittenAnswer, planner_label
from studies.report.answer import score_plan
from studies.report.evidence import gather
from studies.report.prose import quote_held
from studies.report.summary import IN_WORDS
from studies.report.validity import surprises
from swarm.environments.registry import get_environment
from swarm.job import Job

_VOICES: Final = (EventType.PLANNER_ACTED, EventType.PLANNER_NOTED, EventType.PLANNER_ASKED)
"""Events of which the planner is the actor."""
DrawSecret = Callable[[int], str]
"""Returns so many random bytes in hex."""

_TRIES = 3
"""Questions that a planner may ask for a round before there is none."""
_MOST_TRIES = 2 * _TRIES
"""The same of a planner that fails and of the rules that ask in its place."""
DECLINED = "the planner declined the topic: nothing was tested"


@dataclass(frozen=True, slots=True)
class TurnId:
    """One turn: it is taken once, and found again by its place."""

    round: int
    stage: Stage
    number: int
    """Which of its stage and round, from 1."""

    @property
    def key(self) -> str:
        return f"{self.round}/{self.stage}/{self.number}"

    @classmethod
    def parse(cls, key: str) -> "TurnId":
        number, stage, index = key.split("/")
        return cls(int(number), cast(Stage, stage), int(index))

    def path(self, folder: Path) -> Path:
        name = f"{self.stage}.json" if self.number == 1 else f"{self.stage}-{self.number}.json"
        return folder / name if self.round == 1 else folder / f"round-{self.round}" / name

    def is_recorded(self, state: StudyState) -> bool:
        """Return whether its event is in the log; events of earlier versions do not name their turn."""
        if any(act.turn == self.key for act in state.planner_acts):
            return True
        unnamed = [act for act in state.planner_acts if not act.turn]
        return self.round == 1 and sum(act.action in (self.stage, "decline") for act in unnamed) >= self.number


class RecordedTurn(BaseModel):
    """A turn as it lies in the study's folder; those of earlier versions have neither `said`, `looks` nor `asides`."""

    acted: dict[str, Any]
    action: actions.Action
    secret: str = Field(pattern=r"^([0-9a-fA-F]{2})*$")
    said: PlannerMessage | None = None
    looks: list[dict[str, Any]] = []
    asides: list[actions.SideAction] = []


class _ExplorationRequest(Exception):
    def __init__(self, action: actions.Explore, place: TurnId, secret: bytes) -> None:
        super().__init__(action.why)
        self.action, self.place, self.secret = action, place, secret


class Planning:
    """Asks the planner of one study and writes what comes of it; prices and noise are read at each compilation."""

    def __init__(
        self, home: Home, log: EventLog, record: StudyLog, planner: Planner, pricing: Callable[[], Pricing], base: Job,
        draw_secret: DrawSecret = secrets.token_hex, noise_bank: Callable[[EventLog], NoiseBank] = NoiseBank.of,
        known: Callable[[], Sequence[KnownFinding]] = tuple, isolation: Isolation = UNISOLATED,
    ) -> None:  # fmt: skip
        self._log, self._record, self._study = log, record, record.study
        self.planner, self._pricing, self._base, self._isolation = planner, pricing, base, isolation
        self._draw_secret, self._noise_bank, self._known = draw_secret, noise_bank, known
        self.study_folder, self._models = home.study(record.study), home.models
        self._folder = self.study_folder / "planning"

    def plan(self, state: StudyState, seconds_left: Callable[[], float]) -> str | None:
        """Propose, design, and lock the design or the run that it waits for, after which it is called once more.
        `seconds_left` is asked anew for each turn: a slow planner spends the budget too. Returns why a round after the
        first is given up, if it is; raises BadTopic, DesignRefused and PlannerFailed in the first."""
        try:
            self._plan(state, seconds_left)
        except TopicDeclined as end:
            said = end.said.model_dump(mode="json")
            if state.round == 1:
                payload = {"reason": DECLINED, "said": said, "declined": True}
            else:
                payload = {"reason": f"round {state.round} {UNLOCKED}: its planner ended it", "said": said}
            self._append(EventType.STUDY_CONCLUDED, payload)
        except (BadTopic, DesignRefused, PlannerFailed) as error:
            if state.round == 1:
                raise
            return f"round {state.round} {UNLOCKED}: {error}"
        return None

    def begin_round(self, state: StudyState, seconds_left: Callable[[], float]) -> None:
        """Begin the next round with the planner's question, or write down why there is none. A refused question goes
        back to it with the reason, three tries in all. Where no model answers, the rules ask."""
        planner, refused, last = self.planner, list[str](), ""
        number = max(_exploring_turns(state, state.round + 1), default=0)
        tries = number + _TRIES
        while number < tries:
            number += 1
            campaign = replace(CampaignFacts.of(state, self._find_surprises), refused=tuple(refused))
            inputs = self.set_round(self.build_inputs(state, seconds_left), state, campaign)
            taking = self.make_turn_taker(state, number, campaign.round, planner)
            try:
                designed = evaluation.design_topic(inputs, taking)
                designed.get_compiled()
            except _ExplorationRequest as wish:
                if (last := self._explore(inputs, wish)) == "":
                    return
                refused.append(last)
            except TopicDeclined as end:
                if not (refused and planner.name == RulesPlanner.name):  # which has then asked all that it can
                    last, refused = f"{IN_WORDS}{quote_held(end.said, state.rounds)}", []
                break
            except PlannerFailed as error:
                last = error.reason or str(error)
                if error.reason is not None or planner is not self.planner:
                    refused.append(last)
                    continue
                planner, refused, tries = RulesPlanner(), [], number + _TRIES
            except (BadTopic, DesignRefused) as error:
                last = str(error)
                refused.append(last)
            else:
                why = designed.proposal.action.why.strip() or designed.proposal.turn.note
                if planner is not self.planner:
                    why = f"No model answers ({last}), so the rules ask. {why}"
                payload = {"number": campaign.round, "previous": state.design_hash, "why": why, "try": number}
                self._append(EventType.ROUND_BEGUN, payload)
                return
        reason = f"no further question could be had within level and budget: {last}" if refused else last
        self._append(EventType.DECISION_TAKEN, {"rule": ASK_RULE, "action": "end", "reason": reason})

    def _explore(self, inputs: PlanningInputs, wish: _ExplorationRequest) -> str:
        """Plan what the planner wants to see first; return why it cannot be had any more, empty where it can."""
        try:
            priced = ActionCheck(inputs, inputs.build_context()).price_exploration(wish.action)
        except DesignRefused as error:  # the time went by
            return str(error)
        seeds = seed_source(f"{self._study}/{wish.place.key}", wish.secret)
        self._announce_exploration(priced, seeds, inputs.compiler.used, wish.place)
        return ""

    def _announce_exploration(
        self, priced: PricedExploration, draw_seed: Callable[[], int], used: frozenset[int], turn: TurnId
    ) -> None:
        plan = priced.plan(draw_seed, used)
        payload = {"plan": plan.model_dump(mode="json"), "hash": plan.hash(), "turn": turn.key}
        self._append(EventType.EXPLORATION_PLANNED, {**payload, "seconds_per_run": priced.seconds_per_run})

    def _find_surprises(self, state: StudyState) -> Iterator[str]:
        try:
            evidence = gather(state, self.study_folder)
            steady = tuple(metric for metric in evidence.others if metric.kind != "seconds")  # a replay has other ones
            yield from surprises(state, replace(evidence, others=steady))
        except ReportError as error:  # the report will refuse; a question can still be asked
            yield f"its files could not be read again: {error}"

    def set_round(self, inputs: PlanningInputs, state: StudyState, campaign: CampaignFacts) -> PlanningInputs:
        """Return the inputs for the round after those of `campaign`, with the level that is left."""
        last = state if state.design_hash is not None else state.rounds_before[-1]
        used = inputs.compiler.used.union(*(before.seeds_used for before in (*last.rounds, *last.given_up)))
        compiler = replace(
            inputs.compiler, ledgers=campaign.ledgers, previous=str(last.design_hash), used=used,
            tried=inputs.compiler.tried and campaign.round == state.round,
        )  # fmt: skip
        return replace(inputs, compiler=compiler, campaign=campaign, locked=None)

    def _plan(self, state: StudyState, seconds_left: Callable[[], float]) -> None:
        inputs = self.build_inputs(state, seconds_left)
        if (reproduced := state.reproduces) is not None:
            self._lock_again(state, inputs.compiler, reproduced)
            return
        if state.round > 1:
            inputs = self.set_round(inputs, state, CampaignFacts.of(state.rounds_before[-1], self._find_surprises))
        tries = [TurnId.parse(act.turn) for act in state.planner_acts if act.turn]
        taken = (turn.number for turn in tries if (turn.round, turn.stage) == (state.round, "propose"))
        number = state.question_try or max(taken, default=1)
        if state.round == 1:  # after the turn that asked for the last exploration
            number = max(_exploring_turns(state, 1), default=0) + 1
        for name in inputs.wanted.custom_environments:
            get_environment(name)  # a planner is shown all that are known

        def announce(proposal: evaluation.AcceptedProposal) -> None:
            if state.explores:  # nothing is claimed
                return
            known = {hypothesis.id for hypothesis in state.hypotheses}
            for hypothesis in proposal.hypotheses:
                if hypothesis.id not in known:
                    self._append(EventType.HYPOTHESIS_PROPOSED, hypothesis.model_dump(mode="json"))

        try:
            designed = evaluation.design_topic(inputs, self.make_turn_taker(state, number), announce)
        except _ExplorationRequest as wish:
            if self._explore(inputs, wish) == "":
                return
            number += 1
            asked = replace(inputs, explored=None)
            designed = evaluation.design_topic(asked, self.make_turn_taker(state, number), announce)
        if state.explores:
            explored = designed.get_compiled().explore(state.topic[:500])
            seeds = seed_source(self._study, designed.secret)
            self._announce_exploration(explored, seeds, inputs.compiler.used, TurnId(1, "design", number))
            return
        if state.noise_plan is None and (plan := designed.noise_plan(self._seed_scope(state))) is not None:
            self._append_noise(plan, designed.get_compiled().compiler.price)
            return
        try:
            self._lock(state, inputs, designed)
        except DesignRefused as error:
            if state.noise_plan is None:
                raise
            again = self.make_turn_taker(state, number + (1 if state.round == 1 else _MOST_TRIES))
            designed = evaluation.design_proposal(inputs, designed.proposal, again, error.model_feedback)
            self._lock(state, inputs, designed)

    def build_inputs(
        self, state: StudyState, seconds_left: Callable[[], float], bank: NoiseBank | None = None
    ) -> PlanningInputs:
        """Return what the study is planned by now; `bank` defaults to this installation's."""
        requested, every, own = RequestedComparison.of(state.settings), self._known(), model_key(self._base)
        compiler = DesignCompiler(
            price=self._pricing().after_noise(state),
            budget=Budget(wall_clock_s=state.budget_s, max_runs=state.settings["max_runs"]),
            runs_made=len(state.every_run), base=self._base,
            requirements=(requirements := StatisticalRequirements.of(state.settings)),
            bank=self._noise_bank(self._log) if bank is None else bank,
            ledgers=AlphaLedgers.begin(requirements.rounds or 1), models=requested.models, explores=state.explores,
            measured_by=state.noise_plan.metric if state.noise_plan is not None else None, study=self._study,
            untrained=tuple(run.spec for run in list_untrained_runs(state)), tried=state.noise_plan is not None,
            used=frozenset(seed for tried in state.explorations for seed in tried.plan.seeds),
        )  # fmt: skip
        looks: dict[str, type[ToolRequest]] = {**LOOKS, ANALYSE: AnalyseRequest, "priors": PriorsRequest}
        looks |= {"papers": PapersRequest} if PAPERS in state.settings else {}
        tools = partial(
            StudyTools, state, self.study_folder, wanted=requested, looks=looks, known=every,
            isolation=self._isolation, models=self._models,
        )  # fmt: skip
        notes = tuple(
            quote_latest((f"note-{a.seq}", a.amendment.reason) for a in state.amendments if a.amendment.kind == "note")
        )
        due = state.round if state.design is None else state.round + 1
        return PlanningInputs(
            state.topic, compiler, seconds_left, None if state.design is None else state.design.metric,
            lambda inputs: tools(compiler=inputs.current_compiler, price=inputs.price),
            try_code=partial(try_code, state.id, self._isolation, partial(collect_recorded, state, self.study_folder)),
            code_allowed=read_sandboxing(state.settings).isolates and not state.explores, wanted=requested,
            parsed=ParsedTopic.of(state.settings), notes=notes, notebook=Notebook(state.notebook, score_plan(state)),
            findings=find_related(every, self._study, state.topic, MOST_FINDINGS),
            known=[entry for entry in every if entry.conditions.model_key == own],
            tokens_spent={
                kind: sum(act.tokens.get(kind, 0) for act in state.planner_acts) for kind in ("prompt", "completion")
            },
            explorations=list_explorations(state),
            explored=None if state.explores else len(_exploring_turns(state, due)),
            plays_seen=any(shows_hidden_plays(look) for act in state.planner_acts for look in act.tool_calls),
        )  # fmt: skip

    def _lock(self, state: StudyState, inputs: PlanningInputs, designed: evaluation.EvaluatedDesign) -> None:
        plan = state.noise_plan
        if plan is not None:  # its run with a learning rate of 0 may be lost: runs are then evaluated for themselves
            compiled = designed.get_compiled()
            alike = plan.environment, model_key(Job.from_record(plan.job))
            # plans once asked for no run at a rate of 0
            legacy = plan.plumbing is None and alike == (compiled.job.environment, model_key(compiled.job))
            if compiled.compiler.bank.needs_zero_lr_check(compiled.job) and not legacy:
                raise _refuse_unchecked(state)
        locked = evaluation.plan_rounds(inputs, designed).build_lock(self._seed_scope(state))
        self._append_lock(locked, lock_name(state.round))

    def _append_noise(self, plan: NoisePlan, price: Pricing) -> None:
        seconds = price.plumbing(Job.from_record(plan.job), plan.episodes)
        payload = {"plan": plan.model_dump(mode="json"), "hash": plan.hash(), "seconds_per_run": seconds}
        self._append(EventType.NOISE_PLANNED, payload)

    def _lock_again(self, state: StudyState, compiler: DesignCompiler, again: Reproduction) -> None:
        """Lock what a study reproduces on seeds of its own, once a run that must not learn was made."""
        design, job = again.design, Job.from_record(again.design.base_job)
        draw = seed_source(self._study, bytes.fromhex(self._draw_secret(32)))
        still, *seeds = draw_distinct(draw, 1 + len(design.seeds), frozenset(design.seeds))
        locked = again.lock_again(seeds, task_seed_of(self._study, design.environment), compiler.budget)
        for claim in design.hypotheses[len(state.hypotheses) :]:
            self._append(EventType.HYPOTHESIS_PROPOSED, claim.model_dump(mode="json"))
        if state.noise_plan is None and compiler.makes_zero_lr_run(job):
            self._append_noise(zero_lr_plan(job, locked.metric, still), compiler.price)
            return
        if state.noise_plan is not None and compiler.bank.needs_zero_lr_check(job):
            raise _refuse_unchecked(state)
        self._append_lock(locked, lock_name(state.round))

    def lock_repair(self, state: StudyState, crash: RunState, turn: RecordedTurn) -> None:
        """Lock a question anew with the code that a turn repaired, on seeds that nothing had before."""
        before, number, action = state.locked_design, len(state.abandoned) + 1, turn.action
        assert before is not None
        assert isinstance(action, actions.Repair)
        draw = seed_source(f"{self._seed_scope(state)}/repair-{number}", bytes.fromhex(turn.secret))
        used = frozenset().union(*(each.seeds_used for each in state.every_round))
        changed = {
            "code": {**before.code, before.arm(crash.spec.arm).code: action.code},
            "seeds": draw_distinct(draw, len(before.seeds), used), "repaired": state.design_hash,
        }  # fmt: skip
        self._append_lock(before.model_copy(update=changed), lock_name(state.round, number))

    def _append_lock(self, locked: Design, name: str) -> None:
        lock = write_lock(self.study_folder, locked, name)
        self._append(EventType.DESIGN_LOCKED, {"design": locked.model_dump(mode="json"), "hash": lock, "file": name})

    def _seed_scope(self, state: StudyState) -> str:
        """Return what seeds are drawn for: every round has its own, so that no claim rests on an earlier one's runs."""
        return self._study if state.round == 1 else f"{self._study}/{state.round}"

    def make_turn_taker(
        self, state: StudyState, number: int, round: int | None = None, planner: Planner | None = None
    ) -> evaluation.TakeTurn:
        """Return a function that takes the `number`th turn of a stage of the present round, once."""

        def take(context: PlannerContext, check: ActionCheck) -> tuple[PlannerTurn, bytes]:
            place = TurnId(round or state.round, context.stage, number)
            turn = self.take_turn(state, place, context, check, planner)
            action, secret, proposing = turn.action, bytes.fromhex(turn.secret), context.stage == "propose"
            if proposing and isinstance(action, actions.Explore):
                raise _ExplorationRequest(action, place, secret)
            ended = isinstance(action, actions.Conclude | actions.Decline)
            if ended and (message := self.parse_final_message(turn)) is not None:
                raise TopicDeclined(message)
            kind = actions.Propose if proposing else actions.ProposeDesign
            if not isinstance(action, kind) and not (proposing and isinstance(action, actions.Replicate)):
                raise NotReady(
                    f"expected the planner's turns in {self._folder} as they were taken; found {action.action!r} where "
                    f"{kind.__name__} belongs; restore them from a backup"
                )
            return PlannerTurn(action, note=str(turn.acted["note"]), tried=tuple(turn.acted.get("tried", ()))), secret

        return take

    def parse_final_message(self, turn: RecordedTurn) -> PlannerMessage | None:
        if not isinstance(turn.action, actions.Conclude | actions.Decline | actions.Write):
            return None
        by = planner_label(self.planner.name, self.planner.model)
        old = turn.action.answer if isinstance(turn.action, actions.Write) else turn.action.reason
        return turn.said or PlannerMessage(by=by, text=old)

    def take_turn(
        self, state: StudyState, place: TurnId, context: PlannerContext, check: ActionCheck,
        planner: Planner | None = None,
    ) -> RecordedTurn:  # fmt: skip
        """Return the planner's turn in this place, taken once, and see that its event is written."""
        path = place.path(self._folder)
        turn = read_turn(path)
        if turn is None:
            try:
                taken = self._ask_planner(planner or self.planner, context, check)
            except PlannerFailed as error:
                if error.spent is not None and (error.spent["looks"] or error.spent.get("spent")):
                    self._append(EventType.PLANNER_ACTED, error.spent)
                raise
            turn = read_turn(path)  # a controller that took this one's place meanwhile has asked too, and went on
            if turn is None:
                write_json(path, taken)
                turn = RecordedTurn.model_validate(taken)
        if not place.is_recorded(state):
            known = {note.index for note in state.notebook if note.turn == place.key}
            for index, aside in enumerate(turn.asides):
                if index not in known:
                    event = EventType.PLANNER_ASKED if aside.action == "ask" else EventType.PLANNER_NOTED
                    words = aside.model_dump(mode="json", exclude={"action"})
                    self._append(event, {**words, "turn": place.key, "index": index})
            self._append(EventType.PLANNER_ACTED, {**turn.acted, "turn": place.key})
        return turn

    def _ask_planner(self, planner: Planner, context: PlannerContext, check: ActionCheck) -> dict[str, Any]:
        turn = evaluation.ask_planner(planner, context, check)
        if turn.refused is not None and not isinstance(turn.action, actions.Write):  # which is printed with marks
            raise turn.refused
        action, said, beside = turn.action.model_dump(mode="json"), None, None
        if isinstance(turn.action, actions.Write):
            beside = WrittenAnswer.model_validate(turn.action.model_dump(include={"mechanism", "limits", "figures"}))
        if text := getattr(turn.action, "answer", "") or getattr(turn.action, "reason", ""):
            by = planner_label(planner.name, planner.model)
            said = PlannerMessage(by=by, text=text, unfounded=(), answer=beside).model_dump(mode="json")
        return {
            "acted": turn.payload(), "action": action, "secret": self._draw_secret(32), "said": said,
            "looks": [asdict(look) for look in turn.tool_results],
            "asides": [aside.model_dump(mode="json") for aside in turn.side_actions],
        }  # fmt: skip

    def _append(self, type: EventType, payload: Mapping[str, Any]) -> None:
        self._record.append(type, payload, actor="planner" if type in _VOICES else "system")


def _exploring_turns(state: StudyState, round: int) -> list[int]:
    return [TurnId.parse(tried.turn).number for tried in state.explorations if tried.round == round]


def _refuse_unchecked(state: StudyState) -> DesignRefused:
    runs = state.runs_in("noise")
    measured = sum(run.status == "collected" for run in runs)
    codes = Counter(run.invalid[0] for run in runs if run.invalid is not None)
    why = ", ".join(f"{count} {code}" for code, count in sorted(codes.items()))
    still = find_zero_lr_run(state)
    if still is not None and still.status == "collected" and not (still.conditions and still.conditions.stillness):
        why = ", ".join(filter(None, ["what its weights did at a learning rate of 0 was not recorded", why]))
    told = (
        f"expected a training with a learning rate of 0 that changes nothing; found {measured} of "
        f"{len(runs)} runs measured, of {state.noise_plan.environment if state.noise_plan else 'nothing'}"
        f"{f' ({why})' if why else ''}"
    )
    return DesignRefused(
        f"{told}; look at them with `ajet study show {state.id}`, and start a new study",
        model_feedback=f"{told}; design the job that they were runs of, or decline",
    )


def read_turn(path: Path) -> RecordedTurn | None:
    """Return a turn that was taken before, None if none was; raise NotReady for a spoilt file."""
    try:
        turn = read_json(path)
        return None if turn is None else RecordedTurn.model_validate(turn)
    except ValueError as error:
        raise NotReady(
            f"expected a planner's turn in {path}; found something else; restore it from a backup, or remove it to "
            "have the planner asked again"
        ) from error

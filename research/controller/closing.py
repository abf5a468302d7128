"""What a planner is asked once a design is locked, and what is worth asking next.

After a look whether to go on, at the end for its words. A study waits for neither longer than its planner's time limit,
and goes on without an answer: the decision table decides, and code concludes.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from statistics import fmean
from typing import Any, Final

from research.controller.evaluation import ActionCheck, design_topic, dry_run
from research.controller.planning import Planning, RecordedTurn, TurnId
from research.design.comparison import StatisticalRequirements
from research.design.noise_bank import NoiseBank
from research.design.pricing import price_of
from research.design.sample_size import LIKELY_SEEDS
from research.errors import BadTopic, DesignRefused, ResearchError
from research.files import is_full
from research.installation.base_job import describe_unusual_rate
from research.planners.context import ArmSummary, PlannerContext
from research.planners.history import CampaignFacts
from research.planners.rules import RulesPlanner
from research.planners.topic import CONFIGURE_LLM
from research.proposals.actions import GoOn, Repair, Review, Settle
from research.proposals.arms import NO_MODELS
from research.proposals.flags import RequestedComparison
from research.proposals.metric_choice import RequestedMetric
from research.proposals.slots import SLOTS
from research.runs.workers import MOST_LAST_WORDS
from research.scheduler.required_runs import confirmation_runs, unmet_runs
from research.scheduler.steps import Decide
from research.text import format_seconds
from studies import HeadMoved, RunState, StoreError, StudyState
from studies.errors import ControllerLeaseLost, ReportError
from studies.log.study import LOOK_RULE
from studies.records.alpha import AlphaLedgers
from studies.records.design import Budget
from studies.records.verdict import PlannerMessage
from studies.report.answer import AnswerFacts, list_sentences
from studies.report.evidence import gather_rounds
from studies.report.next_question import ProposedStudy, list_next_questions, restate
from studies.report.prose import quote_held
from studies.report.summary import last_judged
from studies.statistics.comparison import mean_interval
from studies.verdicts.judge import find_collapsed_runs
from swarm.errors import InvalidRequest

logger = logging.getLogger(__name__)
_ANY_BUDGET_S: Final = 365 * 86_400.0
"""A budget that refuses nothing: what a study would take is priced, not whether it can be had."""


@contextmanager
def _unless_it_fails(event: str) -> Iterator[None]:
    """Log whatever goes wrong within, a planner's own faults included, but for what the study itself stumbles over."""
    try:
        yield
    except (StoreError, HeadMoved, ControllerLeaseLost):
        raise
    except Exception as error:
        if isinstance(error, OSError) and is_full(error):
            raise
        logger.warning("event=%r error=%r", event, str(error), exc_info=not isinstance(error, ResearchError))


class Closing:
    """Asks the planner of a study after looks and for its last words, and the compiler for what may be asked next."""

    def __init__(self, planning: Planning) -> None:
        self._planning = planning

    def decide_look(self, state: StudyState, decisions: tuple[Decide, ...], seconds_left: float) -> tuple[Decide, ...]:
        """Return what is decided on all open claims after a look; where no answer comes, as the table has it."""
        look, looks = max(decision.look for decision in decisions), state.design.looks if state.design else ()
        runs = len(unmet_runs(state, confirmation_runs(state)))
        seconds = -(-runs // max(1, int(state.settings["parallel"]))) * price_of(state, "confirm")
        told = {
            "look": look, "looks": [each.model_dump(mode="json") for each in looks],
            "to_the_next_look": {"runs": runs, "seconds": round(seconds)},
        }  # fmt: skip
        turn = self._ask(state, TurnId(state.round, "look", look), seconds_left, told)
        if turn is None or not isinstance(turn.action, GoOn | Settle):
            return decisions
        does = "goes on" if isinstance(turn.action, GoOn) else "gives it up"
        said = "" if turn.said is None else f", in the words of {quote_held(turn.said, state.rounds)}"
        words = f"; its planner {does}{said}"
        return tuple(
            replace(decision, rule=LOOK_RULE, action=turn.action.action, reason=f"{decision.reason}{words}")
            for decision in decisions
        )

    def ask_repair(self, state: StudyState, crash: RunState, seconds_left: float) -> RecordedTurn | str:
        """Return the turn that repairs the code which crashed, asked without any number, or why nothing is repaired."""
        assert state.design is not None
        slot, name = next(iter(state.design.arm(crash.spec.arm).slots.items()))
        last, place = crash.attempts[-1], TurnId.parse(state.repair_turn)
        told = {
            "slot": slot, "signature": SLOTS[slot].signature, "called": SLOTS[slot].does, "name": name,
            "source": state.design.code[name], "environment": crash.spec.environment, "ended_by": last.code,
            "step": f"{last.step} of {crash.spec.job['steps']}", "quoted": last.reason[-MOST_LAST_WORDS:],
        }  # fmt: skip
        with _unless_it_fails(f"no answer of the turn {place.key}"):
            inputs = self._planning.build_inputs(state, lambda: seconds_left, NoiseBank())
            about = [claim for claim in state.design.hypotheses if name in (claim.control, claim.treatment)]
            context = PlannerContext(
                state.topic, hypotheses=about, crash=told, seconds_left=seconds_left, seconds_per_run=0.0, parallel=1
            )
            turn = self._planning.take_turn(state, place, context, ActionCheck(inputs, context))
            if isinstance(turn.action, Repair):
                return turn
            words = "" if turn.said is None else f", in the words of {quote_held(turn.said, state.rounds)}"
            return f"its planner does not repair {name}{words}"
        return f"{name} was not repaired: its planner gave no answer"

    def write_final_message(self, state: StudyState, seconds_left: float) -> PlannerMessage | None:
        """Return the planner's last words on what was judged last, to be quoted; None when it has none."""
        if not last_judged(state).verdicts:
            return None  # nothing was claimed, so there is nothing to put in words
        place = TurnId(state.round, "conclude", 1 + len(state.spoken))
        turn = self._ask(state, place, seconds_left)
        if turn is None or self._planning.planner.name == RulesPlanner.name:
            return None
        message = self._planning.parse_final_message(turn)
        if message is None or (answer := message.answer) is None:
            return message
        sentences, place = list_sentences(message.text, answer.mechanism, answer.limits), replace(place, stage="review")
        read: dict[str, Any] = {"unread": "no second reading came"}
        turn = self._ask(state, place, seconds_left, sentences=sentences)
        if turn is not None and isinstance(turn.action, Review):
            named = (text for number, text in enumerate(sentences, start=1) if number in turn.action.unsupported)
            read = {"unsupported": tuple(named)}
        return message.model_copy(update={"answer": answer.model_copy(update=read)})

    def _ask(
        self, state: StudyState, place: TurnId, seconds_left: float, look: Mapping[str, Any] | None = None,
        sentences: Sequence[str] = (),
    ) -> RecordedTurn | None:  # fmt: skip
        judged = last_judged(state)
        with _unless_it_fails(f"no answer of the turn {place.key}"):
            inputs = self._planning.build_inputs(judged, lambda: seconds_left, NoiseBank())
            rounds, facts = judged.rounds_before, AnswerFacts()
            if look is None:
                with suppress(ReportError):  # of which there will be no report either
                    facts = AnswerFacts.of(state, gather_rounds(state, self._planning.study_folder))
            context = replace(
                inputs.build_context(), campaign=CampaignFacts.of(rounds[-1]) if rounds else None,
                hypotheses=judged.hypotheses or (judged.design.hypotheses if judged.design else ()), look=look,
                design=judged.design, arms=tuple(summarize_arms(judged)), verdicts=judged.verdicts,
                warnings=tuple(dict.fromkeys(line for verdict in judged.verdicts for line in verdict.violations)),
                answer_facts=facts, sentences=tuple(map(facts.quote, sentences)),
            )  # fmt: skip
            return self._planning.take_turn(state, place, context, ActionCheck(inputs, context))
        return None

    def suggest_next(self, state: StudyState) -> dict[str, str] | None:
        """Return what is worth asking next (`why`, `command`): the first lead that compiles; None where that failed."""
        with _unless_it_fails("no advice"):
            if state.explored is not None:
                return self._price_study(state)
            refused = []
            for lead in list_next_questions(last_judged(state)):
                why = None if lead.asks is None else self._find_refusal(state, lead.asks)
                if why is None:
                    return {"why": lead.why, "command": lead.command}
                refused.append(f"{lead.why} would be refused ({why})")
            return {"why": f"nothing that could be had; {refused[0]}", "command": ""}
        return None

    def _price_study(self, state: StudyState) -> dict[str, str]:
        """Return what a study of the question that was explored would take, and its command; or why there is none."""
        inputs = self._planning.build_inputs(state, lambda: _ANY_BUDGET_S)
        budget = Budget(wall_clock_s=_ANY_BUDGET_S, max_runs=None)
        compiler = replace(inputs.compiler, explores=False, budget=budget, runs_made=0)
        taking = self._planning.make_turn_taker(state, TurnId.parse(state.explorations[-1].turn).number)
        try:
            compiled = design_topic(replace(inputs, compiler=compiler), taking).get_compiled()
        except DesignRefused as error:
            return {"why": f"no study of it, which would be refused ({error.message})", "command": ""}
        arms, seeds, priced = compiled.draft.arms, compiled.seeds, compiled.compiler
        drawn = f"at most {seeds} fresh seeds"
        if compiled.analysis is None:
            seeds, pilot = max(seeds, LIKELY_SEEDS), seeds
            drawn = f"{pilot} fresh seeds first, which say how many it takes (priced with {seeds}),"
        stages = priced.stages(compiled.draft, seeds)
        runs, seconds = sum(stage.runs for stage in stages), priced.cost(stages)
        why = (
            f"the same question as a study, which tests it: {drawn} of each of {arms} arms, {runs} runs, about "
            f"{format_seconds(seconds)}"
        )
        return {"why": why, "command": restate(state, seconds)}

    def _find_refusal(self, state: StudyState, asked: ProposedStudy) -> str | None:
        inputs = self._planning.build_inputs(state, lambda: asked.budget_s)
        inputs = replace(inputs, locked=None, notebook=None, notes=(), plays_seen=False)
        most = state.settings["max_runs"] if asked.topic is None else None
        budget = Budget(wall_clock_s=asked.budget_s, max_runs=most)
        compiler = replace(inputs.compiler, budget=budget, runs_made=0, measured_by=None, tried=False)
        try:
            if asked.topic is not None:
                metric = RequestedMetric.parse(asked.metric) if asked.metric else None
                needs = StatisticalRequirements(effect=asked.effect, metric=metric, rounds=None)
                compiler = replace(compiler, requirements=needs, ledgers=AlphaLedgers.begin(1), models=NO_MODELS)
                wanted = RequestedComparison(
                    environment=asked.environment, custom_environments=inputs.wanted.custom_environments
                )
                inputs = replace(inputs, topic=asked.topic, wanted=wanted, parsed=None)
            designed = dry_run(replace(inputs, compiler=compiler), RulesPlanner())
            odd = list(filter(None, map(describe_unusual_rate, designed.get_compiled().draft.comparison.jobs)))
        except (ResearchError, InvalidRequest) as error:
            if not isinstance(error, BadTopic) or self._planning.planner.name == RulesPlanner.name:
                return error.message
            # What a model read the rules may not, and how to have one is known.
            return None if asked.topic is None else error.message.partition(CONFIGURE_LLM)[0].removesuffix(" or ")
        refused = designed.proposal.turn.refused
        return refused.message if refused is not None else next(iter(odd), None)


def summarize_arms(state: StudyState) -> Iterator[ArmSummary]:
    fallen = find_collapsed_runs(state)
    for arm in state.design.arms if state.design is not None else ():
        values = [value for run, value in state.values(arm.name).items() if run not in fallen]
        mean, interval = (fmean(values), mean_interval(values)) if values else (None, None)
        ends = (None, None) if interval is None else (interval.low, interval.high)
        yield ArmSummary(arm.name, len(values), mean, *ends)

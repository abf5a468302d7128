from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import pytest

from research.controller.closing import Closing, summarize_arms
from research.controller.evaluation import AcceptedProposal, ActionCheck, PlanningInputs, ask_planner
from research.controller.planning import Planning
from research.controller.preview import PriceTable, average_sample_size, preview
from research.design.comparison import StatisticalRequirements
from research.design.compiler import DesignCompiler
from research.design.noise_bank import NoiseBank
from research.design.pricing import make_pricing
from research.errors import DesignRefused, NotReady, PlannerFailed, ResearchError
from research.installation.home import Home
from research.planners.context import Check, PlannerContext, PlannerTurn, ToolResult
from research.planners.history import CampaignFacts
from research.planners.rules import RulesPlanner
from research.proposals.actions import (
    Action,
    AskUser,
    Constant,
    Note,
    Propose,
    ProposeDesign,
    ProposedHypothesis,
    Repair,
)
from research.proposals.flags import RequestedComparison
from research.proposals.metric_choice import RequestedMetric
from studies import EventLog, EventType, HeadMoved, StudyLog, StudyState, fold
from studies.records import statements
from studies.records.alpha import AlphaLedgers
from studies.records.design import Budget, NoisePlan
from studies.records.procedure import InterimAnalysis
from studies.records.runs import noise_spec
from studies.records.verdict import PlannerMessage
from studies.report.next_question import NextQuestion, ProposedStudy
from studies.report.wording import label
from studies.statistics.power import plan_analyses
from tests.lazily import lazy
from tests.research.bench import STUDY, Cut, CutLog, Knows
from tests.research.calibrated import Came, verdict_on
from tests.research.factories import make_claim
from tests.research.fakes import ANSWERED, BASE, PRICING, ManualClock, ScriptedPlanner, create_study
from tests.research.planners.flights import priced
from tests.studies.synthetic import append


class Counting(ActionCheck):
    def __init__(self) -> None:
        super().__init__(cast(Any, None), cast(Any, None))
        self.evaluated: list[Action] = []

    def _evaluate(self, action: Action) -> None:
        self.evaluated.append(action)


def design(value: object) -> ProposeDesign:
    fixed = Constant(field="normalize_advantage", value=cast(Any, value))
    return ProposeDesign.model_construct(constants=(fixed,))


def test_an_answer_that_was_corrected_from_0_to_false_is_evaluated_again() -> None:
    check, wrong, right = Counting(), design(0), design(False)
    assert wrong == right, "as Python has it"
    check(wrong)
    check(right)
    check(right)
    assert check.evaluated == [wrong, right]
    assert check.evaluated[1] is right


stats = lazy("scipy.stats")
SD = 0.03


def simulated(looks: tuple[InterimAnalysis, ...], effect: float, studies: int) -> float:
    source, ends = random.Random(1), []
    for _ in range(studies):
        differences = [source.gauss(effect, SD * 2**0.5) for _ in range(looks[-1].seeds)]
        for look in looks:
            z = fmean(differences[: look.seeds]) / (SD * (2 / look.seeds) ** 0.5)
            if abs(z) > stats.norm.isf(look.alpha / 2):
                break
        ends.append(look.seeds)
    return fmean(ends)


@pytest.mark.parametrize("effect", [0.0, 0.03, 0.06, 0.2])
def test_expected_seeds_are_those_of_a_simulation(effect: float) -> None:
    looks = plan_analyses(9, 3)
    assert average_sample_size(looks, effect, SD) == pytest.approx(simulated(looks, effect, 1000), abs=0.3)


class Naming(ScriptedPlanner):
    def __init__(self, metric: str, **changes: Any) -> None:
        usual = {"direction": "decrease", "predicted_low": -1500.0, "predicted_high": 100.0}
        self._said = {"metric": metric, "tested": changes.pop("tested", "")}
        super().__init__(3, "guess", make_claim(**usual | changes))

    def act(self, digest: PlannerContext, check: Check) -> PlannerTurn:
        action = super().act(digest, check).action
        if isinstance(action, Propose):
            action = action.model_copy(update=self._said)
        return PlannerTurn(action, prompt_tokens=1_000, completion_tokens=200, refused=check(action))


def context(asked: RequestedMetric | None = None) -> PlanningInputs:
    compiler = DesignCompiler(
        make_pricing(2), Budget(wall_clock_s=100_000), requirements=StatisticalRequirements(metric=asked),
        bank=NoiseBank(),
    )  # fmt: skip
    return PlanningInputs("does a larger group help?", compiler, lambda: 100_000.0)


@pytest.mark.parametrize(("topic", "claim", "unused"), [
    ("what helps?", make_claim(control=8), False), ("what helps?", make_claim(control=2), True),
    ("is a group size of 2 low?", make_claim(control=2), False), ("2 or 16 groups?", make_claim(control=2), False),
    ("is a group of 20 too few?", make_claim(control=2), True), ("do 2 tools help?", make_claim(control=2), True),
    ("16 against 2?", make_claim(control=2), False), ("in 2 epochs, what helps?", make_claim(control=2), True),
    ("what helps?", make_claim("learning_rate", 1e-7, 3e-3), True),
    ("is a learning rate of 1e-7 enough?", make_claim("learning_rate", 1e-7, 3e-3), False),
    ("what helps?", make_claim("algorithm", "rloo", "grpo"), True),
    ("is rloo worse?", make_claim("algorithm", "rloo", "grpo"), False),
    ("how?", make_claim(control=2, treatment=8, ladder=(2, 4, 8)), False),
    ("a group of 2,128?", make_claim(control=2), False),
    ("1,024 episodes?", make_claim("episodes_per_step", 1024, 64), False),
    ("what helps?", make_claim("environment.max_turns", 3, 6), False),  # of count, where guess has 4
    ("what helps?", make_claim("environment.max_turns", 1, 6), True),
])  # fmt: skip
def test_a_control_is_a_default_or_named_by_the_topic_else_the_claim_says_that_nobody_uses_it(
    topic: str, claim: ProposedHypothesis, unused: bool
) -> None:
    (found,) = replace(context(), topic=topic).hypotheses(Propose(hypotheses=(claim,)))
    assert found.unused_control == unused
    asked = RequestedComparison.parse(["epochs=1,2"], [])
    first = replace(context(), topic=topic, wanted=asked)
    later = replace(first, campaign=CampaignFacts((), AlphaLedgers.begin(2)))
    for inputs in (first, later):  # flags name values of another field
        assert inputs.hypotheses(Propose(hypotheses=(claim,)))[0].unused_control == unused
    assert ("against a control nobody uses" in label(found, verdict_on(found.id, Came(0.5, "supported")))) == unused


@pytest.mark.parametrize(
    ("topic", "control", "strange"), [("q", 2, True), ("is a group of 2 best?", 2, False), ("q", None, False)]
)
def test_a_search_has_no_control_that_nobody_uses(topic: str, control: int | None, strange: bool) -> None:
    knob = {"field": "group_size", "values": [4, 16, 32, 64], "control": control}
    screen = {"knobs": [knob], "predicted_low": 0.0, "predicted_high": 0.2, "probability": 0.5}
    design = ProposeDesign.model_validate({"environment": "guess", "screen": screen})
    try:
        replace(context(), topic=topic).compile((), design, search=True)
        found = ""
    except DesignRefused as error:
        found = error.message
    assert ("a control that somebody uses; found group_size = 2" in found) == strange


def test_what_code_gave_on_recorded_plays_is_kept_with_the_turn_and_shown_before_the_design() -> None:
    asked, told = [], "reward: tried on 4 recorded plays: rewards 0 to 1"
    inputs = replace(
        context(), topic="does a reward help on guess?",
        try_code=lambda slot, source, environment, blind: str(asked.append((slot, environment, blind)) or told),
    )  # fmt: skip
    planner = ScriptedPlanner(3, "guess", make_claim("reward", "built-in", "dense", code="=reward"))
    shown = inputs.build_context()
    turn = ask_planner(planner, shown, ActionCheck(inputs, shown))
    assert (turn.payload()["tried"], asked) == ([told], [("reward", "guess", False)])
    assert isinstance(turn.action, Propose)
    following = inputs.build_context(AcceptedProposal(turn.action, inputs.hypotheses(turn.action), turn))
    assert (following.stage, following.facts()["code"]) == ("design", [told])
    check = ActionCheck(inputs, repairing := replace(
        shown, crash={"slot": "reward", "source": "=reward", "environment": "guess"}
    ))  # fmt: skip
    assert (repairing.stage, check(Repair(code="=reward + 1")), asked[-1]) == (
        "repair",
        None,
        ("reward", "guess", True),
    )


@pytest.mark.parametrize(("control", "unused"), [(4, False), (2, True)])
def test_flags_name_the_values_that_they_vary_and_no_other_control(control: int, unused: bool) -> None:
    asked = replace(context(), wanted=RequestedComparison(vary={"group_size": (4, 16)}))
    (found,) = asked.hypotheses(Propose(hypotheses=(make_claim(control=control),)))
    assert found.unused_control == unused


@pytest.mark.parametrize(("topic", "treatment", "told"), [
    ("do more of them help on guess?", 4, "expected a knob of guess"), ("do tools help on market?", 4, ""),
    ("do tools help on guess or market?", 4, ""), ("do tools help?", 4, ""), ("tools on market", 9, "9"),
])  # fmt: skip
def test_a_knob_that_no_design_could_have_is_refused_before_a_design_is_asked_for(
    topic: str, treatment: int, told: str
) -> None:
    inputs = replace(context(), topic=topic)
    claim = make_claim("environment.tools", 1, treatment)
    refused = ActionCheck(inputs, inputs.build_context())(Propose(hypotheses=(claim,)))
    assert (refused is not None, told in str(refused)) == (bool(told), True)


def test_a_planner_names_the_metric_by_which_its_claims_are_judged() -> None:
    planner = Naming("episodes:0.7")
    seen = preview(context(), planner)
    assert seen.refused is None
    assert seen.metric.key == "hidden/episodes_to_0.7"
    assert seen.hypotheses[0].statement.startswith("group_size = 16 needs fewer episodes")
    assert statements.list_tests(None, seen.hypotheses) == (f"Whether {seen.hypotheses[0].statement}",)
    assert seen.pilot_runs_first == 8
    assert planner.shown[0].facts()["metric"]["name"] == "hidden success"
    assert "episodes:THRESHOLD" in planner.shown[0].facts()["metrics"]
    told = planner.shown[1].facts()
    assert told["metric"] | {"means": ""} == {
        "name": "episodes to 0.7 hidden success", "means": "", "worst": 5120.0, "best": 0.0, "unit": "episodes",
    }  # fmt: skip
    assert told["smallest_effect"] == 512.0


def test_what_the_planner_read_and_wrote_is_priced_by_its_name() -> None:
    planner, free = Naming("episodes:0.7"), {"cpu_hour": 0.0}
    planner.model = "a-model"
    for names, money, unpriced in (
        ({"a-model": (2, 10), "*": (9, 9)}, 0.008, ()),
        ({"other": (2, 10)}, None, ("a-model",)),
    ):
        prices = PriceTable.model_validate({**free, "planner_million_tokens": names})
        cost = preview(context(), planner, prices=prices).cost
        assert (cost.tokens["planner_read"], cost.tokens["planner_written"]) == (2_000, 400)
        assert (cost.money, cost.unpriced) == (money and pytest.approx(money), unpriced)


def test_a_metric_that_the_topics_words_chose_may_be_replaced_and_the_users_own_may_not() -> None:
    planner = Naming("episodes:0.8")
    assert preview(context(RequestedMetric("episodes", 0.7, words="faster")), planner).metric.threshold == 0.8
    with pytest.raises(DesignRefused, match=r"the metric episodes:0\.7, which the user"):
        preview(context(RequestedMetric("episodes", 0.7)), Naming("episodes:0.8"))


def test_what_a_model_chose_by_itself_and_what_it_says_that_it_tests_is_said_first() -> None:
    asked = preview(replace(context(), topic="larger groups on guess"), Naming("", smallest_effect=0.1))
    assert (asked.not_tested, asked.assumed) == ((), ())
    planner = Naming("transfer:arith", direction="increase", predicted_low=-0.1, predicted_high=0.3,
                     smallest_effect=0.05, tested="Groups; not the order.")  # fmt: skip
    seen = preview(replace(context(), topic="does the order of tasks matter for larger groups?"), planner)
    assert seen.tested[0] == 'scripted tests of the topic: "Groups; not the order."'
    assert seen.assumed[0].startswith(seen.tested[0])
    chosen = ("metric transfer:arith", "effect of 0.05", "environment guess")
    assert [name for name in chosen if name not in " ".join(seen.assumed)] == []
    assert " ".join(seen.assumed).count("planner's choice") == 3


@pytest.mark.parametrize(
    ("topic", "flag", "environment", "refusal"),
    [
        ("larger groups on guess", None, "market", "guess, which the topic names; found market; design it there"),
        ("larger groups on guess", None, "guess", None),
        ("larger groups on guess or arith", None, "market", "guess or arith, which the topic names"),
        ("larger groups on guess or market", None, "market", None),
        ("larger groups", None, "market", None),
        ("larger groups on guess", "market", "market", None),
        ("larger groups on guess", "market", "guess", "market, which the user asks for; found guess"),
    ],
)
def test_no_other_environment_is_played_than_one_that_the_topic_names(
    topic: str, flag: str | None, environment: str, refusal: str | None
) -> None:
    inputs = replace(context(), topic=topic, wanted=RequestedComparison(environment=flag))
    planner = ScriptedPlanner(3, environment)
    if refusal is None:
        assert preview(inputs, planner).environment == environment
    else:
        with pytest.raises(PlannerFailed, match=f"expected a design in {refusal}"):
            preview(inputs, planner)


@pytest.mark.parametrize(("metric", "said"), [("speed", "they are success"), ("episodes", "expected a threshold")])
def test_a_metric_that_there_is_not_is_refused(metric: str, said: str) -> None:
    with pytest.raises(DesignRefused, match=said):
        preview(context(), Naming(metric))


EMPTY = NoiseBank()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home.locate({"AJET_HOME": str(tmp_path)}).prepare()
    with closing(EventLog(home.database, clock=ManualClock())) as log:
        create_study(log, STUDY)
    return home


@pytest.fixture
def log(home: Home) -> Iterator[EventLog]:
    with closing(EventLog(home.database)) as log:
        yield log


def state_of(log: EventLog) -> StudyState:
    return fold(log.read(STUDY))


def types_of(log: EventLog) -> list[str]:
    return [event.type.value for event in log.read(STUDY)][1:]


def planning(home: Home, log: EventLog, planner: Any, bank: NoiseBank = EMPTY, **more: Any) -> Planning:
    record = StudyLog(log, STUDY)
    record.state()
    return Planning(home, log, record, planner, lambda: PRICING, BASE, noise_bank=lambda log: bank, **more)


def plan(home: Home, log: EventLog, planner: Any, bank: NoiseBank = EMPTY) -> StudyState:
    planning(home, log, planner, bank).plan(state_of(log), lambda: 600.0)
    return state_of(log)


def test_an_unknown_noise_leads_to_a_lock_whose_first_runs_size_it_after_the_machinery_was_seen(
    home: Home, log: EventLog
) -> None:
    planner, new = ScriptedPlanner(), NoiseBank(checked=frozenset())
    noise = plan(home, log, planner, new)
    assert types_of(log)[-1] == "noise.planned"
    assert (noise.design, noise.noise_plan.seeds) == (None, ())
    assert noise.noise_plan.job["group_size"] == 8, "the control's value"
    assert noise.noise_seconds > 0
    state = plan(home, log, planner)
    assert (state.locked_design.pilot.seeds, state.awaits_sizing) == (4, True)
    assert state.noise_plan.plumbing not in state.locked_design.seeds
    assert Closing(planning(home, log, planner)).write_final_message(state, 100.0) is None  # there is no verdict
    assert planner.asked == ["propose", "design"]


def test_a_turn_that_another_controller_took_meanwhile_is_not_overwritten(home: Home, log: EventLog) -> None:
    class Overtaken(ScriptedPlanner):
        kept = b""

        def act(self, digest: PlannerContext, check: Check) -> PlannerTurn:
            turn = super().act(digest, check)
            plan(home, log, ScriptedPlanner(), Knows())
            self.kept = (home.study(STUDY) / "planning" / "propose.json").read_bytes()
            return turn

    planner = Overtaken()
    with pytest.raises(HeadMoved):
        plan(home, log, planner, Knows())
    assert (home.study(STUDY) / "planning" / "propose.json").read_bytes() == planner.kept


def test_turns_whose_files_were_exchanged_are_refused_in_one_line(home: Home, log: EventLog) -> None:
    plan(home, log, ScriptedPlanner())
    folder = home.study(STUDY) / "planning"
    shutil.copy(folder / "design.json", folder / "propose.json")
    with pytest.raises(NotReady, match="'design' where Propose"):
        plan(home, log, ScriptedPlanner())


def test_the_design_is_priced_by_what_the_aa_runs_took(home: Home, log: EventLog) -> None:
    job = BASE.model_dump(mode="json", exclude={"seed", "tracking"})
    aa = NoisePlan(environment="guess", job=job, seeds=(1, 2, 3), metric_key="hidden/success", episodes=512)
    payload = {"plan": aa.model_dump(mode="json"), "hash": aa.hash(), "seconds_per_run": 10.0}
    append(log, STUDY, EventType.NOISE_PLANNED, payload)  # as before there were pilots
    noise = state_of(log)
    for seed, seconds in zip(noise.noise_plan.seeds, (40.0, 50.0, 900.0), strict=False):
        spec = noise_spec(STUDY, noise.noise_plan, noise.noise_hash, seed)
        run = {"run_id": spec.run_id}
        append(log, STUDY, EventType.RUN_PLANNED, {**run, "spec": spec.model_dump(mode="json")})
        append(log, STUDY, EventType.ATTEMPT_LAUNCHED, {**run, "attempt": 1, "name": spec.run_id})
        ended = {"attempt": 1, "status": "finished", "code": "ok", "reason": "", "seconds": seconds}
        append(log, STUDY, EventType.ATTEMPT_ENDED, {**run, **ended})
    state = plan(home, log, ScriptedPlanner(), Knows())
    assert state.design.price.seconds_per_run == 50.0
    assert "this study's A/A runs took" in state.design.price.basis


def test_a_learning_rate_of_0_that_was_asked_for_and_not_seen_ends_the_study(home: Home, log: EventLog) -> None:
    first = plan(home, log, ScriptedPlanner(), NoiseBank(checked=frozenset()))
    assert first.noise_plan.plumbing is not None
    with pytest.raises(DesignRefused, match="learning rate of 0 that changes nothing"):
        plan(home, log, ScriptedPlanner(), Knows(checked=frozenset()))


class Thoughtful(ScriptedPlanner):
    """Writes down a note and a question beside its proposal, and looks at a price before."""

    def act(self, digest: PlannerContext, check: Check) -> PlannerTurn:
        turn = super().act(digest, check)
        if digest.stage != "propose":
            return turn
        wish = priced(8, 16)
        look = ToolResult("price", wish, str(digest.tools.answer("price", wish)))
        return replace(turn, side_actions=(Note(text="An idea."), AskUser(text="Which?")), tool_results=(look,))


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("cut", range(7))
def test_a_controller_killed_at_any_event_takes_no_turn_and_no_note_twice(home: Home, cut: int, written: bool) -> None:
    planner = Thoughtful()
    with closing(CutLog(EventLog(home.database, clock=ManualClock()), cut, written=written)) as log, pytest.raises(Cut):
        [plan(home, log, planner, bank) for bank in (NoiseBank(checked=frozenset()), Knows())]
    with closing(EventLog(home.database)) as log:
        state = plan(home, log, planner, Knows()) if state_of(log).design is None else state_of(log)
    assert planner.asked == ["propose", "design"]
    assert [(note.kind, note.text) for note in state.notebook] == [("note", "An idea."), ("ask", "Which?")]
    assert [act.action for act in state.planner_acts] == ["propose", "design"]
    assert len(state.hypotheses) == 1
    [look] = state.planner_acts[0].tool_calls
    turn = json.loads((home.study(STUDY) / "planning" / "propose.json").read_text())
    assert [kept["name"] for kept in turn["looks"]] == [look["name"]] == ["price"]
    assert look["sha256"] == hashlib.sha256(turn["looks"][0]["answer"].encode()).hexdigest()


@pytest.mark.parametrize("split", [None, "search", ""])
def test_who_saw_plays_of_hidden_tasks_proposes_no_code(home: Home, log: EventLog, split: str | None) -> None:
    seen = {"name": "episodes", "arguments": {}, "sha256": "0" * 64, "characters": 9}
    seen |= {} if split is None else {"split": split}  # as older logs have it: of hidden tasks
    turn = {"action": "propose", "tries": 1, "tokens": {}, "rejected": [], "note": "", "turn": "1/propose/7"}
    append(log, STUDY, EventType.PLANNER_ACTED, {**turn, "looks": [seen]})
    planner = ScriptedPlanner(3, "guess", make_claim("reward", "built-in", "dense", code="=reward"))
    with pytest.raises(PlannerFailed, match="hold their answers") if split is None else nullcontext():
        plan(home, log, planner, Knows())
    assert (planner.shown[0].plays_seen, planner.shown[0].code_allowed) == (split is None, False)


class Searching(ScriptedPlanner):
    def act(self, digest: PlannerContext, check: Check) -> PlannerTurn:
        return PlannerTurn(Propose(search=True)) if digest.stage == "propose" else super().act(digest, check)


def test_a_search_without_a_screen_is_refused(home: Home, log: EventLog) -> None:
    with pytest.raises(PlannerFailed, match="search was proposed"):
        plan(home, log, Searching(), Knows())
    assert state_of(log).design is None


class Silent(ScriptedPlanner):
    def __init__(self, error: ResearchError) -> None:
        super().__init__()
        self.error = error

    def act(self, digest: PlannerContext, check: Check) -> PlannerTurn:
        if digest.stage == "conclude":
            raise self.error
        return super().act(digest, check)


@pytest.mark.parametrize("error", [PlannerFailed("no answer"), DesignRefused("no"), ResearchError("any")])
def test_a_locked_study_concludes_without_a_planner_that_fails(
    home: Home, log: EventLog, error: ResearchError, judged: Callable[..., StudyState]
) -> None:
    assert Closing(planning(home, log, Silent(error))).write_final_message(judged(), 100.0) is None


@pytest.fixture
def judged(home: Home, log: EventLog) -> Callable[..., StudyState]:
    def make() -> StudyState:
        design = plan(home, log, ScriptedPlanner(), Knows()).design
        verdict = verdict_on(design.hypotheses[0].id, Came(0.7, "equivalent"))
        warned = verdict.model_copy(update={"violations": ("hardware: other machines",)})
        append(log, STUDY, EventType.VERDICT_COMPUTED, warned.model_dump(mode="json"))
        note = {"kind": "note", "reason": "\x1b[31mloud fan\x1b[0m"}
        append(log, STUDY, EventType.DESIGN_AMENDED, {"amendment": note}, actor="user")
        return state_of(log)

    return make


def test_a_conclusion_is_asked_for_with_arms_warnings_verdicts_and_quoted_notes(
    home: Home, log: EventLog, judged: Callable[..., StudyState]
) -> None:
    planner, state = ScriptedPlanner(), judged()
    said = Closing(planning(home, log, planner)).write_final_message(state, 100.0)
    assert said == PlannerMessage(by="scripted", text=ANSWERED, unfounded=())
    (digest,) = planner.shown
    facts = digest.facts()
    assert facts["verdicts"][0]["verdict"] == "equivalent"
    assert facts["linter_warnings"] == ["hardware: other machines"]
    assert [note["text"] for note in facts["user_notes_quoted"]] == ["loud fan"]
    assert [arm["name"] for arm in facts["arms"]] == [arm.name for arm in summarize_arms(state)]
    assert facts["budget"]["seconds_left"] == 100
    assert Closing(planning(home, log, planner)).write_final_message(state_of(log), 50.0) == said
    assert len(planner.shown) == 1  # the written turn is used again


def test_advice_that_the_compiler_refuses_is_not_given(
    home: Home, log: EventLog, judged: Callable[..., StudyState], monkeypatch: pytest.MonkeyPatch
) -> None:
    state, asked = judged(), ProposedStudy(6000.0, "learning_rate 0.003 vs 0.01 on guess", effect=0.3)
    wanted = [
        NextQuestion("too much", "ajet research 1", asked),
        NextQuestion("what fits", "ajet research 2", replace(asked, effect=0.02)),
    ]
    monkeypatch.setattr("research.controller.closing.list_next_questions", lambda state: wanted)
    monkeypatch.setattr(Knows, "levels", lambda bank, job, metric: (0.957, 0.958))
    advising = Closing(planning(home, log, ScriptedPlanner(), Knows()))
    assert advising.suggest_next(state) == {"why": "what fits", "command": "ajet research 2"}
    del wanted[1]
    assert advising.suggest_next(state)["command"] == ""
    assert "0.958" in advising.suggest_next(state)["why"]


def test_a_study_that_a_model_planned_is_told_neither_of_a_topic_that_rules_cannot_read_nor_to_set_a_model_up(
    home: Home, log: EventLog, judged: Callable[..., StudyState], monkeypatch: pytest.MonkeyPatch
) -> None:
    state, wanted = replace(judged(), topic="Do turtles fly?"), [NextQuestion("", "ajet 1", ProposedStudy(6000.0))]
    monkeypatch.setattr("research.controller.closing.list_next_questions", lambda state: wanted)
    by_model, by_rules = (Closing(planning(home, log, each)) for each in (ScriptedPlanner(), RulesPlanner()))
    assert by_model.suggest_next(state)["command"] == "ajet 1"
    assert "OPENAI_BASE_URL" in by_rules.suggest_next(state)["why"]
    wanted[0] = NextQuestion("", "ajet 2", ProposedStudy(6000.0, "Flies faster?"))
    refused = by_model.suggest_next(state)
    assert (refused["command"], "OPENAI" in refused["why"], "vary" in refused["why"]) == ("", False, True)


def test_an_action_of_another_stage_is_refused(home: Home, log: EventLog) -> None:
    class Eager(ScriptedPlanner):
        def act(self, digest: PlannerContext, check: Check) -> PlannerTurn:
            action: Action = ProposeDesign(environment="guess")
            assert "the action 'propose'" in str(check(action))
            return PlannerTurn(action)

    with pytest.raises(PlannerFailed, match="the action 'propose'"):
        plan(home, log, Eager(), Knows())

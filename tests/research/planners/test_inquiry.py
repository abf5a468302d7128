"""Whole inquiries by a scripted model over HTTP, one of them with a planted instruction and from its recording."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from simlab.sim_clock import SimClock
from simlab.sim_run import Desk, Flight, FlightResult, fly_in, scratch
from simlab.suites.traps import ASK, world

from research.controller.progress import progress_lines
from research.planners import analysis
from research.planners.endpoint import Endpoint as PlannerEndpoint
from research.planners.endpoint import OpenAiEndpoint, Recorder, Replay
from research.planners.llm import LlmPlanner, PlannerOptions
from research.planners.tools import DATA
from studies import EventType, StudyState
from studies.log.entries import PlannerAct
from studies.records.procedure import Amendment
from studies.records.verdict import AnalysisResult
from studies.report.tables import planner_facts
from tests.research.planners.by_hand import TOPIC, WORLD, ByHand
from tests.research.planners.flights import (
    DESIGN,
    KEY,
    MODEL,
    PLANTED,
    RATES,
    Script,
    facts_of,
    place_of,
    priced,
    proposal,
    with_words,
)
from tests.research.planners.flights import flown as fly_scripted
from tests.research.planners.scripted_endpoint import Endpoint, Reply, calls, fails, scripted_endpoint

pytestmark = pytest.mark.slow

IDEA = "Larger groups may only help while rewards are rare."
NARROWER = "Larger groups may only help in guess."
QUESTION = "Does arith matter to you as much as guess?"
ANSWER = "It does."
SAID = PLANTED.split("\x1b", maxsplit=1)[0]
"""What is left of the planted instruction once it is quoted."""
REPLICATION = {"action": "replicate", "claim": "h1", "environment": "arith", "why": "It was found in one place only."}


def look(name: str, **arguments: Any) -> Any:
    """A reply that looks at something; `RUN` stands for the first run that the table of runs showed."""

    def reply(request: dict[str, Any]) -> Reply:
        return calls((name, json.dumps(arguments).replace("RUN", _first_run(request))))

    return reply


def _first_run(request: Mapping[str, Any]) -> str:
    tables = [entry["content"] for entry in request["messages"] if entry["role"] == "tool"]
    found = [json.loads(text) for text in tables if '"columns"' in text]
    return str(found[0]["rows"][-1][0]) if found else "none"


SCRIPT = {
    (1, "propose"): [
        {"action": "note", "text": IDEA},
        {"action": "ask", "text": QUESTION},
        look("price", **priced(8, 16)),
        proposal("group_size", 8, 16),
    ],
    (2, "propose"): [
        look("runs"),
        look("curves", arms=["RUN"], metrics=["critic/success/mean"]),
        look("episodes", run="RUN", which="any", count=2),
        look("log", run="RUN", contains="finished"),
        look("price", **priced(8, 16, smallest_effect=0.001)),
        look("findings", words="group size"),
        look("shell", command="cat /etc/passwd"),
        look("runs", round=9),
        {"action": "revise", "about": "IDEA", "text": NARROWER, "reason": "It was seen in guess alone."},
        {"action": "revise", "about": "idea-999", "text": "", "reason": "Gone."},
        {**REPLICATION, "claim": "h9"},
        REPLICATION,
    ],
    (3, "propose"): [{"action": "conclude", "reason": "It holds in both, h1 and r2h1 are supported."}],
}  # fmt: skip


class Noting(Script):
    def __call__(self, request: dict[str, Any]) -> Reply:
        reply = super().__call__(request)
        notes = facts_of(request).get("your_notebook", ())
        body = json.dumps(reply.body).replace('\\"IDEA\\"', f'\\"{notes[0]["id"]}\\"' if notes else '\\"IDEA\\"')
        return Reply(reply.status, json.loads(body))


def answering(desk: Desk) -> None:
    state = desk.state
    if any(note.kind == "ask" for note in state.notebook) and state.design is not None and not state.amendments:
        amendment = Amendment.model_validate({"kind": "note", "target": "", "value": None, "reason": ANSWER})
        desk.write(EventType.DESIGN_AMENDED, {"amendment": amendment.model_dump(mode="json")})


@dataclass(frozen=True)
class Flown:
    state: StudyState
    endpoint: Endpoint
    turns: Mapping[str, Any]
    """The files of turns, by their path in the planning folder."""
    log: str
    replayed: FlightResult


def _fly(source: PlannerEndpoint, folder: Path, **changes: Any) -> FlightResult:
    def planner(clock: SimClock) -> LlmPlanner:
        return LlmPlanner(MODEL, source, patience_s=0.0, sleep=clock.advance)

    flight = Flight(
        "the-inquiry", ASK.topic, world(1, effect=0.2), planner=planner, budget_s=40 * 3600.0, asks={"rounds": 4},
        hand=answering, **{"alter": with_words, **changes},
    )  # fmt: skip
    return fly_in(flight, folder)


@pytest.fixture(scope="module")
def flown() -> Iterator[Flown]:
    with scripted_endpoint(Noting(SCRIPT)) as endpoint, scratch() as first, scratch() as second:
        file = first / "said.jsonl"
        landed = _fly(Recorder(OpenAiEndpoint(KEY, endpoint.url), file), first)
        assert (landed.refused, landed.state.status, landed.state.round) == (None, "concluded", 2)
        planning = first / "studies" / "the-inquiry" / "planning"
        turns = {str(path.relative_to(planning)): json.loads(path.read_text()) for path in planning.rglob("*.json")}
        text = (first / "ajet.db").read_bytes().decode("utf-8", errors="ignore")
        yield Flown(landed.state, endpoint, turns, text, _fly(Replay(file), second))


def requests_at(endpoint: Endpoint, round: int, stage: str = "propose") -> list[dict[str, Any]]:
    return [request for request in endpoint.requests if place_of(request) == (round, stage)]


def act_of(state: StudyState, turn: str) -> PlannerAct:
    return next(act for act in state.planner_acts if act.turn == turn)


def test_every_look_is_kept_and_what_is_not_in_the_record_is_refused_with_what_is(flown: Flown) -> None:
    act, turn = act_of(flown.state, "2/propose/1"), flown.turns["round-2/propose.json"]
    names = ["runs", "curves", "episodes", "log", "price", "findings", "shell", "runs"]
    assert [entry["name"] for entry in act.tool_calls] == [entry["name"] for entry in turn["looks"]] == names
    hashes = [hashlib.sha256(kept["answer"].encode()).hexdigest() for kept in turn["looks"]]
    assert [entry["sha256"] for entry in act.tool_calls] == hashes
    assert (act.action, act.tries) == ("replicate", 3)
    found = ("of your notebook (idea-", "found 'idea-999'", "an earlier round (h1); found 'h9'", "none of round 9")
    assert [text for text in found if text not in " ".join([*act.rejected, turn["looks"][-1]["answer"]])] == []
    price = json.loads(flown.turns["propose.json"]["looks"][0]["answer"])
    levels = flown.state.rounds[0].ledgers.differences
    assert price["level_of_differences"] == pytest.approx(levels.level, abs=1e-5)


def test_a_planted_instruction_stays_quoted_and_changes_nothing(flown: Flown) -> None:
    shown = [
        entry
        for request in requests_at(flown.endpoint, 2)
        for entry in request["messages"]
        if SAID in str(entry["content"])
    ]
    assert shown  # the model did look at the play
    for entry in shown:
        assert entry["role"] == "tool"
        answer = json.loads(entry["content"])
        assert answer["notice"] == DATA
        assert SAID in json.dumps(answer["quoted"])
        assert SAID not in json.dumps({name: value for name, value in answer.items() if name != "quoted"})
    assert SAID not in flown.log  # no event holds it
    assert "\x1b" not in json.dumps(flown.endpoint.requests)
    others = [request for request in flown.endpoint.requests if place_of(request) != (2, "propose")]
    assert SAID not in json.dumps(others)  # no later turn is told of it
    with scripted_endpoint(Noting(SCRIPT)) as endpoint, scratch() as folder:
        plain = _fly(OpenAiEndpoint(KEY, endpoint.url), folder, alter=lambda order, played, left: left).state
    for one, other in zip(flown.state.rounds, plain.rounds, strict=True):
        assert one.design_hash is not None
        assert [v.estimate for v in one.verdicts] == [v.estimate for v in other.verdicts]
        assert [d.action for d in one.decisions] == [d.action for d in other.decisions]


def test_a_claim_is_replicated_by_code_elsewhere_on_fresh_seeds(flown: Flown) -> None:
    first, again = flown.state.rounds
    assert (first.design.environment, again.design.environment) == ("guess", "arith")
    [before], [claim] = first.design.hypotheses, again.design.hypotheses
    kept = ("variable", "control", "treatment", "direction", "prediction", "smallest_effect")
    assert [getattr(claim, name) for name in kept] == [getattr(before, name) for name in kept]
    assert {**again.design.base_job, "environment": ""} == {**first.design.base_job, "environment": ""}
    assert not {run.spec.seed for run in first.runs.values()} & {run.spec.seed for run in again.runs.values()}
    assert again.why_asked == REPLICATION["why"]
    assert not requests_at(flown.endpoint, 2, "design")  # its design is the record's


def test_what_is_noted_revised_and_asked_stands_in_the_log_and_in_later_turns(flown: Flown) -> None:
    notes = flown.state.notebook
    assert [(note.kind, note.text, note.round) for note in notes] == [
        ("note", IDEA, 1), ("ask", QUESTION, 1), ("revise", NARROWER, 1),
    ]  # fmt: skip
    idea = notes[0].id
    assert notes[2].about == idea
    [first, *_], [later, *_] = requests_at(flown.endpoint, 1), requests_at(flown.endpoint, 3)
    assert "your_notebook" not in facts_of(first)
    shown = facts_of(later)
    assert shown["your_notebook"] == [
        {"id": idea, "round": 1, "text": IDEA, "now": NARROWER, "because": "It was seen in guess alone."}
    ]
    assert [entry["text"] for entry in shown["you_asked_the_user"]] == [QUESTION]
    assert [entry["text"] for entry in shown["user_notes_quoted"]] == [ANSWER]


def test_the_same_inquiry_is_replayed_from_the_recording_to_the_byte(flown: Flown) -> None:
    assert flown.replayed.refused is None
    assert flown.replayed.state.head_hash == flown.state.head_hash


def test_a_model_asks_on_is_told_what_was_found_and_may_conclude() -> None:
    landed, endpoint = fly_scripted(Script({(2, "propose"): [RATES]}), rounds=4)
    state = landed.state
    assert (state.status, state.round, landed.refused) == ("concluded", 2, None)
    assert [h.variable for entry in state.rounds for h in entry.hypotheses] == ["group_size", "learning_rate"]
    assert [act.rejected for act in state.planner_acts] == [()] * len(state.planner_acts)
    assert state.why_asked == RATES["why"]
    ended = next(d for d in state.decisions if d.action == "end")
    assert ended.reason.endswith('of llm scripted: "That is all."')
    [first], [again] = (requests_at(endpoint, round) for round in (1, 2))
    [found] = facts_of(again)["inquiry"]["rounds_so_far"]
    assert found["claims"][0]["verdict"] == "supported"
    assert "Levels shrink" in again["messages"][1]["content"]
    one, other = (request["response_format"]["json_schema"]["schema"] for request in (first, again))
    assert set(other["properties"]["action"]["enum"]) >= {"propose", "conclude", "decline"}
    assert "conclude" not in one["properties"]["action"]["enum"]
    assert "explore" in one["properties"]["action"]["enum"]
    assert "Only with 'explore'" in first["messages"][1]["content"]


NONSENSE = [calls(("runs", "{}")), *(f"I like {count} turtles." for count in range(3))]


@pytest.mark.parametrize("answers", [NONSENSE, [fails(503, f"down: {KEY}")]], ids=["nonsense", "outage"])
def test_the_rules_ask_on_where_no_model_does_and_what_it_looked_at_is_written_down(answers: list[Any]) -> None:
    landed, endpoint = fly_scripted(Script({(2, "propose"): answers}), rounds=2)
    state = landed.state
    assert (state.status, state.round, landed.refused) == ("concluded", 2, None)
    assert state.why_asked.startswith("No model answers (")
    assert "found of group_size in guess" in state.why_asked
    assert KEY not in state.why_asked
    assert state.design.environment == "arith"
    assert len(requests_at(endpoint, 2)) == len(answers)
    turns = [act.turn for act in state.planner_acts if act.turn.startswith("2/")]
    assert turns[:2] == ["2/propose/2", "2/design/2"]
    failed = [(act.action, len(act.rejected)) for act in state.planner_acts if act.tool_calls]
    assert failed == ([("failed", 3)] if answers is NONSENSE else [])


def test_an_inquiry_answered_by_hand_is_planned_again_to_its_end() -> None:
    hand = ByHand()
    landed, _ = fly_scripted(hand, rounds=4, name="by-hand", topic=TOPIC, world=WORLD)
    state = landed.state
    assert (state.status, state.round, landed.refused) == ("concluded", 4, None)
    assert [place for place, left in hand.left.items() if left] == []
    refused = {act.turn: len(act.rejected) for act in state.planner_acts if act.rejected}
    assert refused == {"2/look/1": 1, "4/conclude/1": 1}  # a field that is none, and numbers in words
    assert state.planner_acts[-1].turn == "4/review/1"
    claims = [(claim.variable, claim.sought) for entry in state.rounds for claim in entry.hypotheses]
    assert claims[0] == claims[1] == ("group_size", "difference")
    assert claims[2:] == [("learning_rate", "equivalence"), ("temperature", "equivalence")]
    verdicts = [entry.verdicts[0].verdict for entry in state.rounds]
    assert verdicts == ["supported", "supported", "equivalent", "inconclusive"]


def test_at_a_cap_of_tokens_the_rules_ask_on_and_the_log_says_so_and_that_the_model_changed() -> None:
    script, names = Script({(2, "propose"): [RATES]}), iter(("m-1", "m-2"))

    def dear(request: dict[str, Any]) -> Reply:
        body = script(request).body
        return Reply(body={**body, "model": next(names), "usage": {"prompt_tokens": 10_000, "completion_tokens": 1}})

    landed, endpoint = fly_scripted(dear, options=PlannerOptions(planner_max_tokens=21_000))
    assert (landed.state.status, landed.state.round, len(endpoint.requests)) == ("concluded", 2, 2)
    assert "20,002 tokens spent: no model is asked any more" in landed.state.why_asked
    assert "takes a larger cap), so the rules ask." in landed.state.why_asked
    facts = dict(planner_facts(landed.state))
    assert facts["Planner tokens"] == "20,000 in prompts, 2 in answers"
    assert facts["Planner tokens, design"] == "10,000 in prompts, 1 in answers"
    assert facts["Planner's model, as its endpoint says"] == "m-1, then m-2: it changed 1 time between answers"
    assert "another model: m-2, until now m-1" in dict(progress_lines(landed.state))["model-0"]


def test_a_question_of_which_no_design_is_accepted_goes_back_with_the_reason() -> None:
    fine = {**RATES, "hypotheses": [{**RATES["hypotheses"][0], "smallest_effect": 0.01}]}
    dear = [{**DESIGN, "not_tested": said} for said in ("", "Nothing.", "Nothing at all.")]
    script = Script({(2, "propose"): [fine, proposal("temperature", 1.0, 0.7, "Then this.")], (2, "design"): dear})
    landed, endpoint = fly_scripted(script, rounds=2, max_runs=36)
    assert landed.state.why_asked == "Then this."
    assert landed.state.question_try == 2
    [first, again] = requests_at(endpoint, 2)
    assert "could_not_be_had" not in facts_of(first)["inquiry"]
    [reason] = facts_of(again)["inquiry"]["could_not_be_had"]
    assert "an effect of 0.01" in reason
    assert "--" not in reason  # a planner knows of no flag
    assert [h.variable for h in landed.state.hypotheses] == ["temperature"]


def test_an_analysis_is_kept_with_its_result_and_a_fourth_before_one_question_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = AnalysisResult.model_validate({"table": [{"arm": PLANTED.split("\x1b")[0][:60], "gain": 0.5}]})
    monkeypatch.setattr(analysis, "analyse", lambda source, inputs, study, isolation: made)
    asked = [
        look("analyse", why="what moves it", source=f"def analyse(folder): return {number}") for number in range(4)
    ]
    landed, endpoint = fly_scripted(Script({(2, "propose"): [*asked, RATES]}), rounds=2, report=True)
    act = act_of(landed.state, "2/propose/1")
    assert [entry.get("made") for entry in act.tool_calls] == [made.model_dump(mode="json")] * 3 + [None]
    assert "at most 3" in requests_at(endpoint, 2)[-1]["messages"][-1]["content"]
    assert landed.report is not None
    assert "4 times; 1 gave no result" in landed.report

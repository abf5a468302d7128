"""Whole studies by language models: what they say moves no bar, words no claim and is quoted as theirs.

A reward function that one writes is data from the proposal to the report.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from research.controller.progress import progress_lines
from research.errors import NotReady, PlannerFailed
from research.isolation.mode import Isolation, Sandboxing
from research.planners.endpoint import shorten
from research.planners.llm import LlmPlanner
from studies import EventType, StudyState
from studies.report import build_report
from tests.golden import assert_golden
from tests.research.bench import Bench, Cut
from tests.research.factories import make_claim
from tests.research.fakes import ScriptedPlanner
from tests.studies.report.pages import section

MODEL = "a-liar"
LIE = "Curriculum learning raises success."
WORDS = "The claim is strongly SUPPORTED, p < 0.0001, by +0.42."
TOPIC = "Does a larger group help, 8 or 16?"
CLAIM = {
    "statement": LIE, "mechanism": "Everybody knows.", "variable": "group_size", "control": 8, "treatment": 16,
    "direction": "increase", "predicted_low": 0.0, "predicted_high": 0.6, "probability": 0.9, "smallest_effect": 0.1,
    "falsifier": "Nothing could.", "kill_if": "", "confounds": [],
}  # fmt: skip
PROPOSAL = {"action": "propose", "hypotheses": [CLAIM]}
DESIGN = {"action": "design", "environment": "guess"}
ANSWER = {
    "action": "write", "answer": WORDS, "mechanism": "<b>Ignore</b> the verdict: {h9.estimate} twenty per cent.",
    "limits": "", "figures": [{"metric": "no/such", "arms": [], "round": 1}],
}  # fmt: skip
UNREAD = {"action": "review", "unsupported": [99]}
FOUNDED = {
    "action": "write", "answer": "Group size: {h1.verdict}, by {h1.estimate} ({h1.interval}). It runs in {study.runs}.",
    "mechanism": "From {arm:group_size=8.first(critic/success/mean)} on.", "limits": "One place alone.",
    "figures": [{"metric": "critic/success/mean", "arms": ["group_size=16"], "round": 1}],
}  # fmt: skip


class Script:
    where = "a script"
    api = "openai"

    def __init__(self, **answers: list[Any]) -> None:
        self.left: dict[str, Iterator[Any]] = {stage: iter(entries) for stage, entries in answers.items()}
        self.told: list[str] = []

    def complete(self, request: Mapping[str, Any], timeout_s: float) -> str:
        stage = request["response_format"]["json_schema"]["name"]
        self.told.append(request["messages"][-1]["content"])
        return json.dumps({"choices": [{"message": {"content": json.dumps(next(self.left[stage]))}}]})

    def redact(self, text: str) -> str:
        return shorten(text)


def studied(path: Path, script: Script, topic: str = TOPIC, rate: float | None = None) -> tuple[Bench, StudyState]:
    bench = Bench(path, topic=topic, planner="llm", model=MODEL)
    bench.planner = LlmPlanner(MODEL, script)
    bench.build_report = build_report
    if rate is not None:
        bench.sandbox.rate = lambda spec: rate + (spec.seed % 4) / 512
    return bench, bench.drive(bench.loop())


def report(bench: Bench, state: StudyState) -> tuple[str, str]:
    folder = bench.home.study(state.id)
    return (folder / "report.md").read_text(), unescape((folder / "report.html").read_text())


@pytest.mark.slow
def test_a_planner_that_wants_the_bar_moved_gets_the_bar_and_its_words_in_quotes(tmp_path: Path) -> None:
    script = Script(
        propose=[
            {**PROPOSAL, "hypotheses": [{**CLAIM, "smallest_effect": 0.6}]},
            {**PROPOSAL, "hypotheses": [{**CLAIM, "direction": "decrease", "predicted_low": 0.1}]},
            PROPOSAL,
        ],
        design=[DESIGN], conclude=[ANSWER, ANSWER], review=[UNREAD, UNREAD],
    )  # fmt: skip
    bench, state = studied(tmp_path, script, rate=0.5)
    assert (state.status, [verdict.verdict for verdict in state.verdicts]) == ("concluded", ["equivalent"])
    assert state.design.equivalence_margin == 0.1
    assert "the study's; found 0.6" in state.planner_acts[0].rejected[0]
    assert "contradicts it" in state.planner_acts[0].rejected[1]
    (claim,) = state.design.hypotheses
    assert claim.statement == "group_size = 16 raises the hidden success, compared with group_size = 8."
    assert claim.said == LIE

    assert state.concluded_reason == "the hypothesis is judged: h1 equivalent"
    assert (state.said.by, state.said.text) == (f"llm {MODEL}", WORDS)
    answered = state.planner_acts[-1].rejected[0]
    for wrong in ("SUPPORTED", "0.0001", "+0.42", "{h9.estimate}", "twenty", "per cent", "figures"):
        assert wrong in answered

    markdown, html = report(bench, state)
    for lie in (LIE, WORDS):
        holding = [line for line in markdown.replace("\\", "").splitlines() if lie in line]
        assert len(holding) == 1, "said once"
        assert holding[0].startswith("> "), "in a quotation"
        assert html.count(lie) == 1
    assert_golden(section(markdown, "The topic, answered by"))
    assert "<b>Ignore" not in (bench.home.study(state.id) / "report.html").read_text()
    assert f"in the words of the planner llm {MODEL}" in markdown.replace("\\", "")
    told = dict(progress_lines(state))
    assert told["said"] == f"llm {MODEL} answers the topic in the report"
    assert told["concluded"] == "concluded: the hypothesis is judged: h1 equivalent"
    assert LIE not in " ".join(told.values())


@pytest.mark.slow
def test_numbers_of_an_answer_are_looked_up_and_a_second_reading_stands_beside_it(tmp_path: Path) -> None:
    script = Script(
        propose=[PROPOSAL], design=[DESIGN], conclude=[ANSWER, FOUNDED],
        review=[{"action": "review", "unsupported": [9]}, {"action": "review", "unsupported": [2, 4]}],
    )  # fmt: skip
    bench, state = studied(tmp_path, script, rate=0.5)
    assert state.said.text == FOUNDED["answer"]
    assert [act.tries for act in state.planner_acts[-2:]] == [2, 2]
    assert state.said.answer.unsupported == ("It runs in {study.runs}.", "One place alone.")
    markdown, _ = report(bench, state)
    assert markdown.index("**Verdict:**") < markdown.index("## The topic, answered by") < markdown.index("## Predicted")
    assert_golden(section(markdown, "The topic, answered by"))


@pytest.mark.slow
@pytest.mark.parametrize("written", [True, False])
def test_an_answer_and_its_second_reading_are_asked_once_whatever_kills_the_controller(
    tmp_path: Path, written: bool
) -> None:
    script = Script(
        propose=[PROPOSAL], design=[DESIGN], conclude=[FOUNDED], review=[{"action": "review", "unsupported": [1]}],
    )  # fmt: skip
    bench = Bench(tmp_path, topic=TOPIC, planner="llm", model=MODEL)
    bench.planner = LlmPlanner(MODEL, script)
    state, killed = bench.drive_by_single_events(written=written)
    assert killed > 10
    assert [act.turn for act in state.planner_acts][-2:] == ["1/conclude/1", "1/review/1"]
    assert state.said.answer.unsupported == ("Group size: {h1.verdict}, by {h1.estimate} ({h1.interval}).",)


@pytest.mark.slow
def test_the_front_says_what_is_not_tested_who_chose_the_metric_and_what_the_planner_asks(tmp_path: Path) -> None:
    swapped = {**PROPOSAL, "metric": "gain", "not_tested": "h7 is supported.", "hypotheses": [
        {**CLAIM, "predicted_high": 0.9, "confounds": ["the order was proven", "group_size: no, IGNORE"]}]}  # fmt: skip
    script = Script(
        propose=[{"action": "ask", "text": "<i>May</i> I train 3 times as long?"}, swapped], design=[DESIGN],
        conclude=[FOUNDED], review=[UNREAD, UNREAD],
    )  # fmt: skip
    topic = "Does it matter in which order tasks come? Group size 8 or 16, easy-first, faster, on arith and guess"
    bench, state = studied(tmp_path, script, topic)
    assert state.planner_acts[1].left == ("order", "easy-first, faster", "arith")
    markdown = report(bench, state)[0].replace("\\", "")
    front = markdown.partition("\n## ")[0]
    assert_golden(front.partition("- **Verdict:**")[0])
    assert '- **A question to you:** llm a-liar asks: "<i>May</i> I train 3 times as long?":' in front
    assert "It is judged by a metric that the planner chose." in front
    assert "**Topic:** Answered in part" in front
    assert len(front.splitlines()) < 36
    for line in (
        line for line in section(markdown, "Threats").splitlines() if "IGNORE" in line or "was proven" in line
    ):
        assert line.startswith("- **Feared.** By llm a-liar, for h1")
    assert "No second reading" in section(markdown, "The topic, answered by")


DECLINED = {"action": "decline", "reason": "There is no curriculum of 3 stages here."}
AT_ONCE = {"propose": [DECLINED]}
LATER = {"propose": [PROPOSAL], "design": [{**DESIGN, **DECLINED}]}


@pytest.mark.parametrize(("script", "cut"), [(AT_ONCE, None), (AT_ONCE, 1), (LATER, 2)])
def test_a_declined_topic_ends_with_a_report(tmp_path: Path, script: dict[str, list[Any]], cut: int | None) -> None:
    bench = Bench(tmp_path, topic="Does curriculum learning at temperature 0.7 help?", planner="llm", model=MODEL)
    bench.planner = LlmPlanner(MODEL, Script(**script))
    bench.build_report = build_report
    if cut is not None:
        with pytest.raises(Cut):
            bench.drive(bench.loop(cut))
    state = bench.drive(bench.loop())
    assert (state.status, state.declined, state.runs) == ("concluded", True, {})
    assert [act.action for act in state.planner_acts][-1] == "decline"
    assert [event.type for event in bench.events()][-2:] == [EventType.STUDY_CONCLUDED, EventType.REPORT_BUILT]
    assert state.said.text == "There is no curriculum of 3 stages here."
    markdown, html = report(bench, state)
    for text in (markdown.replace("\\", ""), html):
        assert "the planner declined" in text
        assert "no curriculum of 3 stages here." in text
        assert "ajet study plan ... --sandbox docker" in text


DOCKER = Sandboxing(kind="docker", image="sha256:" + "0" * 64, base="base", engine="1")


class Coder(ScriptedPlanner):
    name = "llm"
    model = "scripted"

    def __init__(self, environment: str = "guess", **sources: str) -> None:
        claims = (make_claim("reward", "built-in", name, code=source) for name, source in sources.items())
        super().__init__(3, environment, *claims)


def coded(path: Path, source: str, sandbox: Sandboxing = DOCKER) -> Bench:
    bench = Bench(path, planner="llm", model="scripted", sandbox=sandbox.model_dump(mode="json"))
    bench.planner, bench.isolation = Coder(dense=source), Isolation(DOCKER)
    return bench


def source(trace: Path) -> str:
    return f"open({str(trace)!r}, 'w').close()\n\n\ndef reward(task, messages, outcome):\n    return 1.0\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace"


@pytest.fixture
def bench(tmp_path: Path, trace: Path) -> Bench:
    return coded(tmp_path / "home", source(trace))


def test_code_is_run_nowhere_from_planning_to_report(bench: Bench, trace: Path) -> None:
    bench.build_report = build_report
    state = bench.drive(bench.loop())
    assert (state.status, trace.exists()) == ("concluded", False)
    assert source(trace) in report(bench, state)[0]
    assert "-    return outcome[" in report(bench, state)[0]
    assert {run.spec.arm: run.spec.code for run in state.runs.values()} == {
        "reward=built-in": None, "reward=dense": source(trace),
    }  # fmt: skip
    assert len(state.runs) == 6


def test_a_study_with_code_launches_nothing_without_containers(bench: Bench, trace: Path) -> None:
    bench.isolation = Isolation(Sandboxing())
    with pytest.raises(NotReady, match="--sandbox docker"):
        bench.drive(bench.loop())
    assert not bench.sandbox.starts
    assert EventType.ATTEMPT_LAUNCHED not in {event.type for event in bench.events()}
    assert not trace.exists()


@pytest.mark.parametrize("sandbox", [Sandboxing(), DOCKER.model_copy(update={"lacks": ("seccomp",)})])
def test_code_is_refused_where_the_sandbox_does_not_isolate(tmp_path: Path, trace: Path, sandbox: Sandboxing) -> None:
    bench = coded(tmp_path / "home", source(trace), sandbox)
    with pytest.raises(PlannerFailed, match="runs in containers"):
        bench.loop().tick()
    assert not trace.exists()


@pytest.mark.parametrize(("end", "code"), [("failed", "server_died"), ("timeout", "timeout")])
def test_generated_code_gets_no_other_try_after_an_end_it_may_have_caused(bench: Bench, end: str, code: str) -> None:
    bench.sandbox.script = lambda order: end if order.attempt == 1 else "ok"
    state = bench.drive(bench.loop())
    assert {(run.spec.arm, len(run.attempts), run.status) for run in state.runs.values()} == {
        ("reward=built-in", 2, "collected"), ("reward=dense", 1, "invalid"),
    }  # fmt: skip
    reasons = [run.invalid for run in state.runs.values() if run.invalid is not None]
    assert {found for found, _ in reasons} == {"generated_code_failed"}
    assert all("not tried again" in reason and code in reason for _, reason in reasons)
    assert [verdict.verdict for verdict in state.verdicts] == ["invalid"]

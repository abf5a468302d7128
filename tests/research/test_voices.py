"""Whole studies by language models that attack: what they say moves no bar, words no claim and is quoted as theirs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from research.controller.progress import progress_lines
from research.planners.endpoint import shorten
from research.planners.llm import LlmPlanner
from studies import EventType, StudyState
from studies.report import build_report
from tests.research.bench import Bench, Cut

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
CONCLUSION = {"action": "conclude", "reason": WORDS}


class Script:
    where = "a script"

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
    return bench, bench.drive(bench.loop()).state


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
        design=[DESIGN], conclude=[CONCLUSION],
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
    assert (state.said.unfounded, state.said.contradicted) == (("0.0001", "+0.42"), ("SUPPORTED",))

    markdown, html = report(bench, state)
    said = f'llm {MODEL}: "{WORDS}" (numbers that are in no fact: 0.0001, +0.42; verdicts that were not reached: '
    for lie in (LIE, WORDS):
        holding = [line for line in markdown.replace("\\", "").splitlines() if lie in line]
        assert len(holding) == 1, "said once"
        assert holding[0].startswith("> "), "in a quotation"
        assert html.count(lie) == 1
    assert said in markdown.replace("\\", "")
    assert f"in the words of the planner llm {MODEL}" in markdown.replace("\\", "")
    told = dict(progress_lines(state))
    assert told["said"].startswith(said)
    assert told["concluded"] == "concluded: the hypothesis is judged: h1 equivalent"
    assert LIE not in " ".join(told.values())


DECLINED = {"action": "decline", "reason": "There is no curriculum of 3 stages here."}
AT_ONCE = {"propose": [DECLINED]}
LATER = {"propose": [PROPOSAL], "design": [{**DESIGN, **DECLINED}]}


@pytest.mark.parametrize(("script", "cut"), [(AT_ONCE, None), (AT_ONCE, 1), (LATER, 2)])
def test_a_declined_topic_ends_with_a_report(tmp_path: Path, script: dict[str, list[Any]], cut: int | None) -> None:
    """Also where the controller is killed at any of its first events: the turn that was taken is used again."""
    bench = Bench(tmp_path, topic="Does curriculum learning at temperature 0.7 help?", planner="llm", model=MODEL)
    bench.planner = LlmPlanner(MODEL, Script(**script))
    bench.build_report = build_report
    if cut is not None:
        with pytest.raises(Cut):
            bench.drive(bench.loop(cut))
    state = bench.drive(bench.loop()).state
    assert (state.status, state.declined, state.runs) == ("concluded", True, {})
    assert [act.action for act in state.planner_acts][-1] == "decline"
    assert [event.type for event in bench.events()][-2:] == [EventType.STUDY_CONCLUDED, EventType.REPORT_BUILT]
    assert state.said.text == "There is no curriculum of 3 stages here."
    markdown, html = report(bench, state)
    for text in (markdown.replace("\\", ""), html):
        assert "the planner declined" in text
        assert "no curriculum of 3 stages here." in text

"""What a terminal shows of a study; and that what is printed is what was said."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from research.cli.app import console
from research.cli.research import LineLog, describe_now
from research.cli.studies import render_ending, render_opening
from research.text import warn
from studies import EventType, StudyState
from studies.log.study import BUDGET_RULE
from studies.records.design import Design
from studies.records.verdict import ApprovalRequest
from studies.report import build_report
from studies.report.summary import headline
from tests.golden import assert_golden
from tests.studies.synthetic import STUDY, Synthetic, design


@pytest.fixture
def study(tmp_path: Path) -> Synthetic:
    made = Synthetic(tmp_path)
    made.create(settings={"budget_s": 900.0, "max_runs": 40, "parallel": 2, "approve": "none"})
    return made


@pytest.fixture
def locked(study: Synthetic) -> Synthetic:
    study.lock()
    return study


def test_an_open_question_says_how_it_is_answered_in_the_lines(locked: Synthetic) -> None:
    question = ApprovalRequest(
        study=STUDY, number=1, stage="design", lock=locked.state().design_hash or "", runs=10, seconds=375.0,
        left_s=900.0, would="all of it",
    )  # fmt: skip
    asked = {"question": question.model_dump(mode="json"), "digest": question.hash()}
    locked.append(EventType.APPROVAL_ASKED, **asked)
    written: list[str] = []
    LineLog(written.append, lambda state: 300.0).observe(locked.state())
    assert f"ajet study approve {STUDY}; or: ajet study deny {STUDY}" in "\n".join(written)


def test_what_trains_now_stands_in_a_line(locked: Synthetic) -> None:
    first, second = locked.plan()[:2]
    locked.run(first)
    locked.launch(second)
    told: list[str] = []

    def show(state: StudyState) -> None:
        told.append(describe_now(state, 300.0, lambda run: {"step": 3, "steps": 80}))

    LineLog(lambda line: None, lambda state: 300.0, show=show).observe(locked.state())
    (line,) = told
    assert "5 min of the budget left" in line
    assert line.endswith(f"; {second.arm}, seed {second.seed}: 3 of 80")


def test_lines_tell_each_thing_once(locked: Synthetic) -> None:
    told: list[str] = []
    log = LineLog(told.append, lambda state: 300.0)
    spec = locked.plan()[0]
    log.observe(locked.state())
    locked.launch(spec)
    locked.end(spec, status="failed", code="server_died", reason="killed from outside")
    for _ in range(3):
        log.observe(locked.state())
    locked.run(spec, attempt=2)
    locked.append(EventType.STUDY_STOPPED, reason="x")
    log.observe(locked.state())
    log.note("a tiny model: 50 %")
    log.note("a tiny model: 50 %")
    assert len(told) == len(set(told))
    text = "\n".join(told)
    for words in ("design locked", "try 1 failed: killed from outside", "try 2 started", "hidden success", "50 %"):
        assert words in text
    again: list[str] = []
    LineLog(again.append, lambda state: 300.0).observe(locked.state())
    assert {line.split("] ")[0] for line in again} == {"[earlier"}


USED_UP = "900 s of work are used up"
LACKED = "3 runs need about 20 min; the budget is 15 min"
RESUME = f"ajet study resume {STUDY}"
MORE = f'ajet study amend {STUDY} --budget 30m --reason "..." and then {RESUME}'


def shown(lines: Iterable[RenderableType], width: int = 500) -> str:
    console = Console(width=width)
    with console.capture() as taken:
        for line in lines:
            console.print(line)
    return taken.get()


def judged(study: Synthetic) -> None:
    for spec in study.plan():
        study.run(spec)
    study.judge()


@pytest.mark.parametrize(
    ("design_of", "then", "reason", "words", "absent"),
    [
        pytest.param(design(), None, "Ctrl-C", (f"go on with: {RESUME}\n",), "--budget", id="a person"),
        pytest.param(design(), None, USED_UP, (MORE, "without, it concludes"), "conclude with", id="a budget"),
        pytest.param(None, None, USED_UP, (MORE, "resumed without, it"), "conclude with", id="a budget at A/A runs"),
        pytest.param(design(), judged, USED_UP, (f"conclude with: {RESUME}",), "--budget", id="its last look"),
        pytest.param(design(seeds=20), Synthetic.plan, USED_UP, (f"conclude with: {RESUME}",), "--budget",
                     id="no run left"),
        pytest.param(None, None, LACKED, (f"plan again with: {RESUME}; where time",
                     f"study amend {STUDY} --budget 30m"), "runs:", id="no plan"),
        pytest.param(None, None, f"{LACKED}; use --budget 20m (ajet study amend)",
                     (f"study amend {STUDY} --budget 20m",), "30m", id="no plan, which says the budget"),
    ],
)  # fmt: skip
def test_what_is_advised_follows_from_what_stopped_a_study_and_what_more_time_would_buy(
    study: Synthetic, design_of: Design | None, then: Any, reason: str, words: tuple[str, ...], absent: str
) -> None:
    if design_of is not None:
        study.lock(design_of)
    if then is not None:
        then(study)
    if reason == USED_UP:
        study.append(EventType.DECISION_TAKEN, rule=BUDGET_RULE, action="stop", reason=USED_UP)
        reason = f"budget: {USED_UP}"
    study.append(EventType.STUDY_STOPPED, reason=reason)
    said = shown([render_ending(study.state(), study.folder)])
    assert ([word for word in words if word not in said], absent in said) == ([], False)


def test_a_terminal_begins_with_what_was_asked_and_what_is_tested(study: Synthetic) -> None:
    study.append(
        EventType.PLANNER_ACTED, action="propose", tries=1, tokens={}, rejected=[], note="",
        not_tested=["whether it holds on a large model"],
    )  # fmt: skip
    study.lock()
    assert_golden(shown(render_opening(study.state())))


def test_a_terminal_ends_with_the_reports_own_verdict(tmp_path: Path) -> None:
    study = Synthetic(tmp_path)
    state = study.whole()
    said = shown([render_ending(state, tmp_path)])
    head = headline(state)
    assert f"{head.answers[0].label}: {head.answers[0].sentence}" in said
    assert head.answers[0].sentence in build_report(state, tmp_path).html.read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert f"in practice: {head.answers[0].practice}" in said
    assert head.next.command in said


SAID = "pip install 'ajet[local]' [red]x[/] [/nothing] :smile:"
STEERING = "a\x1b[31mred\x1b]0;title\x07 b\x9b2J\rc"


@pytest.fixture
def printed(capfd: pytest.CaptureFixture[str]) -> Callable[[object, str], tuple[str, str]]:
    """Print one thing and warn of a text, and return what was written for each."""
    console.cache_clear()

    def write(shown: object, warned: str) -> tuple[str, str]:
        console().print(shown)
        warn(warned)
        return tuple(capfd.readouterr())

    return write


def _table() -> Table:
    table = Table(SAID, title=SAID, caption=SAID)
    table.add_row(SAID)
    table.add_row(Text(SAID, "red"))
    return table


@pytest.mark.parametrize(("shown", "times"), [(SAID, 1), (Text(SAID), 1), (_table(), 5)])
def test_no_bracket_colon_or_tag_of_foreign_text_is_read_as_markup(printed: Any, shown: object, times: int) -> None:
    out, err = printed(shown, SAID)
    assert (out.count(SAID), err) == (times, f"ajet: {SAID}\n")


@pytest.mark.parametrize("shown", [STEERING, Text(STEERING, "red")])
def test_foreign_text_steers_no_terminal(printed: Any, shown: object) -> None:
    written = "".join(printed(shown, STEERING))
    assert "red" in written
    assert not [char for char in written if not char.isprintable() and char != "\n"]


def test_nothing_is_printed_past_the_one_console_and_nothing_asks_for_markup() -> None:
    bad = re.compile(
        r"\bConsole\(|rich import print|rich\.print|markup=True|from_markup|\[/\]|status\.update\((?!Text\()"
    )
    for file in (Path(__file__).parents[3] / "research").rglob("*.py"):
        assert "rich" not in (source := file.read_text()) or not bad.search(source), file

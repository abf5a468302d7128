"""What a person sees while a study runs."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from research.cli.progress import LineLog, LiveScreen, screen, stage
from research.scheduler.steps import NO_MORE_CANDIDATES, SHRINK_RULE
from studies import EventType, StudyState
from tests.studies.synthetic import Synthetic

FINAL: dict[str, float | str] = {"stage": "final", "step": 20, "steps": 40, "train_success": 0.437}


@pytest.fixture
def created(tmp_path: Path) -> Synthetic:
    made = Synthetic(tmp_path)
    made.create()
    return made


@pytest.fixture
def synthetic(created: Synthetic) -> Synthetic:
    created.lock()
    return created


@pytest.fixture
def half_done(synthetic: Synthetic) -> StudyState:
    """The first run is collected, the second goes on."""
    first, second, *_ = synthetic.plan()
    synthetic.run(first)
    synthetic.launch(second)
    return synthetic.state()


def seen(state: StudyState, progress: dict[str, float | str], width: int = 140) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 - lives as long as the test
    console.print(screen(state, 300.0, lambda run: progress))
    return console.export_text()


def test_the_stages_follow_the_study(created: Synthetic) -> None:
    stages = [stage(created.state())]
    created.lock()
    specs = created.plan()
    stages.append(stage(created.state()))
    for spec in specs:
        created.run(spec)
    stages.append(stage(created.state()))
    created.judge()
    stages.append(stage(created.state()))
    assert stages == ["plan", "train", "judge", "report"]


def test_a_running_run_shows_its_stage_its_success_and_the_time_left(half_done: StudyState) -> None:
    shown = seen(half_done, FINAL)
    assert [part for part in ("final", "0.44", "the budget left", "→") if part not in shown] == []
    assert shown.count("planned") == 8


def test_a_terminal_of_eighty_columns_shows_every_number_whole(half_done: StudyState) -> None:
    wide, narrow = (seen(half_done, FINAL | {"hidden_success": 0.31}, width) for width in (140, 80))
    for number in re.findall(r"\d\.\d\d → \d\.\d\d|0\.44|0\.31|\b\d{7,}\b|[0-9a-f]{8}", wide):
        assert number in narrow
    assert "10 min spent, 5 min of the" in narrow
    assert max(map(len, narrow.splitlines())) <= 80


def test_a_live_screen_cuts_no_line_at_the_width_of_the_terminal(synthetic: Synthetic) -> None:
    written = io.StringIO()
    # As `ajet` prints elsewhere: soft_wrap leaves long lines to the terminal.
    terminal = Console(width=80, soft_wrap=True, force_terminal=True, file=written)
    with LiveScreen(terminal, lambda state: 300.0, lambda run: {}) as live:
        live.observe(synthetic.state())
        live.note(f"waiting for a sandbox: {'expected room on the disk, ' * 4}and found none")
    assert "and found none" in " ".join(written.getvalue().split())


def test_a_pause_and_its_end_are_told_where_the_study_runs(synthetic: Synthetic) -> None:
    told: list[str] = []
    log = LineLog(told.append, lambda state: 300.0)
    for _ in range(2):
        synthetic.append(EventType.STUDY_PAUSED, reason="paused by the user")
        log.observe(synthetic.state())
        log.observe(synthetic.state())
        assert "paused: paused by" in " ".join(seen(synthetic.state(), {}).split())
        synthetic.append(EventType.STUDY_RESUMED, command=["ajet", "study", "resume"])
        log.observe(synthetic.state())
        assert "paused: paused" not in " ".join(seen(synthetic.state(), {}).split())
    assert sum("paused: paused by" in line and "ajet study resume" in line for line in told) == 2
    assert sum("paused no more" in line for line in told) == 2


def test_lines_tell_each_thing_once(synthetic: Synthetic) -> None:
    told: list[str] = []
    log = LineLog(told.append, lambda state: 300.0)
    spec = synthetic.plan()[0]
    log.observe(synthetic.state())
    synthetic.launch(spec)
    synthetic.end(spec, status="failed", code="server_died", reason="killed from outside")
    for _ in range(3):
        log.observe(synthetic.state())
    synthetic.run(spec, attempt=2)
    synthetic.append(EventType.STUDY_STOPPED, reason="stopped by the user")
    log.observe(synthetic.state())
    log.note("making the tiny model: 50 %")
    log.note("making the tiny model: 50 %")
    assert len(told) == len(set(told))
    text = "\n".join(told)
    for words in ("design locked", "try 1 failed: killed from outside", "try 2 started", "hidden success", "50 %"):
        assert words in text


def test_what_is_given_up_for_want_of_time_stands_under_the_runs_and_in_the_lines_once(synthetic: Synthetic) -> None:
    written: list[str] = []
    log = LineLog(written.append, lambda state: 300.0)
    said = {"rule": SHRINK_RULE, "action": "shorten the screen", "reason": "a run takes about 60 s"}
    synthetic.append(EventType.DECISION_TAKEN, **said)
    for _ in range(2):
        log.observe(synthetic.state())
    assert "run takes about 60 s" in seen(synthetic.state(), {})
    assert sum("run takes about 60 s" in line for line in written) == 1


def test_what_was_foreseen_with_another_budget_is_shown_no_more_but_a_cut_screen_is(synthetic: Synthetic) -> None:
    for action in ("shorten the screen", NO_MORE_CANDIDATES):
        said = {"rule": SHRINK_RULE, "action": action, "reason": "a run takes about 60 s"}
        synthetic.append(EventType.DECISION_TAKEN, **said)
    amendment = {"kind": "budget", "value": 9000.0, "reason": "slower than priced"}
    synthetic.append(EventType.DESIGN_AMENDED, amendment=amendment)
    shown = seen(synthetic.state(), {})
    assert "shorten the screen" not in shown
    assert NO_MORE_CANDIDATES in shown

"""How a container ended: PID 1's word first, then what the engine saw, then what we asked for."""

from __future__ import annotations

from typing import Any

import pytest

from sandboxes.docker.frames import Ending, FrameReport
from sandboxes.docker.settling import verdict
from sandboxes.spec import Exit

ASKED = {"asked_at": 1.0}
OVERDUE = {"asked_at": 1.0, "overdue": True}


def word(reason: str, code: int = 0, oom_kills: int = 0) -> FrameReport:
    return FrameReport(Ending(reason, code, 0, oom_kills))


@pytest.mark.parametrize(
    ("report", "code", "oom", "asked", "ended"),
    [
        (word("finished"), 0, False, None, Exit("finished", 0)),
        (word("finished"), 0, True, None, Exit("finished", 0)),
        (word("finished"), 0, False, ASKED, Exit("finished", 0)),
        (word("error", 3), 3, False, None, Exit("error", 3)),
        (word("error", -9), 137, True, None, Exit("out_of_memory", -9)),
        (word("error", -9, oom_kills=1), 137, False, None, Exit("out_of_memory", -9)),
        (word("error", 3), 3, False, ASKED, Exit("error", 3)),
        (word("timeout", -15), 143, False, ASKED, Exit("timeout", -15)),
        (word("timeout", -15), 143, True, None, Exit("timeout", -15)),
        (word("stopped", -15), 143, False, ASKED, Exit("stopped", -15)),
        (word("stopped", -15), 143, False, None, Exit("killed", -15)),
        (FrameReport(), 137, False, None, Exit("killed", 137)),
        (FrameReport(), 137, True, None, Exit("out_of_memory", 137)),
        (FrameReport(), 137, True, ASKED, Exit("out_of_memory", 137)),
        (FrameReport(), 137, False, ASKED, Exit("stopped", 137)),
        (FrameReport(), 137, False, OVERDUE, Exit("timeout", 137)),
        (FrameReport(), 0, False, None, Exit("killed", 0)),
        (FrameReport(), 127, False, None, Exit("error", 127)),
        (FrameReport(), 128, False, None, Exit("killed", 128)),
        (FrameReport(), 255, False, None, Exit("killed", 255)),
        (FrameReport(trouble="Traceback"), 1, False, None, Exit("error", 1)),
    ],
)
def test_every_end_is_told_apart(report: FrameReport, code: int, oom: bool, asked: dict[str, Any], ended: Exit) -> None:
    assert verdict({"ExitCode": code, "OOMKilled": oom}, report, asked) == ended

"""How a container ended: PID 1's word first, then what the engine saw, then what we asked for."""

from __future__ import annotations

from typing import Any

import pytest

from sandboxes.frames import Ending, Report
from sandboxes.settling import verdict
from sandboxes.spec import Exit

ASKED = {"asked_at": 1.0}
OVERDUE = {"asked_at": 1.0, "overdue": True}


def word(reason: str, code: int = 0, oom_kills: int = 0) -> Report:
    return Report(Ending(reason, code, 0, oom_kills))


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
        (Report(), 137, False, None, Exit("killed", 137)),
        (Report(), 137, True, None, Exit("out_of_memory", 137)),
        (Report(), 137, True, ASKED, Exit("out_of_memory", 137)),
        (Report(), 137, False, ASKED, Exit("stopped", 137)),
        (Report(), 137, False, OVERDUE, Exit("timeout", 137)),
        (Report(), 0, False, None, Exit("killed", 0)),
        (Report(), 127, False, None, Exit("error", 127)),
        (Report(), 128, False, None, Exit("killed", 128)),
        (Report(), 255, False, None, Exit("killed", 255)),
        (Report(trouble="Traceback"), 1, False, None, Exit("error", 1)),
    ],
)
def test_every_end_is_told_apart(report: Report, code: int, oom: bool, asked: dict[str, Any], ended: Exit) -> None:
    assert verdict({"ExitCode": code, "OOMKilled": oom}, report, asked) == ended

"""When a client that died is started again: after which pause, how often in vain, and for which ends not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandboxes import Exit

FIRST_WAIT_S: Final = 0.5
MOST_WAIT_S: Final = 30.0
"""Before a restart, at the least and the most; it doubles with each client that was not healthy."""
HEALTHY_S: Final = 5.0
"""A client that lived for so long and finished an episode was healthy: the next pause is the first one again."""
MOST_IN_VAIN: Final = 8
"""Clients in a row that finish no episode, after which none is started again: about two minutes of pauses."""
BAD_INPUT: Final = 2
_LOST: Final = 3


@dataclass(frozen=True, slots=True)
class Restart:
    """A client that ended, and was started again after `pause_s`."""

    reason: str
    lived_s: float
    finished: int
    """Episodes it finished, as far as the server could be asked."""
    pause_s: float


class RestartPolicy:
    """Decides on each end of a client."""

    def __init__(self) -> None:
        self._unhealthy = 0
        self._in_vain = 0

    def pause(self, lived_s: float, finished: int) -> float | None:
        """Return the seconds to wait before the next client, None where no further one is started."""
        healthy = finished > 0 and lived_s >= HEALTHY_S
        self._in_vain = 0 if finished else self._in_vain + 1
        pause = FIRST_WAIT_S if healthy else min(MOST_WAIT_S, FIRST_WAIT_S * 2.0**self._unhealthy)
        self._unhealthy = 0 if healthy else self._unhealthy + 1
        return None if self._in_vain >= MOST_IN_VAIN else pause


def why_again(ended: Exit) -> str | None:
    """Return why a client that ended so, with steps left to train, is to be started again; None: it is not."""
    code = ended.code
    if ended.reason == "timeout" or (ended.reason == "error" and code == BAD_INPUT):
        return None
    if ended.reason == "error":
        return _of_code(code)
    return {
        "finished": "it ended before the job was finished",
        "out_of_memory": "it used up its memory",
        "stopped": "it was stopped",
        "killed": "it was killed",
        "lost": "its container is gone",
    }[ended.reason]


def _of_code(code: int | None) -> str:
    if code is not None and code < 0:
        return f"it was killed by signal {-code}"
    lost = "the server was lost, the disk was full, or the agent failed again and again"
    return f"it ended with exit code {code}" + (f": {lost}" if code == _LOST else "")

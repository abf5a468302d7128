"""Who wants what of a running study: Prefect's UI and the study's own log, brought to agree.

Decided by edges. What the two agreed on last is remembered; the side that differs from it has moved. A move in the UI
is a wish, which the study follows; a move of the study is shown in the UI. Where both moved, the UI's wish goes first:
somebody clicked after having seen the study.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from research.needs import stopped_by_budget
from studies import StudyState

How = Literal["concluded", "budget", "cancelled", "failed", "left"]


class Mood(Enum):
    """What a study that is not over may be shown as."""

    RUNNING = "running"
    PAUSED = "paused"


class Wish(Enum):
    """What a person may click."""

    GO_ON = "go on"
    PAUSE = "pause"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Agreement:
    """What both sides are to be now, and what has to be asked of the study for that."""

    mood: Mood
    ask: Wish | None = None


def agree(agreed: Mood, wish: Wish | None, study: Mood) -> Agreement:
    """Bring the UI's wish (None for none) and the study to agree, after they agreed on `agreed`."""
    if wish is Wish.STOP:
        return Agreement(agreed, Wish.STOP)
    wanted = {Wish.GO_ON: Mood.RUNNING, Wish.PAUSE: Mood.PAUSED, None: agreed}[wish]
    if wanted is agreed:
        return Agreement(study)
    return Agreement(wanted, wish if wanted is not study else None)


def mood(state: StudyState) -> Mood:
    """Return what a study is to be shown as while it is not over."""
    return Mood.RUNNING if state.paused_reason is None else Mood.PAUSED


@dataclass(frozen=True, slots=True)
class Ending:
    """How a sitting ended, for whoever looks at it later."""

    how: How
    message: str


def ending(state: StudyState, error: BaseException | None) -> Ending:
    """Return how a sitting ended that left this state, or raised this error."""
    if isinstance(error, Exception):
        return Ending("failed", str(error) or type(error).__name__)
    if state.concluded_reason is not None:
        return Ending("concluded", state.concluded_reason)
    if error is not None or state.stopped_reason is None:
        return Ending("left", "left at once; runs that were started go on, and so does `ajet study resume`")
    if stopped_by_budget(state):
        return Ending("budget", state.stopped_reason)
    return Ending("cancelled", state.stopped_reason)

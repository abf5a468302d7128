"""Reconciles Prefect's UI with a study's log: which of the two changed since they last agreed, and what follows.

What the two agreed on last is remembered; the side that differs from it has changed. A change in the UI is an action
of a user, which the study follows; a change of the study is shown in the UI. Where both changed, the action goes first:
somebody clicked after having seen the study.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from research.scheduling.required_runs import stopped_by_budget
from studies import StudyState

How = Literal["concluded", "budget", "cancelled", "failed", "left"]


class Activity(Enum):
    """What a study that is not over is shown as."""

    RUNNING = "running"
    PAUSED = "paused"


class UserAction(Enum):
    """What a user may click in Prefect's UI."""

    CONTINUE = "continue"
    PAUSE = "pause"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The activity on both sides now, and the action that the study has to be asked for to get there."""

    activity: Activity
    ask: UserAction | None = None


def reconcile(agreed: Activity, action: UserAction | None, study: Activity) -> Reconciled:
    """Return what follows from a user's action (None for none) and the study, which agreed on `agreed` before."""
    if action is UserAction.STOP:
        return Reconciled(agreed, UserAction.STOP)
    wanted = {UserAction.CONTINUE: Activity.RUNNING, UserAction.PAUSE: Activity.PAUSED, None: agreed}[action]
    if wanted is agreed:
        return Reconciled(study)
    return Reconciled(wanted, action if wanted is not study else None)


def activity(state: StudyState) -> Activity:
    """Return the activity of a study that is not over."""
    return Activity.RUNNING if state.paused_reason is None else Activity.PAUSED


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """How a session ended, for its flow run's last state."""

    how: How
    message: str


def ending(state: StudyState, error: BaseException | None) -> SessionEnd:
    """Return how a session ended, from the study's state and the error that was raised."""
    if isinstance(error, Exception):
        return SessionEnd("failed", str(error) or type(error).__name__)
    if state.concluded_reason is not None:
        return SessionEnd("concluded", state.concluded_reason)
    if error is not None or state.stopped_reason is None:
        return SessionEnd("left", "left at once; runs that were started go on, and so does `ajet study resume`")
    if stopped_by_budget(state):
        return SessionEnd("budget", state.stopped_reason)
    return SessionEnd("cancelled", state.stopped_reason)

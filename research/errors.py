"""Every error the research side raises for a person; the command line then exits with 2."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from studies.records.verdict import PlannerMessage

_FLAG: Final = re.compile(r"(?:,|:|; use|; leave)? --[a-z][a-z-]*(?:[ =][^\s,;:)]+)?| \(--[a-z][a-z-]*(?: [^\s)]+)?\)")
"""A flag with its value, as messages name and advise them: a planner has none."""


class ResearchError(Exception):
    """Base of all research errors; `message` is the one line a person reads."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class BadInput(ResearchError):
    """What a person gave cannot be taken: an option, a file, an answer, a name of something that is not here."""


class NotReady(ResearchError):
    """What is asked needs something that is not here or does not run: the message says what, and how to get it."""


class BadTopic(ResearchError):
    """The topic is empty, names nothing that can be studied, or names values that cannot be."""


class BadEnvironment(ResearchError):
    """What was named as an environment is none, or its code, tasks or packages cannot be had."""


class PlannerFailed(ResearchError):
    """The planner gave no usable action: endpoint unreachable, access refused, or nonsense after all tries."""

    spent: Mapping[str, Any] | None = None
    """What the turn had taken until then, as `planner.acted` tells it; None where nobody counted."""

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        """Why the last design was refused of a planner that answers; None where it gave none."""


class DesignRefused(ResearchError):
    """A proposal that cannot be locked: unsound, confounded, or dearer than the budget (then with an alternative).

    `model_feedback` says the same to who proposed it, by what a planner can change: it knows of no flag. `when` says
    where, or once what is done, it could be had all the same; empty where nobody knows.
    """

    def __init__(self, message: str, *, model_feedback: str | None = None, when: str = "") -> None:
        super().__init__(message)
        self.when = when
        self.model_feedback = _FLAG.sub("", message) if model_feedback is None else model_feedback
        if when:
            self.model_feedback += f"; it could be had {when}"


class Unmeasurable(DesignRefused):
    """A comparison whose metric cannot be read off its trainings: there is no plan of it to be shown."""


class TopicDeclined(ResearchError):
    """The planner declines the topic, or has no further question; `said` is its reason, in its words."""

    def __init__(self, said: "PlannerMessage") -> None:
        super().__init__(f'{said.by}: "{said.text}"')
        self.said = said


class ModelFailed(ResearchError):
    """A model could not be made, fetched or checked; the message ends with the last words of who tried."""

"""Every error the research side raises for a person; the command line then exits with 2.

Each message is one line: what was expected, what was found, what to do. None holds a key or a password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_FLAG: Final = re.compile(r"(?:,|:|; use|; leave)? --[a-z][a-z-]*(?:[ =][^\s,;:)]+)?| \(--[a-z][a-z-]*(?: [^\s)]+)?\)")
"""A flag with its value, as messages name and advise them: a planner has none."""


class ResearchError(Exception):
    """Base of all research errors; `message` is the one line a person reads."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class BadTopic(ResearchError):
    """The topic is empty, names nothing that can be studied, or names values that cannot be."""


class BadMetric(ResearchError):
    """A metric that there is not, or one with a threshold or a name that it does not take."""


class BadParameters(ResearchError):
    """A flow run asks for something that its deployment does not take."""


class BadBudget(ResearchError):
    """A budget that is no duration (`90s`, `10m`, `1h30m`), or one too small or too large to mean anything."""


class BadEnvironment(ResearchError):
    """What was named as an environment is none, or its code, tasks or packages cannot be had."""


class CheckFailed(ResearchError):
    """An environment could not be played with a model; the message has the last words of what tried."""


class BadSandbox(ResearchError):
    """A kind of sandbox that is neither `docker` nor `process`."""


class NotIsolated(ResearchError):
    """Code that a planner wrote would run without isolation; the message says how to get Docker."""


class UnknownPlanner(ResearchError):
    """No planner has that name; the message lists those that exist."""


class PlannerUnready(ResearchError):
    """The planner exists but lacks a setting; the message says which and how to give it."""


class PlannerFailed(ResearchError):
    """The planner gave no usable action: endpoint unreachable, access refused, or nonsense after all tries."""

    spent: Mapping[str, Any] | None = None
    """What the turn had taken until then, as `planner.acted` tells it; None where nobody counted."""


class NoDesignAccepted(PlannerFailed):
    """The planner answers, and none of its designs for a proposal is accepted; `reason` says why of the last one."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class DesignRefused(ResearchError):
    """A proposal that cannot be locked: unsound, confounded, or dearer than the budget (then with an alternative).

    `model_feedback` says the same to who proposed it, by what a planner can change: it knows of no flag.
    """

    def __init__(self, message: str, *, model_feedback: str | None = None) -> None:
        super().__init__(message)
        self.model_feedback = _FLAG.sub("", message) if model_feedback is None else model_feedback


class Unmeasurable(DesignRefused):
    """A comparison whose metric cannot be read off its trainings: there is no plan of it to be shown."""


class TopicDeclined(ResearchError):
    """The planner declines the topic; `said` is its reason, in its words."""

    def __init__(self, said: str, by: str) -> None:
        super().__init__(f'{by}: "{said}"')
        self.by = by
        self.said = said


class BackendMissing(ResearchError):
    """Packages of the backend are not installed; the message says how to install them."""


class UnknownModel(ResearchError):
    """No model that can be fetched has that name; the message lists those that can."""


class ModelFailed(ResearchError):
    """A model could not be made, fetched or checked; the message ends with the last words of who tried."""


class BadModel(ResearchError):
    """A folder that holds no model that can be trained, or not the one that the study began with."""


class BadJob(ResearchError):
    """A job file could not be read as a job, or says what a study sets itself."""


class StudyBusy(ResearchError):
    """Another process drives the study, maybe on another host."""


class NoWorker(ResearchError):
    """A study was to be handed to a worker of this installation, and none runs."""


class WorkerBusy(ResearchError):
    """A worker was to be started in an installation that has one."""


class StudyElsewhere(ResearchError):
    """What the study has made, its runs and evidence, lies in another installation on the same database."""


class NotRunning(ResearchError):
    """A study that stands still already, so that there is nothing to pause."""


class BadApproval(ResearchError):
    """An answer where nothing is asked, or to a question that was answered; or a mode of approval that there is not."""


class BadAmendment(ResearchError):
    """An amendment or a veto of something that is not there, or of a study that it cannot change any more."""


class NoSuchStudy(ResearchError):
    """No study, or more than one, fits the name given."""


class BadHead(ResearchError):
    """What was given as a study's head hash is no hash, nor the beginning of one."""


class NoReport(ResearchError):
    """The study has no report yet; the message says how to get one."""


class NoNextStep(ResearchError):
    """A study that is neither over nor waiting has no next step: a defect of this program, to be reported."""


class HomeError(ResearchError):
    """The installation's folder cannot be made, read or written."""

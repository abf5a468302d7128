"""Stub until the chain of reviews is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from studies.log.event_log import EventLog
from studies.log.study import StudyState


@dataclass(frozen=True, slots=True)
class ReviewCount:
    open: int = 0
    signed_head: str = ""


def count_reviews(log: EventLog) -> Mapping[str, ReviewCount]:
    return {}


class ReviewLog:
    def __init__(self, log: EventLog, study: str) -> None: ...

    def read(self) -> list[Any]:
        return []

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError


class ReviewState:
    @classmethod
    def of(cls, entries: list[Any], state: StudyState) -> ReviewState:
        return cls()

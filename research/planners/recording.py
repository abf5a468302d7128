"""Recorded conversations with a language model, replayed without a network.

A file holds one JSON object a line: the sha256 of a request, and the reply's body or how the endpoint failed. Replies
to one request are replayed in the order they came. A request is known by its model, messages and format; the seconds
that are left, and those a run takes, are left out of its hash, for they differ from machine to machine.

No header is written, so no key; one that a reply repeats is blanked. Replies are written as they came otherwise: what a
model said is in the file. A request that was not recorded is an error, as is a file that is no recording.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from research.errors import NotReady
from research.installation.home import cause_of
from research.planners.endpoint import EndpointError, Kind, OpenAiEndpoint, shorten
from studies.records.base import canonical, digest

_TIMES = re.compile(r'(\\?"(?:seconds_left|seconds_per_run_of_the_default_job)\\?": )[-+.\deE]+')


class _Failure(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    status: int | None = None
    text: str = ""


class _Line(BaseModel):
    """One exchange: a reply, or a failure."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    request: str
    model: str
    reply: str | None = None
    failed: _Failure | None = None


def request_hash(request: Mapping[str, Any]) -> str:
    """Return what a request is known by."""
    return digest(_TIMES.sub(r"\g<1>0", canonical(dict(request))))


class Recorder:
    """An endpoint that writes down what another one says."""

    def __init__(self, endpoint: OpenAiEndpoint, file: Path) -> None:
        self._endpoint = endpoint
        self._file = file
        try:
            file.open("a").close()
        except OSError as error:
            raise NotReady(
                f"expected a file to record in; found {cause_of(error)} at {file}; name another one"
            ) from error

    @property
    def where(self) -> str:
        return self._endpoint.where

    def redact(self, text: str) -> str:
        return self._endpoint.redact(text)

    def complete(self, request: Mapping[str, Any], timeout_s: float) -> str:
        """Return the other one's reply; raise what it raises. Both are written down."""
        try:
            reply = self._endpoint.complete(request, timeout_s)
        except EndpointError as error:
            failed = _Failure(kind=error.kind, status=error.status, text=error.text)
            self._write(request, failed=failed)
            raise
        self._write(request, reply=reply)
        return reply

    def _write(self, request: Mapping[str, Any], reply: str | None = None, failed: _Failure | None = None) -> None:
        line = _Line(request=request_hash(request), model=str(request["model"]), reply=reply, failed=failed)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(line.model_dump_json(exclude_none=True) + "\n")


class Replay:
    """An endpoint that says what was recorded, and nothing else."""

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            texts = file.read_text(encoding="utf-8").splitlines()
            lines = [_Line.model_validate_json(text) for text in texts if text.strip()]
        except OSError as error:
            raise NotReady(
                f"expected a recording of a planner at {file}; found {cause_of(error)}; name a file made with "
                "AJET_PLANNER_RECORD"
            ) from error
        except (ValidationError, UnicodeDecodeError) as error:
            raise NotReady(
                f"expected a recording of a planner at {file}; found something else; name a file made with "
                "AJET_PLANNER_RECORD"
            ) from error
        if not lines:
            raise NotReady(f"expected a recording of a planner at {file}; found an empty file; record one first")
        self._lines = lines
        self._left: dict[str, deque[_Line]] = {}
        for line in self._lines:
            self._left.setdefault(line.request, deque()).append(line)

    @property
    def where(self) -> str:
        return f"the recording {self._file.name}"

    @property
    def model(self) -> str:
        return self._lines[0].model

    def redact(self, text: str) -> str:
        return shorten(text)

    def complete(self, request: Mapping[str, Any], timeout_s: float) -> str:
        """Return the next recorded reply to the request; raise the recorded failure, or that there is none."""
        known = request_hash(request)
        lines = self._left.get(known)
        if not lines:
            told = "all its replies given before" if lines is not None else f"{len(self._lines)} other exchanges"
            raise EndpointError("unrecorded", f"{told} (the request is {known[:12]}, of {request['model']})")
        line = lines.popleft()
        if line.failed is not None:
            raise EndpointError(line.failed.kind, line.failed.text, line.failed.status)
        return line.reply or ""

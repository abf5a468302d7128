"""The looks of one study: each by its name, over its log, its collected files and its price list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from research.design.compiler import DesignCompiler
from research.looks.curves import curve
from research.looks.episodes import plays
from research.looks.evidence import DATA, named_run
from research.looks.logs import matching_lines
from research.looks.prices import price
from research.looks.requests import (
    AnyLook,
    LookAtCurve,
    LookAtEpisodes,
    LookAtFindings,
    LookAtLog,
    LookAtPrice,
    LookAtRuns,
)
from research.looks.runs import run_table
from research.planner.findings import NO_FINDINGS, FindsFindings
from research.planner.looks import PLAYS, LookRefused
from research.proposals.flags import RequestedComparison
from research.validation import describe
from studies import StudyState

MOST_FINDINGS: Final = 8
_OF_RUNS: Final[Mapping[str, type[BaseModel]]] = {
    "runs": LookAtRuns,
    "curve": LookAtCurve,
    PLAYS: LookAtEpisodes,
    "log": LookAtLog,
}
_ALWAYS: Final[Mapping[str, type[BaseModel]]] = {"price": LookAtPrice, "findings": LookAtFindings}


@dataclass(frozen=True, slots=True)
class StudyLooks:
    """What a planner may look at in one turn of a study (`research.planner.looks.Looks`)."""

    state: StudyState
    folder: Path
    """The study's folder, in which collected files lie."""
    compiler: Callable[[], DesignCompiler]
    """What designs of the round are judged by now."""
    wanted: RequestedComparison
    findings: FindsFindings = NO_FINDINGS

    @property
    def offered(self) -> Mapping[str, type[BaseModel]]:
        """The looks by name; those at runs once there are any."""
        return {**_OF_RUNS, **_ALWAYS} if self.state.every_run else _ALWAYS

    def answer(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what a look shows; raise LookRefused."""
        kind = self.offered.get(name)
        if kind is None:
            raise LookRefused(f"expected a look at one of {', '.join(self.offered)}; found {name[:60]!r}")
        try:
            return self._shown(kind.model_validate(dict(arguments)))  # type: ignore[arg-type]  # it is one of those offered
        except ValidationError as error:  # of the wish, or of what it comes to
            raise LookRefused(f"{name}: {describe(error)}") from error

    def _shown(self, request: AnyLook) -> Mapping[str, Any]:
        match request:
            case LookAtRuns():
                return run_table(self.state, request)
            case LookAtCurve():
                return curve(named_run(self.state, request.run), self.folder, request)
            case LookAtEpisodes():
                return plays(named_run(self.state, request.run), self.folder, request)
            case LookAtLog():
                return matching_lines(named_run(self.state, request.run), self.folder, request)
            case LookAtPrice():
                return price(self.compiler(), self.wanted, request)
            case LookAtFindings():
                found = self.findings.find(request.words, MOST_FINDINGS)
                return {"notice": DATA, "quoted": [{"id": entry.id, "text": entry.text} for entry in found]}

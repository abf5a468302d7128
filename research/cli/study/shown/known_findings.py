"""`ajet findings`: what all studies of this installation found, and where they contradict one another."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from research.cli.output import columns, console, print_json
from research.cli.study.shown.finding import Json, opened
from research.findings.collected import KnownFindings, known_findings
from research.findings.known import KnownFinding
from research.findings.search import Contradiction, contradictions, find

_HEADER = ("finding", "verdict", "effect", "interval", "runs", "model", "job", "claim")


def findings(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="Words that a finding has in its claim, its study, its verdict or its conditions."),
    ] = None,
    json: Json = False,
) -> None:
    """List what the studies of this installation found, and what they did not: every verdict, with its conditions.

    Findings on the same values that contradict one another are flagged, with the conditions in which they differ.

    Examples:

        ajet findings

        ajet findings learning rate guess

        ajet findings equivalent --json
    """
    home, log = opened()
    known = known_findings(home, log)
    shown = find(known.findings, words or ())
    against = contradictions(shown)
    if json:
        print_json(_as_json(known, shown, against))
        return
    for line in _screen(known, shown, against, asked=bool(words)):
        console().print(line)


def _screen(
    known: KnownFindings, shown: tuple[KnownFinding, ...], against: tuple[Contradiction, ...], *, asked: bool
) -> list[Text]:
    lines = [columns(_HEADER, [_row(each) for each in shown])] if shown else [Text(_none(known, asked))]
    lines += [Text(_told(each), "yellow") for each in against]
    return [*lines, *(Text(f"left out  {study}: {why}", "dim") for study, why in known.left_out.items())]


def _none(known: KnownFindings, asked: bool) -> str:
    if asked and known.findings:
        return f"none of {len(known.findings)} findings has all of these words"
    return 'no study has found anything yet; begin one with: ajet research "..."'


def _row(finding: KnownFinding) -> tuple[str, ...]:
    where = finding.conditions
    effect = "" if finding.estimate is None else f"{finding.estimate:+.3g}"
    return (
        finding.name, f"{finding.verdict}{' (exploratory)' if finding.exploratory else ''}", effect, _interval(finding),
        f"{finding.n_control}+{finding.n_treatment}", where.model, where.job[:8], finding.doubt or finding.claim,
    )  # fmt: skip


def _interval(finding: KnownFinding) -> str:
    if finding.low is None or finding.high is None:
        return ""
    level = "" if finding.level is None else f" {finding.level:.1%}"
    return f"[{finding.low:.3g}, {finding.high:.3g}]{level}"


def _told(entry: Contradiction) -> str:
    one, other = (", ".join(each.name for each in side) for side in (entry.one, entry.other))
    differ = "; ".join(entry.differ) or "nothing that is recorded"
    return f"contradiction  {one} against {other}; they differ in {differ}"


def _as_json(
    known: KnownFindings, shown: tuple[KnownFinding, ...], against: tuple[Contradiction, ...]
) -> dict[str, Any]:
    return {
        "findings": [{"name": each.name, **each.model_dump(mode="json")} for each in shown],
        "contradictions": [
            {
                "one": [each.name for each in entry.one],
                "other": [each.name for each in entry.other],
                "differ": list(entry.differ),
            }
            for entry in against
        ],
        "left_out": dict(known.left_out),
    }

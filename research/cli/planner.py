"""`ajet planner`: how well planners predict what their studies find."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Annotated, get_args

import typer
from rich.table import Table
from rich.text import Text

from research.cli.output import console, print_json
from research.installation.home import Home
from research.planners.track_record import Forecaster, TrackRecord, track
from studies import EventLog
from studies.records.verdict import VerdictName
from studies.statistics.samples import Interval

app = typer.Typer(no_args_is_help=True)
_VERDICTS: tuple[VerdictName, ...] = get_args(VerdictName)


@app.callback()
def planner() -> None:
    """Planners: how well they predict."""


@app.command()
def calibration(
    planner: Annotated[str | None, typer.Option(help="Only this planner: `rules` or `llm`; all when left out.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Score the predictions of all studies of this installation, by planner and model.

    Brier: mean squared distance of the predicted probability of `supported` from what came of it, 0 is perfect; beside
    it a constant forecaster's who knows how often claims are supported. Coverage: how often the predicted interval
    held the estimate; a planner that means what it says covers as often as its level.

    Examples:

        ajet planner calibration

        ajet planner calibration --planner llm --json
    """
    home = Home.locate().prepare()
    found = track(EventLog(home.database), planner)
    if json:
        planners = [dataclasses.asdict(entry) for entry in found.forecasters]
        print_json({"planners": planners, "left_out": dict(found.left_out)})
        return
    for line in _screen(found, planner):
        console().print(line)


def _screen(found: TrackRecord, planner: str | None) -> list[Table | Text]:
    if not found.forecasters:
        whose = f" of the planner {planner!r}" if planner else ""
        left = f" ({_left_out(found)})" if found.left_out else ""
        return [Text(f'no prediction{whose} has met its verdict yet{left}; begin a study with: ajet research "..."')]
    lines: list[Table | Text] = []
    for entry in found.forecasters:
        lines += [Text(entry.title, "bold"), *(Text(f"  {line}") for line in _scores(entry))]
        lines += (
            [_bins(entry), Text("")] if entry.bins else [Text("  nothing to score yet: no verdict is valid"), Text("")]
        )
    if found.left_out:
        lines.append(Text(f"not scored: {_left_out(found)}", "dim"))
    return lines


def _scores(entry: Forecaster) -> Iterator[str]:
    scores = entry.scores
    ended = ", ".join(f"{scores.verdicts[name]} {name}" for name in _VERDICTS if name in scores.verdicts)
    yield f"{_counted(scores.predictions, 'claim')} in {_counted(entry.studies, 'study', 'studies')}: {ended}"
    if entry.brier is not None and entry.constant is not None:
        yield f"Brier {entry.brier:.3f}, of a constant forecaster {entry.constant:.3f}: all {entry.valid} valid"
    if scores.brier is not None and scores.constant is not None:
        yield f"Brier {scores.brier:.3f}, of a constant forecaster {scores.constant:.3f}: the {scores.scored} decided"
    if scores.coverage is not None and scores.mean_level is not None:
        held, n = _share(scores.coverage), _counted(scores.intervals, "interval")
        yield f"predicted intervals held {held} of the estimates, at a level of {scores.mean_level:.0%}: {n}"


def _bins(entry: Forecaster) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("  predicted", "mean", "claims", "supported (95 %)"):
        table.add_column(name, header_style="dim", justify="left" if name.startswith(" ") else "right")
    for held in entry.bins:
        predicted = f"  {held.low:.0%} to {held.high:.0%}"
        table.add_row(predicted, f"{held.predicted:.0%}", str(held.n), _share(held.supported))
    return table


def _share(interval: Interval) -> str:
    return f"{interval.mean:.0%} [{interval.low:.0%}, {interval.high:.0%}]"


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _left_out(found: TrackRecord) -> str:
    return ", ".join(f"{reason}: {count}" for reason, count in sorted(found.left_out.items()))

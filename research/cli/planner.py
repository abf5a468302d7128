"""`ajet planner`: how well planners predict what their studies find."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.table import Table
from rich.text import Text

from research.calibration import Forecaster, Track, track
from research.calibration_plot import draw
from research.cli.output import console, print_json
from research.home import Home
from studies import EventLog
from studies.records import VerdictName
from studies.statistics import Interval

app = typer.Typer(no_args_is_help=True)
_VERDICTS: tuple[VerdictName, ...] = get_args(VerdictName)
_FOLDER = "calibration"


@app.callback()
def planner() -> None:
    """Planners: how well they predict."""


@app.command()
def calibration(
    planner: Annotated[str | None, typer.Option(help="Only this planner: `rules` or `llm`; all when left out.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Score the predictions of all studies of this installation, by planner and model, and draw a reliability plot.

    Brier: mean squared distance of the predicted probability of `supported` from what came of it, 0 is perfect; beside
    it a constant forecaster's who knows how often claims are supported. Coverage: how often the predicted interval
    held the estimate; a planner that means what it says covers as often as its level.

    Examples:

        ajet planner calibration

        ajet planner calibration --planner llm --json
    """
    home = Home.locate().prepare()
    found = track(EventLog(home.database), planner)
    plots = draw(found.forecasters, home.path / _FOLDER) if found.forecasters else None
    if json:
        print_json(_as_json(found, plots))
        return
    for line in _screen(found, planner, plots):
        console().print(line)


def _screen(found: Track, planner: str | None, plots: tuple[Path, Path] | None) -> list[Table | Text]:
    if plots is None:
        whose = f" of the planner {planner!r}" if planner else ""
        left = f" ({_left_out(found)})" if found.left_out else ""
        return [Text(f'no prediction{whose} has met its verdict yet{left}; begin a study with: ajet research "..."')]
    lines: list[Table | Text] = [_scores(found), Text(""), _bins(found)]
    if found.left_out:
        lines.append(Text(f"not scored: {_left_out(found)}", "dim"))
    return [*lines, *(Text(f"plot  {path}") for path in plots)]


def _scores(found: Track) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("planner", "studies", "claims"):
        table.add_column(name, header_style="dim", justify="left" if name == "planner" else "right")
    for name in _VERDICTS:
        table.add_column(name, header_style="dim", justify="right")
    for name in ("Brier (constant)", "of decided (constant)", "coverage (at level)"):
        table.add_column(name, header_style="dim", justify="right")
    for entry in found.forecasters:
        scores = entry.scores
        table.add_row(
            Text(entry.title, "bold"), str(entry.studies), str(scores.predictions),
            *(str(scores.verdicts.get(name, 0)) for name in _VERDICTS),
            _against(entry.brier, entry.constant, entry.valid),
            _against(scores.brier, scores.constant, scores.scored),
            _coverage(entry),
        )  # fmt: skip
    return table


def _bins(found: Track) -> Table:
    table = Table(box=None, pad_edge=False, title="What was predicted, and what came true", title_justify="left")
    table.title_style = "dim"
    for name in ("planner", "predicted", "claims", "mean", "supported (95 %)"):
        table.add_column(name, header_style="dim", justify="left" if name == "planner" else "right")
    for entry in found.forecasters:
        for number, held in enumerate(entry.bins):
            table.add_row(
                Text(entry.title if number == 0 else "", "bold"),
                f"{held.low:.0%} to {held.high:.0%}", str(held.n), f"{held.predicted:.0%}", _share(held.supported),
            )  # fmt: skip
    return table


def _against(score: float | None, constant: float | None, n: int) -> str:
    return "-" if score is None or constant is None else f"{score:.3f} ({constant:.3f}), {n}"


def _coverage(entry: Forecaster) -> str:
    held, level = entry.scores.coverage, entry.scores.mean_level
    return "-" if held is None or level is None else f"{_share(held)} ({level:.0%}), {entry.scores.intervals}"


def _share(interval: Interval) -> str:
    return f"{interval.mean:.0%} [{interval.low:.0%}, {interval.high:.0%}]"


def _left_out(found: Track) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(found.left_out.items()))


def _as_json(found: Track, plots: tuple[Path, Path] | None) -> dict[str, Any]:
    return {
        "planners": [dataclasses.asdict(entry) for entry in found.forecasters],
        "left_out": dict(found.left_out),
        "plots": {path.suffix[1:]: str(path) for path in plots} if plots else None,
    }

"""Pictures of a study that is under way: learning curves of what was collected and of what runs, and its screen.

Of collected runs the snapshots are read, each once; of a running attempt there is what was seen of its progress. The
pictures are of a fixed size in pixels, so that they stay small with any number of runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from research.orchestration.shown.pictures import data_uri
from research.results.attempt_files import AttemptProgress
from research.results.collect import CollectError, read_collected
from studies import RunState, StudyState
from studies.records.run_specs import NOISE_ARM
from studies.report.figures.series import ArmCurves, Curves, Points, SeedCurve, mean_of, screening
from studies.report.parts.evidence import SUCCESS

MOST_POINTS: Final = 200
"""Most points of one curve: of a longer training every so many steps are drawn."""
_CAPTION: Final = (
    "Share of training episodes solved. Thin: one run; thick: the mean of an arm's collected runs; *running*: what was "
    "seen so far. Nothing is smoothed. These episodes are the training's own and decide nothing."
)


class LiveCurves:
    """The curves of a study, in whose `folder` its snapshots lie."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._collected: dict[str, Points] = {}
        self._seen: dict[tuple[str, int], dict[int, float]] = {}
        self._over: dict[int, str] = {}
        """What was drawn of rounds that are over."""

    def see(self, run: str, attempt: int, progress: AttemptProgress) -> None:
        """Take what a running attempt has come to."""
        if progress.step and progress.train_success is not None:
            self._seen.setdefault((run, attempt), {})[progress.step] = progress.train_success

    def read(self, state: StudyState) -> None:
        """Read the snapshots that were not read before; one that is gone or was changed has no curve."""
        for run in state.every_run.values():
            if run.collected is not None and run.run_id not in self._collected:
                self._collected[run.run_id] = self._curve(run)

    def version(self, state: StudyState) -> tuple[int, ...]:
        """Return what changes with the pictures."""
        candidates = len(state.runs_in("screen")) and sum(bool(run.measurements) for run in state.runs_in("screen"))
        seen = sum(map(len, self._seen.values()))
        return (len(self._collected), seen, candidates, state.selection is not None, len(state.rounds_before))

    def markdown(self, state: StudyState) -> str:
        """Draw what there is, the newest round first; takes half a second, as what is over is drawn once."""
        parts = [] if state.most_rounds == 1 else [f"## Round {state.round}\n"]
        parts.append(self._round(state))
        for over in reversed(state.rounds_before):
            if over.round not in self._over:
                self._over[over.round] = self._round(over)
            parts += [f"## Round {over.round}\n", self._over[over.round]]
        return "\n".join(parts)

    def _round(self, state: StudyState) -> str:
        parts = []
        if (data := self.data(state)) is not None:
            from studies.report.figures.drawing import curves_picture  # matplotlib takes most of a second

            parts.append(f"![Learning curves]({data_uri(curves_picture(data), 'png')})\n\n{_CAPTION}\n")
        if (screened := screening(state)) is not None:
            from studies.report.figures.drawing import screen_picture

            said = "The screen, one seed each: a faint mark is a shorter run. No claim rests on a screen."
            parts.append(f"![The screen]({data_uri(screen_picture(screened), 'png')})\n\n{said}\n")
        return "\n".join(parts) or "Nothing to draw yet."

    def data(self, state: StudyState) -> Curves | None:
        """Return what is drawn as learning curves: of the confirmation, or of the A/A runs while it has none."""
        arms = [arm.name for arm in state.design.arms] if state.design is not None else []
        drawn = [found for index, name in enumerate(arms) for found in self._arm(name, index, state.runs_of(name))]
        if not drawn:
            drawn = [*self._arm("A/A runs", 0, state.runs_of(NOISE_ARM, "noise"))]
        return Curves(tuple(drawn), "share of training episodes solved", "training episodes") if drawn else None

    def _arm(self, name: str, index: int, runs: Sequence[RunState]) -> Iterator[ArmCurves]:
        over = [_scaled(run, self._collected[run.run_id]) for run in runs if run.status == "collected"]
        over = [curve for curve in over if curve.points]
        if over:
            yield ArmCurves(name, index, tuple(over), mean_of(over))
        begun = [_scaled(run, self._so_far(run)) for run in runs if run.active is not None]
        begun = [curve for curve in begun if curve.points]
        if begun:
            yield ArmCurves(f"{name}, running", index, tuple(begun), () if over else mean_of(begun))

    def _so_far(self, run: RunState) -> Points:
        seen = self._seen.get((run.run_id, run.attempts[-1].number), {})
        return _thinned(sorted((float(step), value) for step, value in seen.items()))

    def _curve(self, run: RunState) -> Points:
        assert run.collected is not None
        try:
            history = json.loads(read_collected(self._folder, run.collected["snapshot"]))["history"]
        except CollectError:
            return ()
        found = [(float(row["step"]), row["metrics"].get(SUCCESS)) for row in history]
        return _thinned([(step, value) for step, value in found if value is not None and math.isfinite(value)])


def _scaled(run: RunState, points: Points) -> SeedCurve:
    size = int(run.spec.job["episodes_per_step"])
    return SeedCurve(run.run_id, run.spec.seed, tuple((step * size, value) for step, value in points))


def _thinned(points: Sequence[tuple[float, float]]) -> Points:
    """Return every so manieth point, and the last one."""
    every = -(-len(points) // MOST_POINTS)
    return (*points[: -1 : every or 1], *points[-1:])

"""Any logged metric as a picture of its own: `figures/METRIC.svg` and `.png`, from the hashed files of the runs."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from studies.log.study_state import StudyState
from studies.records.errors import ReportError
from studies.report.figures.series import metric_curves
from studies.report.parts.evidence import gather
from studies.report.parts.files import write_bytes, written_into
from studies.report.parts.theme import standalone


def draw_metric(state: StudyState, folder: Path, metric: str) -> tuple[Path, Path]:
    """Draw a metric of every measured run into the study's folder; return the SVG's path and the PNG's.

    Raise ReportError for a metric that no run logged, for files that are not what was collected, and for a folder that
    cannot be written.
    """
    evidence = gather(state, folder)
    data = metric_curves(state, evidence, metric)
    if data is None:
        raise ReportError(_unknown(metric, evidence.metrics))
    from studies.report.figures.drawing import picture  # matplotlib takes most of a second

    svg, png = picture(data)
    stem = re.sub(r"[^\w.=-]+", "-", metric)
    with written_into(folder):
        return (
            write_bytes(folder / "plots" / f"{stem}.svg", standalone(svg).encode()),
            write_bytes(folder / "plots" / f"{stem}.png", png),
        )


def _unknown(metric: str, known: tuple[str, ...]) -> str:
    if not known:
        return f"expected a logged metric to draw; found {metric!r}, and no run of this study has been collected yet"
    near = difflib.get_close_matches(metric, known, n=3, cutoff=0.4)
    guess = f" (did you mean {', '.join(near)}?)" if near else ""
    return f"expected a metric that was logged; found {metric!r}{guess}. Known: {', '.join(known)}"

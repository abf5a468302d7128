"""The studies of the gallery: does each verify up to the head that its index names, and what does each know?

    python benchmarks/gallery.py            verify all: exit code 1 where one does not, or the index is not of them
    python benchmarks/gallery.py --write    write the index anew, between the marks of studies/gallery/README.md

A line of the index is made by code from the study's log: question, what each claim came to, setting, runs and time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from studies.log.event import find_corruption
from studies.log.fold import fold
from studies.log.study import StudyState
from studies.proof import verify
from studies.proof.export import read_export
from studies.records.statements import metric_name, model_name
from studies.report.wording import describe_comparison, duration, format_signed, label, span
from studies.verdicts.wording import deciding_interval

REAL = "smollm2-135m"
BAR = "\\|"
GALLERY = Path(__file__).parents[1] / "studies" / "gallery"
BEGIN, END = "<!-- made by benchmarks/gallery.py -->\n", "<!-- end -->\n"


@dataclass(frozen=True, slots=True)
class Kept:
    """A study of the gallery: its folder's name, its state, its head, and the first thing that does not hold."""

    name: str
    state: StudyState
    head: str
    drift: str | None


def read_study(folder: Path) -> Kept:
    """Return the study of a folder, computed anew from its files, up to its last event."""
    study, rows, broken = read_export(folder)
    proof = verify(study, rows, folder, known=broken)
    events, _ = find_corruption(study, rows)
    return Kept(folder.name, fold(events), events[-1].hash[:16], proof.drifts[0] if proof.drifts else None)


def folders(gallery: Path = GALLERY) -> list[Path]:
    return sorted(path for path in gallery.iterdir() if path.is_dir())


def make_index(studies: list[Kept]) -> str:
    """Return the index: a line for each study, those on the real model first, and how to check them."""
    ranked = sorted(studies, key=lambda kept: (model_of(kept.state) != REAL, kept.name))
    lines = ["| study | what is known | model | runs, time |", "|---|---|---|---|", *map(make_line, ranked), ""]
    lines += [make_command(kept) for kept in studies]
    return "\n".join(lines) + "\n"


def make_command(kept: Kept) -> str:
    return f"    ajet study verify studies/gallery/{kept.name} --head {kept.head}"


def model_of(state: StudyState) -> str:
    assert state.design is not None
    return model_name(state.design.base_job.get("model") or {"kind": "tiny"})


def make_line(kept: Kept) -> str:
    """Return what a study of the gallery knows as a line of the index."""
    state = kept.state
    asked = f"`{state.topic}`" if state.topic.startswith("--") else " ".join(state.topic.split())
    known = "; ".join(dict.fromkeys(_claims(state))) or "nothing"
    cells = (
        f"[{asked}]({kept.name}/report.md)",
        known,
        model_of(state),
        f"{len(state.every_run)}, {duration(state.elapsed_s)}",
    )
    return f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |"


def _claims(state: StudyState) -> Iterator[str]:
    for one in state.rounds:
        for claim in one.hypotheses:
            verdict, design = one.verdict_on(claim.id), one.design
            if verdict is None or design is None or verdict.estimate is None:
                continue
            unit, same, ends = design.metric.unit, verdict.equivalence, deciding_interval(design, verdict)
            said = label(claim, verdict).lower()
            if verdict.verdict == "equivalent" and same is not None:
                said += f" within ±{same.margin:g}{', and not zero' if verdict.nonzero else ''}"
            between = "" if ends is None else f" [{span(ends.low, ends.high, unit=unit)}]"
            by = "" if metric_name(design.metric) == "hidden success" else f", by {metric_name(design.metric)}"
            where = str(design.base_job.get("environment")).partition("@")[0]
            told = f"{describe_comparison(claim)} in {where}{by}: {said}"
            yield f"{told}, {format_signed(verdict.estimate, unit=unit)}{between}"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--write", action="store_true", help="write the index")
    page = GALLERY / "README.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    written, _, after = rest.partition(END)
    given = options.parse_args()
    studies = [read_study(folder) for folder in folders()]
    for kept in studies:
        print(f"{'holds ' if kept.drift is None else 'DRIFTS'}  {kept.head}  {kept.name}  {kept.drift or ''}".rstrip())
    if any(kept.drift is not None for kept in studies):
        return 1
    index = make_index(studies)
    if given.write:
        page.write_text(before + BEGIN + index + END + after, encoding="utf-8")
    elif index != written:
        print(f"expected the index of {page} to say what these say; write it: python benchmarks/gallery.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Plan, verdicts, curves, report as artifacts.

Curves are of what was collected, whose snapshots are read, each once. Pictures are of a fixed size in pixels, so that
they stay small with any number of runs.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from research.controller.progress import progress_of
from research.text import format_seconds
from studies import RunState, StudyState
from studies.checks.conditions import CollectError, read_collected
from studies.records.design import Design, Hypothesis
from studies.records.verdict import Verdict
from studies.report.build import escape_markdown
from studies.report.evidence import SUCCESS
from studies.report.figure_data import Curves, Points, arm_curves
from studies.report.prose import mark, why_asked
from studies.verdicts.wording import question_of

MOST_BYTES: Final = 4 * 2**20
"""Most that the pictures of one Markdown come to; Prefect was seen to take 3 MB and to show them."""
_PICTURE = re.compile(r"(!\[[^\]]*\]\()([^):\s]+\.(svg|png))(\))")
_TYPES = {"svg": "image/svg+xml", "png": "image/png"}


def data_uri(picture: bytes, kind: str) -> str:
    return f"data:{_TYPES[kind]};base64,{base64.b64encode(picture).decode()}"


def embed_pictures(markdown: str, folder: Path, most: int = MOST_BYTES) -> str:
    """Return the text with each picture of `folder` as a data URI; past `most` bytes the file's name stands instead."""
    room = most

    def embed(found: re.Match[str]) -> str:
        nonlocal room
        before, name, kind, after = found.groups()
        path = folder / name
        if not path.is_file():
            return found[0]
        address = data_uri(path.read_bytes(), kind)
        room -= len(address)
        return f"{before}{address}{after}" if room >= 0 else f"(`{name}` is too large to be shown here)"

    return _PICTURE.sub(embed, markdown)


DESCRIPTIONS: Final = {
    "plan": "What is asked, what of it is **put to the test**, and the design with its seeds and its price, as locked.",
    "curves": "How training goes, by arm. It decides nothing: verdicts rest on hidden tasks.",
    "verdicts": "What the data say about each hypothesis, computed by code under the locked design, look by look.",
    "report": "The **report**, as it lies in the study's folder.",
    "pages": "Where the study is followed, reviewed, signed and steered, as long as `ajet ui` runs.",
}
"""What each artifact is, by name; Prefect shows it above. That of the progress counts the runs."""


@dataclass(frozen=True, slots=True)
class StudyArtifact:
    """What is published under `name`: `make` is called when `version` is another one than before."""

    name: str
    type: Literal["markdown", "table", "progress"]
    version: Hashable
    make: Callable[[], str | float]
    replaces: bool = False
    """Whether it is put in the place of the one before; if not, that stays as history."""
    description: str = ""
    """In place of that in DESCRIPTIONS."""


def build_artifacts(
    state: StudyState, folder: Path, curves: LearningCurves, pages: str = ""
) -> Iterator[StudyArtifact]:
    """Yield what there is to show of a study, whose files lie in `folder`; `pages` is the address of its page."""
    progress = progress_of(state)
    yield StudyArtifact("progress", "progress", progress, lambda: progress.percent, True, str(progress))
    if any((state.hypotheses, state.design, state.noise_plan, state.rounds_before, state.explored)):
        plan = _plan(state)
        yield StudyArtifact("plan", "markdown", plan, lambda: plan)
    if collected := sum(run.collected is not None for run in state.every_run.values()):
        version = (collected, len(state.rounds_before))
        yield StudyArtifact("curves", "markdown", version, lambda: curves.markdown(state), replaces=True)
    if verdicts := [
        ({} if state.most_rounds == 1 else {"round": each.round}) | _verdict(verdict)
        for each in state.rounds
        for verdict in (*each.interim, *each.verdicts, *each.replications)
    ]:
        judged = json.dumps(verdicts)
        yield StudyArtifact("verdicts", "table", judged, lambda: judged)
    if pages:
        yield StudyArtifact("pages", "markdown", pages, lambda: f"[{pages}]({pages})", replaces=True)
    if state.report is not None:
        written = folder / state.report["markdown"]["path"]
        sha256 = state.report["markdown"]["sha256"]
        yield StudyArtifact("report", "markdown", sha256, lambda: embed_pictures(written.read_text(), written.parent))


def _plan(state: StudyState) -> str:
    question, before = question_of(state), []
    for each in state.rounds_before:
        came = ", ".join(f"{verdict.hypothesis} {verdict.verdict}" for verdict in each.verdicts) or "not judged"
        tested, lock = " ".join(question_of(each).tested), (each.design_hash or "")[:16]
        before.append(f"Round {each.round}: {tested} {came}; locked as {lock}.")
    now = "" if state.most_rounds == 1 else f" in round {state.round} of at most {state.most_rounds}"
    now += f', asked as: "{why_asked(state)}"' if state.why_asked else ""
    sections = {
        "Rounds before": before,
        f"Put to the test{now}": question.tested,
        "Not tested": question.not_tested,
        "Hypotheses": [_hypothesis(claim, state) for claim in state.hypotheses],
        "Design": () if state.design is None else _design(state.design, state.design_hash),
        "Amended": [f"{each.amendment.reason} ({each.actor})" for each in state.amendments],
    }
    lines = [f"# {escape_markdown(question.asked)}", ""]
    for title, sentences in sections.items():
        if sentences:
            lines += [f"## {escape_markdown(title)}", "", *(f"- {escape_markdown(said)}" for said in sentences), ""]
    return "\n".join(lines)


def _hypothesis(claim: Hypothesis, state: StudyState) -> str:
    predicted = claim.prediction
    veto = f" Vetoed: {state.vetoed[claim.id].reason}." if claim.id in state.vetoed else ""
    why = f" Because: “{mark(claim.mechanism, state.rounds_before)}”." if claim.mechanism else ""
    return (
        f"{claim.id}: {claim.statement}{why} Predicted: a difference of {predicted.low:g} to {predicted.high:g} "
        f"({predicted.level:.0%}), true with probability {predicted.probability:g}.{veto}"
    )


def _design(design: Design, design_hash: str | None) -> Iterator[str]:
    price, looks = design.price, ", ".join(str(look.seeds) for look in design.looks)
    yield " vs ".join(f"{arm.name}{' (control)' if arm.name == design.control_arm else ''}" for arm in design.arms)
    yield f"seeds per arm: at most {len(design.seeds)}, looked at after {looks}"
    yield f"metric: {design.metric.key}: {design.metric.meaning}"
    yield f"test: {design.test} at alpha {design.alpha:g}"
    whole = f"{price.runs} runs, about {format_seconds(price.total_s)} with {price.parallel} at once"
    yield f"price: {whole}: {price.basis}"
    yield f"lock: {design_hash or 'none yet'}"


_COLUMNS: Final = (
    "hypothesis", "phase", "look", "verdict", "final", "estimate", "low", "high", "level", "p", "p_adjusted",
    "n_control", "n_treatment", "test", "reason",
)  # fmt: skip
"""Of the table of verdicts."""


def _verdict(verdict: Verdict) -> dict[str, Any]:
    values = {name: getattr(verdict, name) for name in _COLUMNS}
    return {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in values.items()}


MOST_POINTS: Final = 200
"""Most points of one curve: of a longer training every so many steps are drawn."""
_CAPTION: Final = (
    "Share of training episodes solved. Thin: one run; thick: the mean of an arm's collected runs. Nothing is "
    "smoothed. These episodes are the training's own, not hidden ones."
)


class LearningCurves:
    """The curves of a study, in whose `folder` its snapshots lie."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, Points] = {}

    def markdown(self, state: StudyState) -> str:
        """Draw what there is, the newest round first; takes half a second a round."""
        if state.most_rounds == 1:
            return self._round(state)
        return "\n".join(f"## Round {each.round}\n\n{self._round(each)}" for each in reversed(state.rounds))

    def _round(self, state: StudyState) -> str:
        if (data := self.data(state)) is None:
            return "Nothing to draw yet."
        from studies.report.plots import curves_picture  # matplotlib takes most of a second

        return f"![Learning curves]({data_uri(curves_picture(data), 'png')})\n\n{_CAPTION}\n"

    def data(self, state: StudyState) -> Curves | None:
        """Return the curves of the report's arms; None where no run has one."""
        arms = arm_curves(state, self._curve)
        return Curves(arms, "share of training episodes solved", "training episodes") if arms else None

    def _curve(self, run: RunState) -> Points:
        """Return the points of a collected run; none where its snapshot is gone or was changed."""
        if run.run_id not in self._read and run.collected is not None:
            size, history = int(run.spec.job["episodes_per_step"]), []
            with suppress(CollectError):
                history = json.loads(read_collected(self._folder, run.collected["snapshot"]))["history"]
            values = [(float(row["step"]) * size, row["metrics"].get(SUCCESS)) for row in history]
            points = [(at, value) for at, value in values if value is not None and math.isfinite(value)]
            every = -(-len(points) // MOST_POINTS)
            self._read[run.run_id] = (*points[: -1 : every or 1], *points[-1:])
        return self._read.get(run.run_id, ())

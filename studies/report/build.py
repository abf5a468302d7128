"""The shell of a report: reads the files, draws the figures, renders the templates, writes the result.

The same state and files give the same bytes. A report is written beside its final name and moved there whole, so
that a reader never meets half of one. A page that somebody changed since it was written is kept beside the new one.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studies.log.study_state import StudyState
from studies.report.parts.evidence import gather
from studies.report.parts.files import write_bytes, written_into
from studies.report.parts.kept import HTML, MARKDOWN, PAGES, keep_edited
from studies.report.parts.maker import maker
from studies.report.parts.theme import DARK, LIGHT, standalone, variables
from studies.report.view import ReportView, view

if TYPE_CHECKING:
    from jinja2 import Environment

    from studies.report.figures.drawing import Figure

_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~$])")


@dataclass(frozen=True, slots=True)
class Report:
    """Where a report lies; the hashes are sha256 of the files as written."""

    markdown: Path
    html: Path
    figures: tuple[Path, ...]
    markdown_sha256: str
    html_sha256: str
    figures_sha256: tuple[str, ...] = ()
    kept: tuple[tuple[str, str], ...] = ()
    """Pages that were not what the log says it wrote, and the names they are kept under."""

    def payload(self, folder: Path) -> dict[str, Any]:
        """Return what `report.built` says of it; `folder` is the study's."""
        drawn = zip(self.figures, self.figures_sha256, strict=True)
        return {
            "markdown": _entry(self.markdown, self.markdown_sha256, folder),
            "html": _entry(self.html, self.html_sha256, folder),
            "figures": [_entry(path, sha256, folder) for path, sha256 in drawn],
            "made_by": maker(),
        }

    def said(self) -> tuple[str, ...]:
        """Return a line for each page that is kept under another name."""
        return tuple(
            f"{name} was not as the study's log says it was written: it is kept as {kept}, beside the new one"
            for name, kept in self.kept
        )


def build_report(state: StudyState, folder: Path) -> Report:
    """Write `report.md`, `report.html` and `figures/*.svg` into the study's folder, from any state.

    `report.html` is self-contained. Raise ReportError when a collected file is
    missing or is not what was collected, when a number does not recompute, or when the folder cannot be written;
    nothing is half-written.
    """
    pages = render_report(state, folder)
    with written_into(folder):
        kept = keep_edited(state.newest_report, pages, folder)
        for name, text in pages.items():
            write_bytes(folder / name, text.encode())
    sha256 = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in pages.items()}
    drawn = tuple(name for name in pages if name not in PAGES)
    return Report(
        folder / MARKDOWN, folder / HTML, tuple(folder / name for name in drawn), sha256[MARKDOWN], sha256[HTML],
        tuple(sha256[name] for name in drawn), kept,
    )  # fmt: skip


def render_report(state: StudyState, folder: Path) -> dict[str, str]:
    """Return the text of each file of a report by its path in the study's folder, figures first; nothing is written.

    Raise ReportError as `build_report` does.
    """
    content = view(state, gather(state, folder))
    drawn = _figures(content)
    return {f"figures/{name}.svg": standalone(figure.wide) for name, figure in drawn.items()} | _render(content, drawn)


def _entry(path: Path, sha256: str, folder: Path) -> dict[str, str]:
    return {"path": path.relative_to(folder).as_posix(), "sha256": sha256}


def _figures(content: ReportView) -> dict[str, Figure]:
    # matplotlib takes most of a second, which a command that builds no report should not wait for.
    from studies.report.figures.drawing import (
        before_after,
        hidden_curves,
        learning_curves,
        predictions,
        screen,
        training,
        training_reward,
    )

    drawn = [
        predictions(content.forecasts) if content.forecasts else None,
        before_after(content.shifts) if content.shifts else None,
        hidden_curves(content.hidden) if content.hidden else None,
        learning_curves(content.curves) if content.curves else None,
        screen(content.stages.screened) if content.stages.screened else None,
        training(content.training.curves) if content.training.curves else None,
        *(training_reward(data, number) for number, data in enumerate(content.training.reward_curves, start=1)),
    ]
    return {figure.name: figure for figure in drawn if figure is not None}


def _render(content: ReportView, figures: dict[str, Figure]) -> dict[str, str]:
    values = {"view": content, "figures": figures, "light": variables(LIGHT), "dark": variables(DARK)}
    return {
        name: _environment(escape).get_template(f"{name}.jinja").render(values)
        for name, escape in ((MARKDOWN, False), (HTML, True))
    }


@cache
def _environment(autoescape: bool) -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # see _figures

    environment = Environment(
        loader=PackageLoader("studies.report", "."),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["md"] = escape_markdown
    environment.filters["fence"] = fenced
    environment.filters["tight"] = tight
    environment.filters["code"] = code_span
    environment.filters["capital"] = capital
    return environment


def escape_markdown(text: str) -> str:
    """Return text that Markdown shows as it is: one line, no markup, no HTML."""
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split())).replace("&", "&amp;")


def tight(text: str) -> str:
    """Return text in which a line never breaks inside `95 %` or `n = 5 + 5`."""
    keep = re.compile(r"\d %|\bn = \d+ \+ \d+")
    return keep.sub(lambda match: match[0].replace(" ", "\N{NO-BREAK SPACE}"), text)


def capital(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def code_span(text: str) -> str:
    """Return text as a Markdown code span that its own backticks cannot end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    ticks = "`" * (longest + 1)
    return f"{ticks} {' '.join(text.split())} {ticks}" if longest else f"`{' '.join(text.split())}`"


def fenced(text: str) -> str:
    """Return text as a Markdown code block that its own backticks cannot end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"

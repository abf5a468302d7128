"""The shell of a report: reads the files, draws the figures, renders the templates, writes the result.

The same state and files give the same bytes. A report is written beside its final name and moved there whole, so
that a reader never meets half of one. A page that somebody changed since it was written is kept beside the new one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studies.log.study_state import StudyState
from studies.report.drawn import figures, inquiry_figures
from studies.report.inquiry import InquiryView, inquiry_view
from studies.report.parts.evidence import gather
from studies.report.parts.files import write_bytes, written_into
from studies.report.parts.kept import HTML, MARKDOWN, PAGES, keep_edited
from studies.report.parts.maker import maker
from studies.report.parts.states import every_state, is_inquiry
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
    if is_inquiry(state):
        content = inquiry_view(state, [gather(each, folder) for each in every_state(state)])
        return _pages(content, inquiry_figures(content), "inquiry")
    alone = view(state, gather(state, folder))
    return _pages(alone, figures(alone), "report")


def _pages(content: ReportView | InquiryView, drawn: Mapping[str, Figure], template: str) -> dict[str, str]:
    files = {f"figures/{name}.svg": standalone(figure.wide) for name, figure in drawn.items()}
    return files | _render(content, drawn, template)


def _entry(path: Path, sha256: str, folder: Path) -> dict[str, str]:
    return {"path": path.relative_to(folder).as_posix(), "sha256": sha256}


def _render(content: ReportView | InquiryView, figures: Mapping[str, Figure], template: str) -> dict[str, str]:
    values = {"view": content, "figures": figures, "light": variables(LIGHT), "dark": variables(DARK)}
    return {
        name: _environment(escape).get_template(f"{template}{name.removeprefix('report')}.jinja").render(values)
        for name, escape in ((MARKDOWN, False), (HTML, True))
    }


@cache
def _environment(autoescape: bool) -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # takes a while; see studies.report.drawn

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

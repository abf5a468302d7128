"""The shell of a report: reads the files, draws the figures, renders the templates, writes the result.

The same state and files give the same bytes. A report is written beside its final name and moved there whole, so
that a reader never meets half of one.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from studies.report.evidence import gather
from studies.report.files import write_bytes, written_into
from studies.report.theme import DARK, LIGHT, standalone, variables
from studies.report.view import ReportView, view
from studies.standing import StudyState

if TYPE_CHECKING:
    from jinja2 import Environment

    from studies.report.figures import Figure

_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~$])")


@dataclass(frozen=True, slots=True)
class Report:
    """Where a report lies; the hashes are sha256 of the files as written."""

    markdown: Path
    html: Path
    figures: tuple[Path, ...]
    markdown_sha256: str
    html_sha256: str


def build_report(state: StudyState, folder: Path, into: Path | None = None) -> Report:
    """Write `report.md`, `report.html` and `figures/*.svg` into the study's folder, or `into`, from any state.

    `folder` is where the study's files lie. `report.html` is self-contained. Raise ReportError when a collected file is
    missing or is not what was collected, when a number does not recompute, or when the folder cannot be written;
    nothing is half-written.
    """
    content, into = view(state, gather(state, folder)), into or folder
    drawn = _figures(content)
    pages = _render(content, drawn)
    with written_into(into):
        figures = tuple(
            _write(into / "figures" / f"{name}.svg", standalone(figure.wide)) for name, figure in drawn.items()
        )
        markdown, html = (_write(into / name, pages[name]) for name in ("report.md", "report.html"))
    return Report(markdown, html, figures, _sha256(markdown), _sha256(html))


def _figures(content: ReportView) -> dict[str, Figure]:
    # matplotlib takes most of a second, which a command that builds no report should not wait for.
    from studies.report.figures import before_after, learning_curves, predictions, screen, training, training_reward

    drawn = [
        predictions(content.forecasts) if content.forecasts else None,
        before_after(content.shifts) if content.shifts else None,
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
        for name, escape in (("report.md", False), ("report.html", True))
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


def _write(path: Path, text: str) -> Path:
    return write_bytes(path, text.encode())


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

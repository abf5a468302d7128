"""The shell of a report: reads files, draws figures, renders templates, writes the result.

The same state, files and maker (our sources and the figures' library) give the same bytes; another maker may word a
report otherwise. A report is written beside its final name and moved there whole. A page that somebody changed since it
was written is kept beside the new one.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from studies.errors import ReportError
from studies.log.study import StudyState
from studies.report.content import CampaignView, ReportView, campaign_view, view
from studies.report.elements import every_state, is_campaign
from studies.report.evidence import gather, translate_write_errors, write_bytes
from studies.report.figure_data import metric_curves
from studies.report.theme import DARK, LIGHT, standalone, variables

if TYPE_CHECKING:
    from jinja2 import Environment

    from studies.report.plots import Figure


def figures(content: ReportView, prefix: str = "") -> dict[str, Figure]:
    """Return the figures of a study of one round, or (with a prefix of their names) of one of several, by name."""
    # matplotlib takes most of a second, which a command that builds no report should not wait for.
    from studies.report import plots

    rewards = enumerate(content.training.reward_curves, start=1)
    drawn = [
        plots.predictions(content.forecasts, prefix) if content.forecasts else None,
        plots.before_after(content.shifts, prefix) if content.shifts else None,
        plots.hidden_curves(content.hidden, prefix) if content.hidden else None,
        plots.learning_curves(content.curves, prefix) if content.curves else None,
        plots.screen(content.stages.screened, prefix) if content.stages.screened else None,
        plots.training(content.training.curves, prefix) if content.training.curves else None,
        *(plots.training_reward(data, number, prefix) for number, data in rewards),
    ]
    return {figure.name: figure for figure in drawn if figure is not None}


def campaign_figures(content: CampaignView) -> dict[str, Figure]:
    from studies.report import plots  # see figures

    whole = [*(plots.effects(data, number) for number, data in enumerate(content.effects, start=1))]
    whole.append(plots.levels(content.levels))
    found = {figure.name: figure for figure in whole}
    for section in content.rounds:
        if section.content is not None:
            found |= figures(section.content, section.prefix)
    return found


MARKDOWN: Final = "report.md"
HTML: Final = "report.html"
PAGES: Final = (MARKDOWN, HTML)


def file_hashes(payload: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the sha256 of each file of a report by its path, as a `report.built` says it; figures where it does."""
    if payload is None:
        return {}
    entries = [payload["markdown"], payload["html"], *payload.get("figures", ())]
    return {str(entry["path"]): str(entry["sha256"]) for entry in entries}


def keep_edited(
    payload: Mapping[str, Any] | None, pages: Mapping[str, str], folder: Path
) -> tuple[tuple[str, str], ...]:
    """Copy pages aside that are neither as `report.built` says nor as in `pages`; return their and copies' names."""
    known = file_hashes(payload)
    return tuple(
        (name, _backup_page(path, path.read_bytes()))
        for name in PAGES
        if (path := folder / name).exists()
        and hashlib.sha256(path.read_bytes()).hexdigest()
        not in (known.get(name), hashlib.sha256(pages[name].encode()).hexdigest())
    )


def _backup_page(path: Path, data: bytes) -> str:
    """Return the name of a page's copy, which is there already where a disk was full the time before."""
    copy = next(
        other
        for other in (path.with_name(f"{path.stem}.kept-{number}{path.suffix}") for number in count(1))
        if not other.exists() or other.read_bytes() == data
    )
    return copy.name if copy.exists() else write_bytes(copy, data).name


_ROOM = Path(__file__).parents[1]


@cache
def generator_info() -> dict[str, str]:
    return {"ajet": version("ajet"), "sources": _sources(), "matplotlib": version("matplotlib")}


def _sources() -> str:
    """Return the beginning of the sha256 over all sources of this room, which is what a report follows from."""
    whole = hashlib.sha256()
    for path in sorted(path for path in _ROOM.rglob("*") if path.suffix in (".py", ".jinja")):
        whole.update(path.relative_to(_ROOM).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return whole.hexdigest()[:16]


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
    backups: tuple[tuple[str, str], ...] = ()
    """Pages that were not what the log says it wrote, and the names they are kept under."""

    def payload(self, folder: Path) -> dict[str, Any]:
        drawn = zip(self.figures, self.figures_sha256, strict=True)
        return {
            "markdown": _entry(self.markdown, self.markdown_sha256, folder),
            "html": _entry(self.html, self.html_sha256, folder),
            "figures": [_entry(path, sha256, folder) for path, sha256 in drawn],
            "made_by": generator_info(),
        }

    def describe_backups(self) -> tuple[str, ...]:
        return tuple(
            f"{name} was not as the study's log says it was written: it is kept as {kept}, beside the new one"
            for name, kept in self.backups
        )


def build_report(state: StudyState, folder: Path) -> Report:
    """Write `report.md`, `report.html` (self-contained) and `figures/*.svg` into the study's folder, from any state.

    Raise ReportError when a collected file is missing or is not what was collected, when a number does not recompute,
    or when the folder cannot be written; nothing is half-written.
    """
    pages = render_report(state, folder)
    with translate_write_errors(folder):
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
    """Return the text of each file of a report by its path, figures first; raise ReportError as `build_report` does."""
    if is_campaign(state):
        content = campaign_view(state, [gather(each, folder) for each in every_state(state)])
        return _pages(content, campaign_figures(content), "inquiry")
    alone = view(state, gather(state, folder))
    return _pages(alone, figures(alone), "report")


def _pages(content: ReportView | CampaignView, drawn: Mapping[str, Figure], template: str) -> dict[str, str]:
    files = {f"figures/{name}.svg": standalone(figure.wide) for name, figure in drawn.items()}
    return files | _render(content, drawn, template)


def _entry(path: Path, sha256: str, folder: Path) -> dict[str, str]:
    return {"path": path.relative_to(folder).as_posix(), "sha256": sha256}


def _render(content: ReportView | CampaignView, figures: Mapping[str, Figure], template: str) -> dict[str, str]:
    values = {"view": content, "figures": figures, "light": variables(LIGHT), "dark": variables(DARK)}
    return {
        name: _environment(escape).get_template(f"{template}{name.removeprefix('report')}.jinja").render(values)
        for name, escape in ((MARKDOWN, False), (HTML, True))
    }


@cache
def _environment(autoescape: bool) -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # takes a while; see studies.report.build

    environment = Environment(
        loader=PackageLoader("studies.report", "."),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters = {"md": escape_markdown, "fence": code_block, "tight": tight, "code": code_span, "capital": capital}
    environment.filters.update(filters)
    return environment


def escape_markdown(text: str) -> str:
    """Return text that Markdown shows as it is: one line, no markup, no HTML."""
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split())).replace("&", "&amp;")


def tight(text: str) -> str:
    """Return text in which a line never breaks inside `95 %` or `n = 5 + 5`."""
    keep = re.compile(r"\d %|\bn = \d+ \+ \d+")
    return keep.sub(lambda match: match[0].replace(" ", "\N{NO-BREAK SPACE}"), text)


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def code_span(text: str) -> str:
    """Return text as a Markdown code span that its own backticks cannot end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    ticks = "`" * (longest + 1)
    return f"{ticks} {' '.join(text.split())} {ticks}" if longest else f"`{' '.join(text.split())}`"


def code_block(text: str) -> str:
    """Return text as a Markdown code block that its own backticks cannot end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def draw_metric(state: StudyState, folder: Path, metric: str) -> tuple[Path, Path]:
    """Draw a metric of every measured run into the study's folder; return the SVG's path and the PNG's.

    Raise ReportError for a metric that no run logged, and as `build_report` does.
    """
    evidence = gather(state, folder)
    data = metric_curves(state, evidence, metric)
    if data is None:
        raise ReportError(_unknown(metric, evidence.metrics))

    from studies.report.plots import picture  # matplotlib takes most of a second

    svg, png = picture(data)
    stem = re.sub(r"[^\w.=-]+", "-", metric)
    with translate_write_errors(folder):
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

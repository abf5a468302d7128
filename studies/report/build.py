"""The shell of a report: reads files, draws figures, renders templates, writes the result.

The same state, files and maker (our sources and the figures' library) give the same bytes. A page that somebody changed
since it was written is kept beside the new one.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from studies.errors import ReportError
from studies.log.study import StudyState
from studies.report.content import report_content
from studies.report.elements import list_drawings
from studies.report.evidence import gather_rounds
from studies.report.wording import capital

if TYPE_CHECKING:
    from jinja2 import Environment

MARKDOWN: Final = "report.md"
HTML: Final = "report.html"
PAGES: Final = (MARKDOWN, HTML)
_ROOM: Final = Path(__file__).parents[1]
LEVELS: Final = {"passed": "Held", "failed": "Did not hold", "threat": "Threat", "note": "Note", "feared": "Feared"}


@dataclass(frozen=True, slots=True)
class Report:
    """A report in a study's folder; `hashes` are the sha256 of its files as written, by their paths there."""

    folder: Path
    hashes: Mapping[str, str]
    backups: tuple[str, ...] = ()
    """A sentence for each page that was not what the log says it wrote, with the name it is kept under."""

    @property
    def markdown(self) -> Path:
        return self.folder / MARKDOWN

    @property
    def html(self) -> Path:
        return self.folder / HTML

    def payload(self) -> dict[str, Any]:
        files = {name: {"path": name, "sha256": sha256} for name, sha256 in self.hashes.items()}
        markdown, html = (files.pop(name) for name in PAGES)
        return {"markdown": markdown, "html": html, "figures": list(files.values()), "made_by": generator_info()}


@cache
def generator_info() -> dict[str, str]:
    """Return what a report follows from beside its study, with the beginning of the sha256 over all of this room."""
    whole = hashlib.sha256()
    for path in sorted(path for path in _ROOM.rglob("*") if path.suffix in (".py", ".jinja", ".toml")):
        whole.update(path.relative_to(_ROOM).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    sources = whole.hexdigest()[:16]
    return {"ajet": version("ajet"), "sources": sources, "matplotlib": version("matplotlib")}


def build_report(state: StudyState, folder: Path) -> Report:
    """Write `report.md`, `report.html` (self-contained) and `figures/*.svg` into the study's folder, from any state.
    Raise ReportError for a file that is not what was collected, or cannot be written; nothing is half-written."""
    files = {name: text.encode() for name, text in render_report(state, folder).items()}
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    try:
        backups = tuple(_back_up_edited(state.newest_report, hashes, folder))
        for name, data in files.items():
            _write(folder / name, data)
    except OSError as error:
        raise ReportError(
            f"could not write the report into {folder}: {error.strerror or error}. Free space or make the folder "
            "writable, then build the report again"
        ) from error
    return Report(folder, hashes, backups)


def render_report(state: StudyState, folder: Path) -> dict[str, str]:
    """Return the text of each file of a report by its path, figures first; raise ReportError as `build_report` does."""
    return render_pages(report_content(state, gather_rounds(state, folder)), {name: f"{name}.jinja" for name in PAGES})


def render_pages(content: Any, templates: Mapping[str, str]) -> dict[str, str]:
    """Return the figures of some content by their paths, then its pages by their names, each by its template."""
    # matplotlib takes most of a second, which a command that builds no report should not wait for.
    from studies.report import plots

    figures = {d.name: plots.make_figure(d.name, d.figure, d.data) for d in list_drawings(content.body)}
    values = {"content": content, "figures": figures, "levels": LEVELS}
    values |= {"light": plots.variables(plots.LIGHT), "dark": plots.variables(plots.DARK)}
    pages = {
        page: _environment(name.endswith(".html.jinja")).get_template(name).render(values)
        for page, name in templates.items()
    }
    return {f"figures/{name}.svg": plots.standalone(figure.svg) for name, figure in figures.items()} | pages


def file_hashes(payload: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the sha256 of each file of a report by its path, as a `report.built` says it; figures where it does."""
    if payload is None:
        return {}
    entries = [payload["markdown"], payload["html"], *payload.get("figures", ())]
    return {str(entry["path"]): str(entry["sha256"]) for entry in entries}


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _back_up_edited(payload: Mapping[str, Any] | None, hashes: Mapping[str, str], folder: Path) -> Iterator[str]:
    known = file_hashes(payload)
    for path in (folder / name for name in PAGES):
        data = path.read_bytes() if path.exists() else None
        if data is None or hashlib.sha256(data).hexdigest() in (known.get(path.name), hashes[path.name]):
            continue
        names = (path.with_name(f"{path.stem}.kept-{number}{path.suffix}") for number in count(1))
        copy = next(other for other in names if not other.exists() or other.read_bytes() == data)
        if not copy.exists():
            _write(copy, data)
        edited = f"{path.name} was not as the study's log says it was written"
        yield f"{edited}: it is kept as {copy.name}, beside the new one"


@cache
def _environment(autoescape: bool) -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined  # takes a while; see render_report

    environment = Environment(
        loader=PackageLoader("studies.report", "."), autoescape=autoescape, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters.update(template_filters())
    return environment


def template_filters() -> dict[str, Callable[..., str]]:
    filters = {"md": escape_markdown, "fence": code_block, "tight": tight, "code": code_span, "capital": capital}
    return {**filters, "kind": lambda block: type(block).__name__.lower()}


def escape_markdown(text: str) -> str:
    """Return text that Markdown shows as it is: one line, no markup, no HTML."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$])", r"\\\1", " ".join(text.split())).replace("&", "&amp;")


def tight(text: str) -> str:
    """Return text in which a line never breaks inside `95 %` or `n = 5 + 5`."""
    keep = re.compile(r"\d %|\bn = \d+ \+ \d+")
    return keep.sub(lambda match: match[0].replace(" ", "\N{NO-BREAK SPACE}"), text)


def code_span(text: str) -> str:
    """Return text as a Markdown code span that its own backticks cannot end."""
    longest = _longest_ticks(text)
    ticks, pad = "`" * (longest + 1), " " if longest else ""
    return f"{ticks}{pad}{' '.join(text.split())}{pad}{ticks}"


def code_block(text: str) -> str:
    """Return text as a Markdown code block that its own backticks cannot end."""
    fence = "`" * max(3, _longest_ticks(text) + 1)
    return f"{fence}\n{text}\n{fence}"


def _longest_ticks(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)

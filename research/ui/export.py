"""All pages as files: they open from a disk, without a server, and what they were made of verifies beside them.

Each page is whole in one file, so that it can be mailed: its style lies in it and is named by its hash in a policy that
allows nothing else; figures are data. What needs a server (forms, live parts, other filters) is left out, and an
address that is not among the files stands as plain text.
"""

import base64
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final

from starlette.exceptions import HTTPException

from research.errors import BadInput
from research.ui.access import Person
from research.ui.app import static_files
from research.ui.site import Page, PageMaker, Site, View, render
from studies.proof import verify
from studies.proof.export import export

STUDIES: Final = "studies"


@dataclass(frozen=True, slots=True)
class ExportedPages:
    """What was written: files by what they are."""

    pages: tuple[str, ...]
    evidence: tuple[str, ...]
    left_out: tuple[str, ...]
    """Studies that do not verify, each with the first reason."""


@dataclass(slots=True)
class _Copy:
    """A page on its way into the folder: its address, its file, what it is made by."""

    address: str
    file: str
    maker: PageMaker
    path: Mapping[str, str] = field(default_factory=dict)


def export_pages(
    site: Site, pages: Mapping[str, PageMaker], to: Path, studies: Sequence[str] = (), *, planner: bool = True
) -> ExportedPages:
    """Write all pages of studies (all that there are, unless named) and their evidence into a new folder.

    Raise BadInput where the folder is there already, or no study verifies; nothing is left then.
    """
    if to.exists():
        raise BadInput(f"expected a folder that is not there yet, to export into; found {to}: name another")
    chosen, left_out, evidence = list(studies) or site.log.studies(), list[str](), list[str]()
    draft = to.with_name(f".{to.name}.{os.getpid()}")
    draft.mkdir(parents=True)
    try:
        for study in list(chosen):
            reviews = site.reviews(study).read_unverified()  # before the log, which has the heads that they name
            rows, folder = site.log.read_unverified(study), site.folder(study)
            proof = verify(study, rows, folder, reviews=reviews)
            if not proof.holds:
                left_out.append(f"{study}: {proof.drifts[0]}")
                chosen.remove(study)
                continue
            names = export(study, rows, folder, draft / STUDIES / study, reviews)
            evidence += [f"{STUDIES}/{study}/{name}" for name in names]
        if not chosen:
            raise BadInput(f"expected a study that verifies, to export it; found {'; '.join(left_out) or 'none'}")
        copies = {copy.address: copy for copy in _list_copies(site, pages, chosen, planner=planner)}
        written = tuple(_write(site, copy, copies, draft, chosen) for copy in copies.values())
        draft.rename(to)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return ExportedPages(written, tuple(evidence), tuple(left_out))


def _list_copies(
    site: Site, pages: Mapping[str, PageMaker], studies: Sequence[str], *, planner: bool
) -> Iterator[_Copy]:
    yield _Copy("/", "index.html", pages["/"])
    yield _Copy("/compare", "compare.html", pages["/compare"])
    for study in studies:
        at, where = f"/s/{study}", {"study": study}
        yield _Copy(at, f"s/{study}/index.html", pages["/s/{study}"], where)
        yield _Copy(f"{at}/runs", f"s/{study}/runs.html", pages["/s/{study}/runs"], where)
        if planner:
            yield _Copy(f"{at}/planner", f"s/{study}/planner.html", pages["/s/{study}/planner"], where)
        for run in site.state(study).every_run:
            maker = pages["/s/{study}/runs/{run}"]
            yield _Copy(f"{at}/runs/{run}", f"s/{study}/runs/{run}.html", maker, {**where, "run": run})


def _write(site: Site, copy: _Copy, copies: Mapping[str, _Copy], folder: Path, studies: Sequence[str]) -> str:
    style = static_files()["ui.css"].decode()
    hashed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    made = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    study = copy.path.get("study", "")
    of = f"study at head {site.state(study).head_hash[:16]}" if study else "studies"
    view = View(
        Person("reader", "viewer"), copy.path, address=copy.address, static=True, banner=f"copy of {of}, made {made}",
        style=style, policy=f"default-src 'none'; style-src 'sha256-{hashed}'; img-src data:", only=frozenset(studies),
    )  # fmt: skip

    page: Page = replace(copy.maker(site, view), study="")
    path = folder / copy.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(page, view, partial(_relative, site, copy, copies)), encoding="utf-8")
    return copy.file


def _relative(site: Site, copy: _Copy, copies: Mapping[str, _Copy], address: str) -> str:
    """Return an address as a page of the export writes it; a figure as data; empty for what is not in the export."""
    plain, hash_, anchor = address.partition("#")
    parts = plain.strip("/").split("/")
    if plain in copies:
        target = copies[plain].file
    elif len(parts) > 2 and parts[0] == "s" and parts[2] in ("report.html", "report.md"):
        target = f"{STUDIES}/{parts[1]}/{parts[2]}"
    elif len(parts) == 4 and parts[2] == "figures":
        with suppress(HTTPException):
            data = site.report_file(parts[1], f"figures/{parts[3]}")
            return f"data:image/svg+xml;base64,{base64.b64encode(data).decode()}"
        return ""
    else:
        return f"{hash_}{anchor}" if not plain else ""
    here = PurePosixPath(copy.file).parent
    return os.path.relpath(target, here.as_posix()) + hash_ + anchor

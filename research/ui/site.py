"""What every page is made from: the installation, its studies kept folded, templates, who looks."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from jinja2.ext import Extension
from markupsafe import Markup
from sqlalchemy import make_url
from starlette.exceptions import HTTPException

from research.controller.session import has_controller
from research.errors import BadInput, NotReady
from research.installation.home import Home
from research.installation.shared_files import FilesAway
from research.installation.studies import find_study
from research.shown.listing import ListedStudy, read_listing
from research.shown.tokens import visible
from research.text import format_seconds
from research.ui.access import Access, Person, Role
from research.ui.curves import CurveReader
from research.ui.episodes import EpisodeReaders
from research.ui.previews import Previews
from studies import EventLog, StudyLog, StudyState
from studies.errors import LogCorrupt, StudiesError
from studies.log.reviews import ReviewLog, ReviewState, review_heads
from studies.proof import Proof, verdict_fault, verify
from studies.records.verdict import Verdict
from studies.report.build import LEVELS, file_hashes, template_filters
from studies.report.content import ReportContent, report_content
from studies.report.elements import Remark, Remarks, walk
from studies.report.evidence import gather_rounds

T = TypeVar("T")
FIRST_WAIT_S: Final = 0.6
"""How long a page waits for a log to be read, and for files to be checked, before it says that they are being so."""
AT_WORK: Final = ("planning", "running", "judged")
"""Statuses in which some controller should be at work."""
_MOST_KEPT: Final = 64


@dataclass(frozen=True, slots=True)
class View:
    """One look at a page: who looks, at which address."""

    who: Person
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    csrf: str = ""
    address: str = "/"
    static: bool = False
    """Whether it is made for an export: without forms, live parts and what needs a server; what follows is of those."""
    banner: str = ""
    style: str = ""
    policy: str = ""
    only: frozenset[str] = frozenset()

    def get(self, name: str, default: str = "") -> str:
        """Return the last value of a name in the query."""
        return (self.query.get(name) or (default,))[-1]

    def number(self, name: str, default: int = 0) -> int:
        text = self.get(name)
        return int(text) if text.isdecimal() and len(text) < 10 else default

    def query_with(self, **changes: object) -> str:
        """Return this page's query with some of it changed, from its beginning on unless that is changed, too."""
        query = {name: values for name, values in self.query.items() if name != "from"}  # one left empty means any
        return f"?{urlencode({name: each for name, each in {**query, **changes}.items() if each}, doseq=True)}"


def paged(view: View, found: Sequence[T], most: int, **asked: str) -> dict[str, Any]:
    """Return the rows that a page shows (an export all), from where its address says, and what its pager needs."""
    most = max(1, len(found)) if view.static else most
    first = min(view.number("from"), max(0, len(found) - 1)) // most * most
    ends = [max(0, first - most), first + most]
    before, after = (view.query_with(**asked, **{"from": at}) for at in ends)
    return {
        "rows": found[first : ends[1]], "first": first, "count": len(found), "before": before if first else "",
        "next": after if ends[1] < len(found) else "",
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Page:
    """What a page shows: its template with values; `study` names whose events change it, `*` any study's."""

    template: str
    title: str
    values: Mapping[str, Any]
    study: str = ""
    head: str = ""
    """Head of the study as it is shown: what a form of the page is about."""
    status: int = 200


@dataclass(frozen=True, slots=True)
class CheckedStudy:
    """What a study's files came to, each held to its hash: content of its report, and what does not follow."""

    head: str
    content: ReportContent | None
    refused: str
    """Why nothing is claimed on the files; empty where all of them hold."""
    faults: Mapping[str, str]
    """Why a verdict does not follow, by `verdict_name`."""
    changed: tuple[str, ...] = ()
    """Files of the newest report that are not as they were written."""
    at: str = ""
    basis: object = None
    """What of the study its numbers rest on."""

    @property
    def fault_of_files(self) -> str:
        """The first reason for which there is no content."""
        return next(filter(None, (*self.faults.values(), self.refused)), "")

    @property
    def fault(self) -> str:
        """The first thing that does not hold; empty where all does, and a person may sign it."""
        changed = (f"{name} was changed after it was written" for name in self.changed)
        return self.fault_of_files or next(changed, "")

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """What the report has as threats, in its order."""
        blocks = walk(() if self.content is None else self.content.body)
        found = [item for block in blocks if isinstance(block, Remarks) for item in block.items]
        return tuple(dict.fromkeys(item for item in found if item.level in ("failed", "threat", "feared")))


def verdict_name(round: int, verdict: Verdict) -> str:
    return f"{round}/{verdict.hypothesis}/{verdict.phase}"


class Site:
    """The installation as pages see it. Safe to be used by several threads."""

    def __init__(self, home: Home, log: EventLog, access: Access) -> None:
        self.home, self.log, self.access = home, log, access
        self.readers, self.curves = EpisodeReaders(home), CurveReader(home)
        self.previews = Previews(home, log)
        self._studies: OrderedDict[str, tuple[threading.Lock, StudyLog]] = OrderedDict()
        self._checks: OrderedDict[str, tuple[str, Future[CheckedStudy]]] = OrderedDict()
        self._last: dict[str, list[CheckedStudy]] = {}
        """What the newest check of each came to; one that was begun before a study was forgotten tells another list."""
        self.late_checks: deque[str] = deque(maxlen=1000)
        """Studies that a page waited for in vain and that were checked since."""
        self._lock = threading.Lock()
        self._reviewed: Mapping[str, ReviewState] = {}
        self._listed: tuple[Mapping[str, str], datetime, list[ListedStudy]] | None = None
        self._listing = threading.Lock()
        self._worker, self._reader = ThreadPoolExecutor(1, "check"), ThreadPoolExecutor(2, "read")
        self._opened = _identify(home.database)

    def close(self) -> None:
        for pool in (self._worker, self._reader):
            pool.shutdown(wait=False, cancel_futures=True)
        self.previews.close()
        self.readers.close()

    def require_database(self) -> None:
        """Raise NotReady where the open database is not the file at its path: what is written into it would be lost."""
        if self._opened is not None and _identify(self.home.database) != self._opened:
            raise NotReady(
                f"expected the database that these pages opened; found it moved or replaced: put {self.home.database} "
                "back, or start ajet ui again"
            )

    def folder(self, study: str) -> Path:
        return self.home.study(study)

    def state(self, study: str) -> StudyState:
        """Return a study's present state; 404 for one that is not there, LogCorrupt for one that cannot be read."""
        with self._lock:
            if fresh := study not in self._studies:
                try:
                    named = find_study(self.log, study)
                except BadInput as error:
                    raise HTTPException(404, str(error)) from error
                if named != study:
                    raise HTTPException(404, f"expected a study's whole name, such as {named}; found {study[:80]}")
                self._studies[study] = (threading.Lock(), StudyLog(self.log, study))
                self._studies[study][0].acquire()  # so that nobody takes it for read before it is
                while len(self._studies) > _MOST_KEPT:
                    self._studies.popitem(last=False)
            self._studies.move_to_end(study)
            lock, record = self._studies[study]
        if not fresh:
            lock.acquire()
        try:
            state = record.state()
            with suppress(FilesAway):  # pages say what is not here
                self.home.files.pull(self.log, study)
            return state
        finally:
            lock.release()

    def is_read(self, study: str) -> bool:
        """Return whether a page gets a study's state, or why there is none, at once: else its log is being read."""
        with self._lock:
            known = self._studies.get(study)
        if known is None:
            return bool(wait([self._reader.submit(self.state, study)], FIRST_WAIT_S).done)
        if free := known[0].acquire(timeout=FIRST_WAIT_S):
            known[0].release()
        return free

    def open_studies(self) -> list[str]:
        """Return the studies that somebody looked at lately."""
        with self._lock:
            return list(self._studies)

    def listing(self) -> list[ListedStudy]:
        """Return all studies, newest first: read again where a log moved, else each ten seconds, for their files."""
        heads, now = self.log.heads(), datetime.now(UTC)
        with self._listing:
            known = self._listed
            if known is None or known[0] != heads or abs((now - known[1]).total_seconds()) > 10.0:
                known = self._listed = (heads, now, read_listing(self.home, self.log))
        return known[2]

    def checked(self, state: StudyState, wait_s: float = FIRST_WAIT_S) -> CheckedStudy | None:
        """Return what a study's files come to; None while they are being checked by the one thread that does it.

        Where nothing was judged since they were checked last, that is what they come to until they are checked again.
        """
        with self._lock:
            known, last = self._checks.get(state.id), self._last.setdefault(state.id, [])
            if known is None or known[0] != state.head_hash:
                if known is not None:
                    known[1].cancel()
                known = (state.head_hash, self._worker.submit(self._check, state, last))
                self._checks[state.id] = known
                while len(self._checks) > _MOST_KEPT:
                    self._last.pop(self._checks.popitem(last=False)[0], None)
            self._checks.move_to_end(state.id)
        try:
            return known[1].result(wait_s)
        except (NotYet, CancelledError):  # or it went on, and another page has it checked as it is now
            known[1].add_done_callback(lambda done: self.late_checks.append(state.id))
        return last[0] if last and last[0].basis == basis_of(state) else None

    def _check(self, state: StudyState, last: list[CheckedStudy]) -> CheckedStudy:
        last[:] = [found := check(state, self.folder(state.id))]
        return found

    def report_file(self, study: str, name: str) -> bytes:
        """Return a page or figure of a report as it was written; HTTPException for one that was changed since."""
        written = file_hashes(self.state(study).newest_report).get(name)
        if written is None:
            raise HTTPException(404, f"study {study} has no {name[:80]}")
        try:
            found = (self.folder(study) / name).read_bytes()
        except OSError as error:
            raise HTTPException(404, f"{name} cannot be read: {error.strerror}") from error
        if sha256(found).hexdigest() != written:
            raise HTTPException(409, f"{name} was changed after it was written; see: ajet study verify {study}")
        return found

    def is_driven(self, study: str, status: str) -> bool:
        """Return whether a study has a controller, or needs none, or cannot be read."""
        with suppress(StudiesError):
            return status not in AT_WORK or has_controller(self.home, self.log, study)
        return True

    def forget_checked(self, study: str) -> None:
        """Have a study's files checked again: they may have changed without an event."""
        with self._lock:
            self._checks.pop(study, None)
            self._last.pop(study, None)

    def prove(self, study: str) -> Proof:
        """Verify all of a study anew, by its log and its files alone."""
        reviews = self.reviews(study).read_unverified()  # before the log, which has the heads that they name
        return verify(study, self.log.read_unverified(study), self.folder(study), reviews=reviews)

    def reviews(self, study: str) -> ReviewLog:
        return ReviewLog(self.log, study)

    def reviewed(self, study: str) -> ReviewState:
        """Return what people said of a study; nothing, and the fault, where their chain is not whole."""
        try:
            return self.reviews(study).state()
        except LogCorrupt as error:
            return ReviewState(fault=str(error))

    def review_states(self) -> Mapping[str, ReviewState]:
        """Return what people said of each study of which somebody said something; read again where it moved."""
        heads = review_heads(self.log)
        known = self._reviewed
        found = {study: known[study] for study, head in heads.items() if study in known and known[study].head == head}
        for study in heads.keys() - found.keys():
            found[study] = self.reviewed(study)  # whose own page says what is wrong with it
        self._reviewed = found
        return found


def _identify(database: str) -> tuple[int, int] | None:
    """Return which file a database is; None where it is none."""
    url = make_url(database)
    if url.get_backend_name() != "sqlite" or not url.database:
        return None
    with suppress(OSError):
        found = Path(url.database).stat()
        return found.st_dev, found.st_ino
    return None


PageMaker = Callable[[Site, View], Page]


def check(state: StudyState, folder: Path) -> CheckedStudy:
    """Read and check a study's files, and compute what its report says."""
    faults: dict[str, str] = {}
    for each in state.every_round:
        for verdict in chain(each.verdicts, each.replications):
            if (reason := verdict_fault(each, folder, verdict)) is not None:
                faults[verdict_name(each.round, verdict)] = reason
    content, refused = None, ""
    try:
        content = None if faults else report_content(state, gather_rounds(state, folder))
    except StudiesError as error:
        refused = str(error)
    written = file_hashes(state.newest_report).items()
    changed = tuple(name for name, expected in written if _hash(folder / name) != expected)
    return CheckedStudy(
        state.head_hash, content, refused, faults, changed, datetime.now(UTC).isoformat(), basis_of(state)
    )


def basis_of(state: StudyState) -> object:
    """Return what the numbers of a study's page rest on: locks, verdicts, the report."""
    judged = ((each.design_hash, each.verdicts, each.interim, each.replications) for each in state.every_round)
    return state.newest_report, tuple(judged)


def _hash(path: Path) -> str:
    try:
        return sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def age(ts: str, now: datetime | None = None) -> str:
    """Return how long ago a moment of a log was, in its two largest units."""
    since = ((now or datetime.now(UTC)) - datetime.fromisoformat(ts)).total_seconds()
    return format_seconds(max(0.0, since))


def minute(ts: str) -> str:
    return ts[:16].replace("T", " ")


@cache
def templates() -> Environment:
    """Return the templates of the pages and of the report; what is not escaped is named here, and nowhere else.

    Whatever text a template writes, a report's included, has what steers an eye made visible."""
    loader = ChoiceLoader([PackageLoader("research.ui", "templates"), PackageLoader("studies.report", ".")])
    extensions: list[type[Extension] | str] = ["jinja2.ext.do"]
    made = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        extensions=extensions, finalize=lambda value: visible(value) if type(value) is str else value,
    )  # fmt: skip
    made.filters.update(template_filters(), shown=lambda text: visible(str(text)), age=age, minute=minute)
    made.globals.update(levels=LEVELS, figures={})
    return made


def render(page: Page, view: View, href: Callable[[str], str] = str) -> str:
    """Return a page as HTML; `href` gives what an address is written as."""

    def may(role: Role) -> bool:
        return not view.static and view.who.may(role)

    style = Markup(view.style)  # ours, from its template; the one text that is not escaped
    values = {"style": style, "page": page, "view": view, "me": view.who, "may": may, "href": href, **page.values}
    return templates().get_template(page.template).render(values)

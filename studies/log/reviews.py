"""Reviews of a study: comments, signatures and requests of its readers, in a hash chain beside its log.

The rows are those of `studies.log.event`, in the table `reviews` of the log's database, so that a comment never moves
the head that it is about. Each names that head and the sha256 of the `report.html` which the study had at it. Anchors
say what an entry is about: `study`, `r1/h1`, `run RUN`, `play RUN/N` (the Nth play after training), `turn TURN`,
`look TURN/N`, `threat NAME`.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal, Self, get_args

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from sqlalchemy.exc import IntegrityError
from sqlalchemy.schema import CreateTable

from studies.errors import HeadMoved, LogCorrupt, StudiesError
from studies.log.event import GENESIS, Event, EventType, ImpossibleEvent, compose_row, find_faults, refuse
from studies.log.event_log import EventLog, chain_table
from studies.log.locks import prepare
from studies.log.study import StudyState

ReviewKind = Literal["comment", "reply", "resolve", "reopen", "sign", "ask"]
Judgement = Literal["accept", "changes"]
KINDS: Final = frozenset(get_args(ReviewKind))
_ANSWERS: Final = ("reply", "resolve", "reopen")
_TRIES: Final = 200
_TABLE: Final = chain_table("reviews")
_OF_STUDY: Final = sa.select(_TABLE).where(_TABLE.c.study == sa.bindparam("name")).order_by(_TABLE.c.seq)
_NEWEST: Final = sa.select(_TABLE.c.study, sa.func.max(_TABLE.c.seq).label("seq")).group_by(_TABLE.c.study).subquery()
_HEADS: Final = sa.select(_TABLE.c.study, _TABLE.c.hash).join(
    _NEWEST, (_TABLE.c.study == _NEWEST.c.study) & (_TABLE.c.seq == _NEWEST.c.seq)
)
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class ReviewEntry(BaseModel):
    """One entry of the chain, by the reader `by`; `ts` is ISO-8601 UTC."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    seq: int
    ts: str
    by: str
    kind: ReviewKind
    about: str = Field(pattern=r"^[\x20-\x7e]{1,200}$")
    text: str = Field(max_length=4000)
    to: int = Field(ge=0)
    """Number of the entry that it replies to, resolves or opens again; 0 for another kind."""
    decision: Judgement | Literal[""]
    head: Sha256
    report: Sha256 | Literal[""]
    hash: str

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        signs, answers = self.kind == "sign", self.kind in _ANSWERS
        control = next((c for c in self.text if unicodedata.category(c) in ("Cc", "Cs") and c != "\n"), None)
        for found, said in (
            (bool(self.to) != answers, "a reply, resolution or reopening names an entry, no other does"),
            (signs and not (self.decision and self.about == "study"), "a signature decides, and of the whole study"),
            (signs and not self.report, "there is no report to sign"),
            (self.decision and not signs, "only a signature decides something"),
            (self.kind in ("comment", "reply", "ask") and not self.text.strip(), "expected some text"),
            (control, f"expected text without control characters; found {control!r}"),
        ):
            if found:
                raise ValueError(said)
        return self


@dataclass(frozen=True, slots=True)
class Thread:
    """A comment or request, and what came after it: replies, and who resolved or opened it again, in order."""

    first: ReviewEntry
    answers: tuple[ReviewEntry, ...] = ()
    open: bool = True


@dataclass(frozen=True, slots=True)
class ReviewState:
    """What the entries of a study come to; of each reader the newest signature."""

    entries: tuple[ReviewEntry, ...] = ()
    threads: tuple[Thread, ...] = ()
    signed: Mapping[str, ReviewEntry] = field(default_factory=dict)
    fault: str = ""
    """Why nothing of it is shown, where its chain is not whole."""

    @property
    def head(self) -> str:
        return self.entries[-1].hash if self.entries else ""

    @property
    def open_count(self) -> int:
        return sum(thread.open for thread in self.threads)

    def by_anchor(self) -> dict[str, list[Thread]]:
        found: dict[str, list[Thread]] = {}
        for thread in self.threads:
            found.setdefault(thread.first.about, []).append(thread)
        return found

    def find(self, kind: str, seq: int) -> Thread:
        """Return the thread of the entry `seq`, which one of this kind may follow; ImpossibleEvent where none is."""
        for thread in self.threads:
            if any(entry.seq == seq for entry in (thread.first, *thread.answers)):
                refuse(kind == "resolve" and not thread.open, f"what entry {seq} is about is resolved already")
                refuse(kind == "reopen" and thread.open, f"what entry {seq} is about is open already")
                return thread
        raise ImpossibleEvent(f"expected the number of a comment or request to {kind}; found {seq}")

    def add(self, entry: ReviewEntry) -> "ReviewState":
        """Return the state after one more entry; raise ImpossibleEvent for what cannot follow."""
        threads, signed = self.threads, self.signed
        if entry.kind in _ANSWERS:
            thread = self.find(entry.kind, entry.to)
            about = thread.first.about
            refuse(entry.about != about, f"entry {entry.to} is about {about}; found {entry.about}")
            is_open = thread.open if entry.kind == "reply" else entry.kind == "reopen"
            grown = replace(thread, answers=(*thread.answers, entry), open=is_open)
            threads = tuple(grown if each is thread else each for each in threads)
        elif entry.kind == "sign":
            signed = {**signed, entry.by: entry}
        else:
            threads = (*threads, Thread(entry))
        return ReviewState((*self.entries, entry), threads, signed)


def read_reviews(
    study: str, rows: Sequence[Mapping[str, Any]], reports: Mapping[str, str] | None = None
) -> tuple[ReviewState, list[LogCorrupt]]:
    """Return what stored rows come to, and every fault of their chain; where it is whole, what the entries before the
    first that cannot be come to, and that fault. With `reports` (`reports_by_head`) head and report of each are checked
    too."""
    faults, board = list(find_faults(study, rows, types=KINDS, what="review")), ReviewState()
    for row in rows if not faults else ():
        try:
            refuse(row["study"] != study, f"it is of study {row['study']}")
            after = board.add(entry := _entry_of(row))
            if reports is not None:
                _check_head(entry, reports)
            board = after
        except ImpossibleEvent as error:
            return board, [LogCorrupt(study, int(row["seq"]), str(row["type"]), str(error), "review")]
    return board, faults


def reports_by_head(events: Iterable[Event]) -> dict[str, str]:
    """Return, by the hash of each event, the sha256 of the newest `report.html` at it; empty before there is one."""
    found, report = dict[str, str](), ""
    for event in events:
        report = str(event.payload["html"].get("sha256", "")) if event.type is EventType.REPORT_BUILT else report
        found[event.hash] = report
    return found


def report_of(state: StudyState) -> str:
    """Return the sha256 of a study's newest `report.html`; empty where there is none."""
    return str(state.newest_report["html"].get("sha256", "")) if state.newest_report else ""


def _entry_of(row: Mapping[str, Any]) -> ReviewEntry:
    own = {"seq": row["seq"], "ts": row["ts"], "by": row["actor"], "kind": row["type"], "hash": row["hash"]}
    try:
        return ReviewEntry.model_validate({**json.loads(row["payload"]), **own})
    except ValidationError as error:
        first = error.errors()[0]
        said = first["msg"].removeprefix("Value error, ")
        raise ImpossibleEvent(": ".join([*map(str, first["loc"]), said])) from error


def _check_head(entry: ReviewEntry, reports: Mapping[str, str]) -> None:
    refuse(entry.head not in reports, f"the study never had the head {entry.head[:12]}")
    expected = reports[entry.head]
    wrong = f"at its head the report was {expected[:12] or 'not built'}; found {entry.report[:12] or 'none'}"
    refuse(entry.report != expected, wrong)


class ReviewLog:
    """The reviews of one study, in its log's database; one without the table has none."""

    def __init__(self, log: EventLog, study: str) -> None:
        self.study: Final = study
        self._log = log

    def state(self) -> ReviewState:
        """Return what all entries come to, verified; raise the first fault as LogCorrupt."""
        board, faults = read_reviews(self.study, self.read_unverified())
        for fault in faults:
            raise fault
        return board

    def read_unverified(self) -> list[dict[str, Any]]:
        return _rows(self._log, _OF_STUDY, name=self.study)

    def append(
        self, state: StudyState, kind: ReviewKind, *, by: str, about: str = "", text: str = "", to: int = 0,
        decision: Judgement | Literal[""] = "", head: str = "", threats: Iterable[str] = (),
    ) -> ReviewEntry:  # fmt: skip
        """Write an entry after the last one, durably. It is about the newest head of `state` unless one is given, and
        the report of that head; `threats` are the sentences that a report has as threats. StudiesError if refused."""
        head = head or state.head_hash
        known = head == state.head_hash
        reports = {head: report_of(state)} if known else reports_by_head(self._log.read(self.study))
        payload = {
            "text": text.replace("\r\n", "\n").expandtabs(4).strip(), "to": to, "decision": decision, "head": head,
            "about": "study" if kind == "sign" else about,
            "report": reports.get(head, ""),
        }  # fmt: skip
        try:
            refuse(kind == "sign" and not known, "the study went on since; look at it again before you sign")
            if kind in ("comment", "ask") and about not in anchors(state, threats):
                raise ImpossibleEvent(f"expected something of the study that can be commented on; found {about[:80]!r}")
            for _ in range(_TRIES):
                with suppress(HeadMoved):
                    return self._append(kind, by, payload, reports)
        except (ImpossibleEvent, ValueError) as error:
            raise StudiesError(f"no {kind} was written on study {self.study}: {error}") from error
        raise StudiesError(f"others wrote on study {self.study} all the while. Nothing was written; try again")

    def _append(self, kind: str, by: str, payload: Mapping[str, Any], reports: Mapping[str, str]) -> ReviewEntry:
        board, at = self.state(), self._log.clock()
        if kind in _ANSWERS:
            payload = {**payload, "about": board.find(kind, payload["to"]).first.about}
        row = compose_row(self.study, kind, payload, len(board.entries), board.head or GENESIS, actor=by, at=at)
        entry = _entry_of(row)
        board.add(entry)
        _check_head(entry, reports)
        if not board.entries:
            prepare(self._log, [CreateTable(_TABLE, if_not_exists=True)])
        with self._log.transaction("write") as connection:
            try:
                connection.execute(sa.insert(_TABLE), row)
            except IntegrityError as error:
                raise HeadMoved(self.study, entry.seq) from error
        return entry


def review_heads(log: EventLog) -> dict[str, str]:
    """Return the hash of the last entry of each study that has one, as it is stored, by the study's name."""
    return {str(row["study"]): str(row["hash"]) for row in _rows(log, _HEADS)}


def _rows(log: EventLog, query: sa.Select[Any], **values: str) -> list[dict[str, Any]]:
    with log.transaction("read") as connection:
        if not sa.inspect(connection).has_table(_TABLE.name):
            return []
        return [dict(row) for row in connection.execute(query, values).mappings()]


def anchors(state: StudyState, threats: Iterable[str] = ()) -> Iterator[str]:
    """Yield what of a study can be commented on; `threats` are the sentences that its report has as such."""
    yield "study"
    for each in state.rounds:
        designed = each.design.hypotheses if each.design is not None else ()
        yield from (f"r{each.round}/{claim.id}" for claim in (*each.hypotheses, *designed))
    yield from map(threat_anchor, threats)
    for act in state.planner_acts:
        if act.turn:
            yield f"turn {act.turn}"
            yield from (f"look {act.turn}/{number}" for number in range(1, len(act.tool_calls) + 1))
    for name, run in state.every_run.items():
        yield f"run {name}"
        plays = run.collected["evaluation"].get("episodes", 0) if run.collected else 0
        yield from (f"play {name}/{number}" for number in range(1, int(plays) + 1))


def threat_anchor(sentence: str) -> str:
    """Return the anchor of a threat: its first words, without numbers, which later evidence may change."""
    return f"threat {'-'.join(re.findall(r'[a-z]+', sentence.lower())[:6])}"

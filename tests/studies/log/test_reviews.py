from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from studies import EventLog, EventType, LogCorrupt, StoreError, StudiesError, StudyState
from studies.log import event
from studies.log.entries import PlannerAct
from studies.log.reviews import (
    ReviewEntry,
    ReviewLog,
    ReviewState,
    anchors,
    read_reviews,
    reports_by_head,
    review_heads,
    threat_anchor,
)
from tests.studies.proof.forging import Row, changed, leaves, payload_of, with_leaf, with_payload
from tests.studies.synthetic import STUDY, Synthetic, Ticking

Written = tuple[list[Row], dict[str, str]]
HTML = "ab" * 32
NO_REPORT = {"path": "report.md", "sha256": "cd" * 32}
THREAT = "Few runs per arm (n = 5 + 5): one unusual seed can move a mean."
LATE = {"kind": "note", "reason": "Looked at."}


@contextmanager
def refused(error: type[Exception], *words: str) -> Iterator[None]:
    with pytest.raises(error) as caught:
        yield
    said = str(caught.value)
    assert [word for word in words if word not in said] + said.splitlines()[1:] == [], said


def report(study: Synthetic, sha256: str = HTML) -> None:
    study.append(EventType.REPORT_BUILT, markdown=NO_REPORT, html={"path": "report.html", "sha256": sha256})


def make_judged(study: Synthetic) -> Synthetic:
    """Write a study of two runs, stopped, whose log says that it has a report."""
    specs = study.begin()
    for spec in specs[:2]:
        study.run(spec)
    study.append(EventType.STUDY_STOPPED, reason="enough")
    report(study)
    return study


@pytest.fixture
def judged(study: Synthetic) -> Synthetic:
    return make_judged(study)


@pytest.fixture
def reviews(judged: Synthetic) -> ReviewLog:
    return ReviewLog(judged.log, STUDY)


def say(reviews: ReviewLog, state: StudyState, kind: Any = "comment", **given: Any) -> ReviewEntry:
    about = {"about": "r1/h1"} if kind in ("comment", "ask") else {}
    text = {} if kind in ("resolve", "reopen") else {"text": "Is it so?"}
    return reviews.append(state, kind, **{"by": "ann", **about, **text, **given})


def discussed(reviews: ReviewLog, state: StudyState) -> list[ReviewEntry]:
    return [
        say(reviews, state), say(reviews, state, "ask", about="study", text="More\nof it."),
        say(reviews, state, "reply", to=1, by="wei"), say(reviews, state, "resolve", to=3),
        say(reviews, state, "reopen", to=1), say(reviews, state, "sign", by="wei", decision="changes"),
    ]  # fmt: skip


def test_what_was_said_is_read_as_it_was_written_and_makes_threads(judged: Synthetic, reviews: ReviewLog) -> None:
    state, before = judged.state(), judged.log.heads()
    said = discussed(reviews, state)
    assert list(reviews.state().entries) == said
    assert (judged.log.heads(), review_heads(judged.log)) == (before, {STUDY: said[-1].hash})
    board = reviews.state()
    first, second = board.threads
    assert [entry.kind for entry in first.answers] == ["reply", "resolve", "reopen"]
    assert ((first.open, second.open), board.open_count, len(board.entries)) == ((True, True), 2, 6)
    assert board.by_anchor() == {"r1/h1": [first], "study": [second]}
    assert {(entry.about, entry.head, entry.report) for entry in said[2:5]} == {("r1/h1", state.head_hash, HTML)}


def test_it_is_kept_in_any_database_and_a_changed_row_is_named(url: str, tmp_path: Path) -> None:
    synthetic = Synthetic(tmp_path / "study")
    with closing(EventLog(url, clock=Ticking())) as synthetic.log, closing(EventLog(url)) as again:
        synthetic.create()
        assert ReviewLog(again, STUDY).state().entries == ()
        said = [say(ReviewLog(log, STUDY), synthetic.state(), about="study") for log in (synthetic.log, again)]
        assert list(ReviewLog(synthetic.log, STUDY).state().entries) == said
        with again.transaction("write") as connection:
            connection.execute(sa.text("update reviews set actor = 'wei' where seq = 1"))
        with refused(LogCorrupt, "review 1 (comment) of study"):
            ReviewLog(again, STUDY).state()


def test_a_log_without_reviews_has_none_and_one_that_is_read_only_takes_none(study: Synthetic) -> None:
    study.create()
    state = study.state()
    with closing(EventLog(f"sqlite:///file:{study.folder / 'events.db'}?mode=ro&uri=true")) as log:
        reviews = ReviewLog(log, STUDY)
        assert (reviews.state(), review_heads(log)) == (ReviewState(), {})
        with pytest.raises(StoreError, match="writable"):
            say(reviews, state, about="study")
        with log.transaction("read") as connection:
            assert not sa.inspect(connection).has_table("reviews")


REFUSED: dict[str, dict[str, Any]] = {
    "commented on": {"about": "r2/h1"},
    "found 'run x'": {"about": "run x"},
    "found 'threat few'": {"kind": "ask", "about": "threat few"},
    "expected some text": {"text": " \r\n"},
    "control": {"text": "\x1b[2J"},
    "4000": {"text": "x" * 4001},
    "never had the head": {"head": "0" * 64},
    "name must be": {"by": "ann b"},
    "names an entry": {"to": 1},
    "to reply; found 9": {"kind": "reply", "to": 9},
    "to resolve; found 0": {"kind": "resolve"},
    "resolved already": {"kind": "resolve", "to": 2},
    "open already": {"kind": "reopen", "to": 1},
    "decides something": {"decision": "accept"},
    "a signature decides": {"kind": "sign"},
    "decision: ": {"kind": "sign", "decision": "perhaps"},
    "kind: ": {"kind": "study.stopped", "about": "study"},
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_said_is_refused_in_one_line_and_not_written(
    judged: Synthetic, reviews: ReviewLog, words: str
) -> None:
    state = judged.state()
    say(reviews, state)
    say(reviews, state, about="study")
    say(reviews, state, "resolve", to=2)
    with refused(StudiesError, words):
        say(reviews, state, **REFUSED[words])
    assert len(reviews.state().entries) == 3


def test_a_signature_is_of_the_head_and_report_that_there_are_and_each_readers_newest_stands(
    judged: Synthetic, reviews: ReviewLog
) -> None:
    before = judged.state()
    say(reviews, before, "sign", decision="changes")
    say(reviews, before, "sign", decision="accept")
    say(reviews, before, "sign", decision="accept", by="wei")
    judged.amend(**LATE)
    noted = judged.state()
    with refused(StudiesError, "went on"):
        say(reviews, noted, "sign", decision="accept", head=before.head_hash)
    say(reviews, noted, head=before.head_hash)  # but a comment may be about what it was
    say(reviews, noted, "sign", decision="accept", by="wei")
    signed = reviews.state().signed
    assert {name: (each.head, each.report) for name, each in signed.items()} == {
        "ann": (before.head_hash, HTML), "wei": (noted.head_hash, HTML),
    }  # fmt: skip
    assert signed["ann"].decision == "accept"


def test_a_study_without_a_report_cannot_be_signed(study: Synthetic) -> None:
    study.create()
    with refused(StudiesError, "no report to sign"):
        say(ReviewLog(study.log, STUDY), study.state(), "sign", decision="accept")


def test_what_there_is_can_be_commented_on(judged: Synthetic) -> None:
    state = judged.state()
    looks = ({"name": "list_runs"}, {"name": "table"})
    state.planner_acts.append(PlannerAct("design", 1, {}, (), "", turn="1/design/1", tool_calls=looks))
    found = list(anchors(state, [THREAT]))
    done, *_, planned = state.runs
    expected = {"study", "r1/h1", "turn 1/design/1", "look 1/design/1/2", f"run {planned}", f"play {done}/1"}
    assert expected | {threat_anchor(THREAT)} <= set(found)
    assert not {"look 1/design/1/3", f"play {planned}/1", f"play {done}/0", "r1/h2", "r2/h1", ""} & set(found)
    assert threat_anchor(THREAT.replace("5", "6")) == threat_anchor(THREAT)


def kept(rows: list[Row], reports: dict[str, str]) -> tuple[ReviewEntry, ...]:
    board, faults = read_reviews(STUDY, rows, reports)
    for fault in faults:
        raise fault
    return board.entries


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    judged = make_judged(Synthetic(tmp_path_factory.mktemp("written")))
    reviews = ReviewLog(judged.log, STUDY)
    discussed(reviews, judged.state())
    return reviews.read_unverified(), reports_by_head(judged.log.read(STUDY))


@given(data=st.data())
def test_any_single_change_of_the_chain_is_found(written: Written, data: st.DataObject) -> None:
    rows, reports = written
    assert len(kept(rows, reports)) == len(rows)
    at = data.draw(st.integers(0, len(rows) - 1))
    match data.draw(st.sampled_from(["field", "payload", "removed", "twice", "swapped", "moved"])):
        case "field":
            name = data.draw(st.sampled_from([name for name in event.FIELDS if name != "payload"]))
            rows = [*rows[:at], {**rows[at], name: changed(rows[at][name])}, *rows[at + 1 :]]
        case "payload":
            payload = payload_of(rows[at])
            place, leaf = data.draw(st.sampled_from(list(leaves(payload))))
            rows = [*rows[:at], with_payload(rows[at], with_leaf(payload, place, changed(leaf))), *rows[at + 1 :]]
        case "removed":
            rows = rows[:at] + rows[at + 1 :] if at < len(rows) - 1 else rows[1:]
        case "twice":
            rows = [*rows[: at + 1], *rows[at:]]
        case "swapped":
            other = data.draw(st.integers(0, len(rows) - 1).filter(lambda place: place != at))
            rows = list(rows)
            rows[at], rows[other] = rows[other], rows[at]
        case "moved":
            rows = [{**row, "seq": row["seq"] + 1} if n >= at else row for n, row in enumerate(rows)]
    with pytest.raises(LogCorrupt) as caught:
        kept(rows, reports)
    assert caught.value.what == "review"


def rehashed(rows: list[Row]) -> list[Row]:
    previous, found = event.GENESIS, []
    for row in rows:
        row = {**row, "prev_hash": previous}
        previous = event._row_hash(row)
        found.append({**row, "hash": previous})
    return found


FORGED: dict[str, tuple[int, dict[str, Any]]] = {
    "resolved already": (4, {"type": "resolve"}),
    "to reply; found 7": (2, {"to": 7}),
    "is about r1/h1; found study": (2, {"about": "study"}),
    "never had the head": (0, {"head": "0" * 64}),
    "the report was": (5, {"report": "0" * 64}),
    "no report to sign": (5, {"report": ""}),
    "unknown here": (0, {"type": "run.collected"}),
    "it is of study": (0, {"study": "s-2"}),
    "colour: ": (0, {"colour": "red"}),
    "text: ": (0, {"text": 5}),
    "control": (0, {"text": "\x9b2J"}),
}


@pytest.mark.parametrize("words", FORGED)
def test_what_was_forged_with_all_hashes_is_named_by_what_cannot_be(written: Written, words: str) -> None:
    rows, reports = written
    at, changes = FORGED[words]
    own = {name: changes[name] for name in changes if name in event.FIELDS}
    payload = {**payload_of(rows[at]), **{name: changes[name] for name in changes if name not in own}}
    forged = rehashed([*rows[:at], {**with_payload(rows[at], payload), **own}, *rows[at + 1 :]])
    with refused(LogCorrupt, f"review {at + 1} (", words):
        kept(forged, reports)


def test_a_writer_that_was_overtaken_composes_anew(judged: Synthetic, reviews: ReviewLog) -> None:
    state = judged.state()
    say(reviews, state)
    clock, first = judged.log.clock, [True]

    def overtaken() -> Any:
        if first.pop() if first else False:
            say(reviews, state, "resolve", to=1, by="wei")
        return clock()

    judged.log.clock = overtaken
    assert say(reviews, state, "reply", to=1).seq == 3
    say(reviews, state, "reopen", to=1)
    first.append(True)
    with refused(StudiesError, "resolved already"):
        say(reviews, state, "resolve", to=1)
    assert [entry.kind for entry in reviews.state().entries] == ["comment", "resolve", "reply", "reopen", "resolve"]


def test_writers_at_once_lose_nothing(url: str, tmp_path: Path) -> None:
    synthetic = Synthetic(tmp_path / "study")
    synthetic.create()
    state, together = synthetic.state(), Barrier(3)

    def write(name: str) -> list[ReviewEntry]:
        with closing(EventLog(url)) as log:
            together.wait()
            return [say(ReviewLog(log, STUDY), state, by=name, about="study", text=str(n)) for n in range(8)]

    with ThreadPoolExecutor(3) as pool:
        written = [entry for entries in pool.map(write, ("a", "b", "c")) for entry in entries]
    with closing(EventLog(url)) as log:
        entries = list(ReviewLog(log, STUDY).state().entries)
    assert sorted(written, key=lambda entry: entry.seq) == entries
    for name in ("a", "b", "c"):
        assert [entry.text for entry in entries if entry.by == name] == [str(n) for n in range(8)]

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from studies import Event, EventLog, EventType, fold
from studies.log.event import compose_row, event_of
from studies.log.reviews import ReviewLog
from studies.proof import export, read_export, read_exported_reviews, verify
from studies.proof.export import README, REVIEWS
from studies.proof.verify import before_report
from studies.report import build_report
from tests.studies.synthetic import Synthetic, Ticking

GALLERY = Path(__file__).parents[3] / "studies" / "gallery"
STUDIES = sorted(path for path in GALLERY.iterdir() if path.is_dir())
Lines = list[str]


def make_exported(folder: Path, study: str = "s-1") -> Path:
    """Return the export of a finished study without a report, of which three things were said."""
    made = Synthetic(folder / study, study=study)
    state, reviews = made.whole(), ReviewLog(made.log, study)
    for kind, more in (
        ("comment", {"about": "r1/h1", "text": "Is it so?"}),
        ("resolve", {"to": 1}),
        ("reopen", {"to": 1}),
    ):
        reviews.append(state, kind, by="ann", **more)  # type: ignore[arg-type]
    to = folder / f"{study}-sent"
    names = export(study, made.log.read_unverified(study), made.folder, to, reviews.read_unverified())
    assert REVIEWS in names
    return to


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_exported(tmp_path_factory.mktemp("reviewed"))


@pytest.fixture
def copied(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "copied"))


def found(folder: Path) -> list[str]:
    study, rows, known = read_export(folder)
    reviews, broken = read_exported_reviews(folder)
    proof = verify(study, rows, folder, known=known + broken, reviews=reviews)
    return [str(drift) for drift in proof.drifts]


def test_an_export_takes_along_what_was_said_and_it_holds(exported: Path) -> None:
    study, rows, known = read_export(exported)
    reviews, broken = read_exported_reviews(exported)
    proof = verify(study, rows, exported, reviews=reviews)
    assert (known, broken, proof.drifts, proof.held["review"]) == ([], [], (), 3)
    assert f"3 up to {reviews[-1]['hash']}" in (exported / README).read_text()


FORGED: dict[str, Callable[[Lines], Lines]] = {
    "review 1 (comment): expected the hash": lambda lines: [lines[0].replace("it so", "it not so"), *lines[1:]],
    "review 2 (missing)": lambda lines: [lines[0], lines[2]],
    "review 1 (missing)": lambda lines: [lines[1], lines[0], lines[2]],
    "README.md: it does not name the head of reviews.jsonl": lambda lines: lines[:-1],
    "reviews.jsonl, line 2: it cannot be read": lambda lines: [lines[0], "{}", lines[2]],
    "reviews.jsonl, line 3: it is not as": lambda lines: [*lines[:2], lines[2].replace(":", ": ", 1)],
}


@pytest.mark.parametrize("said", FORGED)
def test_a_change_of_what_was_said_is_named(copied: Path, said: str) -> None:
    path = copied / REVIEWS
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("".join(f"{line}\n" for line in FORGED[said](lines)), encoding="utf-8", newline="\n")
    assert said in "\n".join(found(copied))


def test_what_was_said_of_another_study_or_is_gone_or_no_plain_file_is_named(copied: Path, tmp_path: Path) -> None:
    other, path = make_exported(tmp_path, "s-2"), copied / REVIEWS
    path.write_bytes((other / REVIEWS).read_bytes())
    assert "review 1 (comment): it is of study s-2" in "\n".join(found(copied))
    path.unlink()
    assert any(line.startswith("README.md: it holds") for line in found(copied))
    path.symlink_to(other / REVIEWS)
    with pytest.raises(Exception, match=REVIEWS):
        found(copied)


def test_what_is_said_of_a_head_that_the_log_never_had_is_named(exported: Path) -> None:
    study, rows, _ = read_export(exported)
    reviews, _ = read_exported_reviews(exported)
    cut = verify(study, rows[:-1], exported, reviews=reviews)
    assert "review 1 (comment): the study never had the head" in "\n".join(map(str, cut.drifts))


def test_a_report_of_the_log_without_its_hash_is_named_and_stops_no_check(exported: Path) -> None:
    study, rows, _ = read_export(exported)
    reviews, _ = read_exported_reviews(exported)
    last, pages = rows[-1], {"markdown": {}, "html": {}}
    at = Ticking()()
    built = compose_row(study, EventType.REPORT_BUILT, pages, last["seq"], last["hash"], actor="user", at=at)
    proof = verify(study, [*rows, built], exported, reviews=reviews)
    assert ([drift.place for drift in proof.drifts], proof.held["review"]) == (["report"], 3)


def with_note(events: list[Event]) -> Event:
    note: dict[str, Any] = {"amendment": {"kind": "note", "reason": "Looked at by a reader."}}
    last = events[-1]
    row = compose_row(last.study, EventType.DESIGN_AMENDED, note, last.seq, last.hash, actor="user", at=Ticking()())
    return event_of(row)


@pytest.mark.parametrize("folder", STUDIES, ids=lambda path: path.name)
def test_a_note_on_a_concluded_study_leaves_its_report_and_anything_else_takes_it_away(folder: Path) -> None:
    study, rows, _ = read_export(folder)
    events = [event_of(row) for row in rows]
    state = fold(events)
    noted = fold([with_note(events)], state)
    assert state.report is not None
    assert (noted.report, noted.newest_report, noted.event_count) == (state.report, state.newest_report, len(rows) + 1)
    row = compose_row(
        study, EventType.STUDY_RESUMED, {}, noted.event_count, noted.head_hash, actor="user", at=Ticking()()
    )
    assert fold([event_of(row)], noted).report is None


@pytest.mark.slow
def test_a_report_of_the_gallery_holds_after_a_note_and_is_built_anew_with_it(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GALLERY / "learning-rate-in-stock", tmp_path / "study"))
    study, rows, _ = read_export(folder)
    with closing(EventLog(f"sqlite:///{tmp_path / 'ajet.db'}")) as log:
        for event in map(event_of, rows):
            log.append(event)
        log.append(with_note(log.read(study)))
        assert verify(study, log.read_unverified(study), folder).drifts == ()
        shown = fold(before_report(log.read(study)))
        assert shown.report is not None
        built = build_report(shown, folder)
        assert "Looked at by a reader." in built.markdown.read_text()
        assert verify(study, log.read_unverified(study), folder).drifts != ()  # the log does not know it yet
        log.append(log.compose(study, EventType.REPORT_BUILT, built.payload(), after=log.last(study)))
        assert verify(study, log.read_unverified(study), folder).drifts == ()

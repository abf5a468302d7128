"""Predictions scored over all studies of a home, against figures worked out by hand."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research.planners.factory import EDGES, ScoredPrediction, forecaster, track
from studies import EventLog
from studies.records.procedure import Prediction
from tests.research.calibrated import Came, verdict_on, write_study


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with closing(EventLog(f"sqlite:///{tmp_path}/ajet.db")) as log:
        yield log


def test_scores_are_those_worked_out_by_hand(log: EventLog) -> None:
    write_study(log, "a", Came(0.7, "supported"), Came(0.7, "refuted", -0.1), Came(0.2, "inconclusive"))
    write_study(log, "b", Came(0.5, "invalid", None))
    (found,) = track(log).forecasters
    assert (found.title, found.studies, found.scores.predictions, found.valid) == ("rules", 2, 4, 3)
    assert found.brier == pytest.approx((0.3**2 + 0.7**2 + 0.2**2) / 3)
    assert found.constant == pytest.approx(1 / 3 * 2 / 3)
    assert found.scores.brier == pytest.approx((0.3**2 + 0.7**2) / 2)
    assert found.scores.constant == pytest.approx(0.25)
    assert found.scores.coverage.mean == pytest.approx(2 / 3), "0.1 twice inside 0 to 0.2, -0.1 outside"


def test_bins_hold_each_valid_prediction_with_the_wilson_interval_of_its_share(log: EventLog) -> None:
    write_study(log, "a", Came(0.7, "supported"), Came(0.6, "refuted"), Came(0.2, "equivalent"), Came(0.9, "invalid"))
    (found,) = track(log).forecasters
    assert [(held.low, held.high, held.n) for held in found.bins] == [(0.2, 0.4, 1), (0.6, 0.8, 2)]
    assert found.bins[1].predicted == pytest.approx(0.65)
    share = found.bins[1].supported
    z = 1.959964  # Wilson 1927 for 1 of 2
    half = z * (2 * 0.25 + z * z / 4) ** 0.5 / (2 + z * z)
    assert (share.mean, share.low, share.high) == pytest.approx((0.5, 0.5 - half, 0.5 + half), abs=1e-5)


def test_planners_and_models_are_kept_apart_the_one_with_most_claims_first(log: EventLog) -> None:
    write_study(log, "a", Came(0.5, "supported"))
    write_study(log, "b", Came(0.5, "supported"), Came(0.5, "refuted"), planner="llm", model="one")
    write_study(log, "c", Came(0.5, "supported"), planner="llm", model="two")
    assert [entry.title for entry in track(log).forecasters] == ["llm one", "llm two", "rules"]
    assert [entry.title for entry in track(log, "rules").forecasters] == ["rules"]


def test_what_is_not_scored_is_counted_with_its_reason(log: EventLog, tmp_path: Path) -> None:
    write_study(log, "a", Came(0.5, "supported"), Came(0.5, None))
    write_study(log, "b", Came(0.5, "supported", exploratory=True))
    write_study(log, "c", Came(0.5, "supported"))
    with closing(sqlite3.connect(tmp_path / "ajet.db")) as database, database:
        database.execute("update events set payload = replace(payload, '0.5', '0.9') where study = 'c' and seq = 2")
    found = track(log)
    assert found.forecasters[0].scores.predictions == 1
    assert found.left_out == {
        "claims without a final verdict": 1,
        "claims that an amendment made exploratory": 1,
        "studies whose log is corrupt": 1,
    }


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.sampled_from(["supported", "refuted", "equivalent", "inconclusive", "invalid"])),
        min_size=1, max_size=30,
    )
)  # fmt: skip
def test_every_valid_prediction_is_in_exactly_one_bin(made: list[tuple[float, str]]) -> None:
    scored = [
        ScoredPrediction("s", "rules", None, Prediction(low=0, high=0.2, probability=p), verdict_on("h", Came(p, name)))  # type: ignore[arg-type]
        for p, name in made
    ]
    found = forecaster(scored)
    assert sum(held.n for held in found.bins) == found.valid == sum(name != "invalid" for _, name in made)
    assert all(held.low <= held.predicted <= held.high for held in found.bins)
    assert {held.low for held in found.bins} <= set(EDGES)
    assert found.brier is None or 0 <= found.brier <= 1

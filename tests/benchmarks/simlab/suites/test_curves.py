"""Whole studies that ask for another metric than success end with what is true of their curves."""

from __future__ import annotations

import pytest
from simlab.flights.flight import Flight
from simlab.flights.records import FlightRecord, flown
from simlab.suites import curves

MADE = ("area:0.7", "episodes:0.7")
_FLOWN: dict[str, FlightRecord] = {}


def once(flight: Flight) -> FlightRecord:
    """Return a flight's record; the same flight is the same study whenever it is flown."""
    if flight.name not in _FLOWN:
        _FLOWN[flight.name] = flown(flight)
    return _FLOWN[flight.name]


@pytest.mark.parametrize("metric", MADE)
def test_a_planted_effect_on_a_metric_is_found_through_the_whole_loop(metric: str) -> None:
    null, effect = (once(flight) for flight in curves.flights(1, 1, metrics=[metric])[:2])
    assert [claim.false for claim in null.claims] == [False], null.refused
    assert [claim.false for claim in effect.claims] == [False], effect.refused
    (claim,) = effect.claims
    assert claim.truth == pytest.approx((-1 if metric == "episodes:0.7" else 1) * (claim.promised or 0.0))
    assert claim.estimate is not None
    assert abs(claim.estimate - claim.truth) < abs(claim.truth)
    assert null.duplicates == null.orphans == 0
    assert null.launched_runs == null.accounted_runs > 0


def test_every_study_asks_for_its_metric_and_is_counted_under_it() -> None:
    flights = curves.flights(2)
    assert len(flights) == 2 * len(curves.ASKED) * len(curves.KINDS)
    assert len({flight.name for flight in flights}) == len(flights)
    assert {str(flight.asks["metric"]["kind"]) for flight in flights} == {"area", "episodes", "collapse"}
    assert len({flight.world.seed for flight in flights}) == len(flights)  # type: ignore[attr-defined]


def test_what_is_refused_is_a_row_and_no_figure() -> None:
    records = [once(flight) for flight in curves.flights(1, 1, metrics=["collapse"])]
    (row, *_) = curves.rows(records)
    assert [row["metric"], row["planted"], row["studies"]] == ["collapse", "null", 1]
    assert all(row["refused"] or row["seeds"] != "nothing to count" for row in curves.rows(records))
    figures = [figure for figure in curves.figures(records) if figure.name.startswith("collapse, ")]
    judged = [f"collapse, {kind}" for kind, record in zip(curves.KINDS, records, strict=True) if record.claims]
    assert {figure.name.split(":")[0] for figure in figures} == {*judged, *(["collapse, all kinds"] if judged else [])}


def test_a_difference_well_inside_the_margin_is_planted_and_called_equivalent() -> None:
    record = once(curves.flights(1, 1, metrics=["area:0.7"])[curves.KINDS.index("equivalence")])
    (claim,) = record.claims
    assert 0 < claim.truth == pytest.approx(0.2 * (claim.promised or 0.0))
    assert [claim.verdict, claim.falsely_equivalent, claim.false] == ["equivalent", False, False]


def test_shares_are_pooled_over_metrics_and_intervals_of_means_apart_from_those_of_rates() -> None:
    flights = [flight for flight in curves.flights(1, 1) if flight.name.split("-")[1] in ("4", "12")]  # both null
    found = {figure.name: figure for figure in curves.figures([once(flight) for flight in flights])}
    assert found["all metrics, null: false claims"].of == 2
    assert found["area:0.7, null: false claims"].of == found["collapse, null: false claims"].of == 1
    covered = "intervals that hold the truth, beside their stated level"
    assert [found[f"{which}, all kinds: {covered}"].of for which in ("areas and times", "collapse")] == [1, 1]

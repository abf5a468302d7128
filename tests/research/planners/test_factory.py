from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from research.errors import BadInput, NotReady
from research.planners.factory import load_track_record, make_planner
from studies import EventLog
from studies.records.verdict import PlannerMessage, quote_message
from tests.golden import assert_golden
from tests.research.calibrated import Came, write_study


def test_a_quotation_says_who_said_it_and_what_is_wrong_with_it() -> None:
    said = PlannerMessage(
        by="llm m", text="It is\nSUPPORTED, p < 0.0001.", unfounded=("0.0001",), contradicted=("SUPPORTED",)
    )
    assert_golden(quote_message(said))
    assert quote_message(PlannerMessage(by="llm m", text="So it is.", unfounded=())) == 'llm m: "So it is."'
    assert_golden(quote_message(PlannerMessage(by="llm m", text="So it is.")))


LOCAL = {"OPENAI_BASE_URL": "http://127.0.0.1:8000/v1"}


@pytest.mark.parametrize(("name", "model", "environ", "told"), [
    ("rules", "m", LOCAL, "found m; add --planner llm"), ("gpt", None, {}, "llm; found 'gpt'"),
    ("llm", None, LOCAL, "--planner-model NAME"), ("llm", "m", {}, "set OPENAI_API_KEY"),
    ("llm", "m", {"OPENAI_BASE_URL": " ", "OPENAI_API_KEY": ""}, "set OPENAI_API_KEY"),
    ("llm", "m", {"OPENAI_BASE_URL": "localhost:8000"}, "an address such as"),
    ("llm", "m", {"OPENAI_BASE_URL": "http://host:port/v1"}, "an address such as"),
    ("llm", "m", {"OPENAI_API_KEY": "sk-\u2026"}, "printable ASCII"),
    *(("llm", "m", {**LOCAL, "AJET_PLANNER_TIMEOUT": seconds}, "planner_timeout: ") for seconds in (
        "soon", "0", "nan", "1e9")),
    ("llm", "m", {**LOCAL, "AJET_PLANNER_PRICE": "cheap"}, "planner_price: "),
    ("llm", "m", {**LOCAL, "AJET_PLANNER_MAX_COST": "3"}, "--planner-price IN,OUT"),
    ("llm", "m", {**LOCAL, "ANTHROPIC_API_KEY": "k"}, "say which: --planner-endpoint"),
    ("llm", "m", {**LOCAL, "AJET_PLANNER_ENDPOINT": "anthropic"}, "set ANTHROPIC_API_KEY"),
    ("llm", "m", {**LOCAL, "AJET_PLANNER_FALLBACK": "n@nowhere"}, "--planner-fallback MODEL@"),
    ("llm", "m", {**LOCAL, "AJET_PLANNER_FALLBACK": "n@http://me:hush@host/v1"}, "planner_fallback: "),
    ("llm", "m", {**LOCAL, "AJET_PLANNER_MAX_COST": "inf", "AJET_PLANNER_PRICE": "1,2"}, "planner_max_cost: "),
])  # fmt: skip
def test_what_makes_no_planner_is_named(name: str, model: str | None, environ: dict[str, str], told: str) -> None:
    with pytest.raises(BadInput if name == "gpt" else NotReady) as caught:
        make_planner(name, model, environ)
    assert told in caught.value.message
    assert "sk-" not in caught.value.message


@pytest.mark.parametrize(("files", "told"), [
    ({"REPLAY": "none.jsonl"}, "file made with AJET_PLANNER_RECORD"),
    ({"RECORD": "no/folder/said.jsonl"}, "expected a file"), ({"RECORD": "a", "REPLAY": "b"}, "found both"),
])  # fmt: skip
def test_what_cannot_be_recorded_or_replayed_is_named(files: dict[str, str], told: str, tmp_path: Path) -> None:
    paths = {f"AJET_PLANNER_{verb}": str(tmp_path / file) for verb, file in files.items()}
    with pytest.raises(NotReady, match=told):
        make_planner("llm", "m", {"OPENAI_API_KEY": "k", **paths})


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with closing(EventLog(f"sqlite:///{tmp_path}/ajet.db")) as log:
        yield log


def test_scores_are_those_worked_out_by_hand(log: EventLog) -> None:
    write_study(log, "a", Came(0.7, "supported"), Came(0.7, "refuted", -0.1), Came(0.2, "inconclusive"))
    write_study(log, "b", Came(0.5, "invalid", None))
    (found,) = load_track_record(log).forecasters
    assert (found.title, found.studies, found.scores.predictions, found.valid) == ("rules", 2, 4, 3)
    assert found.brier == pytest.approx((0.3**2 + 0.7**2 + 0.2**2) / 3)
    assert found.constant == pytest.approx(1 / 3 * 2 / 3)
    assert found.scores.brier == pytest.approx((0.3**2 + 0.7**2) / 2)
    assert found.scores.constant == pytest.approx(0.25)
    assert found.scores.coverage.mean == pytest.approx(2 / 3), "0.1 twice inside 0 to 0.2, -0.1 outside"


def test_bins_hold_each_valid_prediction_with_the_wilson_interval_of_its_share(log: EventLog) -> None:
    write_study(log, "a", Came(0.7, "supported"), Came(0.6, "refuted"), Came(0.2, "equivalent"), Came(0.9, "invalid"))
    (found,) = load_track_record(log).forecasters
    assert [(held.low, held.high, held.n) for held in found.bins] == [(0.2, 0.4, 1), (0.6, 0.8, 2)]
    assert found.bins[1].predicted == pytest.approx(0.65)
    share = found.bins[1].supported
    z = 1.959964  # Wilson 1927 for 1 of 2
    half = z * (2 * 0.25 + z * z / 4) ** 0.5 / (2 + z * z)
    assert (share.mean, share.low, share.high) == pytest.approx((0.5, 0.5 - half, 0.5 + half), abs=1e-5)


def test_what_is_not_scored_is_counted_with_its_reason(log: EventLog, tmp_path: Path) -> None:
    write_study(log, "a", Came(0.5, "supported"), Came(0.5, None))
    write_study(log, "b", Came(0.5, "supported", exploratory=True))
    write_study(log, "c", Came(0.5, "supported"))
    with closing(sqlite3.connect(tmp_path / "ajet.db")) as database, database:
        database.execute("update events set payload = replace(payload, '0.5', '0.9') where study = 'c' and seq = 2")
    found = load_track_record(log)
    assert found.forecasters[0].scores.predictions == 1
    assert found.left_out == {
        "claims without a final verdict": 1,
        "claims that an amendment made exploratory": 1,
        "studies whose log is corrupt": 1,
    }

"""`ajet planner calibration`: what a person and a script see."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from research.installation.home import Home
from studies import EventLog
from tests.research.calibrated import Came, write_study
from tests.research.cli.conftest import Ajet


def fill(*claims: Came, study: str = "a", planner: str = "rules") -> None:
    with closing(EventLog(Home.locate().prepare().database)) as log:
        write_study(log, study, *claims, planner=planner)


def test_an_empty_home_is_told_in_one_line(ajet: Ajet) -> None:
    ended = ajet("planner", "calibration")
    assert (ended.code, ended.out.count("\n")) == (0, 1)
    assert "no prediction has met its verdict yet" in ended.out


def test_a_study_without_a_verdict_is_told_in_one_line_too(ajet: Ajet) -> None:
    fill(Came(0.5, None))
    ended = ajet("planner", "calibration")
    assert ended.out.count("\n") == 1
    assert "claims without a final verdict: 1" in ended.out


def test_the_screen_shows_scores_beside_the_constant_bins_with_counts_and_where_the_plots_are(
    ajet: Ajet, home: Path
) -> None:
    fill(Came(0.7, "supported"), Came(0.7, "refuted", -0.1), Came(0.2, "inconclusive"))
    out = ajet("planner", "calibration").out
    assert "3 claims in 1 study: 1 supported, 1 refuted, 1 inconclusive" in out
    assert "Brier 0.207, of a constant forecaster 0.222: all 3 valid" in out
    assert "Brier 0.290, of a constant forecaster 0.250: the 2 decided" in out
    assert "held 67% [21%, 94%] of the estimates, at a level of 80%: 3 intervals" in out
    assert "60% to 80%" in out
    for kind in ("svg", "png"):
        assert str(home / "calibration" / f"reliability.{kind}") in out
        assert (home / "calibration" / f"reliability.{kind}").stat().st_size > 1000


def test_where_no_verdict_is_valid_nothing_is_drawn(ajet: Ajet, home: Path) -> None:
    fill(Came(0.5, "invalid", None))
    out = ajet("planner", "calibration").out
    assert "1 claim in 1 study: 1 invalid" in out
    assert "nothing to score yet: no verdict is valid" in out
    assert "plot" not in out
    assert not (home / "calibration").exists()
    assert json.loads(ajet("planner", "calibration", "--json").out)["plots"] is None


def test_json_holds_the_same_figures(ajet: Ajet) -> None:
    fill(Came(0.7, "supported"))
    fill(Came(0.4, "refuted"), study="b", planner="llm")
    found = json.loads(ajet("planner", "calibration", "--planner", "llm", "--json").out)
    (entry,) = found["planners"]
    assert (entry["planner"], entry["valid"], round(entry["brier"], 2)) == ("llm", 1, 0.16)
    assert entry["scores"]["verdicts"] == {"refuted": 1}
    assert found["plots"]["png"].endswith("reliability.png")

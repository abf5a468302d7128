"""The chapter on inquiries says what was flown and what was missed, and nothing where none was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rig.inquiries.goals import INQUIRIES
from rig.inquiries.inquiries import InquiryCell, simulate
from rig.pages import inquiries, tables


def row(**changed: Any) -> dict[str, Any]:
    names = ("false_difference", "false_equivalence", "either", "false_among_claims")
    rates = {name: [0.04, 0.03, 0.05] for name in names}
    return {
        "name": "any", "truth": "50 % true", "planner": "largest", "noise": "t3", "ledgers": True,
        "inquiries": INQUIRIES, **rates, "overdrawn": [0.0, 0.0, 0.001], "right_differences": 1.5,
        "right_equivalences": 2.0, "power": [[0.7, 0.6, 0.8]] * 12, "date": "2026-01-02", "commit": "abc", **changed,
    }  # fmt: skip


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    return tmp_path / "inquiries.json"


def test_a_cell_has_its_rates_and_its_power_by_round(results: Path) -> None:
    results.write_text(json.dumps({"rows": [row()]}))
    text = "\n".join(inquiries.inquiry_tables())
    assert "| 50 % true | largest | t3 | two ledgers | 2,000 | 4.0 % [3.0, 5.0] |" in text
    assert "| 50 % true | largest | t3 | 70 % |" in text
    assert "Flown 2026-01-02 at commit abc." in text
    assert "Missed" not in text


def test_what_misses_its_goal_is_told_and_what_shares_nothing_has_none(results: Path) -> None:
    wrong = [0.4, 0.38, 0.42]
    results.write_text(json.dumps({"rows": [row(false_difference=wrong)]}))
    assert "**Missed**:\n\n- any: any false difference 40.0% [38.0%, 42.0%]" in "\n".join(inquiries.inquiry_tables())
    results.write_text(json.dumps({"rows": [row(false_difference=wrong, ledgers=False)]}))
    text = "\n".join(inquiries.inquiry_tables())
    assert "Missed" not in text
    assert "| 5 % each round |" in text


def test_what_an_inquiry_comes_to_can_be_told(results: Path) -> None:
    tally = simulate(InquiryCell("half 0, half at the margin", "plain"), range(3))
    results.write_text(json.dumps({"rows": [row(**tally.figures())]}))
    assert "| 3 |" in "\n".join(inquiries.inquiry_tables())


def test_what_was_not_flown_is_not_told(results: Path) -> None:
    assert list(inquiries.inquiry_tables()) == []

"""The tables on other metrics say what was measured, what was missed, and which version was flown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rig.pages import metrics, tables


def figures(**changed: Any) -> dict[str, Any]:
    rate = [0.04, 0.03, 0.05]
    known = dict.fromkeys(("false", "equivalent", "found", "wrong_sign", "falsely_equivalent", "unreached"), rate)
    of_all = {"false_of_all": [0.21, 0.19, 0.24], "said_of_all": [0.5, 0.4, 0.6]}
    return {"studies": 900, "coverage": [0.96, 0.95, 0.97], "level": 0.95, **known, **of_all, **changed}


def row(planted: bool, found: dict[str, Any] | None) -> dict[str, Any]:
    return {"cell": "60 % late", "n": 3, "planted": planted, "figures": found}


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    return tmp_path / "metric_verdicts.json"


def test_a_row_has_the_nulls_and_what_was_planted_beside_them(page: Path) -> None:
    rows = [row(False, figures(false=[0.071, 0.06, 0.09])), row(True, None)]
    told = {"rows": rows, "missed": ["it is missed"], "date": "2026-11-23", "commit": "abc1234"}
    page.write_text(json.dumps({"metrics": {"episodes": told}}))
    text = "\n".join(metrics.metric_tables())
    assert "900 studies, 900 a row" in text
    assert "at commit abc1234" in text
    assert "**Missed**:\n\n- it is missed\n" in text
    assert (
        "| 60 % late | 3 | 7.1 % [6.0, 9.0] | 4.0 % [3.0, 5.0] | 96.0 % [95.0, 97.0] (95.0) |  |  |  | "
        "4.0 % [3.0, 5.0] | 21.0 % [19.0, 24.0] | 50.0 % [40.0, 60.0] |"
    ) in text


def test_what_was_not_measured_is_not_told(page: Path) -> None:
    assert list(metrics.metric_tables()) == []

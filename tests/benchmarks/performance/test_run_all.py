"""`run_all.py` runs what is chosen, records what it found, and tells what failed or is worse."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import run_all
from performance import history, results
from performance.catalogue import BENCHMARKS

SOAK = next(each for each in BENCHMARKS if each.name == "soak")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[str]]:
    """Return a run of the soak alone, that writes a result with these changes and ends with this exit code."""
    past: dict[str, Any] = json.loads((results.RESULTS / "soak.json").read_text())

    def run(code: int = 0, **changes: object) -> list[str]:
        def ended(command: list[str], **_: object) -> SimpleNamespace:
            assert command[1:] == ["benchmarks/soak.py", "--minutes", "5", "--json"]
            (tmp_path / "soak.json").write_text(json.dumps(past | changes))
            return SimpleNamespace(returncode=code)

        monkeypatch.setattr(subprocess, "run", ended)
        return run_all.measure([SOAK], tmp_path, tmp_path / "headlines.csv")

    return run


def test_a_version_as_good_as_the_last_is_recorded_without_a_word(
    measured: Callable[..., list[str]], tmp_path: Path
) -> None:
    assert measured(commit="aaa") == []
    assert measured(commit="bbb") == []
    assert [each.commit for each in history.read(tmp_path / "headlines.csv")] == ["aaa", "aaa", "bbb", "bbb"]


def test_a_worse_one_is_told_and_recorded(measured: Callable[..., list[str]], tmp_path: Path) -> None:
    measured(commit="aaa")
    slow = {"median": 5.0, "worst": 6.0}
    told = measured(commit="bbb", **{"seconds to roll again": slow})
    assert told == ["soak: kill to serving again, s is worse: 5 at bbb, 1.24 at aaa"]
    assert len(history.read(tmp_path / "headlines.csv")) == 4


def test_a_benchmark_that_fails_or_writes_no_full_result_is_told_and_not_recorded(
    measured: Callable[..., list[str]], tmp_path: Path
) -> None:
    assert measured(code=1) == ["soak: failed with exit code 1"]
    (told,) = measured(quick=True)
    assert "expected a result of full size" in told
    assert history.read(tmp_path / "headlines.csv") == []

"""`run_all.py` runs what is chosen, records what it found, and tells what failed or is worse."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import real_model
import rig.frame
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


def test_what_needs_a_model_that_is_not_here_is_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (benchmark,) = (each for each in BENCHMARKS if each.name == "real_model")
    monkeypatch.setenv("AJET_HOME", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", lambda command, **_: pytest.fail(f"nothing is to be run; found {command}"))
    assert run_all.measure([benchmark], tmp_path, tmp_path / "headlines.csv") == []
    reason = "no pretrained model is here: fetch one (ajet model fetch smollm2-135m)"
    assert capsys.readouterr().out == f"real_model: skipped, as {reason}\n"
    assert real_model.main([]) == 2
    assert capsys.readouterr().err == f"expected a model; {reason}, or name its folder\n"


def test_a_pretrained_model_that_is_here_is_measured_and_its_figures_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (benchmark,) = (each for each in BENCHMARKS if each.name == "real_model")
    monkeypatch.setenv("AJET_HOME", str(tmp_path))
    (tmp_path / "models" / "smollm2-135m").mkdir(parents=True)
    (tmp_path / "models" / "smollm2-135m" / "config.json").write_text("{}")
    row = dict.fromkeys(real_model.SHOWN, 2.5)
    monkeypatch.setattr(real_model, "_measured", lambda model, variant, code, counted: [row] * counted)
    monkeypatch.setattr(rig.frame, "RESULTS", tmp_path)
    assert benchmark.command == ("benchmarks/real_model.py", "--json")
    assert real_model.main(benchmark.command[1:]) == 0
    found = results.load("real_model", tmp_path)
    assert found is not None
    assert (found.figures["model"], len(found.figures["rows"])) == ("smollm2-135m", len(real_model.VARIANTS))
    assert len(history.entries(found)) == 4
    assert "all weights, bfloat16" in "\n".join(benchmark.section(found.figures))

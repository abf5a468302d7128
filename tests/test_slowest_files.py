"""A run of the tests says which files took longest."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONFTEST = """
from tests.slowest_files import SlowestFiles

def pytest_configure(config):
    config.pluginmanager.register(SlowestFiles())

def pytest_runtest_logreport(report):
    # As long as its name says: nothing here sleeps.
    report.duration = float(report.nodeid.rpartition("_")[2]) if report.when == "call" else 0.0

pytest_runtest_logreport.tryfirst = True
"""


def test_the_slowest_files_are_named_with_the_sum_of_their_tests_whoever_ran_them(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n" + CONFTEST)
    for file in range(12):
        tests = f"def test_of_{file}(): pass\n\ndef test_more_of_{file}(): pass\n"
        (tmp_path / f"test_file{file}.py").write_text(tests)
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n", "2",
            "-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path),
        ],
        capture_output=True, text=True, timeout=400, check=False, cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    said = done.stdout.partition("slowest 10 files")[2].splitlines()[1:11]
    assert said == [f"{2 * file:7.1f}s test_file{file}.py" for file in range(11, 1, -1)], done.stdout


@pytest.mark.parametrize("listed", ["slow", "long"])
def test_files_that_are_left_to_ci_are_there_and_each_is_named_once(listed: str) -> None:
    names = (ROOT / "tests" / f"{listed}_files.txt").read_text().split()
    assert [name for name in names if not (ROOT / "tests" / name).is_file()] == []
    assert names == sorted(set(names))


@pytest.mark.parametrize(("left_s", "said"), [(60, "1 skipped"), (7200, "1 passed")])
def test_a_long_test_is_begun_only_where_its_limit_ends_before_the_run_does(left_s: float, said: str) -> None:
    named = "tests/research/cli/swarm/test_export_model.py::test_where_nothing_was_trained_one_line_says_so"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", named],
        capture_output=True, text=True, timeout=400, check=False, cwd=ROOT,
        env={**os.environ, "AJET_TEST_UNTIL": str(time.time() + left_s), "AJET_TEST_ORDER": "a commit"},
    )  # fmt: skip
    assert said in done.stdout


def test_a_failure_is_said_when_it_happens_with_its_reason(tmp_path: Path) -> None:
    registers = CONFTEST.replace("SlowestFiles()", "AsItHappens(config)").replace("SlowestFiles", "AsItHappens")
    (tmp_path / "conftest.py").write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{registers}")
    (tmp_path / "test_it.py").write_text("def test_of_1(): assert 1 == 2, 'no'\n\ndef test_of_31(): pass\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path)],
        capture_output=True, text=True, timeout=400, check=False, cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    told = done.stdout.partition("= FAILURES =")[0]
    assert "failed: test_it.py::test_of_1 (call): AssertionError: no" in told, done.stdout
    assert "took 31 s: test_it.py::test_of_31 (call)" in told

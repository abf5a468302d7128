"""What a run of the tests says, leaves for another time, and ends; and the images that CI keeps between runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import requests

from research.orchestration import server
from tests.conftest import pytest_runtest_setup
from tests.shared_prefect import EndsPrefect, shared_folder, shared_server
from tests.slowest_files import AsItHappens, SlowestFiles

ROOT = Path(__file__).parent.parent


def report(test: str, duration: float = 0.0, error: str = "") -> Any:
    crash = SimpleNamespace(reprcrash=SimpleNamespace(message=f"{error}\nmore"))
    return SimpleNamespace(nodeid=test, duration=duration, when="call", failed=bool(error), longrepr=crash)


def test_the_ten_slowest_files_are_named_with_the_sum_of_their_tests() -> None:
    files = SlowestFiles()
    for number in range(12):
        for test in ("one", "two"):
            files.pytest_runtest_logreport(report(f"test_{number}.py::{test}", float(number)))
    assert files.lines() == [f"{2 * number:7.1f}s test_{number}.py" for number in range(11, 1, -1)]


def test_failures_and_long_tests_are_said_when_they_end() -> None:
    lines: list[str] = []
    terminal = SimpleNamespace(write_line=lambda line, **_: lines.append(line.strip()))
    said = AsItHappens(SimpleNamespace(pluginmanager=SimpleNamespace(get_plugin=lambda _: terminal)))  # type: ignore[arg-type]
    for each in (report("a", 1.0), report("b", 31.0), report("c", error="AssertionError: no")):
        said.pytest_runtest_logreport(each)
    assert [line.split(": ", 1)[1] for line in lines] == ["b (call)", "c (call): AssertionError: no"]


@pytest.mark.parametrize("listed", ["slow", "long"])
def test_files_that_are_left_to_ci_are_there_and_each_is_named_once(listed: str) -> None:
    names = (ROOT / "tests" / f"{listed}_files.txt").read_text().split()
    assert [name for name in names if not (ROOT / "tests" / name).is_file()] == []
    assert names == sorted(set(names))


@pytest.mark.parametrize(("left_s", "begun"), [(60, False), (7200, True)])
def test_a_test_is_begun_only_where_its_limit_ends_before_the_run_does(
    left_s: float, begun: bool, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("AJET_TEST_UNTIL", str(time.time() + left_s))
    try:
        pytest_runtest_setup(request.node)
    except pytest.skip.Exception:
        assert not begun
    else:
        assert begun


def test_all_workers_share_one_prefect_server_that_ends_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(folder: Path, port: int) -> subprocess.Popen[bytes]:
        """Start what says that it is well, and where it has its state."""
        (folder / "api" / "health").mkdir(parents=True, exist_ok=True)
        (folder / "api" / "admin").mkdir(exist_ok=True)
        (folder / "api" / "admin" / "settings").write_text(json.dumps({"home": str(folder)}))
        command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(folder)]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)

    def config(base: Path, **worker: object) -> Any:
        return SimpleNamespace(_tmp_path_factory=SimpleNamespace(getbasetemp=lambda: base), **worker)

    monkeypatch.setattr(server, "_launch", answers)
    main, workers = config(tmp_path), [config(tmp_path / f"popen-gw{n}", workerinput={}) for n in range(2)]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda worker: shared_server(worker).url, workers)
    pid = json.loads((shared_folder(main) / "server.json").read_text())["pid"]
    assert first == second
    for ended in (*workers, main):
        assert psutil.pid_exists(pid)
        EndsPrefect().pytest_sessionfinish(SimpleNamespace(config=ended))  # type: ignore[arg-type]
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("end", ["whole", "broken off", "folder gone", "too late to load"])
def test_ci_keeps_whole_images_and_goes_on_without_the_others(
    end: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = run_path(str(ROOT / ".ci" / "kept_images.py"))

    def content(named: str) -> Iterator[bytes]:
        yield b"first half, "
        if end == "broken off":
            raise requests.exceptions.ConnectionError("timed out")
        yield b"second half"

    def load(archive: object) -> None:
        raise requests.exceptions.ReadTimeout("timed out")

    held = [SimpleNamespace(tags=("ajet-base:1",), save=content)]
    images = SimpleNamespace(list=lambda name: [held.pop()] if held else [], load=load)
    engine = SimpleNamespace(client=SimpleNamespace(images=images))
    if end == "too late to load":
        (tmp_path / "one.tar").write_bytes(b"an image")
        kept["load"](engine, tmp_path)
    else:
        kept["save"](engine, tmp_path / "gone" if end == "folder gone" else tmp_path)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"first half, second half"] * (end == "whole")
    error = capsys.readouterr().err
    assert {"whole": "", "folder gone": "No such file"}.get(end, "timed out") in error

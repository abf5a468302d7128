"""`make gpu` stays ready without a GPU: where torch and transformers are all there is, and as a dry run of all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import gpu
import pytest
from performance.headlines import HEADLINES
from rig.bare import Bench

from swarm.job import Job

ROOT = Path(__file__).parents[2]
BARE = """
import importlib.metadata, json, os, re, runpy, sys
from importlib.machinery import PathFinder
from packaging.requirements import Requirement

def plain(name):
    return re.sub("[-_.]+", "-", name).lower()

def required(name, found):
    if name not in found:
        try:
            asked = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            return found
        found.add(name)
        for each in map(Requirement, asked):
            if each.marker is None or each.marker.evaluate({"extra": ""}):
                required(plain(each.name), found)
    return found

# typer asks for pydantic since lately
there = (required("torch", set()) | required("transformers", set()) | {"ajet"}) - {"pydantic", "pydantic-core"}
owners = importlib.metadata.packages_distributions()
refused = {name for name, packages in owners.items() if not there & set(map(plain, packages))}

class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in refused else PathFinder.find_spec(name, path, target)

sys.meta_path = [Bare if each is PathFinder else each for each in sys.meta_path]
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
"""
WHAT_RUNS = """
from rig.bare import stand_in
assert stand_in()
from swarm.job import Job
print(json.dumps({name: value for name, value in vars(Job(dtype="bfloat16", steps=7)).items() if name != "model"},
                 default=list))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *words], env=variables, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_torch_and_transformers_are_enough_for_it_and_what_needs_more_is_named(tmp_path: Path) -> None:
    script, file = str(ROOT / "benchmarks/gpu.py"), tmp_path / "gpu.json"
    parts = ("--part", "conformance", "--part", "study", "--part", "verl")
    ended = run("-c", BARE + WHAT_RUNS, script, "--device", "cpu", "--json", str(file), *parts)
    assert ended.returncode == 0, ended.stderr
    figures: dict[str, Any] = json.loads(file.read_text())
    assert (figures["dry run"], figures["jobs"]) == (True, "not validated: no pydantic")
    held = [(row["dtype"], row["adapter"], row.get("holds", row.get("not run"))) for row in figures["conformance"]]
    assert set(held) == {("float32", 0, True), ("bfloat16", 0, True), ("float32", 4, "needs peft")}
    assert "fastapi" in figures["study"]["not run"]
    assert "ray, verl, vllm" in figures["verl"]["not run"]
    stood, job = json.loads(ended.stdout.splitlines()[0]), Job(dtype="bfloat16", steps=7).model_dump(mode="json")
    assert {name: stood.get(name) for name in job if name != "model"} == {n: v for n, v in job.items() if n != "model"}


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_dry_run_has_every_part_and_never_the_place_of_a_measurement(tmp_path: Path) -> None:
    script, file = str(ROOT / "benchmarks/gpu.py"), tmp_path / "gpu.json"
    asked = [word for name in ("generation", "steps", "updates", "study", "suite") for word in ("--part", name)]
    ended = run(script, "--device", "cpu", "--json", str(file), *asked)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    figures: dict[str, Any] = json.loads(file.read_text())
    assert (figures["failed"], figures["cut"]) == ({}, {})
    (generation,), steps, updates = figures["generation"], figures["steps"], figures["updates"]
    assert generation["tokens per second"].keys() == {"ours", "continuous", "padded"}
    assert [(row["who"], row.get("steps per minute", 1) > 0) for row in steps] == [("ours", True), ("trl", True)]
    assert {(row["T"], row["layout"]) for row in updates} == {
        (turns, layout) for turns in (4, 10, 20) for layout in ("linear", "unmerged", "tree")
    }
    assert [row["status"] for row in figures["study"]] == ["concluded"]
    assert [row["holds"] for row in figures["suite"]] == [True]
    refused = run(script, "--device", "cpu", "--json")
    assert (refused.returncode, "expected --json FILE" in refused.stderr) == (2, True)


def part(end: Callable[[], object]) -> Callable[[Bench], Iterator[dict[str, Any]]]:
    def rows(_: Bench) -> Iterator[dict[str, Any]]:
        yield {"what": "first"}
        end()

    return rows


@pytest.mark.parametrize(("end", "seconds", "told"), [
    (lambda: None, 60, None), (lambda: {}["x"], 60, ("failed", "KeyError: 'x'")),
    (lambda: os._exit(3), 60, ("failed", "its process ended with 3")), (Event().wait, 1, ("cut", None)),
])  # fmt: skip
def test_what_a_part_found_is_kept_however_it_ends(
    end: Callable[[], object], seconds: float, told: tuple[str, str | None] | None
) -> None:
    found = list(gpu.forked(part(end), Bench("cpu", time.monotonic() + seconds)))
    rows = [("row", {"what": "first"})] * (found[0][0] == "row")  # a part that is cut may not have come so far
    assert [each for each in found if each[0] == "row"] == rows
    assert bool(rows) or told == ("cut", None)
    assert [(kind, words if kind == "failed" else None) for kind, words in found[len(rows) :]] == (
        [told] if told else []
    )


def test_rows_of_an_earlier_run_stay_dated_until_a_part_has_its_first_and_a_row_that_comes_again_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, here = tmp_path / "gpu.json", {"gpu": "a card", "torch": "2.0"}
    at = {"commit": "aaa", "date": "2026-01-01"}
    rows: dict[str, Any] = {"steps": [{"who": "ours", "old": True}], "updates": [{"workload": "T = 4"}]}
    file.write_text(json.dumps({**here, **at, **rows, "note": "by hand"}))
    figures = gpu._kept(file, here)

    def carried_out(name: str, *found: tuple[str, Any]) -> dict[str, Any]:
        monkeypatch.setattr(gpu, "forked", lambda *_: (each for each in found))
        gpu.carry_out(name, Bench("cpu", time.monotonic() + 60), figures, file)
        written: dict[str, Any] = json.loads(file.read_text())
        return written

    failed = carried_out("steps", ("failed", "why"))
    assert (failed["steps"], failed["at"]["steps"], failed["failed"]) == (rows["steps"], at, {"steps": "why"})
    newer = carried_out("steps", ("row", {"who": "ours"}), ("row", {"who": "ours", "more": 1}), ("row", {"who": "trl"}))
    assert (newer["steps"], newer["failed"]) == ([{"who": "ours", "more": 1}, {"who": "trl"}], {})
    assert newer["at"] == {"steps": gpu.moment(), "updates": at}
    assert {key: newer.get(key) for key in (*at, "note")} == {**at, "note": "by hand"}
    newest = carried_out("updates", ("row", {"workload": "T = 4"}))
    assert {key: newest.get(key) for key in (*at, "note")} == {**gpu.moment(), "note": None}


def test_what_was_cut_or_lacks_the_row_of_a_goal_misses_it_and_has_no_headline() -> None:
    linear = {"workload": "T = 10", "T": 10, "layout": "linear", "seconds": 1.0, "wall ratio": 9.0}
    generated = {"requests": 32, "of at most": 128, "off a plain forward": {"ours": 0.0}}
    figures: dict[str, Any] = {
        "commit": "aaa", "date": "2026-01-01", "cut": {"suite": "not begun"}, "study": [{"cut": "its time was over"}],
        "updates": [linear, {**linear, "T": 20, "wall ratio": 5.5, "failed": "out of memory"}],
        "generation": [{**generated, "tokens per second": {"ours": 2, "padded": 1}}], "verl": {"not run": "needs ray"},
    }  # fmt: skip
    names = list(gpu.PARTS)
    assert [words.partition(":")[0] for words in gpu.goals_missed(figures, names)] == [
        "suite", "updates", "study", "generation", "steps"
    ]  # fmt: skip
    cut = {**figures, "updates": [{**linear, "wall ratio": 9.0}, {"T": 20, "layout": "linear"}], "generation": [
        {**generated, "tokens per second": {"padded": 1}}
    ]}  # fmt: skip
    assert [each.value for each in HEADLINES["gpu"](cut)] == [9.0]
    assert list(HEADLINES["gpu"]({"commit": "aaa", "date": "2026-01-01"})) == []


ENDLESS = """
import signal, threading, time
import gpu
from rig.bare import Bench
def rows(_):
    print("begun", flush=True)
    threading.Event().wait()
    yield
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup, and it be ignored
gpu.end_in_order()
list(gpu.forked(rows, Bench("cpu", time.monotonic() + 600)))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_part_ends_with_whoever_started_it(number: signal.Signals) -> None:
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}"}
    with subprocess.Popen([sys.executable, "-c", ENDLESS], env=variables, stdout=subprocess.PIPE) as started:
        assert started.stdout
        assert started.stdout.readline() == b"begun\n"
        started.send_signal(number)
        assert started.stdout.read() == b""  # ends when nobody has it open, neither the part


def test_without_a_gpu_it_ends_with_the_way_to_a_dry_run() -> None:
    command = ["make", "gpu", "GPU_BIN=/nowhere"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, "make gpu DRY=/tmp/gpu.json" in ended.stderr) == (2, True)

"""A planner's analysis in a real container: it reads what it is given, gives what is checked, and reaches nothing."""

from __future__ import annotations

import pytest

from research.errors import NotReady
from research.isolation.mode import UNISOLATED, Isolation, Sandboxing
from research.planners import analysis
from sandboxes import DockerSandbox
from sandboxes.images.build import Image
from studies.records.verdict import AnalysisResult

pytestmark = pytest.mark.slow
TRIED = """
import os, signal, socket, statistics

def analyse(folder):
    def trying(act):
        try:
            return act() or "done"
        except BaseException as error:
            return type(error).__name__

    def fork():
        children = []
        try:
            while len(children) < 500:
                child = os.fork()
                if not child:
                    signal.pause()
                children.append(child)
        finally:
            for child in children:
                os.kill(child, 9)

    rows = [
        ["network", trying(lambda: socket.create_connection(("1.1.1.1", 53), 2).close())],
        ["write", trying(lambda: open(folder + "/runs.json", "w").close())],
        ["outside", trying(lambda: open("/etc/passwd", "a").close())],
        ["fork", trying(fork)],
        ["read", str(len(open(folder + "/runs.json").read()))],
    ]
    points = {"name": "all", "points": [[1, 0.5], [2, statistics.fmean([1, 0])]]}
    figure = {"kind": "lines", "x": "step", "y": "success", "series": [points]}
    return {"table": [{"tried": a, "came to": b} for a, b in rows], "figure": figure, "note": "nothing"}
"""


@pytest.fixture
def isolation(docker_sandbox: DockerSandbox, image: Image, monkeypatch: pytest.MonkeyPatch) -> Isolation:
    monkeypatch.setattr(analysis, "LIMIT_S", 10.0)
    return Isolation(Sandboxing(kind="docker", image=image.id), docker_sandbox)


def made(isolation: Isolation, source: str) -> AnalysisResult:
    return analysis.analyse(source, {"runs.json": b"[]"}, "s", isolation)


def test_code_reads_its_folder_and_reaches_nothing_else(isolation: Isolation) -> None:
    found = made(isolation, TRIED)
    assert {row["tried"]: row["came to"] for row in found.table} == {
        "network": "OSError", "write": "OSError", "outside": "PermissionError", "fork": "BlockingIOError", "read": "2",
    }  # fmt: skip
    assert found.figure is not None
    assert made(isolation, TRIED) == found
    assert len(list(isolation.containers.root.iterdir())) == 2  # the installation's mark: the same code is run once


@pytest.mark.parametrize(("body", "told"), [
    ("while True: pass", "timeout"),
    ("return 'x' * (1 << 20)", "no result"),
    ("print('y' * (8 << 20)); return {}", "table"),
    ("return bytearray(4 << 30)", "out of memory"),
    ("raise ValueError('of\\x1b[2J mine')", "ValueError: of\\x1b[2J mine"),
    ("import os; os._exit(0)", "no result"),
    ("return [[]] * 9", "expected"),
])  # fmt: skip
def test_greedy_code_ends_and_its_planner_is_told_how(isolation: Isolation, body: str, told: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is what is looked at
        made(isolation, f"def analyse(folder):\n    {body}\n")
    assert told in str(caught.value)
    assert len(str(caught.value)) < 1_000


def test_no_containers_no_analysis() -> None:
    with pytest.raises(NotReady, match="--sandbox docker"):
        made(UNISOLATED, TRIED)

"""Bounds that a process which was stopped does not spend while it is."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time

import pytest

from swarm.backends.verl.processes import own_time
from swarm.backends.verl.processes.own_time import Silence, ready_within, within

WAITER = """
import asyncio, sys
from swarm.backends.verl.processes import own_time
own_time.SLICE_S = 0.1

async def main():
    answer = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    print("waits", flush=True)
    try:
        print("answered", (await own_time.within(answer, 2.0)).strip(), flush=True)
    except TimeoutError:
        print("judged", flush=True)
    import os
    os._exit(0)

asyncio.run(main())
"""


def test_what_is_answered_while_the_process_was_stopped_is_not_judged() -> None:
    """It is stopped for longer than its bound, and answered only once it runs again."""
    process = subprocess.Popen([sys.executable, "-c", WAITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGSTOP)
    time.sleep(2.5)  # what is tested is that this much time does not count
    process.send_signal(signal.SIGCONT)
    process.stdin.write("yes\n")
    process.stdin.flush()
    assert process.stdout.readline() == "answered yes\n"
    assert process.wait(10) == 0


async def test_who_does_not_answer_is_judged_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_time, "SLICE_S", 0.01)
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with pytest.raises(TimeoutError):
        await within(never, 0.05)
    assert never.cancelled()


class _Waits:
    """Stands for Ray: what is waited for is ready after so many slices."""

    def __init__(self, slices: int) -> None:
        self.slices = slices

    def wait(self, references: list[int], timeout: float) -> tuple[list[int], list[int]]:
        self.slices -= 1
        return (references, []) if self.slices < 0 else ([], references)


@pytest.mark.parametrize(("slices", "ready"), [(0, True), (3, True), (9, False)])
def test_a_blocking_wait_is_counted_in_slices(slices: int, ready: bool) -> None:
    assert ready_within(_Waits(slices), 1, 4.5) is ready


def test_a_silence_counts_no_more_between_two_looks_than_can_pass_while_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("swarm.backends.verl.processes.own_time.time.monotonic", lambda: now[0])
    silence = Silence()
    now[0] = 60.0
    assert silence.lasts(90) == 60
    now[0] = 7200.0
    assert silence.lasts(90) == 150
    silence.end()
    assert silence.lasts(90) == 0

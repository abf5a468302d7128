"""What is given to one thread, by many."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from swarm.backends.verl.processes.one_thread import OneThread


def test_all_callers_share_a_thread_that_is_none_of_theirs() -> None:
    thread = OneThread("one")
    with ThreadPoolExecutor(4) as callers:
        ran = set(callers.map(lambda _: thread.call(threading.get_ident), range(40)))
    assert len(ran) == 1
    assert threading.get_ident() not in ran


@pytest.mark.parametrize("error", [ValueError("a line"), KeyboardInterrupt()])
def test_what_is_raised_reaches_the_caller_and_ends_nothing(error: BaseException) -> None:
    thread = OneThread("one")

    def fail() -> None:
        raise error

    before = thread.call(threading.get_ident)
    with pytest.raises(type(error)):
        thread.call(fail)
    assert thread.call(threading.get_ident) == before


def test_it_is_there_for_what_a_library_does_at_exit_and_holds_nobody_up() -> None:
    code = (
        "import atexit; from swarm.backends.verl.processes.one_thread import OneThread\n"
        "one = OneThread('one'); one.call(int); atexit.register(lambda: print(one.call(lambda: 'there')))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (ran.returncode, ran.stdout.strip()) == (0, "there"), ran.stderr

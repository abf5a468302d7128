"""One thread that lasts as long as this process, for what is bound to the thread that begins it.

Promises: whatever it is given runs on the same thread, in the order of the calls; what that raises, the caller sees.
Does not know what runs on it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


class OneThread:
    """Calls on one thread, which no end of the interpreter waits for and which outlives what ends with it.

    An executor of one thread is ended before what a library does at exit, which such a library may not survive.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._beginning = threading.Lock()

    def call(self, function: Callable[[], T]) -> T:
        """Return what the function returns on the thread, or raise what it raises. Blocks."""
        with self._beginning:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        answer: Future[T] = Future()
        self._calls.put(lambda: _answer(answer, function))
        return answer.result()

    def _run(self) -> None:
        while True:
            self._calls.get()()


def _answer(answer: Future[T], function: Callable[[], T]) -> None:
    try:
        answer.set_result(function())
    except BaseException as error:  # noqa: BLE001 - the caller raises it
        answer.set_exception(error)

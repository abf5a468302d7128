"""What a run of the tests ends with: the files that took longest, so that a slow one is seen by who made it slow."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

SHOWN: Final = 10


class SlowestFiles:
    """Sums what setups, calls and teardowns of each file took, whichever worker ran them."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration  # type: ignore[assignment]  # floats sum, too

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self._seconds) > 1:
            terminalreporter.section(f"slowest {SHOWN} files")
            terminalreporter.line("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """Return a line for each of the slowest files, the slowest first."""
        return [f"{seconds:7.1f}s {name}" for name, seconds in self._seconds.most_common(SHOWN)]

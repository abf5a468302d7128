"""What a run of the tests says of itself: failures and long tests as they come, and the files that took longest.

A run that is ended before it closes has so said what failed and where its time went.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

SHOWN: Final = 10
LONG: Final = 30.0  # seconds


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


class AsItHappens:
    """Says a line for each failure and each long test when it ends, in the process that shows the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        shown = self._plugins.get_plugin("terminalreporter")
        if shown is None:
            return  # a worker: the process that started it shows what it reports
        if report.failed:
            shown.write_line(f"\nfailed: {report.nodeid} ({report.when}): {_reason(report)}", red=True)
        elif report.duration > LONG:
            shown.write_line(f"\ntook {report.duration:.0f} s: {report.nodeid} ({report.when})")


def _reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    told = crash.message if crash is not None else str(report.longrepr)
    return f"{told.strip()}\n".splitlines()[0][:200]

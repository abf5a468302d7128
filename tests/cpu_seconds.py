"""What a run of the tests says of itself: failures as they come, and the files that took most of the processor.

Seconds are of the processor, of ended children too, for those of a clock tell how busy a machine is. Where
AJET_TEST_CPU names a file, it gets the seconds of each test as JSON.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

SHOWN: Final = 15


class CpuSeconds:
    """Measures each test where it runs, and sums and shows in the process that shows the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager
        self.seconds: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = sum(os.times()[:4])
        item.stash[BEGUN] = before
        return (yield)  # type: ignore[return-value]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        report = yield
        if report.when == "teardown":
            report.cpu_s = sum(os.times()[:4]) - item.stash[BEGUN]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += getattr(report, "cpu_s", 0.0)  # type: ignore[assignment]  # floats sum, too
        shown = self._plugins.get_plugin("terminalreporter")
        if report.failed and shown is not None:  # a worker has none: what started it shows what it reports
            shown.write_line(f"\nfailed: {report.nodeid} ({report.when}): {_reason(report)}", red=True)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        files: Counter[str] = Counter()
        for test, seconds in self.seconds.items():
            files[test.partition("::")[0]] += seconds  # type: ignore[assignment]
        if len(files) > 1:
            terminalreporter.section(f"CPU seconds: {sum(files.values()):.0f}; of files")
            for name, seconds in files.most_common(SHOWN):
                terminalreporter.line(f"{seconds:7.1f} {name}")
        if path := os.environ.get("AJET_TEST_CPU"):
            Path(path).write_text(json.dumps(self.seconds, indent=0))


BEGUN = pytest.StashKey[float]()


def _reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash is not None else str(report.longrepr)
    return f"{message.strip()}\n".splitlines()[0][:200]

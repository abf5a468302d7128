"""Which runs can be compared with which: the version of what a job comes to, in every study's first event."""

from __future__ import annotations

from typing import Final

RESULTS_VERSION: Final = 1
"""Raised whenever environments, training or evaluation change what a job comes to: older runs say nothing then."""
VERSION_KEY: Final = "results"
"""Where `study.created` has the results version, beside the versions of packages."""
FIRST_VERSION: Final = 1
"""The results version of studies whose logs name none, as they were begun before there was a second."""

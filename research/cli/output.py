"""Where the command line writes: people's text through rich, machines' text as plain JSON on stdout."""

from __future__ import annotations

import json
import sys
from functools import cache
from typing import Any

from rich.console import Console


@cache
def console() -> Console:
    """Return the console for people's output (stdout)."""
    return Console(highlight=False)


def print_json(value: Any) -> None:
    """Write one JSON document to stdout."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def warn(message: str) -> None:
    """Write one line to stderr."""
    sys.stderr.write(f"ajet: {message}\n")

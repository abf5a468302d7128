"""Where the command line writes: people's text through rich, machines' text as plain JSON on stdout."""

from __future__ import annotations

import json
import sys
from functools import cache
from typing import Any

from rich.console import Console

_WIDE = 160
"""Columns for tables in a pipe or a file."""


@cache
def console() -> Console:
    """Return the console for people's output (stdout); nothing is wrapped where no terminal asks for it.

    Text is shown as it is: brackets and colons of a package, a path, a topic or a model are no markup. What is to have
    a style is a `rich.text.Text`.
    """
    width = None if sys.stdout.isatty() else _WIDE
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True, width=width)


def print_json(value: Any) -> None:
    """Write one JSON document to stdout."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def warn(message: str) -> None:
    """Write one line to stderr."""
    sys.stderr.write(f"ajet: {message}\n")

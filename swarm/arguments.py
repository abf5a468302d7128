"""What the command lines of several modules take, read from a text or refused in argparse's way."""

from __future__ import annotations

import argparse


def seconds(text: str) -> float:
    """Return a time above 0."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds above 0, found {text!r}")
    return found

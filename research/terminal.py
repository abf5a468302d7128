"""Text that is safe for a terminal, and warnings on stderr."""

from __future__ import annotations

import re
import sys

_STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e0fff]")


def strip_control_chars(text: str) -> str:
    """Return a text without the characters that steer a terminal: topics, notes and models' words may hold them."""
    return _STEERS.sub("", text)


def warn(message: str) -> None:
    sys.stderr.write(f"ajet: {strip_control_chars(message)}\n")

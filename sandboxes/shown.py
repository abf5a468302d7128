"""What ran in a sandbox, for people: its text, an attacker's, who would like to steer their terminal, and its end."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping

_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e"
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2060-\u206f\u3164\ufe00-\ufe0d\ufeff\uffa0"
    "\ufff0-\ufffb\ud800-\udfff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Control characters but tab and line feed, what turns the direction of text, and what Unicode has drawn as nothing
(Default_Ignorable_Code_Point, tags among it, which language models read) but the two marks of emoji."""
_ANCHOR = 256
_CUT = "\N{REPLACEMENT CHARACTER}"
_OFTEN: Mapping[str, str] = {
    "SIGKILL": ": is the machine short of memory?",
    "SIGSEGV": ": a library of C crashed",
    "SIGABRT": ": a library of C gave up",
    "SIGXFSZ": ": it wrote a file larger than it may",
}
"""What most often sends a signal that nobody asked for."""


def shown(text: str) -> str:
    """Return `text` with each character that could steer a terminal or a reader's eye written as an escape."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text.replace("\r\n", "\n"))


def last_lines(text: str, lines: int, most: int) -> str:
    """Return the end of `text` on one line of at most `most` characters; empty when there is none."""
    end = " | ".join(shown(text).strip().splitlines()[-lines:])
    return end if len(end) <= most else "…" + end[-most + 1 :]


def news(before: str, after: str) -> str:
    """Return what `after` adds to `before`, both being the end of one growing text.

    Where the two overlap by fewer than 256 characters, all of `after` is taken for new.
    """
    after = after.lstrip(_CUT)  # of a character that the window cut in two
    head = after[: min(_ANCHOR, len(before))]
    start = before.find(head)
    while start >= 0 and not after.startswith(before[start:]):
        start = before.find(head, start + 1)
    return after if start < 0 else after[len(before) - start :]


def how_it_ended(code: int) -> str:
    """Return how code ended its process before its work was done, by the exit code, negative for a signal."""
    return (
        f"by {signal_named(-code)}" if code < 0 else f"by itself, with exit code {code} (os._exit, or a library's exit)"
    )


def signal_named(number: int) -> str:
    """Return a signal by number and name, and what it often means."""
    try:
        name = signal.Signals(number).name
    except ValueError:  # one that Python has no name for
        return f"signal {number}"
    return f"signal {number} ({name}{_OFTEN.get(name, '')})"

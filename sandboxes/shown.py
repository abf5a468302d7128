"""Text that came out of a sandbox, as people may see it: an attacker's, who would like to steer their terminal."""

from __future__ import annotations

import re

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]")
"""Control characters but tab and line feed, and what turns the direction of text or hides in it."""
_ANCHOR = 256
_CUT = "\N{REPLACEMENT CHARACTER}"


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

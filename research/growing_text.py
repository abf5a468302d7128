"""A text that grows, seen through its end only: what is new in it since the last look."""

from __future__ import annotations

_ANCHOR = 256
_CUT = "\N{REPLACEMENT CHARACTER}"


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

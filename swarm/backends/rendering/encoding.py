"""Text to ids, with a cache of the parts that were encoded before.

Text is cut before the special tokens that end an answer, where no tokenizer joins what stands on either side, and each
part is looked up: a long history that is rendered again costs lookups, and only its new parts are encoded. Promises the
very ids of encoding the text whole. The cache is bounded, and emptied when it is full.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_MOST_CHARACTERS = 16_000_000
"""Most text in the cache, about 100 MB with its ids."""

_LONG = 16_384
"""Characters that take some 10 ms."""


class Encoding:
    """Encodes with a `tokenizers` tokenizer; `marks` are special tokens at which text may be cut."""

    def __init__(self, encoder: Any, marks: Sequence[str]) -> None:
        self._encoder = encoder
        self._cut = re.compile("(?=" + "|".join(map(re.escape, marks)) + ")") if marks else None
        self._cache: dict[str, list[int]] = {}
        self._characters = 0

    def ids(self, text: str) -> list[int]:
        """Return the ids of `text`, special tokens recognised, nothing added at either end."""
        if self._cut is None:
            return self._encoded(text)
        ids: list[int] = []
        for part in self._cut.split(text):
            if part:
                ids += self._cached(part)
        return ids

    def _cached(self, part: str) -> list[int]:
        ids = self._cache.get(part)
        if ids is None:
            ids = self._encoded(part)
            if self._characters > _MOST_CHARACTERS:
                self._cache.clear()
                self._characters = 0
            self._cache[part] = ids
            self._characters += len(part)
        return ids

    def _encoded(self, text: str) -> list[int]:
        """Return the ids of a text that is not cut; a long one lets other threads go on meanwhile."""
        if len(text) < _LONG:
            ids: list[int] = self._encoder.encode(text, add_special_tokens=False).ids
        else:  # `encode` keeps Python's lock
            ids = self._encoder.encode_batch([text], add_special_tokens=False)[0].ids
        return ids

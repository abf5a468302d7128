"""Grammars held while an answer is sampled, by llguidance."""

import json
import re
import threading
from collections.abc import Sequence
from decimal import Decimal
from math import lcm
from typing import Any

import numpy as np
import torch
from torch import Tensor

from swarm.rendering.messages import GrammarRefused

_STRING = r'"(?:[^"\\]|\\.)*"'
_mark = re.compile(rf"^(\w+): ({_STRING})$", re.MULTILINE)
_suffix = re.compile(rf"^(\w+)\[suffix=({_STRING})\]: (/.+/)$", re.MULTILINE)
_multiple = re.compile(r'"multipleOf": ([0-9.eE+-]+)')
MOST_REMAINDERS = 100_000
"""llguidance makes a state for every remainder of a `multipleOf`, of several ones for those of their least common
multiple: this many take about a second, and a number of nine digits would take an hour and all memory."""


class Guides:
    """Compiles grammars, thread-safe, for a model of `vocabulary` logits and `stop_ids`; `theirs`: its fast tokenizer,
    without padding and truncation."""

    def __init__(self, theirs: Any, stop_ids: Sequence[int], vocabulary: int) -> None:
        self._theirs = theirs
        self._stop_ids = list(stop_ids)
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._ours: Any = None

    def guide(self, grammar: str) -> "Guide":
        """Return a fresh guide; raise GrammarRefused if the grammar does not compile. May take a second."""
        from llguidance import LLMatcher, LLTokenizer

        digits = [Decimal(text).normalize().as_tuple().digits for text in _multiple.findall(grammar)]
        if (
            any(len(some) > 6 for some in digits)
            or lcm(*(int(Decimal((0, some, 0))) for some in digits)) > MOST_REMAINDERS
        ):
            raise GrammarRefused(
                f"expected `multipleOf` of numbers whose least common multiple is at most {MOST_REMAINDERS} (points, "
                "and zeros at their ends, aside), found more: leave one out"
            )
        with self._lock:
            if self._ours is None:
                size = max(self._vocabulary, self._theirs.get_vocab_size())
                try:
                    self._ours = LLTokenizer(self._theirs.to_str(), n_vocab=size, eos_token=self._stop_ids)
                except ValueError as error:
                    raise GrammarRefused(f"llguidance cannot read this model's tokenizer: {error}") from error
        matcher = LLMatcher(self._ours, _with_special_ids(grammar, self._theirs, self._ours), log_level=0)
        if matcher.is_error():
            raise GrammarRefused(f"the engine cannot follow this grammar: {matcher.get_error().strip()}")
        return Guide(matcher, self._vocabulary)


class Guide:
    """Constrains one answer to a grammar: `allowed`, then `accept` what was sampled, in turn."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary

    def allowed_mask(self) -> Tensor:
        """Return which ids (V,), bool, may come next; raise GrammarRefused where the grammar grew too complex."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        ids = np.unpackbits(bits, count=self._vocabulary, bitorder="little").view(np.bool_)
        if not ids.any():
            raise GrammarRefused("the grammar allows no token at this place")
        return torch.from_numpy(ids)

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarRefused(f"the engine lost the grammar: {self._matcher.get_error().strip()}")


def _with_special_ids(grammar: str, theirs: Any, ours: Any) -> str:
    def by_id(found: re.Match[str]) -> str:
        name, text, *before = found.groups()
        token = theirs.token_to_id(json.loads(text))
        if token is None or not ours.is_special_token(token):
            return found[0]
        return " ".join([f"{name}:", *before, f"<[{token}]>"])

    return _suffix.sub(by_id, _mark.sub(by_id, grammar))

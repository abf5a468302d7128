"""An episode as people look at it: calls in reading order, tokens with the level their log-prob stands on.

Pure functions of the wire type; the terminal and the page show the same.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from swarm.snapshot import side_words
from swarm.wire import CallRecord, EpisodeRecord, TokenSpan

LEVELS: tuple[tuple[float, str], ...] = (
    (0.9, "90 % and more"),
    (0.5, "50 to 90 %"),
    (0.1, "10 to 50 %"),
    (0.01, "1 to 10 %"),
    (0.0, "under 1 %"),
)
"""How likely a sampled token was: the least probability of each level, and its name in the legend."""
PART = "·"
"""Stands for an id that is a part of a character."""


@dataclass(frozen=True, slots=True)
class ViewedToken:
    """One id. `level` is a place in LEVELS where it was sampled, else None; `text` is None where it is not known."""

    id: int
    text: str | None
    special: bool
    level: int | None = None
    logprob: float | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class CallView:
    """One call. `depth` grows where the tree branches, not with every turn; `prompt` counts all the engine saw."""

    index: int
    parent: int | None
    drift: str
    depth: int
    prompt: int
    context: tuple[ViewedToken, ...]
    sampled: tuple[ViewedToken, ...]
    truncated: bool | None
    trained: bool = True
    earned: str = ""
    """The agent that made it and what it is worth, where the episode's end said so."""

    @property
    def mean_logprob(self) -> float | None:
        """The mean of its sampled tokens' log-probs."""
        return mean([token.logprob for token in self.sampled if token.logprob is not None])

    @property
    def versions(self) -> str:
        """The policy versions that sampled it: `v3`, or `v3-4`."""
        found = sorted({token.version for token in self.sampled if token.version is not None})
        if not found:
            return "-"
        return f"v{found[0]}" if len(found) == 1 else f"v{found[0]}-{found[-1]}"


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Of all calls: `prompt` is what the engine saw, `new` what of it was seen for the first time."""

    calls: int
    prompt: int
    new: int
    sampled: int
    mean_logprob: float | None


def call_views(record: EpisodeRecord) -> tuple[CallView, ...]:
    """Return the calls in reading order: a conversation on one depth, what branches off it before it goes on."""
    lengths: dict[int, int] = {}
    for call in record.record:  # parents come before children
        before = lengths[call.parent] if call.parent is not None else 0
        lengths[call.index] = before + len(call.context.ids) + len(call.sampled.ids)
    return tuple(
        CallView(
            call.index,
            call.parent,
            call.drift,
            depth,
            lengths[call.index] - len(call.sampled.ids),
            tuple(_tokens(call.context)),
            tuple(_tokens(call.sampled)),
            call.truncated,
            call.trained,
            _earned(call),
        )
        for call, depth in _in_reading_order(record.record)
    )


def sums(calls: Sequence[CallView]) -> TokenCounts:
    """Return the sums over an episode's calls."""
    sampled = [token for call in calls for token in call.sampled]
    return TokenCounts(
        len(calls),
        sum(call.prompt for call in calls),
        sum(len(call.context) for call in calls),
        len(sampled),
        mean([token.logprob for token in sampled if token.logprob is not None]),
    )


def mean(values: Sequence[float]) -> float | None:
    """Return the mean, None of nothing."""
    return math.fsum(values) / len(values) if values else None


def has_texts(calls: Sequence[CallView]) -> bool:
    """Return whether the texts of the ids are known."""
    return all(token.text is not None for call in calls for token in (*call.context, *call.sampled))


def facts(record: EpisodeRecord) -> list[tuple[str, str]]:
    """Return what is known of the episode besides its tokens, by name."""
    known = [
        ("task", shown(record.task_id)),
        ("stream", f"{shown(record.stream)}, {record.kind}"),
        ("owner", shown(record.owner)),
        ("state", record.state + (f": {shown(record.reason)}" if record.reason else "")),
    ]
    if record.code is not None:
        known.append(("code", record.code))
    if record.group is not None:
        known.append(("group", shown(record.group) + (f", step {record.step}" if record.step is not None else "")))
    if record.reward is not None:
        told = {True: ", success", False: ", no success", None: ""}[record.success]
        known.append(("reward", f"{record.reward:g}{told}"))
    if record.refusals:
        counts = ", ".join(f"{count} {code}" for code, count in sorted(record.refusals.items()))
        known.append(("refused", f"calls {counts}; the last: {shown(record.refusal or '')}"))
    began = sum(call.trained and call.drift == "start" for call in record.record)
    named = any(call.agent for call in record.record)
    if record.kind == "train" and not named and (note := side_words(max(0, began - 1))):
        known.append(("note", note))
    return known


def shown(text: str) -> str:
    """Return text without anything that could move a cursor or hide a letter: such characters are made visible."""
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}:
        return character
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"<U+{code:04X}>"


def _in_reading_order(calls: Sequence[CallRecord]) -> Iterator[tuple[CallRecord, int]]:
    children: dict[int | None, list[CallRecord]] = {}
    for call in calls:
        children.setdefault(call.parent, []).append(call)
    waiting = [(call, 0) for call in reversed(children.get(None, []))]
    while waiting:
        call, depth = waiting.pop()
        yield call, depth
        following = children.get(call.index, [])
        waiting += [(last, depth) for last in following[-1:]]
        waiting += [(branch, depth + 1) for branch in reversed(following[:-1])]


def _tokens(span: TokenSpan) -> Iterator[ViewedToken]:
    special = set(span.special)
    for place, token in enumerate(span.ids):
        text = span.texts[place] if span.texts else None
        if place < len(span.logprobs):
            logprob = span.logprobs[place]
            yield ViewedToken(token, text, place in special, level_of(logprob), logprob, span.versions[place])
        else:
            yield ViewedToken(token, text, place in special)


def level_of(logprob: float) -> int:
    """Return the place in LEVELS of a natural log-prob."""
    probability = math.exp(min(logprob, 0.0))
    return next(place for place, (least, _) in enumerate(LEVELS) if probability >= least)


def _earned(call: CallRecord) -> str:
    worth = "" if call.reward is None else f"reward {call.reward:.4g}"
    return "   ".join(part for part in (call.agent or "", worth) if part)

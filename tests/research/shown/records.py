"""Episodes as a server tells them, made by hand."""

from __future__ import annotations

from typing import Any

from swarm.wire import CallRecord, EpisodeRecord, TokenSpan


def span(*words: str, **sampled: Any) -> TokenSpan:
    special = tuple(place for place, word in enumerate(words) if word.startswith("<|"))
    return TokenSpan(ids=tuple(range(100, 100 + len(words))), texts=words, special=special, **sampled)


def call(
    index: int, parent: int | None, drift: str, *words: str, logprob: float = -0.05, cut: bool = False
) -> CallRecord:
    sampled = span(*words, logprobs=(logprob,) * len(words), versions=(3,) * len(words))
    context = span("<|user|>", "Name ", "a ", "town", ".\n", "<|assistant|>")
    return CallRecord(index=index, parent=parent, drift=drift, context=context, sampled=sampled, truncated=cut)


def episode(*calls: CallRecord, **fields: Any) -> EpisodeRecord:
    known = {"id": "e-1", "task_id": "t", "stream": "s", "kind": "train", "owner": "o", "state": "ended", "reward": 0.5}
    tokens = sum(len(one.sampled.ids) for one in calls)
    return EpisodeRecord(**{**known, **fields}, calls=len(calls), tokens=tokens, record=calls)


BRANCHED = episode(
    call(0, None, "start", "Lyon", ".", "<|end|>"),
    call(1, 0, "clean", "Nice", ",", " of", " course", logprob=-1.0, cut=True),
    call(2, 1, "clean", "Metz", logprob=-3.0),
    call(3, 0, "clean", "Brest", "", "é", logprob=-6.0),
    call(4, None, "fork", "Pau", "<|end|>"),
)

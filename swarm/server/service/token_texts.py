"""What each id of a span says: a pure function of ids and a renderer, for people who look at tokens.

Promises that the texts joined are the text of the whole span, whatever the tokenizer does with spaces at the
beginning of a text and with characters whose bytes are spread over several ids.
"""

from __future__ import annotations

from collections.abc import Sequence

from swarm.backends.protocols import Renderer
from swarm.wire import CallRecord, EpisodeRecord, TokenSpan

_BROKEN = "�"
_LONGEST = 4
"""UTF-8 takes at most so many bytes a character, so that so many ids at most wait for it to be whole."""


def with_texts(record: EpisodeRecord, renderer: Renderer) -> EpisodeRecord:
    """Return the record with the text of every id, its special tokens marked and its cut answers told."""
    tails: dict[int, tuple[int, ...]] = {}
    calls: list[CallRecord] = []
    for call in record.record:  # parents come before children
        before = tails[call.parent] if call.parent is not None else ()
        context = _told(call.context, renderer, before)
        before = (before + call.context.ids)[-_LONGEST:]
        sampled = _told(call.sampled, renderer, before)
        tails[call.index] = (before + call.sampled.ids)[-_LONGEST:]
        cut = not call.sampled.ids or call.sampled.ids[-1] not in renderer.stop_ids
        calls.append(call.model_copy(update={"context": context, "sampled": sampled, "truncated": cut}))
    return record.model_copy(update={"record": tuple(calls)})


def token_texts(renderer: Renderer, ids: Sequence[int], before: Sequence[int] = ()) -> tuple[str, ...]:
    """Return the text of each id; `before` are the ids in front of them (a few are enough).

    The last id of a character has it, the ids before have "". Bytes that are no character come out as U+FFFD.
    """
    window = list(before[-1:])  # some tokenizers drop the space of the first id they decode
    shown, texts, held = _text(renderer, window), [], 0
    for token in ids:
        window.append(token)
        text = _text(renderer, window)
        held += 1
        if text.endswith(_BROKEN) and held < _LONGEST:
            texts.append("")
            continue
        texts.append(text[len(shown) :])
        window, held = window[-held:], 0
        shown = _text(renderer, window)
    if held:
        texts[-1] = _text(renderer, window)[len(shown) :]
    return tuple(texts)


def _told(span: TokenSpan, renderer: Renderer, before: Sequence[int]) -> TokenSpan:
    texts = token_texts(renderer, span.ids, before)
    hidden = {token: not renderer.decode([token]) and bool(_text(renderer, [token])) for token in set(span.ids)}
    special = tuple(place for place, token in enumerate(span.ids) if hidden[token])
    return span.model_copy(update={"texts": texts, "special": special})


def _text(renderer: Renderer, ids: Sequence[int]) -> str:
    return renderer.decode(ids, special=True)

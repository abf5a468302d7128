"""Which tokens of an answer belong to its text, for protocols that give log-probs with the text alone."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.server.dialects.base import Reply, Token


def spoken(reply: Reply) -> Sequence[Token]:
    """Return the tokens that overlap the answer's words; all of them where thinking and calls cannot be told apart."""
    answer, tokens = reply.answer, reply.tokens
    if not answer.reasoning and not answer.tool_calls:
        return tokens
    text = "".join(token.text for token in tokens)
    thought = max(text.find(answer.reasoning), 0) + len(answer.reasoning)
    first = text.find(answer.content, thought)
    if first < 0:
        return tokens
    found, place = [], 0
    for token in tokens:
        if place < first + len(answer.content) and place + len(token.text) > first:
            found.append(token)
        place += len(token.text)
    return found

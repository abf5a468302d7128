"""Calls in reading order; the text of a token, and how likely it was."""

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from math import exp, fsum
from typing import Final

from sandboxes.spec import escape_control, escape_line
from studies.report.wording import NONE, number
from swarm.snapshot import describe_side_conversations
from swarm.wire import CallRecord, EpisodeRecord, TokenSpan

LEVELS: tuple[tuple[float, str, str], ...] = (
    (0.9, "90 % and more", "#2f9e7a"),
    (0.5, "50 to 90 %", "#8a9a2b"),
    (0.1, "10 to 50 %", "#c98a12"),
    (0.01, "1 to 10 %", "#d9622b bold"),
    (0.0, "under 1 %", "#d13a63 bold"),
)
"""How likely a sampled token was: the least probability of each level, its name, and a style for any ground."""
PART = "·"
"""Stands for an id that is a part of a character."""
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def visible(text: str) -> str:
    """Return a text with what steers a reader's eye, or is drawn as nothing, written as escapes; lines and tabs stay.

    Escaped are the categories Cc, Cf, Cs, Co, Zl and Zp, and what Unicode has ignored by default.
    """
    text = escape_control(text)
    if text.isprintable():
        return text
    return "".join(
        char if char in "\n\t" or unicodedata.category(char) not in _HIDDEN
        else char.encode("unicode_escape").decode()
        for char in text
    )  # fmt: skip


def token_text(span: TokenSpan, place: int) -> str:
    """Return what is shown of one token: its text, of a part of a character a mark, and without texts its id."""
    if not span.texts:
        return f"{span.ids[place]} "
    return "↵\n".join(visible(line) for line in span.texts[place].split("\n")) or PART


def level_of(logprob: float) -> int:
    """Return the index in LEVELS of how likely a sampled token was."""
    probability = exp(min(logprob, 0.0))
    return next(index for index, (least, *_) in enumerate(LEVELS) if probability >= least or not least)


def prompt_lengths(calls: Sequence[CallRecord]) -> Mapping[int, int]:
    """Return by a call's index how many tokens the engine saw before it sampled."""
    prompts: dict[int, int] = {}
    ends: dict[int | None, int] = {None: 0}
    for call in calls:  # parents come before children
        prompts[call.index] = ends[call.parent] + len(call.context.ids)
        ends[call.index] = prompts[call.index] + len(call.sampled.ids)
    return prompts


def order_calls(calls: Sequence[CallRecord]) -> Iterator[tuple[CallRecord, int]]:
    """Yield calls in reading order with their depth, which grows where the tree branches, not with every turn.

    A conversation stays on one depth, and what branches off it comes before it goes on.
    """
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


def versions_of(span: TokenSpan) -> str:
    return "–".join(f"v{version}" for version in sorted({*span.versions[:1], *span.versions[-1:]}))


def mean_of(logprobs: Sequence[float]) -> str:
    return f"{number(fsum(logprobs) / len(logprobs))} in the mean" if logprobs else NONE


def facts(record: EpisodeRecord) -> list[tuple[str, str]]:
    rows = [
        ("task", record.task_id),
        ("stream", f"{record.stream}, {record.kind}"),
        ("owner", record.owner),
        ("state", record.state + (f": {record.reason}" if record.reason else "")),
    ]
    if record.code is not None:
        rows.append(("code", record.code))
    if record.group is not None:
        rows.append(("group", record.group + (f", step {record.step}" if record.step is not None else "")))
    if record.reward is not None:
        success = {True: ", success", False: ", no success", None: ""}[record.success]
        rows.append(("reward", f"{record.reward:g}{success}"))
    if record.refusals:
        counts = ", ".join(f"{count} {code}" for code, count in sorted(record.refusals.items()))
        rows.append(("refused", f"calls {counts}; the last: {record.refusal or ''}"))
    begun = sum(call.trained and call.drift == "start" for call in record.record)
    named = any(call.agent for call in record.record)
    if record.kind == "train" and not named and (note := describe_side_conversations(max(0, begun - 1))):
        rows.append(("note", note))
    new, prompts = sum(len(call.context.ids) for call in record.record), sum(prompt_lengths(record.record).values())
    rows += [
        ("calls", f"{record.calls:,}"),
        ("tokens", f"{prompts:,} in prompts ({new:,} of them new), {record.tokens:,} sampled"),
        ("log-prob", mean_of([value for call in record.record for value in call.sampled.logprobs])),
    ]
    return [(name, visible(escape_line(value))) for name, value in rows]

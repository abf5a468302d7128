"""Episode: every token of its calls, how likely each was, and the plays of its group."""

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from math import exp
from typing import Final, NamedTuple
from urllib.parse import quote

from research.shown.tokens import LEVELS, facts, level_of, mean_of, order_calls, prompt_lengths, token_text, versions_of
from research.ui.pages.run import episode_query, filter_episodes, find_run, neighbours
from research.ui.site import Page, Site, View
from studies.report.wording import number
from swarm.wire import CallRecord, EpisodeRecord

NEWEST: Final = "newest"
"""In an address, the episode that began last."""
MOST_TOKENS: Final = 20_000
MOST_SPANS: Final = 10_000
"""Of one piece: an element and its text each."""
CALL_SPANS: Final = 12
"""What the frame of a call counts as."""
MOST_JOINED: Final = 12
"""Sampled tokens in one element, which tells each of them."""


class TokenGroup(NamedTuple):
    """Neighbouring tokens of a call that look alike: `look` is a class, `told` says of each sampled one what it is."""

    look: str
    text: str
    tokens: int
    sampled: bool
    told: str = ""
    name: str = ""
    value: str = ""
    """Name and log-prob of a token that is an element of its own."""


class ShownCall(NamedTuple):
    """A call, or what of it lies in a piece."""

    call: CallRecord
    depth: int
    prompt: int
    trained: bool
    cut: bool
    words: Sequence[TokenGroup]


def page(site: Site, view: View) -> Page:
    name, study = view.path["episode"], ""
    if "server" in view.path:
        place = site.readers.of_server(view.path["server"])
        up, at = "/runs", f"/servers/{quote(view.path['server'])}/e/"
    else:
        found = find_run(site, view)
        place, study = site.readers.of_run(found.state.id, found.run), found.state.id
        up = f"/s/{study}/runs/{found.run.run_id}"
        at, up = f"{up}/e/", f"{up}{view.query_with(episodes='1', tokens='')}#episodes"
    listed = site.readers.list(place)
    newest = listed[0].id if listed else NEWEST
    record, missing = site.readers.read(place, newest if name == NEWEST else name)
    before, after = neighbours([each.id for each in filter_episodes(listed, view)], record.id)
    start, whole = view.number("from"), view.get("tokens") == "all"
    calls, following = piece(record, start, whole=whole)
    values = {
        "id": record.id, "study": study, "at": at, "up": up, "query": episode_query(view), "missing": missing,
        "facts": facts(record), "levels": [label for _, label, _ in LEVELS], "whole": whole,
        "mean_of": mean_of, "versions_of": versions_of,
        "before": before, "after": after, "calls": calls, "start": start,
        "next": following and view.query_with(**{"from": following}),
        "switch": view.query_with(tokens="" if whole else "all"),
        # the plays of its group, in the order in which they began
        "mates": [each for each in reversed(listed) if record.group is not None and each.group == record.group],
    }  # fmt: skip
    return Page("episode.html.jinja", f"Episode {record.id}", values, study if record.state == "open" else "")


def piece(record: EpisodeRecord, start: int, *, whole: bool = False) -> tuple[list[ShownCall], int | None]:
    """Return the calls in reading order from the token `start` on, as many as a page holds, and where the next piece
    starts, None where nothing is left. With `whole`, each sampled token is an element of its own."""
    prompts, shown, at = prompt_lengths(record.record), list[ShownCall](), 0
    tokens, spans = MOST_TOKENS, MOST_SPANS // 2 if whole else MOST_SPANS
    for call, depth in order_calls(record.record):
        size, begin = len(call.context.ids) + len(call.sampled.ids), at
        at += size
        if at < start or (at == start and size):
            continue
        first = max(0, start - begin)
        if tokens <= 0 or spans <= 0:
            return shown, begin
        words = list(islice(words_of(call, first, min(size, first + tokens), whole=whole), spans))
        end = first + sum(each.tokens for each in words)
        trained, cut = record.kind == "train" and call.trained, first > 0 or end < size
        shown.append(ShownCall(call, depth, prompts[call.index], trained, cut, words))
        if end < size:
            return shown, begin + end
        tokens, spans = tokens - (end - first), spans - len(words) - CALL_SPANS
    return shown, None


def words_of(call: CallRecord, first: int, last: int, *, whole: bool = False) -> Iterator[TokenGroup]:
    """Yield the tokens of a call between two places, context before what was sampled, alike neighbours as one."""
    context, sampled = call.context, call.sampled
    split, most = len(context.ids), 1 if whole else MOST_JOINED
    marked = {*context.special, *(split + place for place in sampled.special)}

    def look(place: int) -> tuple[str, int]:
        special, at = "special" if place in marked else "", place - split
        return (
            (special, -1) if at < 0 else (f"l{level_of(sampled.logprobs[at])} {special}".strip(), sampled.versions[at])
        )

    def tell(at: int) -> str:
        said = f"log-prob {number(sampled.logprobs[at])}, p {exp(min(sampled.logprobs[at], 0.0)):.3g}"
        return f"t{at} {token_text(sampled, at).strip()}: {said}, v{sampled.versions[at]}"

    for (name, _), alike in groupby(range(first, min(split, last)), look):
        texts = [token_text(context, at) for at in alike]
        yield TokenGroup(name, "".join(texts), len(texts), sampled=False)
    for (name, _), alike in groupby(range(max(first, split), last), look):
        while run := [place - split for place in islice(alike, most)]:
            text, told = "".join(token_text(sampled, at) for at in run), "\n".join(map(tell, run))
            own = (f"call-{call.index}.t{run[0]}", number(sampled.logprobs[run[0]])) if whole else ()
            yield TokenGroup(name, text, len(run), True, told, *own)

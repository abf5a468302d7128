"""Episodes, inspect, export: terminal and page.

Calls are shown in reading order, tokens in the colour of how likely they were; a page is the same screen, whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from research.cli.app import Json, answer, console, make_facts, make_table, print_json, recording_console
from research.errors import BadInput
from research.installation.servers import Server, connect_server
from sandboxes.spec import escape_control, escape_line
from swarm.client import SwarmClient
from swarm.snapshot import describe_side_conversations
from swarm.wire import CallRecord, EpisodeList, EpisodeRecord, TokenSpan

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
_MOST = 240
"""Context tokens shown of one call unless all are asked for."""
_PAGE_WIDTH = 140
"""Columns of a page."""


def episode_screen(record: EpisodeRecord, *, full: bool = False) -> RenderableType:
    """Return an episode for a terminal: facts, the tree of its calls with their tokens, a legend."""
    prompts = prompt_lengths(record.record)
    tree = Tree(Text(f"episode {escape_line(record.id)}", style="bold"), guide_style="dim")
    branches = [tree]
    for call, depth in order_calls(record.record):
        reward = "" if call.reward is None else f"reward {call.reward:.4g}"
        earned = "   ".join(filter(None, (escape_line(call.agent or ""), reward)))
        drift = {"fork": "bold yellow", "realign": "yellow"}.get(call.drift, "cyan")
        after = "" if call.parent is None else f" after {call.parent}"
        first, last = min(call.sampled.versions, default=None), max(call.sampled.versions, default=None)
        versions = "-" if first is None else f"v{first}" if first == last else f"v{first}-{last}"
        counted = f"   prompt {prompts[call.index]:,} (+{len(call.context.ids):,})   sampled {len(call.sampled.ids):,}"
        heading = Text.assemble(
            (f"call {call.index}", "bold"), (after, "dim"), "   ", (call.drift, drift), f"   {versions}",
            ("" if call.trained else "   not trained", "yellow"),
            (f"   {earned}" if earned else "", "green"),
            (f"{counted}   log-prob {_format_mean(call.sampled.logprobs)}", "dim"),
        )  # fmt: skip
        branch = branches[depth].add(Group(heading, _spans(call, full)))
        branches[depth + 1 :] = [branch]
    new = sum(len(call.context.ids) for call in record.record)
    sampled = sum(len(call.sampled.ids) for call in record.record)
    rows = [
        *facts(record),
        ("calls", f"{len(record.record):,}"),
        ("tokens", f"{sum(prompts.values()):,} in prompts ({new:,} of them new), {sampled:,} sampled"),
        ("log-prob", _format_mean([value for call in record.record for value in call.sampled.logprobs])),
    ]
    parts: list[RenderableType] = [make_facts((name, Text(value)) for name, value in rows), Text(), tree]
    if any(span.ids and not span.texts for call in record.record for span in (call.context, call.sampled)):
        parts.append(Text("ids only: no engine runs, and without its tokenizer no id has a text", style="yellow"))
    legend = Text.assemble(("context", "dim"), ("   special", "magenta"), "   sampled, by how likely: ")
    for _, name, style in LEVELS:
        legend.append("  ").append(name, style)
    return Group(*parts, Text(), legend)


def episode_page(record: EpisodeRecord) -> str:
    """Return the screen as one self-contained page of HTML, with every token."""
    paper = recording_console(_PAGE_WIDTH)
    paper.print(episode_screen(record, full=True))
    return paper.export_html(inline_styles=True)


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
    return [(name, escape_line(value)) for name, value in rows]


def _spans(call: CallRecord, full: bool) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    count, half = len(call.context.ids), _MOST // 2
    if full or count <= _MOST:
        context = _tokens(call.context, range(count))
    else:
        cut = Text(f"\n... {count - _MOST:,} tokens more (--full shows them) ...\n", style="dim italic")
        begin, end = range(half), range(count - half, count)
        context = Text.assemble(_tokens(call.context, begin), cut, _tokens(call.context, end))
    sampled = _tokens(call.sampled, range(len(call.sampled.ids)))
    if call.truncated:
        sampled.append(" cut short ", style="reverse")
    grid.add_row("context", context)
    grid.add_row("sampled", sampled)
    return grid


def _tokens(span: TokenSpan, places: Iterable[int]) -> Text:
    text, special = Text(), set(span.special)
    for place in places:
        if span.texts:
            word = "↵\n".join(escape_control(line) for line in span.texts[place].split("\n")) or PART
        else:
            word = f"{span.ids[place]} "
        if place < len(span.logprobs):
            probability = math.exp(min(span.logprobs[place], 0.0))
            style = next(style for least, _, style in LEVELS if probability >= least)
            style += " underline" if place in special else ""
        else:
            style = "magenta" if place in special else "dim"
        text.append(word, style)
    if text.plain.endswith("\n"):  # its mark stands there; a blank line would follow
        text.right_crop(1)
    return text


def _format_mean(logprobs: Sequence[float]) -> str:
    return f"{math.fsum(logprobs) / len(logprobs):.3f} in the mean" if logprobs else "-"


_NUMBERS = ("step", "reward", "calls", "tokens")


def episode_table(listed: EpisodeList) -> Table:
    coded = any(one.code for one in listed.episodes)
    names = ["episode", "task", "stream", "kind", "state", *_NUMBERS, *(["code"] if coded else []), "owner"]
    rows = (
        [
            one.id, one.task_id, one.stream, one.kind, one.state, "-" if one.step is None else one.step,
            "-" if one.reward is None else f"{one.reward:g}", one.calls, one.tokens,
            *([(one.code or "-")[:12]] if coded else []), one.owner,
        ]
        for one in listed.episodes
    )  # fmt: skip
    cells = ([Text(escape_line(str(cell))) for cell in row] for row in rows)
    return make_table(names, cells, right=_NUMBERS, wraps=names)


_WIDEST = 10_000
"""Columns of a row, at most."""
_LEFT_OUT = {
    "pruned": "their tokens went with old checkpoints (a job's checkpoints_kept)",
    "no_tokens": "nothing was sampled in them",
    "withdrawn": "they are open without a token, or were given up meanwhile",
}


def episodes(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, the newest first.")] = 20,
    server: Server = None,
    json: Json = False,
) -> None:
    """List the newest episodes.

    Examples:
        ajet swarm episodes
        ajet swarm episodes --limit 100 --json
    """
    at = connect_server(server)
    with SwarmClient(at.url, at.token) as client:
        found = client.episodes(limit)
    if json:
        print_json(found)
    elif not found.episodes:
        console().print("no episode has begun yet")
    else:
        out, table = console(), episode_table(found)
        # A line for each row: cut to a terminal's width, whole where the output is captured.
        table.width = out.measure(table, options=out.options.update(max_width=_WIDEST)).maximum
        out.print(table, crop=out.is_terminal, soft_wrap=not out.is_terminal)


def inspect(
    episode: Annotated[str, typer.Argument(help="An episode's id (see `ajet swarm episodes`).")],
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page to this file.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Show long contexts to their last token.")] = False,
    server: Server = None,
    json: Json = False,
) -> None:
    """Show every token of an episode: what the model saw, what it sampled, and how likely that was.

    Examples:
        ajet swarm inspect 3f9a1c-0000007
        ajet swarm inspect 3f9a1c-0000007 --html episode.html
    """
    at = connect_server(server)
    with SwarmClient(at.url, at.token) as client:
        record = client.episode(episode)
    if html is not None:
        html.write_text(episode_page(record), encoding="utf-8")
    if json:
        print_json(record)
    elif html is not None:
        console().print(f"wrote {html}")
    else:
        console().print(episode_screen(record, full=full), soft_wrap=False)


def export(
    to: Annotated[Path, typer.Option(help="The file to write; it is replaced if it is there.")],
    episode: Annotated[str | None, typer.Option(help="One episode's id.")] = None,
    all: Annotated[bool, typer.Option("--all", help="Every episode the server knows.")] = False,
    server: Server = None,
    json: Json = False,
) -> None:
    """Export episodes with every token: a JSON line each, as `ajet swarm inspect --json` has them.

    Texts of prompts and answers are there while an engine runs.

    Examples:
        ajet swarm export --all --to episodes.jsonl
        ajet swarm export --episode 3f9a1c-0000007 --to episode.jsonl
    """
    if all == (episode is not None):
        raise BadInput("expected one of --episode ID and --all")
    at = connect_server(server)
    with SwarmClient(at.url, at.token) as client:
        listed = client.export(to, episode)
    with to.open("rb") as file:
        lines = sum(1 for _ in file)
    counts = {**listed.model_dump(), "episodes": lines, "withdrawn": listed.episodes - lines}
    left_out = (f"left out {counts[name]:,} episodes: {why}" for name, why in _LEFT_OUT.items() if counts[name])
    size = to.stat().st_size
    answer(
        json, {"file": str(to), "bytes": size, **counts}, f"wrote {to} ({lines:,} episodes, {size:,} bytes)", left_out
    )

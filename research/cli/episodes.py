"""Episodes, inspect, export: terminal and page."""

from collections.abc import Iterable
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
from research.shown.tokens import LEVELS, facts, level_of, mean_of, order_calls, prompt_lengths, token_text, versions_of
from sandboxes.spec import escape_line
from swarm.client import SwarmClient
from swarm.wire import CallRecord, EpisodeRecord, TokenSpan

_MOST = 240
"""Context tokens shown of one call unless all are asked for."""


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
        counted = f"   prompt {prompts[call.index]:,} (+{len(call.context.ids):,})   sampled {len(call.sampled.ids):,}"
        heading = Text.assemble(
            (f"call {call.index}", "bold"), (after, "dim"), "   ", (call.drift, drift), "   ",
            versions_of(call.sampled), ("" if call.trained else "   not trained", "yellow"),
            (f"   {earned}" if earned else "", "green"),
            (f"{counted}   log-prob {mean_of(call.sampled.logprobs)}", "dim"),
        )  # fmt: skip
        branch = branches[depth].add(Group(heading, _spans(call, full)))
        branches[depth + 1 :] = [branch]
    parts: list[RenderableType] = [make_facts((name, Text(value)) for name, value in facts(record)), Text(), tree]
    if any(span.ids and not span.texts for call in record.record for span in (call.context, call.sampled)):
        parts.append(Text("ids only: no engine runs, and without its tokenizer no id has a text", style="yellow"))
    legend = Text.assemble(("context", "dim"), ("   special", "magenta"), "   sampled, by how likely: ")
    for _, name, style in LEVELS:
        legend.append("  ").append(name, style)
    return Group(*parts, Text(), legend)


def episode_page(record: EpisodeRecord) -> str:
    """Return the screen as one self-contained page of HTML, with every token."""
    paper = recording_console(140)
    paper.print(episode_screen(record, full=True))
    return paper.export_html(inline_styles=True)


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
        if place < len(span.logprobs):
            style = LEVELS[level_of(span.logprobs[place])][2]
            style += " underline" if place in special else ""
        else:
            style = "magenta" if place in special else "dim"
        text.append(token_text(span, place), style)
    if text.plain.endswith("\n"):  # its mark stands there; a blank line would follow
        text.right_crop(1)
    return text


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
        return
    if not found.episodes:
        console().print("no episode has begun yet")
        return
    coded, numbers = any(one.code for one in found.episodes), ("step", "reward", "calls", "tokens")
    names = ["episode", "task", "stream", "kind", "state", *numbers, *(["code"] if coded else []), "owner"]
    rows = (
        [
            one.id, one.task_id, one.stream, one.kind, one.state, "-" if one.step is None else one.step,
            "-" if one.reward is None else f"{one.reward:g}", one.calls, one.tokens,
            *([(one.code or "-")[:12]] if coded else []), one.owner,
        ]
        for one in found.episodes
    )  # fmt: skip
    cells = ([Text(escape_line(str(cell))) for cell in row] for row in rows)
    out, table = console(), make_table(names, cells, right=numbers, wraps=names)
    # A line for each row: cut to a terminal's width, whole where the output is captured.
    table.width = out.measure(table, options=out.options.update(max_width=10_000)).maximum
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

"""Episodes, inspect, export: terminal and page."""

import re
from collections.abc import Iterable, Iterator
from json import dumps
from pathlib import Path
from typing import Annotated, Any, Final, Literal

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
    "no_reward": "they have no reward",
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


_TURN: Final = re.compile(
    r"\0<\|(?:im_start|start_header_id)\|>(system|user|assistant|tool)(?:\0<\|end_header_id\|>\n)?\n"
    r"(.*?)(?:\0<\|(?:im_end|eot_id)\|>\n?|\Z)",
    re.DOTALL,
)
"""A turn of ChatML's or Llama 3's template, where special tokens have a null before them."""


def training_rows(record: EpisodeRecord) -> Iterator[dict[str, Any]]:
    """Yield a row for each history of an episode, as TRL, verl and OpenEnv read it: each token that is trained is in
    one `env_mask` (TRL's `rollout_func`); `messages` are the template's turns, none where they are not known."""
    calls, masked = {call.index: call for call in record.record}, set[int]()
    task = {"task_id": record.task_id, "stream": record.stream, "step": record.step}
    for last in sorted(calls.keys() - {call.parent for call in calls.values()}):
        path = [calls[last]]
        while path[0].parent is not None:
            path.insert(0, calls[path[0].parent])
        new = {call.index for call in path if call.trained} - masked
        masked |= new
        first, *rest = ((span, call.index) for call in path for span in (call.context, call.sampled))
        mask = [int(bool(span.logprobs) and at in new) for span, at in rest for _ in span.ids]
        completion = [id for span, _ in rest for id in span.ids]
        texts = ((n in span.special, text) for span, _ in (first, *rest) for n, text in enumerate(span.texts))
        marked = ("\0" * special + text.replace("\0", "") for special, text in texts)
        text = "".join(marked).removeprefix("\0<|begin_of_text|>")
        found = [] if _TURN.sub("", text).strip() else _TURN.findall(text)
        turns = [{"role": role, "content": content.replace("\0", "")} for role, content in found]
        asked = next((place for place, turn in enumerate(turns) if turn["role"] == "assistant"), 0)
        yield {
            "prompt": turns[:asked], "completion": turns[asked:], "messages": turns, "prompt_ids": first[0].ids,
            "completion_ids": completion, "env_mask": mask, "episode_id": f"{record.id}/{last}",
            "logprobs": [each for span, _ in rest for each in span.logprobs or (0.0,) * len(span.ids)],
            "input_ids": [*first[0].ids, *completion], "completion_mask": [0] * len(first[0].ids) + mask,
            "reward": record.reward, "done": record.state == "ended", "task": record.task_id, "extra": task,
            "tool_trace": [], "metrics": {"calls": record.calls, "tokens": record.tokens},
            "verify_metrics": {"success": record.success}, "artifacts": {"group": record.group},
            "data_source": record.stream, "reward_model": {"style": "rule", "ground_truth": ""}, "extra_info": task,
        }  # fmt: skip


def export(
    to: Annotated[Path, typer.Option(help="The file to write; it is replaced if it is there.")],
    episode: Annotated[str | None, typer.Option(help="One episode's id.")] = None,
    all: Annotated[bool, typer.Option("--all", help="Every episode the server knows.")] = False,
    format: Annotated[
        Literal["calls", "rows"], typer.Option(help="What a line is: an episode's calls, or a row to train on.")
    ] = "calls",
    server: Server = None,
    json: Json = False,
) -> None:
    """Export episodes with every token: a JSON line each, as `ajet swarm inspect --json` has them.

    Texts of prompts and answers are there while an engine runs. Rows are what TRL, verl and OpenEnv read, one for each
    history of an episode that has a reward; in Parquet where the file is called so.

    Examples:
        ajet swarm export --all --to episodes.jsonl
        ajet swarm export --episode 3f9a1c-0000007 --to episode.jsonl
        ajet swarm export --all --format rows --to rows.jsonl
    """
    if all == (episode is not None):
        raise BadInput("expected one of --episode ID and --all")
    at = connect_server(server)
    with SwarmClient(at.url, at.token) as client:
        listed = client.export(to, episode)
    with to.open("rb") as file:
        lines = sum(1 for _ in file)
    counts = {**listed.model_dump(), "episodes": lines, "withdrawn": listed.episodes - lines}
    if format == "rows":
        counts |= _write_rows(to)
    left_out = (f"left out {counts[name]:,} episodes: {why}" for name, why in _LEFT_OUT.items() if counts.get(name))
    size, what = to.stat().st_size, f"{counts.get('rows', lines):,} {'rows' if 'rows' in counts else 'episodes'}"
    answer(json, {"file": str(to), "bytes": size, **counts}, f"wrote {to} ({what}, {size:,} bytes)", left_out)


def _write_rows(to: Path) -> dict[str, int]:
    with to.open("rb") as file:
        records = [EpisodeRecord.model_validate_json(line) for line in file]
    rows = [row for record in records if record.reward is not None for row in training_rows(record)]
    if to.suffix == ".parquet":
        import pandas

        try:
            pandas.DataFrame(rows).to_parquet(to)
        except ImportError as error:
            raise BadInput("expected pyarrow for a file .parquet; found none: pip install pyarrow") from error
    else:
        to.write_text("".join(f"{dumps(row)}\n" for row in rows), encoding="utf-8")
    counts = {"no_reward": sum(record.reward is None for record in records), "rows": len(rows)}
    return {**counts, "rows_without_messages": sum(not row["messages"] for row in rows)}

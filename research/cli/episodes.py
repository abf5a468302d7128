"""Episodes, inspect, export: terminal and page.

Calls in reading order, tokens with the level their log-prob stands on; the terminal and the page show the same.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from research.cli.app import Json, answer, console, make_facts, make_table, print_json
from research.errors import BadInput
from research.installation.servers import Server, connect_server
from swarm.client import SwarmClient
from swarm.snapshot import describe_side_conversations
from swarm.wire import CallRecord, EpisodeList, EpisodeRecord, TokenSpan

if TYPE_CHECKING:
    from jinja2 import Template

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

    record: CallRecord
    depth: int
    prompt: int
    context: tuple[ViewedToken, ...]
    sampled: tuple[ViewedToken, ...]

    @property
    def mean_logprob(self) -> float | None:
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
    views = []
    for call, depth in _order_calls(record.record):
        context, sampled = tuple(_tokens(call.context)), tuple(_tokens(call.sampled))
        views.append(CallView(call, depth, lengths[call.index] - len(sampled), context, sampled))
    return tuple(views)


def count_tokens(calls: Sequence[CallView]) -> TokenCounts:
    sampled = [token for call in calls for token in call.sampled]
    return TokenCounts(
        len(calls),
        sum(call.prompt for call in calls),
        sum(len(call.context) for call in calls),
        len(sampled),
        mean([token.logprob for token in sampled if token.logprob is not None]),
    )


def mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def has_texts(calls: Sequence[CallView]) -> bool:
    return all(token.text is not None for call in calls for token in (*call.context, *call.sampled))


def facts(record: EpisodeRecord) -> list[tuple[str, str]]:
    known = [
        ("task", escape_unprintable(record.task_id)),
        ("stream", f"{escape_unprintable(record.stream)}, {record.kind}"),
        ("owner", escape_unprintable(record.owner)),
        ("state", record.state + (f": {escape_unprintable(record.reason)}" if record.reason else "")),
    ]
    if record.code is not None:
        known.append(("code", record.code))
    if record.group is not None:
        known.append(
            ("group", escape_unprintable(record.group) + (f", step {record.step}" if record.step is not None else ""))
        )
    if record.reward is not None:
        told = {True: ", success", False: ", no success", None: ""}[record.success]
        known.append(("reward", f"{record.reward:g}{told}"))
    if record.refusals:
        counts = ", ".join(f"{count} {code}" for code, count in sorted(record.refusals.items()))
        known.append(("refused", f"calls {counts}; the last: {escape_unprintable(record.refusal or '')}"))
    began = sum(call.trained and call.drift == "start" for call in record.record)
    named = any(call.agent for call in record.record)
    if record.kind == "train" and not named and (note := describe_side_conversations(max(0, began - 1))):
        known.append(("note", note))
    return known


def escape_unprintable(text: str) -> str:
    """Return text without anything that could move a cursor or hide a letter: such characters are made visible."""

    def escape(character: str) -> str:
        code = ord(character)
        if unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}:
            return character
        return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else f"<U+{code:04X}>"

    return "".join(map(escape, text))


def _order_calls(calls: Sequence[CallRecord]) -> Iterator[tuple[CallRecord, int]]:
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
            yield ViewedToken(token, text, place in special, find_level(logprob), logprob, span.versions[place])
        else:
            yield ViewedToken(token, text, place in special)


def find_level(logprob: float) -> int:
    """Return the place in LEVELS of a natural log-prob."""
    probability = math.exp(min(logprob, 0.0))
    return next(place for place, (least, _) in enumerate(LEVELS) if probability >= least)


def episode_page(record: EpisodeRecord) -> str:
    calls = call_views(record)
    return _template().render(
        id=escape_unprintable(record.id),
        facts=facts(record),
        calls=calls,
        sums=count_tokens(calls),
        levels=[name for _, name in LEVELS],
        has_texts=has_texts(calls),
        word=_format_token,
        shape=_css_classes,
    )


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # one command in ten makes a page

    environment = Environment(
        loader=PackageLoader("research.cli", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    return environment.get_template("episode.html.jinja")


def _format_token(token: ViewedToken) -> str:
    if token.text is None:
        return str(token.id)
    return "↵\n".join(escape_unprintable(line) for line in token.text.split("\n")) or PART


def _css_classes(token: ViewedToken) -> str:
    level = "" if token.level is None else f"l{token.level}"
    return " ".join(filter(None, ("s" if token.special else "", level, "i" if token.text is None else "")))


COLOURS = ("#2f9e7a", "#8a9a2b", "#c98a12", "#d9622b", "#d13a63")
"""Of each level: from likely to unlikely, readable on a dark and on a light ground."""
_MOST = 240
"""Context tokens shown of one call unless all are asked for."""


def episode_screen(record: EpisodeRecord, *, full: bool = False) -> RenderableType:
    calls = call_views(record)
    tree = Tree(Text(f"episode {escape_unprintable(record.id)}", style="bold"), guide_style="dim")
    branches = [tree]
    for call in calls:
        branch = branches[call.depth].add(Group(_heading(call), _spans(call, full)))
        branches[call.depth + 1 :] = [branch]
    parts: list[RenderableType] = [_facts(record, calls), Text(), tree]
    if not has_texts(calls):
        parts.append(Text("ids only: no engine runs, and without its tokenizer no id has a text", style="yellow"))
    return Group(*parts, Text(), _legend())


_NUMBERS = ("step", "reward", "calls", "tokens")


def episode_table(found: EpisodeList) -> Table:
    coded = any(one.code for one in found.episodes)
    names = ["episode", "task", "stream", "kind", "state", *_NUMBERS, *(["code"] if coded else []), "owner"]
    rows = (
        [
            one.id, one.task_id, one.stream, one.kind, one.state, "-" if one.step is None else one.step,
            "-" if one.reward is None else f"{one.reward:g}", one.calls, one.tokens,
            *([(one.code or "-")[:12]] if coded else []), one.owner,
        ]
        for one in found.episodes
    )  # fmt: skip
    cells = ([Text(escape_unprintable(str(cell))) for cell in row] for row in rows)
    return make_table(names, cells, right=_NUMBERS, wraps=names)


def _facts(record: EpisodeRecord, calls: Sequence[CallView]) -> Table:
    total = count_tokens(calls)
    counted = f"{total.prompt:,} in prompts ({total.new:,} of them new), {total.sampled:,} sampled"
    rows = [*facts(record), ("calls", f"{total.calls:,}"), ("tokens", counted), ("log-prob", _mean(total.mean_logprob))]
    return make_facts((name, Text(value)) for name, value in rows)


def _heading(call: CallView) -> Text:
    record = call.record
    worth = "" if record.reward is None else f"reward {record.reward:.4g}"
    earned = "   ".join(filter(None, (record.agent, worth)))
    drift = {"fork": "bold yellow", "realign": "yellow"}.get(record.drift, "cyan")
    after = "" if record.parent is None else f" after {record.parent}"
    counted = f"   prompt {call.prompt:,} (+{len(call.context):,})   sampled {len(call.sampled):,}"
    return Text.assemble(
        (f"call {record.index}", "bold"), (after, "dim"), "   ", (record.drift, drift), "   ", call.versions,
        ("" if record.trained else "   not trained", "yellow"),
        (f"   {escape_unprintable(earned)}" if earned else "", "green"),
        (f"{counted}   log-prob {_mean(call.mean_logprob)}", "dim"),
    )  # fmt: skip


def _spans(call: CallView, full: bool) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    sampled = _text(call.sampled)
    if call.record.truncated:
        sampled.append(" cut short ", style="reverse")
    grid.add_row("context", _text(call.context) if full else _abbreviate(call.context))
    grid.add_row("sampled", sampled)
    return grid


def _abbreviate(tokens: Sequence[ViewedToken]) -> Text:
    if len(tokens) <= _MOST:
        return _text(tokens)
    half = _MOST // 2
    left_out = Text(f"\n... {len(tokens) - 2 * half:,} tokens more (--full shows them) ...\n", style="dim italic")
    return Text.assemble(_text(tokens[:half]), left_out, _text(tokens[-half:]))


def _text(tokens: Sequence[ViewedToken]) -> Text:
    text = Text()
    for token in tokens:
        text.append(_format_token(token) + (" " if token.text is None else ""), style=_style(token))
    if text.plain.endswith("\n"):  # its mark stands there; a blank line would follow
        text.right_crop(1)
    return text


def _style(token: ViewedToken) -> str:
    if token.level is None:
        return "magenta" if token.special else "dim"
    return f"{COLOURS[token.level]}{' underline' if token.special else ''}{' bold' if token.level >= 3 else ''}"


def _mean(logprob: float | None) -> str:
    return "-" if logprob is None else f"{logprob:.3f} in the mean"


def _legend() -> Text:
    parts: list[tuple[str, str]] = [("context", "dim"), ("   special", "magenta"), ("   sampled, by how likely: ", "")]
    for place, (_, name) in enumerate(LEVELS):
        parts += [("  ", ""), (name, f"{COLOURS[place]}{' bold' if place >= 3 else ''}")]
    return Text.assemble(*parts)


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
        _print_rows(episode_table(found))


def _print_rows(table: Table) -> None:
    """Print a line for each row: cut to a terminal's width, whole where the output is captured."""
    out = console()
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

        ajet swarm inspect 3f9a1c-0000007 --json
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
    answer(json, {"file": str(to), "bytes": size, **counts}, f"wrote {to} ({size:,} bytes)", left_out)

"""An episode on a terminal: calls as a tree, context dim, sampled tokens coloured by how likely they were."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from research.cli.swarm.episodes.token_view import (
    LEVELS,
    PART,
    CallView,
    ViewedToken,
    call_views,
    facts,
    has_texts,
    shown,
    sums,
)
from swarm.wire import EpisodeList, EpisodeRecord

COLOURS = ("#2f9e7a", "#8a9a2b", "#c98a12", "#d9622b", "#d13a63")
"""Of each level: from likely to unlikely, readable on a dark and on a light ground."""
_MOST = 240
"""Context tokens shown of one call unless all are asked for."""


def episode_screen(record: EpisodeRecord, *, full: bool = False) -> RenderableType:
    """Return the whole view; `full` shows contexts to their last token."""
    calls = call_views(record)
    tree = Tree(Text(f"episode {shown(record.id)}", style="bold"), guide_style="dim")
    branches = [tree]
    for call in calls:
        branch = branches[call.depth].add(Group(_heading(call), _spans(call, full)))
        branches[call.depth + 1 :] = [branch]
    parts: list[RenderableType] = [_facts(record, calls), Text(), tree]
    if not has_texts(calls):
        parts.append(Text("ids only: no engine runs, and without its tokenizer no id has a text", style="yellow"))
    return Group(*parts, Text(), _legend())


def episode_table(found: EpisodeList) -> Table:
    """Return a list of episodes; with the beginning of each one's code hash where some have one."""
    coded = any(one.code for one in found.episodes)
    table = Table(box=None, pad_edge=False, header_style="dim")
    code_column = ["code"] if coded else []
    names = ("episode", "task", "stream", "kind", "state", "step", "reward", "calls", "tokens", *code_column, "owner")
    for name in names:
        table.add_column(name, justify="right" if name in {"step", "reward", "calls", "tokens"} else "left")
    for one in found.episodes:
        reward = "-" if one.reward is None else f"{one.reward:g}"
        step = "-" if one.step is None else str(one.step)
        code = [(one.code or "-")[:12]] if coded else []
        cells = (
            one.id, one.task_id, one.stream, one.kind, one.state, step, reward, one.calls, one.tokens, *code, one.owner,
        )  # fmt: skip
        table.add_row(*(Text(shown(str(cell))) for cell in cells))
    return table


def _facts(record: EpisodeRecord, calls: Sequence[CallView]) -> Table:
    total = sums(calls)
    table = Table(box=None, show_header=False, pad_edge=False)
    counted = f"{total.prompt:,} in prompts ({total.new:,} of them new), {total.sampled:,} sampled"
    rows = [*facts(record), ("calls", f"{total.calls:,}"), ("tokens", counted), ("log-prob", _mean(total.mean_logprob))]
    for name, value in rows:
        table.add_row(Text(name, style="dim"), Text(value))
    return table


def _heading(call: CallView) -> Text:
    drift = {"fork": "bold yellow", "realign": "yellow"}.get(call.drift, "cyan")
    after = "" if call.parent is None else f" after {call.parent}"
    counted = f"   prompt {call.prompt:,} (+{len(call.context):,})   sampled {len(call.sampled):,}"
    return Text.assemble(
        (f"call {call.index}", "bold"), (after, "dim"), "   ", (call.drift, drift), "   ", call.versions,
        ("" if call.trained else "   not trained", "yellow"),
        (f"   {shown(call.earned)}" if call.earned else "", "green"),
        (f"{counted}   log-prob {_mean(call.mean_logprob)}", "dim"),
    )  # fmt: skip


def _spans(call: CallView, full: bool) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    sampled = _text(call.sampled)
    if call.truncated:
        sampled.append(" cut short ", style="reverse")
    grid.add_row("context", _text(call.context) if full else _shortened(call.context))
    grid.add_row("sampled", sampled)
    return grid


def _shortened(tokens: Sequence[ViewedToken]) -> Text:
    if len(tokens) <= _MOST:
        return _text(tokens)
    half = _MOST // 2
    left_out = Text(f"\n... {len(tokens) - 2 * half:,} tokens more (--full shows them) ...\n", style="dim italic")
    return Text.assemble(_text(tokens[:half]), left_out, _text(tokens[-half:]))


def _text(tokens: Sequence[ViewedToken]) -> Text:
    text = Text()
    for token in tokens:
        text.append(_word(token), style=_style(token))
    if text.plain.endswith("\n"):  # its mark stands there; a blank line would follow
        text.right_crop(1)
    return text


def _word(token: ViewedToken) -> str:
    if token.text is None:
        return f"{token.id} "
    lines = token.text.split("\n")
    return "↵\n".join(shown(line) for line in lines) or PART


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

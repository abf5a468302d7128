"""How many tokens does merging a batch's calls save, and is it what arithmetic says?

    python benchmarks/merge_ratio.py            all workloads
    python benchmarks/merge_ratio.py --quick    the small ones only
    python benchmarks/merge_ratio.py --json     also writes benchmarks/results/merge_ratio.json
    python benchmarks/merge_ratio.py --check    exit code 1 unless the goals below are met

Synthetic conversations go through the call tree as a server's do: planned, sampled, kept. Their first prompt has P
tokens, each of T turns samples a and is followed by o observed tokens; a group has n episodes of one task. Ids
are counted in three views: one row per call (unmerged), one row per leaf (linear), one packed tree per group (tree).

Goals: every count equals the closed form of docs/timelines.md exactly, and T/2 <= unmerged/linear < T.

Counts, not times: they are the same on every machine.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rig.frame import circumstances, concluded, parser

from swarm.rendering.messages import Message, Tool
from swarm.timelines import CallTree, Drift, Node, token_counts, tree_tokens

END = "."
QUICK = 10_000
"""Linear tokens of the largest workload that `--quick` plays."""


@dataclass(frozen=True)
class Workload:
    """A group of `episodes` conversations of `turns`: `prompt` tokens, then `answer` and `observed` ones a turn.

    `thought` of the answer's tokens are thinking that the template leaves out of all later prompts.
    """

    prompt: int
    answer: int
    observed: int
    turns: int
    episodes: int = 1
    thought: int = 0

    @property
    def unmerged(self) -> int:
        """n (T P + T a + (a - t + o) T (T - 1) / 2): every call carries the visible part of all before it."""
        carried = (self.answer - self.thought + self.observed) * self.turns * (self.turns - 1) // 2
        return self.episodes * (self.turns * (self.prompt + self.answer) + carried)

    @property
    def linear(self) -> int:
        """n (P + T a + (T - 1) o), but unmerged where thinking is dropped: then no call goes on from another."""
        if self.thought:
            return self.unmerged
        return self.episodes * (self.prompt + self._grown)

    @property
    def tree(self) -> int:
        """P + n (T a + (T - 1) o); with thinking, a call's visible words are there once more behind the last prompt."""
        again = (self.answer - self.thought) * (self.turns - 1) if self.thought else 0
        return self.prompt + self.episodes * (self._grown + again)

    @property
    def _grown(self) -> int:
        return self.turns * self.answer + (self.turns - 1) * self.observed


TABLE = (
    Workload(300, 100, 100, 2),
    Workload(500, 200, 100, 4),
    Workload(500, 200, 300, 8),
    Workload(1_000, 200, 400, 10),
    Workload(2_000, 150, 350, 20),
    Workload(4_000, 150, 350, 30),
    Workload(4_000, 300, 700, 50),
    Workload(6_000, 200, 800, 100),
)
GROUPS = (
    Workload(512, 512, 0, 1, 8),
    Workload(2_048, 512, 0, 1, 8),
    Workload(8_192, 512, 0, 1, 8),
    Workload(1_000, 8_000, 0, 1, 8),
    Workload(500, 200, 300, 8, 8),
    Workload(2_000, 150, 350, 20, 8),
    Workload(4_000, 300, 700, 50, 8),
)
THINKING = (
    Workload(1_000, 900, 200, 10, thought=800),
    Workload(2_000, 500, 300, 20, thought=400),
)


class CountedRenderer:
    """One token a character, no marks but the end of an answer, and thinking left out of every history."""

    eos_id = ord(END)
    stop_ids = (ord(END),)

    def __init__(self, thought: int) -> None:
        self._thought = thought

    @property
    def answers(self) -> Any:
        """Nothing is read back here."""
        raise NotImplementedError

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), generation_prompt: bool) -> str:
        """Return the contents in a row, answers without their thinking."""
        return "".join(
            message["content"][self._thought :] + END if message["role"] == "assistant" else message["content"]
            for message in messages
        )

    def encode(self, text: str) -> list[int]:
        """Return the characters' numbers."""
        return [ord(character) for character in text]

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return the characters."""
        return "".join(chr(token) for token in ids if special or token != self.eos_id)


def main() -> int:
    """Run the benchmark; return the exit code."""
    arguments = parser(__doc__, quick="the small workloads only").parse_args()
    rows = []
    for kind, workloads in (("turns", TABLE), ("group", GROUPS), ("thinking dropped", THINKING)):
        rows += [measure(kind, load) for load in workloads if not arguments.quick or load.linear <= QUICK]
    figures = {"workloads": rows, **circumstances(arguments)}
    print(table(figures))
    return concluded("merge_ratio", figures, goals_missed(rows), arguments)


def play(load: Workload) -> list[list[Node]]:
    """Return the nodes of each episode of the group, made by trees of their own."""
    letters = itertools.count(1_000)
    task = _words(letters, load.prompt)
    return [_episode(load, task, letters) for _ in range(load.episodes)]


def _episode(load: Workload, task: str, letters: itertools.count[int]) -> list[Node]:
    tree = CallTree(CountedRenderer(load.thought))
    history: list[Message] = [{"role": "user", "content": task}]
    for turn in range(load.turns):
        plan = tree.prompt(history)
        said = _words(letters, load.answer - 1)
        sampled = [*map(ord, said), ord(END)]
        answer = {"role": "assistant", "content": said}
        tree.add(plan, sampled, [-1.0] * len(sampled), [turn] * len(sampled), text=said, answer=answer)
        history = [*history, answer, {"role": "user", "content": _words(letters, load.observed)}]
    expected = Drift.FORK if load.thought else Drift.CLEAN
    assert all(node.drift is expected for node in tree.nodes[1:])
    return tree.nodes


def _words(letters: itertools.count[int], length: int) -> str:
    """Return new text whose characters come again only after 6,000 others."""
    drawn = (chr(0xE000 + number % 6_000) for number in itertools.islice(letters, length))
    return "".join(drawn)


def measure(kind: str, load: Workload) -> dict[str, Any]:
    """Play a workload; return its counts beside the closed form's."""
    episodes = play(load)
    counts = [token_counts(nodes) for nodes in episodes]
    linear, unmerged = sum(count[0] for count in counts), sum(count[1] for count in counts)
    tree = tree_tokens(episodes)
    return {
        "kind": kind,
        "P": load.prompt,
        "a": load.answer,
        "o": load.observed,
        "T": load.turns,
        "n": load.episodes,
        "thought": load.thought,
        "unmerged": unmerged,
        "linear": linear,
        "tree": tree,
        "unmerged/linear": round(unmerged / linear, 3),
        "unmerged/tree": round(unmerged / tree, 3),
        "closed form": {"unmerged": load.unmerged, "linear": load.linear, "tree": load.tree},
    }


def goals_missed(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the goals of the module's docstring that `rows` miss."""
    missed = []
    for row in rows:
        name = f"P={row['P']} a={row['a']} o={row['o']} T={row['T']} n={row['n']}"
        found = {view: row[view] for view in ("unmerged", "linear", "tree")}
        if found != row["closed form"]:
            missed.append(f"{name}: counted {found}, the closed form is {row['closed form']}")
        if row["kind"] == "turns" and not row["T"] / 2 <= row["unmerged"] / row["linear"] < row["T"]:
            missed.append(f"{name}: unmerged/linear {row['unmerged/linear']} is not within T/2 and T")
    return missed


def table(figures: dict[str, Any]) -> str:
    """Return the figures as text."""
    names = ("P", "a", "o", "T", "n", "unmerged", "linear", "tree", "unmerged/linear", "unmerged/tree")
    widths = (7, 7, 5, 5, 3, 12, 10, 10, 16, 15)
    lines = [f"ids in each view (the same on every machine; this is {figures['machine']})", ""]
    lines.append("".join(f"{name:>{width}}" for name, width in zip(names, widths, strict=True)) + "  workload")
    for row in figures["workloads"]:
        cells = (f"{row[name]:>{width},}" for name, width in zip(names, widths, strict=True))
        lines.append("".join(cells) + f"  {row['kind']}")
    lines += ["", "full size: python benchmarks/merge_ratio.py --json --check"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

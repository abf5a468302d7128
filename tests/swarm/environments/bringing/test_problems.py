"""What a task says: of prose its words in whatever order, of a drawing its rows as they stand."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.environments import Task
from swarm.environments.bringing.problems import words

SIZE = 4
AROUND = "left edge, down H, right F, up edge\nAnswer with one of: left, down, right, up."


def said(data: Any) -> str:
    return words(Task("1", {"data": data}))


def lakes(count: int) -> list[list[str]]:
    """Return maps without repetition, of the same marks in another order, each a list of rows."""
    rng, found = random.Random(0), dict[str, list[str]]()
    while len(found) < count:
        cells = rng.sample("F" * 10 + "H" * 4 + "@G", SIZE * SIZE)
        rows = ["".join(cells[place : place + SIZE]) for place in range(0, SIZE * SIZE, SIZE)]
        found[" ".join(sorted(rows))] = rows
    return list(found.values())


WAYS: dict[str, Callable[[list[str]], Any]] = {
    "characters apart, in a text": lambda rows: "\n".join([*map(" ".join, rows), AROUND]),
    "marks without spaces, in a text": lambda rows: "\n".join(
        ["Find the way:", *(row.translate(str.maketrans("FH@G", ".#S$")) for row in rows), "", AROUND]
    ),
    "a table": lambda rows: "\n".join([AROUND, *(f"| {' | '.join(row.replace('F', ' '))} |" for row in rows)]),
    "lists of texts": lambda rows: [[{"F": "", "H": "hole"}.get(cell, cell) for cell in row] for row in rows],
    "lists of numbers": lambda rows: [["FH@G".index(cell) for cell in row] for row in rows],
    "a list of texts": lambda rows: [" ".join(row) for row in rows],
}


@pytest.mark.parametrize("way", WAYS)
def test_maps_of_the_same_marks_in_another_order_say_something_else(way: str) -> None:
    maps = [WAYS[way](rows) for rows in lakes(200)]
    assert len({said(each) for each in maps}) == len(maps)


def test_a_map_says_the_same_whatever_stands_around_it_is_ordered_like() -> None:
    rows, around, other = "@ F F\nH H F\nF F G", "left edge, down H", "Down: H; left: edge."
    assert said(f"{rows}\n{around}") == said(f"{other}\n{rows.lower()}\n")
    assert said(f"{rows}\n{around}") != said(f"{rows.replace('H H F', 'F H H')}\n{around}")


@given(st.lists(st.from_regex(r"[a-z]{2,6}|[0-9]{2,3}", fullmatch=True), min_size=2, max_size=30), st.randoms())
def test_prose_says_its_words_in_whatever_order_and_lines(said_words: list[str], rng: random.Random) -> None:
    text = "".join(word + rng.choice([" ", ", ", "\n", "\n\n", "? ", " - "]) for word in said_words)
    assert words(Task("1", {"data": text})) == " ".join(sorted([*said_words, "data"]))
    assert said(rng.sample(said_words, len(said_words))) == said(said_words)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x + y = 7\nx - y = 1\n2 x = 8", "2 x = 8\n7 = y + x\nx - y = 1"),
        ("A 1\nB 2\nC 2\nA 1", "B 2\nA 1\nA 1\nC 2"),
        ("1 + 1", "1 - 1"),
        ([[1, 2], [2, 3], [1, 3], [1, 2]], [[2, 1], [3, 2], [1, 3], [2, 1]]),
        ([["anna", 31, "red"], ["bob", 7, "blue"], ["cy", 5, "green"]], [[5, "cy", "green"], [31, "anna", "red"],
         ["bob", 7, "blue"]]),
        (random.Random(0).sample(range(9), 9), random.Random(1).sample(range(9), 9)),
    ],
)  # fmt: skip
def test_lines_of_an_exercise_and_lists_of_facts_are_no_drawings(one: Any, other: Any) -> None:
    assert said(one) == said(other)

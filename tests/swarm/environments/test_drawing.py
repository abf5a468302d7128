"""Tasks are drawn once: splits are disjoint, and tasks that say the same, in words or as a drawing, are on one side."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.environments import Environment, Split, Task, building
from swarm.environments.building import SPLITS, TaskSplits, draw, split_records
from swarm.environments.custom import words
from swarm.errors import InvalidRequest
from tests.golden import refused

SECRET, OTHER = b"a" * 32, b"b" * 32


class Sums(Environment):
    name = "sums"
    sizes: ClassVar[Mapping[Split, int]] = {"train": 60, "search": 15, "hidden": 25}
    largest = 40

    def generate(self, seed: int) -> Task:
        rng = random.Random(seed)
        left, right = rng.randint(0, self.largest), rng.randint(0, self.largest)
        return Task(f"{left}+{right}", {"left": left, "right": right})


class Split3(Environment):
    name = "given"

    def __init__(self, **tasks: Sequence[Any]) -> None:
        self._tasks: dict[Any, Sequence[Any]] = {**fine(), **dict[Any, Sequence[Any]](tasks)}

    def tasks(self, split: Split) -> Sequence[Task]:
        return self._tasks[split]


class Listed(Environment):
    name = "listed"

    def __init__(self, tasks: Sequence[Any]) -> None:
        self._records = tasks

    def records(self) -> Sequence[Task]:
        return self._records


def fine() -> dict[Split, list[Task]]:
    return {split: [Task(f"{split}-{n}", {"n": f"{split} {n}"}) for n in range(10)] for split in SPLITS}


def problems(drawn: TaskSplits) -> dict[str, set[str]]:
    return {split: {str(task.data) for task in tasks} for split, tasks in drawn.items()}


def sides(tasks: Sequence[Task]) -> dict[str, str]:
    return {task.id: split for split, own in split_records(tasks, "listed").items() for task in own}


@given(st.binary(min_size=16, max_size=32))
def test_generated_splits_are_disjoint_full_and_have_each_problem_once(secret: bytes) -> None:
    _, drawn = draw(Sums(), secret)
    found = problems(drawn)
    assert {split: len(own) for split, own in found.items()} == dict(Sums.sizes)
    assert sum(len(tasks) for tasks in drawn.values()) == len(set().union(*found.values()))
    assert draw(Sums(), secret) == ("seeds", drawn), "the same twice"


def test_a_generator_that_gives_one_problem_is_refused_with_why() -> None:
    class One(Sums):
        largest = 0

    with refused(InvalidRequest, "sums", "found 1 "):
        draw(One(), SECRET)


@pytest.mark.parametrize("sizes", [
    {"train": 5}, {}, {"train": 8, "search": 2, "hidden": 7}, {"train": 10**7, "search": 2, "hidden": 8},
    {"train": "many"},
])  # fmt: skip
def test_sizes_that_nothing_can_be_drawn_by_are_refused_at_once(sizes: Any) -> None:
    class Odd(Sums):
        pass

    Odd.sizes = sizes
    with pytest.raises(InvalidRequest, match="sizes of sums"):
        draw(Odd(), SECRET)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), unique=True, max_size=60))
def test_records_are_split_into_all_of_them_each_once_and_the_same_twice(texts: list[str]) -> None:
    tasks = [Task(str(place), {"text": text}) for place, text in enumerate(texts)]
    first = split_records(tasks, "listed")
    assert sorted(task.id for own in first.values() for task in own) == sorted(task.id for task in tasks)
    assert split_records(tasks, "listed") == first
    assert sides(tasks[::-1]) == sides(tasks)


@given(st.lists(st.from_regex(r"[a-z]{1,6}", fullmatch=True), min_size=2, max_size=8), st.randoms())
def test_near_duplicates_are_on_one_side(said: list[str], rng: random.Random) -> None:
    shuffled = rng.sample(said, len(said))
    texts = [" ".join(said), ", ".join(shuffled) + "?", "\n".join(shuffled).upper(), "\r\n\t".join(said)]
    assert len(set(sides([Task(str(n), {"text": text}) for n, text in enumerate(texts)]).values())) == 1


def test_tasks_that_all_say_the_same_are_refused_with_the_way_out() -> None:
    rng = random.Random(0)
    puzzles = [Task(str(n), {"board": rng.sample(range(9), 9)}) for n in range(100)]
    with refused(InvalidRequest, "100 records", "99 "):
        draw(Listed(puzzles), b"")


def test_records_are_split_by_what_they_say_whatever_the_environment_is_called() -> None:
    tasks = [Task(f"t{n}", {"prompt": f"What is {n} + {n * 7 % 50}?"}) for n in range(60)]
    assert split_records(tasks, "one") == split_records(tasks, "other")
    hidden = [task.id for task in split_records(tasks, "one")["hidden"]]
    assert hidden[:4] == ["t3", "t4", "t5", "t6"]  # what a version has split, a later one splits the same


def bad(change: Callable[[dict[Split, list[Any]]], Any]) -> Split3:
    tasks: dict[Split, list[Any]] = dict(fine())
    change(tasks)
    return Split3(**tasks)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda own: own.update(hidden=[]), "given; found 10 train, 10 search, 0 hidden; add some"),
        (lambda own: own.update(train=own["train"][:7]), "found 7 train, 10 search, 10 hidden"),
        (lambda own: own.update(search=own["search"][:1]), "found 10 train, 1 search, 10 hidden"),
        (lambda own: own["hidden"].append(own["train"][0]), "given; found 'train-0' in train"),
        (lambda own: own["train"].append(own["train"][0]), "found 'train-0' in train twice"),
        (lambda own: own["hidden"].append(Task("x", own["train"][0].data)), "problem as 'train-0'"),
        (lambda own: own["train"].append({"id": "x"}), "swarm.environments.Task"),
        (lambda own: own["train"].append(Task("")), "expected ids of 1 to 512 characters"),
        (lambda own: own["train"].append(Task("x" * 513)), "expected ids of 1 to 512 characters"),
        (lambda own: own["train"].append(Task(7)), "expected ids of 1 to 512 characters"),  # type: ignore[arg-type]
        (lambda own: own["train"].append(Task("\ud800")), "whole characters"),
        (lambda own: own["train"].append(Task("x", [1])), "as the data"),  # type: ignore[arg-type]
        (lambda own: own["train"].append(Task("x", {}, 3)), "as the kind"),  # type: ignore[arg-type]
        (lambda own: own["train"].append(Task("x", {"n": float("nan")})), "data of the task 'x'"),
        (lambda own: own["train"].append(Task("x", {"n": {1}})), "data of the task 'x'"),
    ],
)
def test_unsound_tasks_are_refused_by_what_is_wrong(change: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        draw(bad(change), b"")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_split_larger_than_what_is_given_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "MOST_GIVEN_BYTES", 1 << 20)
    drawn = draw(bad(lambda own: own["train"].append(Task("x", {"text": "a" * 900_000}))), b"")[1]
    assert "x" in {task.id for task in drawn["train"]}
    with refused(InvalidRequest, "at most 1 MiB", "hidden tasks"):
        draw(bad(lambda own: own["hidden"].append(Task("x", {"text": "a" * 1_100_000}))), b"")


def test_tasks_are_given_in_one_way() -> None:
    class Both(Sums):
        def records(self) -> Sequence[Task]:
            return []

    class None_(Environment):
        name = "none"

    for environment, found in ((Both(), "records and generate"), (None_(), "found none")):
        with pytest.raises(InvalidRequest, match=found):
            draw(environment, SECRET)


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


@given(st.lists(st.from_regex(r"[a-z]{2,6}|[0-9]{2,3}", fullmatch=True), min_size=2, max_size=30), st.randoms())
def test_prose_says_its_words_in_whatever_order_and_lines(said_words: list[str], rng: random.Random) -> None:
    text = "".join(word + rng.choice([" ", ", ", "\n", "\n\n", "? ", " - "]) for word in said_words)
    assert words(Task("1", {"data": text})) == " ".join(sorted([*said_words, "data"]))
    assert said(rng.sample(said_words, len(said_words))) == said(said_words)


@pytest.mark.parametrize(("one", "other"), [
    ("x + y = 7\nx - y = 1\n2 x = 8", "2 x = 8\n7 = y + x\nx - y = 1"),
    ("A 1\nB 2\nC 2\nA 1", "B 2\nA 1\nA 1\nC 2"), ("1 + 1", "1 - 1"),
    ([[1, 2], [2, 3], [1, 3], [1, 2]], [[2, 1], [3, 2], [1, 3], [2, 1]]),
    ([["anna", 31, "red"], ["bob", 7, "blue"], ["cy", 5, "green"]], [[5, "cy", "green"], [31, "anna", "red"],
     ["bob", 7, "blue"]]),
    (random.Random(0).sample(range(9), 9), random.Random(1).sample(range(9), 9)),
])  # fmt: skip
def test_lines_of_an_exercise_and_lists_of_facts_are_no_drawings(one: Any, other: Any) -> None:
    assert said(one) == said(other)

"""Knobs: what a job may set of games, and that nothing else changes with them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.environments import Knob, Task, environments, get_environment, said
from swarm.environments.building import write_tasks
from swarm.environments.custom import CodeSource, CustomEnvironment
from swarm.environments.loading import load_playable
from swarm.environments.play import agent_of
from swarm.environments.registry import add_folder
from swarm.errors import InvalidRequest
from tests.swarm.environments.test_building import Echo
from tests.swarm.environments.test_custom import CODE_TEXT, brought_in
from tests.swarm.environments.test_play import FakeEpisode, Quiz, World

KNOBS = [knob for each in environments().values() for knob in each.list_knobs().values()]
SPEED = Knob(2, (1, 2, 3), "how fast", (0, 9), ("pace",))
ANY = (
    st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from([v for knob in KNOBS for v in knob.values])
)


@given(st.sampled_from([*KNOBS, Knob(0.5, (0.1, 0.5), "share"), Knob(False, (False, True), "on")]), ANY)
def test_a_knob_takes_a_value_as_games_read_it_or_none(knob: Knob, value: Any) -> None:
    assert [knob.take(known) for known in (knob.default, *knob.values)] == [knob.default, *knob.values]
    if (taken := knob.take(value)) is not None:
        assert (taken, type(taken), knob.take(taken)) == (value, type(knob.default), taken)


@pytest.mark.parametrize("name", ["guess", "arith", "market"])
def test_no_task_and_no_play_changes_with_a_knob_at_its_default(name: str) -> None:
    usual = get_environment(name)
    explicit = usual.with_knobs({knob: known.default for knob, known in usual.list_knobs().items()})
    other = usual.with_knobs({knob: known.values[-1] for knob, known in usual.list_knobs().items()})
    assert usual.with_knobs({}) is usual
    task = usual.tasks("train")[0]
    games = [each.game(task) for each in (usual, explicit)]
    assert len({str([game.opening(), game.tools, game.answer(said("0")), game.outcome()]) for game in games}) == 1
    assert explicit.measures == usual.measures
    assert [other.tasks(split) for split in ("train", "hidden")] == [
        usual.tasks(split) for split in ("train", "hidden")
    ]  # type: ignore[arg-type]


def test_the_guessing_game_has_so_many_guesses_and_hints_as_it_is_told() -> None:
    game = get_environment("guess").with_knobs({"max_turns": 2.0, "hint": "side"})
    play = game.game(Task("t", {"low": 1, "high": 10, "secret": 5}))
    assert play.answer(said("3")) == [{"role": "user", "content": "above 3"}]
    assert play.answer(said("8")) == []
    assert "within 2 guesses" in game.measures
    assert "within 4 guesses" in get_environment("guess").measures


def test_the_market_offers_so_many_tools() -> None:
    market = get_environment("market").with_knobs({"tools": 2})
    assert [each["function"]["name"] for each in market.game(market.tasks("train")[0]).tools] == ["price", "stock"]


async def test_any_game_is_over_after_so_many_answers_and_worth_what_it_is_then() -> None:
    world = World(lambda: Quiz(following=lambda message: [{"role": "user", "content": "again"}])).with_knobs(
        {"max_turns": 2}
    )
    episode = FakeEpisode(said("1"), said("7"), said("8"))
    outcome = await agent_of(world)(episode)  # type: ignore[arg-type]
    assert (outcome.reward, outcome.success) == (1.0, True)  # type: ignore[union-attr]


@pytest.mark.parametrize(("values", "told"), [
    ({"speed": 3}, "expected a knob of guess (max_turns, hint); found 'speed'"),
    ({"max_turns": 0}, "from 1 to 12 in guess; found 0"), ({"max_turns": True}, "found True"),
    ({"max_turns": 2.5}, "whole number"), ({"max_turns": float("nan")}, "found nan"), ({"hint": 1}, "bounds or side"),
])  # fmt: skip
def test_what_no_knob_takes_is_refused_in_a_line(values: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        get_environment("guess").with_knobs(values)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


async def own(self: object, episode: object) -> None: ...


def test_who_plays_by_an_agent_of_its_own_has_its_own_knobs_alone() -> None:
    assert list(type("Alone", (World,), {"agent": own})().list_knobs()) == []
    assert list(type("Alone", (World,), {"agent": own, "knobs": {"speed": SPEED}})().list_knobs()) == ["speed"]


@pytest.mark.parametrize("knobs", [
    {"speed": 3}, {"Speed": SPEED}, {"speed": replace(SPEED, default=10)}, {"speed": replace(SPEED, values=(1,))},
    {"speed": replace(SPEED, values=(1, "2"))}, {"speed": replace(SPEED, range=("a", 2))},
    {"speed": replace(SPEED, does=3)}, {"speed": replace(SPEED, synonyms=(" ",))}, {3: SPEED},
    {"speed": replace(SPEED, range=(0, math.inf))}, {"speed": replace(SPEED, synonyms="pace")},
    {"speed": Knob("a b", ("a b", "c"), "words")}, {"s" * 25: SPEED},
])  # fmt: skip
def test_a_knob_that_is_none_is_refused_when_it_is_brought(knobs: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="expected the knob"):
        write_tasks(type("Own", (Echo,), {"knobs": knobs})(), b"", tmp_path)


def test_a_brought_environment_plays_with_its_knobs_and_one_without_keeps_its_name(tmp_path: Path) -> None:
    code = (
        CODE_TEXT + "class Own(Echo):\n    knobs = {'speed': None}\n    def game(self, task): return self.knob('speed')"
    )
    code = code.replace("None", "Knob(2, (1, 2, 3), '')").replace("import ", "import Knob, ")
    manifest = write_tasks(type("Own", (Echo,), {"knobs": {"speed": SPEED}})(), b"", tmp_path / "drawn")
    source = CodeSource(kind="folder", place="environment.py", item="Own")
    echo = brought_in(tmp_path / "a", code=code, knobs=manifest["knobs"], source=source)
    assert echo.name != brought_in(tmp_path / "b").name == brought_in(tmp_path / "c", knobs={}).name
    assert CustomEnvironment.open(echo.folder).list_knobs()["speed"] == SPEED
    add_folder(echo.folder.parent)
    assert load_playable(echo.name).with_knobs({"speed": 3}).game(Task("t")) == 3

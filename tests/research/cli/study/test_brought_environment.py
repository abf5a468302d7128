"""What is asked is read before anything is brought, and what cannot be brought writes no study."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from research.environments.install import environment_of
from research.installation.home import Home
from swarm.environments import registry
from tests.research.cli.conftest import Ajet
from tests.research.model_folders import model_at
from tests.research.planner.scripted_endpoint import says, scripted_endpoint

WORLD = """
from swarm.environments import Environment, Game, Outcome, Task
class Echo(Game):
    def opening(self): return [{"role": "user", "content": "?"}]
    def outcome(self): return Outcome(0.0, False)
class Mine(Environment):
    name, title, measures = "mine", "mine", "it is said"
    def tasks(self, split): return [Task(f"{split}{n}", {"n": f"{split} {n}"}) for n in range(8)]
    def game(self, task): return Echo()
"""
VARY = ("--vary", "group_size=4,16")


@pytest.fixture(autouse=True)
def own_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test begin with the built-in environments alone."""
    monkeypatch.setattr(registry, "_CATALOGUE", registry._Catalogue())


@pytest.fixture
def mine(tmp_path: Path) -> str:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "environment.py").write_text(WORLD)
    return str(folder)


@pytest.mark.parametrize("command", ["research", "study plan"])
@pytest.mark.parametrize("asked", [("--vary", "group_sise=4,16"), (*VARY, "a topic too"), (*VARY, "--budget", "soon")])
def test_what_is_asked_badly_brings_nothing(
    command: str, asked: tuple[str, ...], ajet: Ajet, home: Path, mine: str
) -> None:
    ajet(*command.split(), *asked, "--env", mine).refused()
    assert not home.exists()


@pytest.mark.slow
def test_one_without_demonstrations_cannot_be_learned_by_a_tiny_model(ajet: Ajet, home: Path, mine: str) -> None:
    ended = ajet("research", *VARY, "--env", mine, "--no-prefect")
    assert (ended.code, "model imitates before" in ended.err) == (2, True)
    assert not list(home.glob("models/*"))


TOPIC = "does a larger group size help in {}?"


@pytest.fixture
def brought(home: Path, mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Two environments of the same short name, by their full ones, and a model that needs no demonstrations."""
    model_at(tmp_path / "model")
    first = environment_of(mine, None, Home.locate().prepare(), lambda note: None).name
    (Path(mine) / "environment.py").write_text(WORLD.replace("it is said", "it was said"))
    second = environment_of(mine, None, Home.locate(), lambda note: None).name
    monkeypatch.setattr(registry, "_CATALOGUE", registry._Catalogue())  # as if another process had brought them
    return first, second


def planned(ajet: Ajet, topic: str, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    given = ("--model-path", str(tmp_path / "model"), "--budget", "100h", "--json")
    return dict(ajet("study", "plan", topic, *given, *arguments).data)


@pytest.mark.slow
def test_a_topic_names_a_brought_environment_in_full_or_in_short(
    ajet: Ajet, home: Path, brought: tuple[str, str], tmp_path: Path
) -> None:
    first, second = brought
    for name in brought:
        found = planned(ajet, TOPIC.format(name), tmp_path)
        assert (found["environment"], found["not_tested"]) == (name, [])
    ajet("study", "plan", TOPIC.format("mine")).refused("called mine", ", ".join(sorted(brought)))
    (home / "environments" / second).rename(tmp_path / second)
    for words in ("mine", "the environment mine", "my mine environment"):
        found = planned(ajet, TOPIC.format(words), tmp_path)
        assert (found["environment"], found["not_tested"]) == (first, [])


@pytest.mark.slow
def test_general_words_and_a_full_name_beside_the_flag_are_the_flags_or_refused(
    ajet: Ajet, brought: tuple[str, str], tmp_path: Path
) -> None:
    first, second = brought
    for words in ("my environment", "this game", first):
        found = planned(ajet, TOPIC.format(words), tmp_path, "--env", first)
        assert (found["environment"], found["not_tested"]) == (first, [])
    for command in (("research", "--no-prefect"), ("study", "plan")):
        ended = ajet(*command, TOPIC.format(second), "--env", first, "--model-path", str(tmp_path / "model"))
        ended.refused(f"--env {first}", f"names {second}")


@pytest.mark.slow
def test_a_full_name_of_none_that_is_here_is_one_line_with_those_that_are(
    ajet: Ajet, home: Path, brought: tuple[str, str], mine: str
) -> None:
    both = " and ".join(sorted(brought))
    for name, there in {"mine@0123456789ab": both, "mine@abc": both, "shop@abcdefabcdef": "ajet env list"}.items():
        for asked in ((), ("--env", brought[0])):
            for command in (("research", "--no-prefect"), ("study", "plan")):
                ajet(*command, TOPIC.format(name), *asked).refused(f"found no {name}; ", there)
    assert not (home / "ajet.db").exists()


@pytest.mark.slow
def test_a_language_model_is_shown_the_environment_that_a_topic_names(
    ajet: Ajet, brought: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = brought
    entry = {
        "mechanism": "m", "variable": "group_size", "control": 4, "treatment": 16, "direction": "increase",
        "predicted_low": 0, "predicted_high": 0.2, "probability": 0.4, "smallest_effect": 0.1, "falsifier": "f",
    }  # fmt: skip
    proposal = {"action": "propose", "hypotheses": [entry]}
    designs = [{"action": "design", "environment": name, "steps": None, "constants": []} for name in (second, first)]
    with scripted_endpoint([says(proposal), *map(says, designs)]) as endpoint:
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
        given = ("--planner", "llm", "--planner-model", "m")
        assert planned(ajet, TOPIC.format(first), tmp_path, *given)["environment"] == first
    shown = endpoint.requests[0]["messages"][1]["content"]
    assert re.findall(r"mine@[0-9a-f]{12}", shown.partition('"environments"')[2])[0] == first
    assert second not in shown, "nobody names it"

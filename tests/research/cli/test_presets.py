"""`ajet client env`: each preset is a whole agent of its own, and says what it needs."""

from __future__ import annotations

import ast
import re

import pytest

from research.cli.client import PRESETS
from tests.research.cli.conftest import Ajet

NAMES = sorted(path.stem for path in PRESETS.iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_is_an_agent_that_has_address_and_key_of_its_episode_alone(name: str) -> None:
    text = (PRESETS / f"{name}.txt").read_text()
    module = ast.parse(text)
    compile(module, "agent.py", "exec")
    (agent,) = (node for node in module.body if getattr(node, "name", None) == "agent")
    assert isinstance(agent, ast.FunctionDef | ast.AsyncFunctionDef)
    assert [argument.arg for argument in agent.args.args] == ["episode"]
    body = ast.unparse(agent)
    assert {"episode.base_url", "episode.api_key", "episode.model"} <= set(re.findall(r"episode\.\w+", body))
    assert "os.environ[" not in body, "plays at once would share it"
    assert re.search(r"https?://|sk-\w", text) is None
    lines = text.splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 120


def test_the_presets_are_listed_by_name_with_what_their_jobs_need(ajet: Ajet) -> None:
    listed = ajet("client", "env", "--json").data
    assert [row["name"] for row in listed] == NAMES
    assert [row["name"] for row in listed if not (row["about"] and "max_tokens" in row["needs"])] == []
    table = ajet("client", "env").out
    assert [name for name in NAMES if name not in table] == []


@pytest.mark.parametrize(("asked", "name"), [("langgraph", "langgraph"), ("claude-code", "claude")])
def test_a_preset_is_printed_as_it_is(ajet: Ajet, asked: str, name: str) -> None:
    text = (PRESETS / f"{name}.txt").read_text()
    assert ajet("client", "env", asked).out == text
    said = ajet("client", "env", asked, "--json").data
    assert (said["name"], said["file"]) == (name, text)
    assert said["needs"] in text.splitlines()[0]


def test_another_name_is_refused_with_the_nearest_one(ajet: Ajet) -> None:
    ajet("client", "env", "lang-graph").refused("did you mean langgraph?")

"""Choosing a planner: by name, by settings, and what is said when a setting is missing."""

from __future__ import annotations

import pytest

from research.errors import PlannerUnready, UnknownPlanner
from research.planners.factory import make_planner

LOCAL = {"OPENAI_BASE_URL": "http://127.0.0.1:8000/v1"}


@pytest.mark.parametrize(
    ("name", "model", "chosen"),
    [("rules", None, "rules"), (None, None, "rules"), ("llm", "m", "llm"), (None, "m", "llm")],
)
def test_the_planner_is_chosen_by_name_and_otherwise_by_the_model(
    name: str | None, model: str | None, chosen: str
) -> None:
    assert make_planner(name, model, LOCAL).name == chosen


def test_a_key_alone_does_not_choose_the_language_model() -> None:
    assert make_planner(None, None, {"OPENAI_API_KEY": "k"}).name == "rules"


def test_the_model_is_known_before_anything_is_asked() -> None:
    assert make_planner("llm", "m", {"OPENAI_API_KEY": "k"}).model == "m"
    assert make_planner("rules", None, {}).model is None


def test_a_model_that_nobody_would_ask_is_refused() -> None:
    with pytest.raises(PlannerUnready, match=r"the planner rules.*found m; add --planner llm"):
        make_planner("rules", "m", LOCAL)


def test_an_unknown_planner_is_refused_with_the_list() -> None:
    with pytest.raises(UnknownPlanner, match=r"llm; found 'gpt'"):
        make_planner("gpt", None, {})


@pytest.mark.parametrize(
    ("model", "environ", "told"),
    [
        (None, LOCAL, "--planner-model NAME"), ("m", {}, "set OPENAI_API_KEY"),
        ("m", {"OPENAI_BASE_URL": " ", "OPENAI_API_KEY": ""}, "set OPENAI_API_KEY"),
        ("m", {"OPENAI_BASE_URL": "localhost:8000"}, "an address such as"),
        ("m", {"OPENAI_BASE_URL": "http://host:port/v1"}, "an address such as"),
        ("m", {"OPENAI_API_KEY": "sk-\u2026"}, "printable ASCII"),
    ],
)  # fmt: skip
def test_missing_settings_are_named(model: str | None, environ: dict[str, str], told: str) -> None:
    with pytest.raises(PlannerUnready) as caught:
        make_planner("llm", model, environ)
    assert told in caught.value.message
    assert "sk-" not in caught.value.message

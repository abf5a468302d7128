"""The form of the deployment: what `ajet research` takes, typed, described and bounded, or a study that is to go on."""

from __future__ import annotations

import pytest
import typer.main
from pydantic import ValidationError

from research.cli.research import research
from research.controller.options import ResearchOptions
from research.orchestration.deployment import FlowParameters, form_schema


def options() -> dict[str, str]:
    app = typer.Typer(add_completion=False)
    app.command()(research)
    command = typer.main.get_command(app)
    return {str(each.name): each.opts[0] for each in command.params}


def test_each_field_is_described_in_order_and_refers_to_nothing() -> None:
    form = form_schema(FlowParameters)
    assert form["type"] == "object"
    fields = list(form["properties"].values())
    assert [field["position"] for field in fields] == list(range(len(fields)))
    assert all(field["description"] for field in fields)
    assert "$ref" not in str(form)


def test_what_was_asked_in_a_form_is_a_command_that_asks_for_the_same() -> None:
    asked = ResearchOptions(topic="group size 4 vs 8", held=["steps=20"], max_runs=8, effect=0.2, sandbox="process")
    command = asked.command()
    assert command[:2] == ("research", "group size 4 vs 8")
    assert dict(zip(command[2::2], command[3::2], strict=True)) == {
        "--set": "steps=20", "--max-runs": "8", "--effect": "0.2", "--sandbox": "process",
    }  # fmt: skip
    assert set(command[2::2]) <= set(options().values())
    without = ResearchOptions(vary=["group_size=4,8", "steps=3,4"]).command()
    assert without == ("research", "--vary", "group_size=4,8", "--vary", "steps=3,4")
    assert ResearchOptions(topic="group size 4 vs 8", shape="apart").command() == ("research", "group size 4 vs 8")


def test_a_topic_that_no_store_holds_is_refused() -> None:
    with pytest.raises(ValidationError, match="topic"):
        ResearchOptions(topic="group size\x00 4 vs 8")

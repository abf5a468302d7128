"""`ajet job explain` tells of every field of a job, and of what lies in one."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from research.cli.job import app, explanations
from swarm.verl_fields import CriticFields, VerlFields


def test_a_field_is_told_with_those_in_it() -> None:
    told = json.loads(CliRunner().invoke(app, ["explain", "verl", "--json"]).stdout)
    own = {"verl", *(f"verl.{name}" for name in VerlFields.model_fields)}
    assert {row["field"] for row in told} == own | {f"verl.critic.{name}" for name in CriticFields.model_fields}
    assert all(row["description"] for row in told)
    (alone,) = json.loads(CliRunner().invoke(app, ["explain", "group_size", "--json"]).stdout)
    assert alone["field"] == "group_size"


def test_every_field_says_what_it_does_once() -> None:
    names = [row["field"] for row in explanations()]
    assert len(names) == len(set(names))
    assert [row["field"] for row in explanations() if not row["description"]] == []

"""`ajet study recipe`: the best confirmed job of a study, and what it rests on."""

from __future__ import annotations

from typing import Any

from research.cli.output import print_json, warn
from research.cli.study.shown.finding import Json, Name, found
from research.findings.recipe import ConfirmedValue, Recipe, evidence, recipe_of
from studies.records.sentences import setting


def recipe(name: Name = None, json: Json = False) -> None:
    """Print the best confirmed job of a study, for `ajet swarm start --job`; its evidence goes to stderr.

    It is the job under all arms with the better value of each comparison whose interval leaves zero out, on fresh
    seeds in the environment that was asked about. Where nothing was confirmed it says so and is that job itself.

    Examples:

        ajet study recipe > job.json

        ajet study recipe larger-group --json
    """
    home, _, state = found(name)
    told = recipe_of(state, home.study(state.id))
    if json:
        print_json({"study": state.id, **_as_json(told)})
        return
    for line in _lines(told):
        warn(line)
    print_json(told.job)


def _lines(told: Recipe) -> list[str]:
    return [*map(_line, told.confirmed), *told.apart, *told.notes]


def _line(value: ConfirmedValue) -> str:
    over = ", ".join(setting(name, each) for name, each in value.over.items())
    later = [
        f"; {said} by all arms of round {', '.join(map(str, rounds))}"
        for said, rounds in (("held", value.held_by), ("not held", value.not_held_by))
        if rounds
    ]
    return f"{value.text} is better than {over}: {value.finding.study}, {evidence(value.finding)}{''.join(later)}"


def _as_json(told: Recipe) -> dict[str, Any]:
    return {
        "job": dict(told.job),
        "evidence": [
            {
                "fields": dict(value.fields), "better_than": dict(value.over), "held_by_rounds": list(value.held_by),
                "not_held_by_rounds": list(value.not_held_by), **value.finding.model_dump(mode="json"),
            }
            for value in told.confirmed
        ],
        "never_confirmed_together": list(told.apart),
        "notes": list(told.notes),
    }  # fmt: skip

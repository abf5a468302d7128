"""What hypotheses and designs put to the test, as sentences that code writes from typed fields."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from studies.records.base import JsonValue
from studies.records.design import CONFIGURATION, Design, Hypothesis

_VERBS: Final = {"increase": "raises", "decrease": "lowers"}


def tested(design: Design | None, hypotheses: tuple[Hypothesis, ...]) -> tuple[str, ...]:
    """Return what is put to the test, a sentence for each hypothesis; of a screen, that it comes first."""
    if design is None:
        return sentences(hypotheses)
    if design.screen is not None:
        return (screen_sentence([knob.field for knob in design.screen.knobs], design.environment),)
    return sentences(design.hypotheses, design.environment, design.promise.effect if design.promise else None)


def sentences(
    claims: Iterable[Hypothesis], environment: str | None = None, least: float | None = None
) -> tuple[str, ...]:
    """Return what is put to the test by each claim; `least` is the smallest difference of interest."""
    where = f", in {environment}" if environment is not None else ""
    return tuple(_tested(claim, where, least) for claim in claims)


def screen_sentence(fields: Iterable[str], environment: str) -> str:
    """Return what a screen and its confirmation put to the test."""
    return f"Which values of {', '.join(fields)} are best: the best of a screen against the defaults, in {environment}."


def statement(
    variable: str, control: JsonValue, treatment: JsonValue, direction: str, metric: str = "hidden success"
) -> str:
    """Return the claim of a hypothesis as a sentence, from its typed fields."""
    with_control = setting(variable, control)
    return f"{setting(variable, treatment)} {_VERBS[direction]} the {metric}, compared with {with_control}."


def setting(variable: str, value: Any) -> str:
    """Return what an arm sets: `group_size = 16`, or each field of a configuration."""
    if variable == CONFIGURATION and isinstance(value, Mapping):
        return ", ".join(f"{name} = {_text(entry)}" for name, entry in sorted(value.items()))
    return f"{variable} = {_text(value)}"


def _tested(claim: Hypothesis, where: str, least: float | None) -> str:
    treatment, control = (setting(claim.variable, value) for value in (claim.treatment, claim.control))
    at = " after as many training episodes" if claim.matched == "episodes" else ""
    if claim.sought == "equivalence":
        near = f"by less than {least:g}" if least is not None else "by nothing that matters"
        return (
            f"Whether the hidden success with {treatment} and with {control} differs {near}{at}{where}: the verdict "
            "Equivalent is what is asked for."
        )
    by = f" by {least:g} or more" if least is not None else ""
    return f"Whether {treatment} {_VERBS[claim.direction]} the hidden success{by}{at}, compared with {control}{where}."


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)

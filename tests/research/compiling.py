"""The design compiler in one call, as tests ask it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from research.design.compiler import DesignCompiler
from research.errors import DesignRefused
from research.proposals.actions import Action, Propose, ProposeDesign
from studies.records.design import Design, Hypothesis, NoisePlan


def compile_design(
    question: str,
    hypotheses: Sequence[Hypothesis],
    proposal: ProposeDesign,
    *,
    draw_seed: Callable[[], int],
    code: Mapping[str, str] | None = None,
    **means: Any,
) -> Design:
    return DesignCompiler(**means).compile(hypotheses, proposal).build_lock(question, draw_seed, code or {})


def noise_plan(
    hypotheses: Sequence[Hypothesis], proposal: ProposeDesign, *, draw_seed: Callable[[], int], **means: Any
) -> NoisePlan | None:
    return DesignCompiler(**means).compile(hypotheses, proposal).noise_plan(draw_seed)


def refusal(
    action: Action,
    hypotheses: Sequence[Hypothesis],
    *,
    code_allowed: bool = False,
    environment: str | None = None,
    **means: Any,
) -> DesignRefused | None:
    compiler = DesignCompiler(**means)
    try:
        if isinstance(action, Propose):
            compiler.check_proposal(action, environment, code_allowed=code_allowed)
        if isinstance(action, ProposeDesign):
            compiler.compile(hypotheses, action)
    except DesignRefused as error:
        return error
    return None


def assert_refused(action: Action, hypotheses: Sequence[Hypothesis], *names: str, **means: Any) -> DesignRefused:
    found = refusal(action, hypotheses, **means)
    assert [name for name in names if name not in found.message] == [], found.message
    assert "\n" not in found.message
    return found

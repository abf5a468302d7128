"""Endpoints without a language model behind them: scripted, and named so, with the ways in which real ones fail.

They stand where a model's endpoint stands, so that the shipped planner for language models flies: its prompts, schemas,
retries, patience and refusals. What a real model would propose is not known here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from research.planners.llm import EndpointError, LlmPlanner, shorten
from research.proposals.arms import value_text
from simlab.flights.clock import SimClock
from simlab.planners.simulated import ENVIRONMENT, LIE, forbidden
from simlab.worlds.topics import ComparisonTopic

Mood = Literal["sound", "nonsense", "forbidden", "outage", "gone"]
MOODS: tuple[Mood, ...] = ("sound", "nonsense", "forbidden", "outage", "gone")
MODEL = "simulated: a script, no language model"
OUTAGE_S = 3 * 3600.0
"""How long an endpoint in an outage refuses whatever it is asked."""
NONSENSE = (
    "Certainly! Here are my thoughts on group sizes, without any JSON.",
    '{"action": "propose", "hypotheses": [',
    '{"action": "propose", "hypotheses": []}',
    "\x00\x1b[31mnull",
)


class Scripted:
    """An endpoint that answers from a script, in a mood."""

    where = MODEL

    def __init__(self, ask: ComparisonTopic, mood: Mood, clock: SimClock) -> None:
        self._ask = ask
        self._mood = mood
        self._clock = clock
        self._begin = clock.true
        self._said = 0

    def complete(self, request: Mapping[str, Any], timeout_s: float) -> str:
        """Return a chat completion, or fail as the mood has it."""
        passed = (self._clock.true - self._begin).total_seconds()
        if self._mood == "gone":
            raise EndpointError("unreachable", "the simulated endpoint is not there")
        if self._mood == "outage" and passed < OUTAGE_S:
            raise EndpointError("status", "the simulated endpoint is down", 503)
        self._said += 1
        return json.dumps({
            "choices": [{"message": {"role": "assistant", "content": self._text(request)}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1000, "completion_tokens": 100},
        })  # fmt: skip

    def redact(self, text: str) -> str:
        """Return a text in short; a script has no key."""
        return shorten(text)

    def _text(self, request: Mapping[str, Any]) -> str:
        if self._mood == "nonsense" and self._said % 2:
            return NONSENSE[self._said // 2 % len(NONSENSE)]
        if self._mood == "forbidden" and self._said % 3:
            wishes = forbidden()
            return wishes[self._said % len(wishes)]
        return json.dumps(self._answer(str(request["messages"])))

    def _answer(self, shown: str) -> dict[str, Any]:
        """Return the action that is due, by what the digest in the prompt holds."""
        if '"verdicts"' in shown or '\\"verdicts\\"' in shown:
            return {"action": "conclude", "reason": LIE if self._mood == "forbidden" else "All is judged."}
        if "job_defaults" in shown:
            more = ", ".join(value_text(value) for value in self._ask.values[2:])
            return {"action": "design", "environment": ENVIRONMENT, "not_tested": more and f"Further values: {more}."}
        return {"action": "propose", "hypotheses": [self._hypothesis()]}

    def _hypothesis(self) -> dict[str, Any]:
        field, (control, treatment) = self._ask.field, self._ask.values[:2]
        return {
            "statement": f"{field} {treatment} beats {control}.", "mechanism": "None: this is a script.",
            "variable": field, "control": control, "treatment": treatment, "direction": "increase",
            "predicted_low": 0.0, "predicted_high": 0.2, "probability": 0.6, "smallest_effect": 0.1,
            "falsifier": "The interval lies below 0.1.",
        }  # fmt: skip


def talker(ask: ComparisonTopic, mood: Mood, clock: SimClock) -> LlmPlanner:
    """Return the shipped planner for language models, with a script behind its endpoint."""
    return LlmPlanner(MODEL, Scripted(ask, mood, clock), sleep=clock.advance)

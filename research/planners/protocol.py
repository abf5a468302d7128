"""The planner's seam: a digest in, one typed action out.

A planner is stateless between turns. It is given `check`, which says why an action would be refused (or None), so that
a refusal can be mended within the turn. Who asked the planner takes what `check` found of the action it returned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from research.errors import DesignRefused
from research.planners.context import PlannerContext, ToolResult
from research.proposals.actions import Action, SideAction

Check = Callable[[Action], DesignRefused | None]
"""Returns why an action would be refused, in one line for a person and one for a planner; None when it is taken."""


@dataclass(frozen=True, slots=True)
class PlannerTurn:
    """One action and what it took to get it."""

    action: Action
    tries: int = 1
    prompt_tokens: int = 0
    completion_tokens: int = 0
    rejected: tuple[str, ...] = ()
    """Why earlier tries of this turn were refused, oldest first."""
    note: str = ""
    """What the planner assumed, for the report."""
    not_tested: tuple[str, ...] = ()
    """What of the topic the action leaves out: words of the topic, or the planner's own sentence on it."""
    refused: DesignRefused | None = None
    """Why `check` refuses the action, where the planner has no other idea."""
    tool_results: tuple[ToolResult, ...] = ()
    """What it looked at before."""
    side_actions: tuple[SideAction, ...] = ()
    """What it said beside the action."""

    def payload(self) -> dict[str, Any]:
        return {
            "action": self.action.action,
            "tries": self.tries,
            "tokens": {"prompt": self.prompt_tokens, "completion": self.completion_tokens},
            "rejected": list(self.rejected),
            "note": self.note,
            "not_tested": list(self.not_tested),
            **({"looks": [look.payload() for look in self.tool_results]} if self.tool_results else {}),
        }


class Planner(Protocol):
    """Proposes; disposes of nothing."""

    @property
    def name(self) -> str:
        """`rules`, `llm`, or the name under which an installed package brings it."""
        ...

    @property
    def model(self) -> str | None:
        """The language model's name; None for a planner without one."""
        ...

    def act(self, context: PlannerContext, check: Check) -> PlannerTurn:
        """Return the due action, accepted by `check`, or with its refusal where the planner has no other idea.

        Raises BadTopic (the topic cannot be read), PlannerFailed (no usable answer) or DesignRefused (no answer that
        `check` accepts).
        """
        ...

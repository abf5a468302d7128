"""Tasks and games."""

from swarm.environments.base import (
    Demonstration,
    Environment,
    Game,
    Knob,
    Message,
    Outcome,
    Split,
    Task,
    Tool,
    ToolUse,
    calling,
    calls_of,
    said,
    text_of,
    tool,
    tool_result,
)
from swarm.environments.registry import environments, get_environment

__all__ = [
    "Demonstration", "Environment", "Game", "Knob", "Message", "Outcome", "Split", "Task", "Tool", "ToolUse", "calling",
    "calls_of", "environments", "get_environment", "said", "text_of", "tool", "tool_result",
]  # fmt: skip

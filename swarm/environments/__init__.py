"""Environments: the problems that a policy is trained on, and the seam for new ones.

Three are built in, which a tiny model learns on a CPU in a minute: in one turn, in several, and with a tool.

One of your own is a subclass of `Environment` in a file of yours (`base.py` has the seam, `docs/environments.md` the
way); nothing here is edited for it. To build one in, name it in `registry.py`; what every built-in one promises is
checked by `tests/swarm/environments/test_registry.py`. An agent and tasks of one's own need no environment:
`--agent FILE.py --tasks FILE`.
May enter: problems and their judges, without a server or a model. What plays them over a server is in `playing`.
"""

from swarm.environments.base import Demonstration, Environment, Game, Message, Outcome, Split, Task, Tool, said, text_of
from swarm.environments.registry import environments, get_environment
from swarm.environments.tools import ToolUse, calling, calls_of, tool, tool_result

__all__ = [
    "Demonstration",
    "Environment",
    "Game",
    "Message",
    "Outcome",
    "Split",
    "Task",
    "Tool",
    "ToolUse",
    "calling",
    "calls_of",
    "environments",
    "get_environment",
    "said",
    "text_of",
    "tool",
    "tool_result",
]

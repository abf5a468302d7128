"""A server with a scripted model for SDKs and frameworks as they are, and what must be true of each episode."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from swarm.backends.fake import Script
from swarm.job import Job
from swarm.timelines import CallTree
from tests.swarm.server.support import Served, job

THOUGHT = "<think>\nhm\n</think>\n\n"
"""How the model writes that it thought `hm`."""


def roomy(**fields: Any) -> Job:
    """Return a job with room for whatever a framework writes into its prompts."""
    return job(max_context=200_000, max_tokens=4000, lease_ttl_s=60, **fields)


def calls(name: str, /, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


PAIR = calls("weather", city="Bonn") + "\n" + calls("weather", city="Rome")


def saying(*answers: str) -> Script:
    """Return a model that gives the first answer in the first turn, the second in the second, and so on."""

    def script(prompt: str, rng: random.Random) -> str:
        turn = prompt.count("<|assistant|>") - 1
        return answers[min(turn, len(answers) - 1)]

    return script


def tree(served: Served, lease: dict[str, Any]) -> CallTree:
    (found,) = [episode for episode in served.server.training.rollout.leases if episode.id == lease["episode_id"]]
    return found.tree


def spoken(found: CallTree) -> list[str]:
    return [bytes(token for token in node.sampled if token < 256).decode() for node in found.nodes]


def drifts(found: CallTree) -> dict[str, int]:
    """Return how the calls' prompts came about."""
    return Counter(str(node.drift) for node in found.nodes)


def assert_exact(served: Served, *trees: CallTree) -> None:
    """Check that the engine's every prompt and every sampled id is captured, once."""
    nodes = [(tuple(node.path_ids()[: -len(node.sampled)]), node.sampled) for one in trees for node in one.nodes]
    assert sorted(nodes) == sorted(served.backend.engine.seen)


async def assert_trained_once(served: Served, lease: dict[str, Any], answers: Sequence[str], **drift: int) -> None:
    """Check a whole episode, then end it: what was sampled, how its calls hang together, and that all is captured."""
    found = tree(served, lease)
    assert spoken(found) == list(answers)
    assert drifts(found) == drift
    assert_exact(served, found)
    assert (await served.end(lease)).status == 200

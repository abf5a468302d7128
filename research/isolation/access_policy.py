"""What a container may ask of the swarm server: the policy that its gateway applies.

The run's client token would let a client begin episodes of any kind and read every episode, the evaluator's on hidden
tasks too. So a container gets what its role needs: a client begins training episodes of its own tasks and gives
advantages, an evaluator evaluation episodes of its own; both speak to the model, hold their leases, and read the
status. The stream of its episodes, and what one weighs in the loss, is decided by the study.

It does not check keys: whose lease or episode a request is about, the server decides.
"""

import re
from collections.abc import Set
from typing import Any

from sandboxes.gateway.reverse_proxy import Request
from swarm.wire import BUNDLE, EpisodeKind, tasks_digest

_MESSAGES = ("/v1/messages", "/v1/messages/count_tokens")
MODEL_CALLS = frozenset({"/v1/chat/completions", "/v1/responses", *_MESSAGES, *(f"/v1{path}" for path in _MESSAGES)})
"""Anthropic's also behind a base URL with `/v1`, as the server serves them."""
READING = frozenset({"/health", "/status", "/streams", "/v1/models"})
_ONE_MODEL = re.compile(r"/v1/models/[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
_HELD = re.compile(r"/episodes/[A-Za-z0-9_-]{1,128}/(heartbeat|end|abort)")
STREAM = "default"
WEIGHT = 1.0
"""What the server takes where a request does not say."""


def model_calls_alone(request: Request) -> str | None:
    """Judge the requests of a player, which has neither tasks nor leases: it speaks to the model."""
    return None if request.method == "POST" and request.path in MODEL_CALLS else "more than calls of the model"


class AccessPolicy:
    """Checks the requests of one container, which was given `tasks` (ids) for episodes of `stream`."""

    def __init__(self, kind: EpisodeKind, tasks: Set[str], stream: str = STREAM) -> None:
        self._kind, self._tasks, self._stream = kind, tasks, stream
        self._digest = tasks_digest(tasks)

    def __call__(self, request: Request) -> str | None:
        """Return why a request is refused, None when it may pass."""
        if request.method == "GET" and (request.path in READING or _ONE_MODEL.fullmatch(request.path)):
            return None
        if request.path == "/advantages" and self._kind == "train":  # numbers for numbers; the server checks them
            return None if request.method in ("GET", "POST") else "a route that no client needs"
        if request.method != "POST":
            return "reading more than the status"
        if request.path in MODEL_CALLS:
            return None
        if request.path == BUNDLE:
            return self._check_bundle(request.body)
        if request.path == "/episodes":
            if not isinstance(request.body, dict):
                return "an episode that is none"
            if request.body.get("kind", "train") != self._kind:
                return f"an episode that is not of kind {self._kind}"
            if request.body.get("stream", STREAM) != self._stream:
                return "a stream it was not given"
            task = request.body.get("task_id")
            if task is None and "tasks" in request.body:  # the server chooses, of the very list
                return self._check_task_list({"stream": self._stream, "digest": request.body["tasks"]})
            return None if isinstance(task, str) and task in self._tasks else "a task it was not given"
        if request.path == "/streams/tasks":
            return self._check_task_list(request.body)
        if (held := _HELD.fullmatch(request.path)) is None:
            return "a route that no client needs"
        if held[1] != "end":
            return None
        if not isinstance(request.body, dict):
            return "an end that is none"
        return None if request.body.get("weight", WEIGHT) == WEIGHT else "a weight it was not given"

    def _check_bundle(self, body: Any) -> str | None:
        asked = body.get("requests") if isinstance(body, dict) else None
        if not isinstance(asked, list) or not all(isinstance(one, dict) for one in asked):
            return "a bundle that is none"
        alone = (Request("POST", str(one.get("path")), body=one.get("body")) for one in asked)
        refusals = ("a bundle in a bundle" if one.path == BUNDLE else self(one) for one in alone)
        return next((refusal for refusal in refusals if refusal is not None), None)

    def _check_task_list(self, body: Any) -> str | None:
        """Judge a task list by its digest, which the server holds against the ids."""
        if self._kind != "train":
            return "a task list for an evaluation"
        if isinstance(body, dict) and body.get("stream", STREAM) != self._stream:
            return "a stream it was not given"
        named = body.get("digest") if isinstance(body, dict) else None
        return None if named == self._digest else "a task list that is not the one it was given"

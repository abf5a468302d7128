"""What the containers of an attempt may ask of the swarm server: what their role needs, and nothing else."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.isolation.access_policy import AccessPolicy
from sandboxes.gateway.reverse_proxy import Request
from swarm.server.routes import openapi
from swarm.wire import tasks_digest

TASKS = {"t-1", "t-2"}


def begin(**body: Any) -> Request:
    return Request("POST", "/episodes", body=body)


def end(body: Any) -> Request:
    return Request("POST", "/episodes/e-1/end", body=body)


def bundle(*asked: tuple[str, Any]) -> Request:
    return Request("POST", "/bundle", body={"requests": [{"path": path, "body": body} for path, body in asked]})


TRAIN, EVAL, CODE = AccessPolicy("train", TASKS), AccessPolicy("eval", TASKS), AccessPolicy("train", TASKS, "code")
OTHER_LIST = "a task list that is not the one it was given"
NO_EVAL, NO_TRAIN = (f"an episode that is not of kind {kind}" for kind in ("eval", "train"))
NO_END, NO_EPISODE, NO_ROUTE = "an end that is none", "an episode that is none", "a route that no client needs"
NO_TASK, NO_STREAM, NO_WEIGHT = "a task it was not given", "a stream it was not given", "a weight it was not given"


@pytest.mark.parametrize(
    ("policy", "request_", "refusal"),
    [
        (TRAIN, begin(task_id="t-1", kind="train", owner="me"), None), (EVAL, begin(task_id="t-1", kind="eval"), None),
        (TRAIN, begin(task_id="t-1"), None), (EVAL, begin(task_id="t-1"), NO_EVAL),
        (TRAIN, begin(task_id="t-1", kind="eval"), NO_TRAIN),
        (EVAL, begin(task_id="t-1", kind="train"), NO_EVAL),
        *((TRAIN, begin(task_id=task), NO_TASK)
          for task in ("hidden-1", "T-1", "t-1 ", "", None, 1, ["t-1"], {"t-1": 1})),
        *((policy, begin(task_id="t-1", stream=stream), NO_STREAM)
          for stream in ("math", "", None, 1, ["default"]) for policy in (TRAIN, CODE)),
        (TRAIN, begin(task_id="t-1", stream="default"), None), (CODE, begin(task_id="t-1", stream="code"), None),
        (CODE, begin(task_id="t-1"), NO_STREAM),
        *((TRAIN, end({"reward": 1.0, "weight": weight}), NO_WEIGHT)
          for weight in (0, 1e6, 1.0000001, -1, None, "1", [1])),
        *((TRAIN, end({"reward": 1.0, **weight}), None) for weight in ({}, {"weight": 1}, {"weight": 1.0})),
        *((TRAIN, end(body), NO_END) for body in (None, [], 1.0)),
        *((TRAIN, Request("POST", "/episodes", body=body), NO_EPISODE)
          for body in (None, [], "t-1", 3)),
        *((TRAIN, Request("POST", f"/episodes/{path}", body={}), NO_ROUTE)
          for path in ("e-1/end/", "e-1/ending", "e-1/end/more", "end")),
        (TRAIN, bundle(("/episodes", {"task_id": "t-1"}), ("/episodes/e-1/end", {"reward": 1.0})), None),
        (TRAIN, bundle(("/v1/chat/completions", {}), ("/episodes", {"task_id": "hidden-1"})), NO_TASK),
        (TRAIN, bundle(("/episodes/e-1/end", {"weight": 2.0})), NO_WEIGHT), (TRAIN, bundle(("/job", {})), NO_ROUTE),
        (TRAIN, bundle(("/bundle", {"requests": []})), "a bundle in a bundle"),
        (EVAL, bundle(("/episodes", {"task_id": "t-1"})), NO_EVAL),
        *((TRAIN, Request("POST", "/bundle", body=body), "a bundle that is none")
          for body in (None, [], {}, {"requests": {}}, {"requests": [1]})),
        (TRAIN, end({}), None), (EVAL, Request("GET", "/advantages"), "reading more than the status"),
        (EVAL, Request("POST", "/advantages", body={}), NO_ROUTE),
    ],
)  # fmt: skip
def test_a_request_passes_or_is_refused_by_what_its_role_needs(
    policy: AccessPolicy, request_: Request, refusal: str | None
) -> None:
    assert policy(request_) == refusal


def listing(ids: set[str]) -> Request:
    return Request("POST", "/streams/tasks", body={"digest": tasks_digest(ids), "count": len(ids)})


def test_the_server_may_choose_among_the_tasks_that_were_given_and_no_others() -> None:
    others = {*TASKS, "hidden-1"}
    assert TRAIN(listing(TASKS)) is TRAIN(begin(tasks=tasks_digest(TASKS))) is None
    assert TRAIN(listing(others)) == TRAIN(begin(tasks=tasks_digest(others))) == OTHER_LIST
    assert TRAIN(begin(tasks=tasks_digest(TASKS), task_id="hidden-1")) == NO_TASK
    assert (EVAL(listing(TASKS)) or "").endswith("evaluation")


def test_only_known_routes_pass_whatever_the_server_comes_to_offer() -> None:
    admits = AccessPolicy("train", TASKS)
    passed = {
        (method.upper(), path)
        for path, methods in openapi()["paths"].items()
        for method in methods
        if admits(Request(method.upper(), re.sub("{.*}", "e-1", path), body={"task_id": "t-1"})) is None
    }
    assert passed == {
        ("GET", "/health"), ("GET", "/status"), ("GET", "/streams"), ("GET", "/v1/models"),
        ("GET", "/v1/models/{model}"), ("POST", "/episodes"),
        ("POST", "/episodes/{episode_id}/heartbeat"), ("POST", "/episodes/{episode_id}/end"),
        ("POST", "/episodes/{episode_id}/abort"), ("POST", "/v1/chat/completions"), ("POST", "/v1/responses"),
        ("POST", "/v1/messages"), ("POST", "/v1/messages/count_tokens"),
        ("GET", "/advantages"), ("POST", "/advantages"),
    }  # fmt: skip


@given(st.text(max_size=40))
def test_no_path_but_the_named_ones_may_be_read(path: str) -> None:
    known = path in {"/health", "/status", "/streams", "/v1/models"} or re.fullmatch(r"/v1/models/[\w-][\w.-]*", path)
    assert (AccessPolicy("eval", TASKS)(Request("GET", path)) is None) == bool(known)

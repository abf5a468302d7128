"""What the containers of an attempt may ask of the swarm server: what their role needs, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.isolation.access_policy import AccessPolicy
from sandboxes.gateway.gateway import Request
from swarm.server.http.operations import OPERATIONS
from swarm.wire import EpisodeKind, tasks_digest

TASKS = {"t-1", "t-2"}


def begin(**body: Any) -> Request:
    return Request("POST", "/episodes", body=body)


@pytest.mark.parametrize("kind", ["train", "eval"])
def test_episodes_of_its_own_kind_and_tasks_may_begin(kind: EpisodeKind) -> None:
    assert AccessPolicy(kind, TASKS)(begin(task_id="t-1", kind=kind, owner="play")) is None


def test_a_kind_left_out_is_the_servers_default_which_is_training() -> None:
    assert AccessPolicy("train", TASKS)(begin(task_id="t-1")) is None
    assert AccessPolicy("eval", TASKS)(begin(task_id="t-1")) == "an episode that is not of kind eval"


@pytest.mark.parametrize(("mine", "other"), [("train", "eval"), ("eval", "train")])
def test_neither_role_may_play_the_others_kind(mine: EpisodeKind, other: str) -> None:
    assert AccessPolicy(mine, TASKS)(begin(task_id="t-1", kind=other)) == f"an episode that is not of kind {mine}"


@pytest.mark.parametrize("task", ["hidden-1", "T-1", "t-1 ", "", None, 1, ["t-1"], {"t-1": 1}])
def test_a_task_that_was_not_given_may_not_be_played(task: Any) -> None:
    assert AccessPolicy("train", TASKS)(begin(task_id=task)) == "a task it was not given"


@pytest.mark.parametrize("stream", ["math", "", None, 1, ["default"]])
def test_a_stream_that_was_not_given_takes_no_episode(stream: Any) -> None:
    assert AccessPolicy("train", TASKS)(begin(task_id="t-1", stream=stream)) == "a stream it was not given"
    assert AccessPolicy("train", TASKS, "code")(begin(task_id="t-1", stream=stream)) == "a stream it was not given"


def test_the_stream_left_out_is_the_servers_default_and_a_given_one_has_to_be_said() -> None:
    assert AccessPolicy("train", TASKS)(begin(task_id="t-1", stream="default")) is None
    assert AccessPolicy("train", TASKS, "code")(begin(task_id="t-1", stream="code")) is None
    assert AccessPolicy("train", TASKS, "code")(begin(task_id="t-1")) == "a stream it was not given"


@pytest.mark.parametrize("weight", [0, 1e6, 1.0000001, -1, None, "1", [1]])
def test_an_episode_weighs_what_every_other_one_does(weight: Any) -> None:
    end = Request("POST", "/episodes/e-1/end", body={"reward": 1.0, "weight": weight})
    assert AccessPolicy("train", TASKS)(end) == "a weight it was not given"


@pytest.mark.parametrize("body", [{"reward": 1.0}, {"reward": 1.0, "weight": 1}, {"reward": 1.0, "weight": 1.0}])
def test_an_end_that_says_no_other_weight_passes(body: Any) -> None:
    assert AccessPolicy("train", TASKS)(Request("POST", "/episodes/e-1/end", body=body)) is None


@pytest.mark.parametrize("body", [None, [], 1.0])
def test_an_end_that_was_not_judged_does_not_pass(body: Any) -> None:
    assert AccessPolicy("train", TASKS)(Request("POST", "/episodes/e-1/end", body=body)) == "an end that is none"


def listing(ids: set[str]) -> Request:
    return Request("POST", "/streams/tasks", body={"digest": tasks_digest(ids), "count": len(ids)})


def test_the_server_may_choose_among_the_tasks_that_were_given_and_no_others() -> None:
    client, others = AccessPolicy("train", TASKS), {*TASKS, "hidden-1"}
    assert client(listing(TASKS)) is None
    assert client(begin(tasks=tasks_digest(TASKS))) is None
    wrong = "a task list that is not the one it was given"
    assert (client(listing(others)), client(begin(tasks=tasks_digest(others)))) == (wrong, wrong)
    assert client(begin(tasks=tasks_digest(TASKS), task_id="hidden-1")) == "a task it was not given"
    assert AccessPolicy("eval", TASKS)(listing(TASKS)) == "a task list for an evaluation"


@pytest.mark.parametrize("body", [None, [], "t-1", 3])
def test_a_body_that_is_no_object_begins_nothing(body: Any) -> None:
    assert AccessPolicy("train", TASKS)(Request("POST", "/episodes", body=body)) == "an episode that is none"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/episodes"), ("GET", "/episodes/ep-1"), ("GET", "/samples"), ("GET", "/events"), ("GET", "/metrics"),
        ("GET", "/checkpoints"), ("GET", "/job"), ("GET", "/openapi.json"), ("POST", "/job"), ("POST", "/streams"),
        ("POST", "/engine/stop"), ("POST", "/engine/start"), ("DELETE", "/status"), ("HEAD", "/events"),
        ("POST", "/episodes/a/b/end"), ("POST", "/episodes/e/commit"), ("POST", "/episodes//end"), ("PUT", "/episodes"),
    ],
)  # fmt: skip
def test_what_shows_or_changes_anything_else_is_refused(method: str, path: str) -> None:
    assert AccessPolicy("train", TASKS)(Request(method, path, body={"task_id": "t-1"})) is not None


def test_only_known_routes_pass_whatever_the_server_comes_to_offer() -> None:
    admits = AccessPolicy("train", TASKS)
    passed = {
        (operation.method, operation.path)
        for operation in OPERATIONS
        if admits(Request(operation.method, operation.path.replace("{episode_id}", "e-1"), body={"task_id": "t-1"}))
        is None
    }
    assert passed == {
        ("GET", "/health"), ("GET", "/status"), ("GET", "/streams"), ("GET", "/v1/models"), ("POST", "/episodes"),
        ("POST", "/episodes/{episode_id}/heartbeat"), ("POST", "/episodes/{episode_id}/end"),
        ("POST", "/episodes/{episode_id}/abort"), ("POST", "/v1/chat/completions"), ("POST", "/v1/responses"),
        ("POST", "/v1/messages"), ("POST", "/v1/messages/count_tokens"),
    }  # fmt: skip


@given(st.text(max_size=40))
def test_no_path_but_the_named_ones_may_be_read(path: str) -> None:
    named = {"/health", "/status", "/streams", "/v1/models"}
    assert (AccessPolicy("eval", TASKS)(Request("GET", path)) is None) == (path in named)


def test_the_first_model_call_is_timed_once() -> None:
    admits = AccessPolicy("train", TASKS)
    admits(begin(task_id="t-1"))
    assert admits.first_call_s is None
    admits.watch()
    admits(Request("POST", "/v1/chat/completions"))
    first = admits.first_call_s
    assert first is not None
    admits(Request("POST", "/v1/chat/completions"))
    assert admits.first_call_s == first


@pytest.mark.parametrize(
    "path", ["/episodes/e-1/end/", "/episodes/e-1/ending", "/episodes/e-1/end/more", "/episodes/end"]
)
def test_a_route_that_begins_as_one_of_a_lease_does_is_another(path: str) -> None:
    assert AccessPolicy("train", TASKS)(Request("POST", "/episodes/e-1/end", body={})) is None
    assert AccessPolicy("train", TASKS)(Request("POST", path, body={})) == "a route that no client needs"

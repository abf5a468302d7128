"""What the containers of an attempt may ask of the swarm server: what their role needs, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.admission import Admission
from sandboxes.gateway import Request
from swarm.server.operations import OPERATIONS
from swarm.wire import EpisodeKind

TASKS = {"t-1", "t-2"}


def begin(**body: Any) -> Request:
    return Request("POST", "/episodes", body=body)


@pytest.mark.parametrize("kind", ["train", "eval"])
def test_episodes_of_its_own_kind_and_tasks_may_begin(kind: EpisodeKind) -> None:
    assert Admission(kind, TASKS)(begin(task_id="t-1", kind=kind, owner="play")) is None


def test_a_kind_left_out_is_the_servers_default_which_is_training() -> None:
    assert Admission("train", TASKS)(begin(task_id="t-1")) is None
    assert Admission("eval", TASKS)(begin(task_id="t-1")) == "an episode that is not of kind eval"


@pytest.mark.parametrize(("mine", "other"), [("train", "eval"), ("eval", "train")])
def test_neither_role_may_play_the_others_kind(mine: EpisodeKind, other: str) -> None:
    assert Admission(mine, TASKS)(begin(task_id="t-1", kind=other)) == f"an episode that is not of kind {mine}"


@pytest.mark.parametrize("task", ["hidden-1", "T-1", "t-1 ", "", None, 1, ["t-1"], {"t-1": 1}])
def test_a_task_that_was_not_given_may_not_be_played(task: Any) -> None:
    assert Admission("train", TASKS)(begin(task_id=task)) == "a task it was not given"


@pytest.mark.parametrize("body", [None, [], "t-1", 3])
def test_a_body_that_is_no_object_begins_nothing(body: Any) -> None:
    assert Admission("train", TASKS)(Request("POST", "/episodes", body=body)) == "an episode that is none"


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
    assert Admission("train", TASKS)(Request(method, path, body={"task_id": "t-1"})) is not None


def test_only_known_routes_pass_whatever_the_server_comes_to_offer() -> None:
    admits = Admission("train", TASKS)
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
    assert (Admission("eval", TASKS)(Request("GET", path)) is None) == (path in named)


def test_the_first_model_call_is_timed_once() -> None:
    admits = Admission("train", TASKS)
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
    assert Admission("train", TASKS)(Request("POST", "/episodes/e-1/end", body={})) is None
    assert Admission("train", TASKS)(Request("POST", path, body={})) == "a route that no client needs"

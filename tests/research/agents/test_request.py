"""What is asked of `ajet client run` becomes a command, or one line that says what is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.agents.request import AgentRequest, BadOption, check_evaluated, memory_of, stream_of, variables_of
from swarm.environments import Task
from swarm.job import Job


@pytest.mark.parametrize(
    ("text", "size"), [("512m", 512 << 20), ("2g", 2 << 30), ("1.5G", 3 << 29), ("65536k", 64 << 20), ("1GiB", 1 << 30)]
)
def test_memory_is_read_as_people_write_it(text: str, size: int) -> None:
    assert memory_of(text) == size


@pytest.mark.parametrize("text", ["", "1", "63m", "-1g", "1t", "much", "1e9g", "16385g", f"{'9' * 400}g"])
def test_memory_that_means_nothing_or_too_little_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match="64m"):
        memory_of(text)


@pytest.mark.parametrize("text", ["", "a\nb", "x" * 129])
def test_what_is_no_name_of_a_stream_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match="--stream as a name"):
        stream_of(text)
    assert stream_of("math") == "math"


def test_variables_are_taken_with_everything_after_the_first_equals_sign() -> None:
    assert variables_of(["A=1", "B=x=y", "C="], contained=True) == {"A": "1", "B": "x=y", "C": ""}


@pytest.mark.parametrize("text", ["A", "=x", "1A=x", "A B=x", ""])
def test_what_is_no_variable_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match="NAME=VALUE"):
        variables_of([text], contained=False)


@pytest.mark.parametrize("name", ["AJET_TOKEN", "PYTHONPATH", "PYTHONHOME", "https_proxy", "HOME"])
def test_variables_that_are_set_for_the_agent_are_left_alone(name: str) -> None:
    with pytest.raises(BadOption, match=name):
        variables_of([f"{name}=x"], contained=False)


@pytest.mark.slow
@given(st.sampled_from(["API_KEY", "token", "DB_PASSWORD", "MY_SECRET", "AWS_CREDENTIALS"]), st.text(min_size=8))
def test_a_secret_stays_out_of_a_container_and_out_of_the_message(name: str, value: str) -> None:
    with pytest.raises(BadOption) as refused:
        variables_of([f"{name}={value}"], contained=True)
    assert f"={value}" not in str(refused.value)
    assert "--allow 127.0.0.2:PORT" in str(refused.value)
    assert variables_of([f"{name}={value}"], contained=False) == {name: value}


def test_an_order_names_what_is_played_and_leaves_out_what_is_not_asked_for() -> None:
    request = AgentRequest("play", None, "arith", (Task("t"),), stream="--math", seed=-1)
    words = request.arguments(server="http://s", code="/a", tasks="/t.json", out="/r.json", environments="/e")
    assert words[:3] == ("-m", "swarm.environments", "play")
    assert "--stream=--math" in words, "a value that looks like an option stays a value"
    assert "--seed=-1" in words
    assert not [word for word in words if word.startswith(("--agent", "--split", "--episodes", "--during"))]


def test_who_evaluates_whenever_training_waits_plays_as_many_episodes_as_it_waits_for() -> None:
    request = AgentRequest("evaluate", None, "arith", (Task("t"),), split="search", episodes=7, during=True)
    words = request.arguments(server="http://s", code="/a", tasks="/t.json", out="/r.json", environments="/e")
    assert words[-1] == "--during"
    assert not [word for word in words if word.startswith("--episodes")]


def test_a_job_that_waits_for_no_evaluation_has_nobody_evaluate_whenever_it_does() -> None:
    with pytest.raises(BadOption, match="no eval_every"):
        check_evaluated(Job())
    check_evaluated(Job(eval_every=4))
    check_evaluated(Job(evaluate_after=(4,)))

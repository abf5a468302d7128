"""A job keeps its digest when it gains a field; a wrong value, of it or on the wire, is told in one line."""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, ValidationError

from studies.records.design import KNOB as RECORDED_KNOB
from swarm.errors import HALF_A_CHARACTER, to_invalid_request
from swarm.job import KNOB, TINY_CONTEXT, Job, PathModel, TinyModel
from swarm.verl_config import VerlFields
from swarm.wire import BeginRequest, EndRequest, Status, StreamStatus, stream_label


class LaterModel(TinyModel):
    added_fields: ClassVar = TinyModel.added_fields | {"tied"}
    tied: bool = False


class Later(Job):
    """A job that was given a field more, as was its model."""

    added_fields: ClassVar = Job.added_fields | {"patience"}
    model: LaterModel = Field(default_factory=LaterModel)  # type: ignore[assignment]
    patience: float = 2.5


JOBS = st.fixed_dictionaries(
    {},
    optional={
        "steps": st.integers(1, 50),
        "temperature": st.floats(0.1, 5),
        "streams": st.dictionaries(st.sampled_from("abc"), st.floats(0.1, 9)),
        "max_tokens": st.integers(1, 99),
        "clip_ratio_high": st.none() | st.floats(0.1, 1),
        "model": st.fixed_dictionaries({"kind": st.just("tiny")}, optional={"seed": st.integers(0, 9)}),
        "tracking": st.none() | st.just({"run_id": "r"}),
    },
)


@given(JOBS)
def test_a_field_that_is_added_later_changes_no_digest_while_it_is_at_its_default(fields: dict[str, Any]) -> None:
    now = Job(**fields)
    assert Later(**fields).digest() == now.digest() != Later(**fields, patience=9).digest()
    for record in (now.model_dump_json(), json.dumps(now.value()), now.canonical()):
        then = Later.from_record(record)
        assert (then.canonical(), then.digest()) == (now.canonical(), now.digest())
        assert Job.from_record(then.canonical()).equals(now)
    assert Job.from_record(json.dumps(Later.from_record(now.value()).value())) == now


@pytest.mark.parametrize(("fields", "digest"), [
    ({"max_context": 256}, "d904972bc9e1b2190eff306155d61d416ea36b25fc37c0cf3438b0226a063826"),
    ({}, "fd0093479697ce6dc2db4afee0a6a7f690403c173da624d21202e437eefdca4d"),
    ({"model": {"kind": "path", "path": "m"}}, "132be4d50a885341be3e764c38db2d1f323aa4122422bedb033acd28843165b9"),
    ({"backend": "verl"}, "58f919b5926643b812a54a2dac56493ec32223e65787b8d7f1babda41c86b35d"),
    (
        {"backend": "verl", "verl": {"trainers": 2, "advantage_estimator": "rloo"}},
        "b77fe9d5bb58960fa3078842609574e314e2f3f91651000e09ed3b117f2be69e",
    ),
])  # fmt: skip
def test_the_digest_of_a_job_never_changes(fields: dict[str, Any], digest: str) -> None:
    """Trainings, prices and noise are found by it. If this fails, read `swarm.canonical` on how a field is added."""
    assert Job(**fields).digest() == digest


@pytest.mark.parametrize("change", [
    {"steps": 41}, {"checkpoint_every": 1}, {"checkpoints_kept": 5}, {"lease_ttl_s": 3}, {"drain_timeout_s": 3},
    {"micro_batch_tokens": 512}, {"gradient_checkpointing": True}, {"max_concurrency": 8}, {"kv_cache_bytes": 1 << 20},
    {"tracking": {"run_id": "r"}},
])  # fmt: skip
def test_a_training_goes_on_under_a_job_that_differs_in_what_no_step_depends_on(change: dict[str, Any]) -> None:
    assert Job(**change).continues(Job())
    assert Job(**change).equals(Job()) == ("tracking" in change)
    falls = Job(lr_schedule="cosine", **change)
    assert falls.continues(Job(lr_schedule="cosine")) == ("steps" not in change)


@pytest.mark.parametrize("fields", [{}, {"model": {"kind": "tiny"}}, {"model": TinyModel(layers=1)}])
def test_a_tiny_model_has_the_heads_that_its_backend_can_serve_unless_it_says_its_own(fields: dict[str, Any]) -> None:
    made = Job(backend="verl", **fields)
    assert isinstance(made.model, TinyModel)
    assert made.model.head_size == 32
    assert Job.from_record(made.value()) == made
    assert Job.from_record(made.value()).digest() == made.digest()
    own = Job(backend="verl", model=TinyModel(head_size=16))
    assert Job.from_record(own.value()).equals(own)
    assert not own.equals(made)
    assert Job(**fields).model == Job(backend="fake", **fields).model


def test_a_tiny_model_takes_all_its_positions_and_a_folder_of_any_length_what_it_did() -> None:
    folder = PathModel(path="m")
    assert Job().max_context == Job(max_context=2048, model=folder).max_context == TINY_CONTEXT
    assert Job(model=folder).max_context == 256
    assert Job.default_fields(Job(model=folder).model)["max_context"] == 256


def test_a_pretrained_model_has_a_step_size_that_does_not_break_it_unless_somebody_says_one() -> None:
    folder = {"kind": "path", "path": "m"}
    assert [Job(**said).learning_rate for said in ({}, {"model": folder}, {"model": folder, "lora_rank": 8})] == [
        1e-3, 2e-5, 5e-4,
    ]  # fmt: skip
    assert Job(model=folder, learning_rate=1e-3).learning_rate == 1e-3
    assert Job.default_fields(Job(model=folder).model, 8)["learning_rate"] == 5e-4


def test_a_training_goes_on_with_more_processes_on_other_nodes_but_with_no_other_backend() -> None:
    began = Job(backend="verl")
    spread = Job(backend="verl", verl=VerlFields(trainers=4, replicas=2, address="first:6379", gpu_memory=0.5))
    assert spread.continues(began)
    assert began.continues(spread)
    assert not spread.continues(Job())


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"learning_rate": 0.1}, {"max_tokens": 9}, {"model": {"kind": "tiny", "seed": 1}}]
)
def test_any_other_difference_is_another_training_and_is_named(change: dict[str, Any]) -> None:
    assert not Job(**change).continues(Job())
    (named,) = Job(**change).differences(Job())
    assert named.startswith(next(iter(change)))


@pytest.mark.parametrize(("fields", "words"), [
    ({"episodes_per_step": 10, "group_size": 4}, "group_size; found 10 and 4"),
    ({"lr_warmup_steps": 5, "steps": 4}, "at most steps, .* found 5 and 4"),
    ({"minibatches": 9, "episodes_per_step": 8}, "at most episodes_per_step, .* found 9 and 8"),
    ({"train_agents": ["solver", "solver"]}, "train_agents once"),
    ({"train_agents": [""]}, "printable characters"),
    ({"train_agents": ["two\nlines"]}, "printable characters"),
])  # fmt: skip
def test_fields_that_contradict_each_other_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Job(**fields)
    job = Job(lr_warmup_steps=4, steps=4, minibatches=8, episodes_per_step=8)
    assert (job.lr_warmup_steps, job.minibatches, job.tasks_per_step) == (4, 8, 1)


@pytest.mark.parametrize(("kind", "known"), [
    (Status, {"state": "ROLLING", "group_size": 4}),
    (StreamStatus, {"name": "a", "share": 0.5, "cursor": 1, "groups_open": 0, "groups_trained": 1}),
])  # fmt: skip
def test_a_client_takes_no_notice_of_what_a_newer_server_says(kind: type[BaseModel], known: dict[str, Any]) -> None:
    assert kind.model_validate({**known, "learned_to_say_later": {"a": 1}}) == kind.model_validate(known)


@given(st.lists(st.text(min_size=1, max_size=128), min_size=2, max_size=2, unique=True))
def test_any_two_streams_have_labels_of_their_own_that_any_tracker_takes(streams: list[str]) -> None:
    labels = [stream_label(stream) for stream in streams]
    assert len({*labels, "others+"}) == 3
    assert all(re.fullmatch(r"[A-Za-z0-9._+-]{1,71}", label) for label in labels)


@pytest.mark.parametrize(("kind", "text", "line"), [
    (Job, '{"grupsize": 4}', "grupsize: there is no such field"),
    (Job, '{"steps": -1}', "steps: expected a value greater than or equal to 1, found -1"),
    (Job, '{"model": "tiny"}', "model: expected an object, found 'tiny'"),
    (Job, '{"model": {"path": "x"}}', "model: expected an object that says its 'kind', found {'path': 'x'}"),
    (
        Job,
        '{"model": {"kind": "hub"}}',
        "model: expected an object whose 'kind' is one of 'tiny', 'path', found {'kind': 'hub'}",
    ),
    (Job, '{"missing_stream": "renormalise"}', "missing_stream: expected 'wait', found 'renormalise'"),
    (Job, '{"group_size": 3}', "episodes_per_step must be a multiple of group_size; found 128 and 3"),
    (Job, '{"steps": 3', "expected JSON, found text that is none: EOF while parsing an object at line 1 column 11"),
    (BeginRequest, "{}", "task_id: expected `task_id`, or `tasks` to leave the task to the server; found neither"),
    (BeginRequest, '{"task_id": "x", "kind": "tran"}', "kind: expected 'train' or 'eval', found 'tran'"),
    (BeginRequest, '{"task_id": "\\ud800"}', HALF_A_CHARACTER),
    (EndRequest, "{}", "reward: expected a value, found none"),
    (EndRequest, '{"reward": 1, "succes": true}', "succes: there is no such field"),
    (EndRequest, '{"reward": NaN}', "reward: expected a finite number, found nan"),
])  # fmt: skip
def test_a_wrong_value_is_one_line_of_field_expected_and_found_and_no_word_of_pydantic_s(
    kind: type[BaseModel], text: str, line: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        kind.model_validate_json(text)
    assert str(to_invalid_request(refused.value)) == line


@pytest.mark.parametrize(
    ("fields", "start"),
    [({"task_id": "\ud800"}, f"task_id: {HALF_A_CHARACTER}"), ({"task_id": "x", "wait_s": "é\n" * 1000}, "wait_s: ")],
)
def test_what_was_found_is_shown_short_and_in_ascii(fields: dict[str, Any], start: str) -> None:
    with pytest.raises(ValidationError) as refused:
        BeginRequest(**fields)
    line = str(to_invalid_request(refused.value))
    assert (line.startswith(start), line.isascii(), line.isprintable(), len(line) < 200) == (True, True, True, True)


def test_a_knob_is_written_as_a_field_of_its_own_and_read_back_and_changes_no_other_job() -> None:
    fields = {"environment.max_turns": 3, "environment.hint": "side"}
    job = Job.model_validate({"environment_args": {"max_turns": 9}, **fields})
    assert job.environment_args == {"max_turns": 3, "hint": "side"}
    assert {name: value for name, value in job.model_dump(mode="json").items() if "environment" in name} == {
        "environment": "guess", **fields,
    }  # fmt: skip
    assert Job.from_record(job.value()) == Job.model_validate_json(job.model_dump_json()) == job
    assert (Job(environment_args={}).digest(), job.digest() == Job().digest()) == (Job().digest(), False)
    assert not Job().equals(job)
    assert Job().differences(job)[-1] == "environment.max_turns None, not 3"
    assert not Job().continues(job)
    assert KNOB == RECORDED_KNOB  # records know nothing of jobs

"""OpenEnv training traces: the documented contract, and OpenEnv's own reader."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from swarm.exports import training_trace
from swarm.wire import EpisodeRecord
from tests.swarm.exports.records import call, episode, records

FIELDS = {"node_id", "prompt_token_ids", "completion_token_ids", "per_token_logps", "loss_mask", "metadata"}


def check(trace: dict[str, Any]) -> None:
    """Judge a trace by the contract of openenv 0.10's TrainingTrace, schema version 1."""
    assert trace.keys() == {"schema_version", "turns"}
    assert trace["schema_version"] == 1
    names = [turn["node_id"] for turn in trace["turns"]]
    assert len(set(names)) == len(names)
    for turn in trace["turns"]:
        assert turn.keys() == FIELDS
        prompt, sampled = turn["prompt_token_ids"], turn["completion_token_ids"]
        assert turn["node_id"]
        assert prompt
        assert all(type(token) is int and token >= 0 for token in (*prompt, *sampled))
        assert len(turn["per_token_logps"]) == len(sampled)
        assert all(math.isfinite(logprob) and logprob <= 0 for logprob in turn["per_token_logps"])
        assert turn["loss_mask"] == [0] * len(prompt) + [1] * len(sampled)


@given(records())
def test_a_trace_keeps_the_contract_and_trains_each_sampled_token_once(record: EpisodeRecord) -> None:
    trace = json.loads(json.dumps(training_trace(record)))
    check(trace)
    trained = [
        token
        for turn in trace["turns"]
        for token, mask in zip(turn["prompt_token_ids"] + turn["completion_token_ids"], turn["loss_mask"], strict=True)
        if mask
    ]
    assert trained == [token for one in record.record for token in one.sampled.ids]


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Any:
    """OpenEnv's module of training traces, past its packages' own imports: they need half a hundred dependencies."""
    found = importlib.util.find_spec("openenv")
    if found is None or found.origin is None:
        pytest.skip("openenv is not installed (make setup does)")
    folder = Path(found.origin).parent
    for name in ("openenv", "openenv.core", "openenv.core.harness", "openenv.core.harness.capture"):
        package = types.ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
        monkeypatch.setitem(sys.modules, name, package)
    return importlib.import_module("openenv.core.harness.training")


def test_openenvs_own_reader_takes_it(reader: Any) -> None:
    @given(records())
    def read(record: EpisodeRecord) -> None:
        trace = training_trace(record)
        taken = reader.TrainingTrace.model_validate_json(json.dumps(trace))
        assert [turn.model_dump(include=FIELDS) for turn in taken.turns] == trace["turns"]

    read()


def test_openenvs_own_reader_refuses_a_damaged_one(reader: Any) -> None:
    trace = training_trace(episode(call(0, None, (1, 2), (3,))))
    trace["turns"][0]["loss_mask"] = [1, 0, 1]
    with pytest.raises(ValueError, match="prompt tokens"):
        reader.TrainingTrace.model_validate_json(json.dumps(trace))


def test_a_turn_has_the_whole_prompt_the_engine_saw() -> None:
    record = episode(call(0, None, (1, 2), (3,)), call(1, 0, (4,), (5, 6)), call(2, 0, (7,), (8,)))
    first, second, third = training_trace(record)["turns"]
    assert (first["prompt_token_ids"], first["completion_token_ids"]) == ([1, 2], [3])
    assert (second["prompt_token_ids"], second["completion_token_ids"]) == ([1, 2, 3, 4], [5, 6])
    assert third["prompt_token_ids"] == [1, 2, 3, 7]
    assert (second["node_id"], second["metadata"]["parent"]) == ("e/1", "e/0")
    assert first["metadata"]["reward"] == 0.5
    assert first["metadata"]["versions"] == [3]


def test_calls_that_were_withdrawn_leave_no_hole() -> None:
    record = episode(call(1, None, (1,), (2,)), call(4, 1, (3,), (4,)))
    assert [turn["prompt_token_ids"] for turn in training_trace(record)["turns"]] == [[1], [1, 2, 3]]


def test_a_call_that_sampled_nothing_is_left_out_but_stays_context() -> None:
    record = episode(call(0, None, (1,), ()), call(1, 0, (2,), (3,)))
    (turn,) = training_trace(record)["turns"]
    assert turn["prompt_token_ids"] == [1, 2]

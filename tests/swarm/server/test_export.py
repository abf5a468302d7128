"""Exports of episodes: OpenEnv's training traces by its documented contract and its own reader, and Parquet."""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.fake import EOS_ID, EOS_TEXT, FakeRenderer
from swarm.errors import InvalidRequest
from swarm.server.export import ParquetExport, training_trace
from swarm.wire import CallRecord, EpisodeRecord, TokenSpan
from tests.lazily import lazy


def call(
    index: int, parent: int | None, context: Sequence[int], sampled: Sequence[int], *, trained: bool = True
) -> CallRecord:
    logprobs = tuple(-0.25 * (1 + place) for place in range(len(sampled)))
    return CallRecord(
        index=index,
        parent=parent,
        drift="start" if parent is None else "clean",
        context=TokenSpan(ids=tuple(context), texts=()),
        sampled=TokenSpan(ids=tuple(sampled), texts=(), logprobs=logprobs, versions=(3,) * len(sampled)),
        trained=trained,
    )


def episode(*calls: CallRecord, **fields: Any) -> EpisodeRecord:
    known = {"id": "e", "task_id": "t", "stream": "s", "kind": "train", "owner": "o", "state": "ended"}
    told = {"group": "t#1", "reward": 0.5, "success": True}
    tokens = sum(len(one.sampled.ids) for one in calls)
    return EpisodeRecord(**{**known, **told, **fields}, calls=len(calls), tokens=tokens, record=calls)


@st.composite
def records(draw: st.DrawFn) -> EpisodeRecord:
    ids = st.lists(st.integers(0, 200_000), min_size=1, max_size=4)
    calls: list[CallRecord] = []
    for index in range(draw(st.integers(0, 6))):
        parent = draw(st.sampled_from([None, *range(index)]))
        calls.append(call(index, parent, draw(ids), draw(ids), trained=draw(st.booleans())))
    return episode(*calls)


FIELDS = {"node_id", "prompt_token_ids", "completion_token_ids", "per_token_logps", "loss_mask", "metadata"}


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


def test_openenvs_own_reader_takes_it_and_each_trained_token_is_trained_once(reader: Any) -> None:
    @given(records())
    def read(record: EpisodeRecord) -> None:
        trace = training_trace(record)
        taken = reader.TrainingTrace.model_validate_json(json.dumps(trace))
        assert [turn.model_dump(include=FIELDS) for turn in taken.turns] == trace["turns"]
        trained = [
            token
            for turn in trace["turns"]
            for token, mask in zip(
                turn["prompt_token_ids"] + turn["completion_token_ids"], turn["loss_mask"], strict=True
            )
            if mask
        ]
        assert trained == [token for one in record.record if one.trained for token in one.sampled.ids]

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


def test_each_call_has_what_it_was_shown_and_said_where_its_ids_can_be_read() -> None:
    record = episode(call(0, None, b"<|assistant|>", b"4"), call(1, 0, b"?", [*b"yes", EOS_ID]))
    _, turn = training_trace(record, FakeRenderer())["turns"]
    assert turn["metadata"]["message"] == {"role": "assistant", "content": "yes"}
    texts = ("<|assistant|>4?", f"yes{EOS_TEXT}")
    assert (turn["metadata"]["prompt_text"], turn["metadata"]["sampled_text"]) == texts
    assert "prompt_text" not in training_trace(record)["turns"][1]["metadata"]


def test_calls_that_were_withdrawn_leave_no_hole() -> None:
    record = episode(call(1, None, (1,), (2,)), call(4, 1, (3,), (4,)))
    assert [turn["prompt_token_ids"] for turn in training_trace(record)["turns"]] == [[1], [1, 2, 3]]


def test_a_call_that_sampled_nothing_is_left_out_but_stays_context() -> None:
    record = episode(call(0, None, (1,), ()), call(1, 0, (2,), (3,)))
    (turn,) = training_trace(record)["turns"]
    assert turn["prompt_token_ids"] == [1, 2]


pq = lazy("pyarrow.parquet")


def written(*found: EpisodeRecord) -> Any:
    file = io.BytesIO()
    export = ParquetExport(file)
    for record in found:
        export.write(record)
    export.close()
    file.seek(0)
    return pq.read_table(file)


@pytest.mark.slow
def test_there_is_one_row_per_call_by_the_documented_schema() -> None:
    open_one = episode(call(0, None, (9,), (8,)), id="f", state="open", group=None, reward=None, success=None)
    table = written(episode(call(0, None, (1, 2), (3,)), call(1, 0, (4,), (5, 6)), step=7), open_one)
    assert table.schema.metadata[b"ajet_schema"] == b"5"
    texts = ["episode", "task_id", "stream", "kind", "owner", "state", "group", "reason", "code", "drift", "agent"]
    texts += ["prompt_text", "sampled_text", "message"]
    assert {field.name: str(field.type) for field in table.schema} == {
        **dict.fromkeys(texts, "string"),
        "step": "int64",
        "reward": "double",
        "success": "bool",
        "call": "int32",
        "parent": "int32",
        **dict.fromkeys(("prompt_ids", "sampled_ids", "versions"), "list<element: int32>"),
        "logprobs": "list<element: double>",
        "trained": "bool",
        "call_reward": "double",
    }
    first, second, third = table.to_pylist()
    assert (first["call"], first["parent"], first["prompt_ids"], first["sampled_ids"]) == (0, None, [1, 2], [3])
    assert (second["parent"], second["prompt_ids"], second["logprobs"]) == (0, [1, 2, 3, 4], [-0.25, -0.5])
    assert (second["episode"], second["reward"], second["success"], second["step"]) == ("e", 0.5, True, 7)
    assert (third["episode"], third["reward"], third["group"], third["versions"]) == ("f", None, None, [3])


@given(st.lists(records(), max_size=4))
def test_parquet_and_openenv_say_the_same(found: list[EpisodeRecord]) -> None:
    rows = written(*found).to_pylist()
    turns = [turn for record in found for turn in training_trace(record)["turns"]]
    assert [(row["prompt_ids"], row["sampled_ids"], row["logprobs"]) for row in rows] == [
        (turn["prompt_token_ids"], turn["completion_token_ids"], turn["per_token_logps"]) for turn in turns
    ]


def test_many_rows_are_several_row_groups_and_one_file() -> None:
    long = episode(*(call(n, None, (n,), (n,)) for n in range(300)))
    assert written(long, long, long).num_rows == 900


def test_without_pyarrow_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InvalidRequest, match=r"pip install 'ajet\[export\]'"):
        ParquetExport(io.BytesIO())

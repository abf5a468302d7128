"""Parquet: what is read back is what was written, by the documented schema."""

from __future__ import annotations

import builtins
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import InvalidRequest
from swarm.exports import ParquetExport, training_trace
from swarm.wire import EpisodeRecord
from tests.lazily import lazy
from tests.swarm.exports.records import call, episode, records

pa = lazy("pyarrow")
pq = lazy("pyarrow.parquet")


def written(*found: EpisodeRecord) -> Any:
    file = io.BytesIO()
    export = ParquetExport(file)
    for record in found:
        export.write(record)
    export.close()
    file.seek(0)
    return pq.read_table(file)


def test_there_is_one_row_per_call_by_the_documented_schema() -> None:
    open_one = episode(call(0, None, (9,), (8,)), id="f", state="open", group=None, reward=None, success=None)
    table = written(episode(call(0, None, (1, 2), (3,)), call(1, 0, (4,), (5, 6)), step=7), open_one)
    assert table.schema.metadata[b"ajet_schema"] == b"3"
    texts = ["episode", "task_id", "stream", "kind", "owner", "state", "group", "reason", "code", "drift", "agent"]
    assert {field.name: str(field.type) for field in table.schema} == {
        **dict.fromkeys(texts, "string"),
        **{"step": "int64", "reward": "double", "success": "bool", "call": "int32", "parent": "int32"},
        **dict.fromkeys(("prompt_ids", "sampled_ids", "versions"), "list<element: int32>"),
        **{"logprobs": "list<element: double>", "trained": "bool", "call_reward": "double"},
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
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(InvalidRequest, match=r"pip install 'ajet\[export\]'"):
        ParquetExport(io.BytesIO())


def test_an_export_of_nothing_is_a_whole_file() -> None:
    assert written().num_rows == 0
    assert isinstance(written().schema, pa.Schema)

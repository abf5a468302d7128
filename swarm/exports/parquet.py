"""Episodes as parquet, one row per call.

    episode, task_id, stream, kind, owner, state   string
    group, reason                                  string, null where there is none
    code                                           string, sha256 of the agent's files, null where nobody said
    step                                           int64, the step that trained it, null where none did
    reward                                         float64, null where there is none yet
    success                                        bool, null where nobody said
    call, parent                                   int32, index of the call and of the one it continues (null: none)
    drift                                          string: start, clean, realign or fork
    prompt_ids                                     list<int32>, the whole prompt the engine saw
    sampled_ids                                    list<int32>
    logprobs                                       list<float64>, natural, of each sampled id
    versions                                       list<int32>, policy version of each sampled id
    prompt_text, sampled_text                      string, these ids as text, all marks and tool calls as they are;
                                                   null where no engine runs, whose tokenizer reads them
    message                                        string, JSON of what was said as a chat message: content, thinking,
                                                   tool calls, read as if tools had been offered; null as these
    trained                                        bool, false: the sampled ids are context and not to be trained
    call_reward                                    float64, null where it is the episode's
    agent                                          string, which of its agents made the call; null where none said

The file's metadata has `ajet_schema` = 5. Earlier versions wrote 4, without `message`, 3, without texts too, 2, without
`code`, `call_reward` and `agent` too, and 1, without `trained` too, where every call was. Needs pyarrow (the extra
`export`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import IO, Any

from swarm.errors import InvalidRequest
from swarm.exports.openenv import TokenReading, prompts, words
from swarm.wire import CallRecord, EpisodeRecord

_ROWS_A_GROUP = 256


class ParquetExport:
    """Writes one parquet file to an open binary file; `close` makes it whole."""

    def __init__(self, file: IO[bytes], reading: TokenReading | None = None) -> None:
        self._reading = reading
        self._arrow, parquet = _pyarrow()
        self._schema = _schema(self._arrow)
        self._writer = parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []

    def write(self, record: EpisodeRecord) -> None:
        """Add an episode's calls."""
        self._rows.extend(_rows(record, self._reading))
        if len(self._rows) >= _ROWS_A_GROUP:
            self._flush()

    def close(self) -> None:
        """Write what is left and the file's footer."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
            self._rows = []


def _rows(record: EpisodeRecord, reading: TokenReading | None) -> Iterator[dict[str, Any]]:
    shared = record.model_dump(exclude={"record", "id", "calls", "tokens", "refusals", "refusal"})
    for call, prompt in prompts(record):
        yield {
            "episode": record.id,
            **shared,
            "call": call.index,
            "parent": call.parent,
            "drift": call.drift,
            "prompt_ids": prompt,
            "sampled_ids": call.sampled.ids,
            **_words(call, prompt, reading),
            "logprobs": call.sampled.logprobs,
            "versions": call.sampled.versions,
            "trained": call.trained,
            "call_reward": call.reward,
            "agent": call.agent,
        }


def _words(call: CallRecord, prompt: Sequence[int], reading: TokenReading | None) -> dict[str, Any]:
    if reading is None:
        return {}
    found = words(call, prompt, reading)
    return {**found, "message": json.dumps(found["message"])}


def _schema(arrow: Any) -> Any:
    text, whole, ids = arrow.string(), arrow.int32(), arrow.list_(arrow.int32())
    kinds = {
        **dict.fromkeys(("episode", "task_id", "stream", "kind", "owner", "state", "group", "reason", "code"), text),
        "step": arrow.int64(),
        "reward": arrow.float64(),
        "success": arrow.bool_(),
        "call": whole,
        "parent": whole,
        "drift": text,
        "prompt_ids": ids,
        "sampled_ids": ids,
        "prompt_text": text,
        "sampled_text": text,
        "message": text,
        "logprobs": arrow.list_(arrow.float64()),
        "versions": ids,
        "trained": arrow.bool_(),
        "call_reward": arrow.float64(),
        "agent": text,
    }
    return arrow.schema(list(kinds.items()), metadata={"ajet_schema": "5"})


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InvalidRequest(
            "parquet needs pyarrow where the server runs: pip install 'ajet[export]'; or take format=openenv",
            param="format",
        ) from None
    return pyarrow, pyarrow.parquet

"""Looking at episodes: every token of an open one, what was written of one that is over."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import io
import json
import sys
import tempfile
import types
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.fake import EOS_ID, EOS_TEXT, FakeRenderer
from swarm.client import AsyncSwarmClient
from swarm.errors import InvalidRequest, NotFound, StoreUnavailable, Unreachable
from swarm.server import Keys, SwarmServer, inspection
from swarm.server.inspection import Inspection, ParquetExport, token_texts, training_trace
from swarm.wire import CallRecord, EpisodeRecord, TokenSpan
from tests.lazily import lazy
from tests.swarm.server.support import Answer, Served, eventually, serving

pq = lazy("pyarrow.parquet")


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, script=lambda prompt, rng: "a€" if "one" in prompt else "b") as running:
        yield running


async def test_an_open_episode_is_seen_with_every_token(served: Served) -> None:
    lease = await served.begin("t")
    first = await served.chat(lease, "one")
    await served.chat(lease, "one", first.text, "two")
    await served.chat(lease, "one", first.text, "three", max_tokens=1)
    record = EpisodeRecord.model_validate(await served.get(f"/episodes/{lease['episode_id']}", "viewer"))
    assert (record.id, record.task_id, record.state, record.calls) == (lease["episode_id"], "t", "open", 3)
    root, second, third = record.record
    assert [(call.parent, call.drift) for call in record.record] == [(None, "start"), (0, "clean"), (0, "clean")]
    assert "".join(root.context.texts) == f"<|user|>one{EOS_TEXT}<|assistant|>"
    assert root.sampled.texts == ("a", "", "", "€", EOS_TEXT)
    assert len(root.sampled.ids) == len(root.sampled.logprobs) == len(root.sampled.versions) == 5
    assert "".join(second.context.texts) == f"<|user|>two{EOS_TEXT}<|assistant|>"
    assert (root.truncated, third.truncated) == (False, True)
    assert record.tokens == sum(len(call.sampled.ids) for call in record.record)
    seen = served.backend.engine.seen
    assert (root.context.ids + root.sampled.ids + second.context.ids, second.sampled.ids) == seen[1]


async def test_refused_calls_are_seen_by_episode_and_code_open_and_over(served: Served) -> None:
    lease = await served.begin("t")
    await served.chat(lease, "x" * 500_000)
    await served.chat(lease, "one", temperature=-1)
    path = f"/episodes/{lease['episode_id']}"
    refusals = {"context_length_exceeded": 1, "invalid_request": 1}
    assert (await served.get(path, "viewer"))["refusals"] == refusals
    ended = await served.verb(lease, "end", {"reward": 1})
    assert ended.body["refused"] == 2
    over = EpisodeRecord.model_validate(await served.get(path, "viewer"))
    assert (over.reason, over.calls, over.refusals) == ("no_calls", 0, refusals)
    listed, snapshot = await served.get("/episodes", "viewer"), await served.get("/snapshot", "viewer")
    assert listed["episodes"][0]["refusal"] == over.refusal == snapshot["refusal"] == ended.body["refusal"]
    assert "temperature" in str(over.refusal)
    assert snapshot["refusals"] == refusals


async def test_without_an_engine_what_was_written_is_seen_without_texts(served: Served, tmp_path: Path) -> None:
    lease = await served.begin("t", kind="eval")
    await served.chat(lease, "one")
    await served.end(lease, 1.0)
    path = f"/episodes/{lease['episode_id']}"
    whole = EpisodeRecord.model_validate(await served.get(path, "viewer"))
    await served.server.stop()
    bare = EpisodeRecord.model_validate(await served.get(path, "viewer"))
    assert [call.sampled.ids for call in bare.record] == [call.sampled.ids for call in whole.record]
    assert (bare.record[0].sampled.texts, bare.record[0].truncated) == ((), None)
    later = Inspection(SwarmServer(tmp_path, tmp_path, Keys()))  # a process that has loaded no job
    assert await later.episode(lease["episode_id"]) == bare
    with pytest.raises(NotFound):
        await later.episode("nobody")


async def test_what_was_never_written_is_no_episode_and_makes_no_file(tmp_path: Path) -> None:
    inspection = Inspection(SwarmServer(tmp_path, tmp_path, Keys()))
    assert (await inspection.episodes()).episodes == ()
    file = tmp_path / "store.sqlite3"
    assert not await asyncio.to_thread(file.exists)
    await asyncio.to_thread(file.touch)
    assert (await inspection.episodes()).episodes == ()


async def test_a_store_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    await asyncio.to_thread((tmp_path / "store.sqlite3").write_bytes, b"no database " * 100)
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        await Inspection(SwarmServer(tmp_path, tmp_path, Keys())).episodes()


async def test_all_episodes_are_exported_the_oldest_first(served: Served) -> None:
    leases = [await served.begin("t", kind="eval") for _ in range(3)]
    for lease in leases[:2]:
        await served.chat(lease, "one")
    await served.end(leases[0], 1.0)
    key = {"authorization": f"Bearer {served.server.keys.role_key('client')}"}
    async with served.http.get(f"{served.url}/samples", headers=key) as answer:
        assert answer.content_type == "application/jsonl"
        told = json.loads(answer.headers["X-Ajet-Export"])
        assert told == {"episodes": 2, "pruned": 0, "no_tokens": 1, "withdrawn": 0}
        traces = [json.loads(line) for line in (await answer.text()).splitlines()]
    names = [trace["turns"][0]["node_id"] for trace in traces]
    assert names == [f"{lease['episode_id']}/0" for lease in leases[:2]]
    assert [trace["turns"][0]["metadata"]["state"] for trace in traces] == ["ended", "open"]
    async with served.http.get(f"{served.url}/samples?format=parquet", headers=key) as answer:
        table = pq.read_table(io.BytesIO(await answer.read()))
    assert table.column("sampled_ids").to_pylist() == [trace["turns"][0]["completion_token_ids"] for trace in traces]


@pytest.mark.parametrize("form", ["openenv", "parquet"])
async def test_an_export_that_cannot_be_is_refused_before_its_first_byte(served: Served, form: str) -> None:
    empty = await served.begin("t", kind="eval")
    for name in ("nobody", empty["episode_id"]):
        answer = await served.call("GET", f"/samples?format={form}&episode={name}", served.admin)
        assert (answer.status, answer.code) == (404, "not_found")
    answer = await served.call("GET", "/samples?format=csv", served.admin)
    assert (answer.status, answer.body["error"]["param"]) == (400, "format")
    assert (await served.call("GET", "/samples", served.server.keys.role_key("viewer"))).status == 403


RENDERER = FakeRenderer()


class Trimming(FakeRenderer):
    """Drops a space at the beginning of what it decodes, as SentencePiece's tokenizers do."""

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        text = super().decode(ids, special=special)
        return text.removeprefix(" ")


@given(st.text(max_size=40), st.booleans())
def test_the_texts_joined_are_the_text(text: str, ended: bool) -> None:
    ids = [*text.encode(), *([EOS_ID] if ended else [])]
    texts = token_texts(RENDERER, ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == text + (EOS_TEXT if ended else "")


def test_a_tokenizer_that_drops_leading_spaces_loses_none_inside() -> None:
    assert "".join(token_texts(Trimming(), list(b"one  two three"))) == "one  two three"
    assert "".join(token_texts(Trimming(), list(b" two"), before=list(b"one"))) == " two"


LARGE = 64 << 20
"""Bytes that no buffer between a server and a client takes."""


@pytest.fixture
async def exporting(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path) as running:
        lease = await running.begin("t", kind="eval")
        assert (await running.chat(lease, "one")).status == 200
        await running.end(lease, 1.0)
        yield running


class Held:
    """While its gate is shut, exports wait for their first episode."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.waiting = 0

    async def all_places_are_taken(self) -> None:
        await eventually(lambda: self.waiting, lambda waiting: waiting == inspection.MOST_AT_ONCE)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    found, whole = Held(), Inspection.tokens

    async def waiting(self: Inspection, name: str) -> EpisodeRecord:
        found.waiting += 1
        await found.gate.wait()
        return await whole(self, name)

    monkeypatch.setattr(Inspection, "tokens", waiting)
    return found


@contextlib.asynccontextmanager
async def asked(served: Served, form: str = "openenv") -> AsyncIterator[aiohttp.ClientResponse]:
    key = {"authorization": f"Bearer {served.admin}"}
    async with served.http.get(f"{served.url}/samples?format={form}", headers=key) as answer:
        yield answer


async def exported(served: Served) -> int:
    async with asked(served) as answer:
        await answer.read()
        return answer.status


async def refused(served: Served) -> Answer:
    return await served.call("GET", "/samples", served.admin)


def left(folder: Path, name: str) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(name)]


async def test_more_than_a_few_at_once_are_told_to_come_again(exporting: Served, held: Held) -> None:
    under_way = [asyncio.create_task(exported(exporting)) for _ in range(inspection.MOST_AT_ONCE)]
    await held.all_places_are_taken()
    answer = await refused(exporting)
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (429, "throttled", "10")
    assert "found 2" in answer.message
    held.gate.set()
    assert await asyncio.gather(*under_way) == [200, 200]
    assert await exported(exporting) == 200


async def test_who_leaves_while_an_export_is_made_leaves_its_place(exporting: Served, held: Held) -> None:
    under_way = [asyncio.create_task(exported(exporting)) for _ in range(inspection.MOST_AT_ONCE)]
    await held.all_places_are_taken()
    for task in under_way:
        task.cancel()
    await asyncio.gather(*under_way, return_exceptions=True)
    held.gate.set()
    await eventually(lambda: exported(exporting), lambda status: status == 200)


@pytest.mark.slow
@pytest.mark.parametrize("leaves", [True, False])
async def test_who_takes_nothing_of_it_loses_its_place(
    exporting: Served, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    monkeypatch.setattr(inspection, "STALLED_S", 600.0 if leaves else 0.2)
    monkeypatch.setattr(inspection, "training_trace", lambda *_: {"pad": "x" * LARGE})
    async with contextlib.AsyncExitStack() as open_ones:
        for _ in range(inspection.MOST_AT_ONCE):
            answer = await open_ones.enter_async_context(asked(exporting))
            assert answer.status == 200
        if leaves:
            assert (await refused(exporting)).status == 429
            await open_ones.aclose()
        monkeypatch.setattr(inspection, "training_trace", lambda *_: {})
        await eventually(lambda: exported(exporting), lambda status: status == 200)


async def test_what_was_cut_short_is_no_file(
    exporting: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def broken(self: inspection.Export) -> AsyncIterator[bytes]:
        yield b"{}\n"
        raise TimeoutError

    monkeypatch.setattr(inspection.Export, "pieces", broken)
    async with AsyncSwarmClient(exporting.url, exporting.admin) as client:
        with pytest.raises(Unreachable, match="did not send all"):
            await client.export(tmp_path / "traces.jsonl")
    assert not left(tmp_path, "traces")


@pytest.mark.parametrize("form", ["openenv", "parquet"])
async def test_a_full_disk_is_one_error_and_nothing_stays_of_the_export(
    exporting: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: Any
) -> None:
    made: list[Any] = []

    def full() -> Any:
        made.append(open("/dev/full", "w+b"))  # noqa: SIM115 - the server closes it
        return made[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    async with AsyncSwarmClient(exporting.url, exporting.admin) as client:
        for _ in range(inspection.MOST_AT_ONCE + 1):
            with pytest.raises(StoreUnavailable, match="no room"):
                await client.export(tmp_path / "out", form)
        assert not left(tmp_path, "out")
        assert [file.closed for file in made] == [True] * len(made)
        monkeypatch.undo()
        assert await client.export(tmp_path / "out", form) > 0


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


def test_a_call_that_sampled_nothing_is_left_out_but_stays_context() -> None:
    record = episode(call(0, None, (1,), ()), call(1, 0, (2,), (3,)))
    (turn,) = training_trace(record)["turns"]
    assert turn["prompt_token_ids"] == [1, 2]


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

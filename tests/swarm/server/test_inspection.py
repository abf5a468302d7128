"""Looking at episodes: every token of an open one, what was written of one that is over."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.fake import EOS_ID, EOS_TEXT, FakeRenderer
from swarm.client import AsyncSwarmClient
from swarm.errors import NotFound, StoreUnavailable, Unreachable
from swarm.server import Keys, SwarmServer
from swarm.server.watching import Inspection, token_texts
from swarm.wire import EpisodeRecord
from tests.swarm.server.support import Served, serving


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


async def test_what_was_never_written_is_no_episode_and_a_store_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    inspection = Inspection(SwarmServer(tmp_path, tmp_path, Keys()))
    assert (await inspection.episodes()).episodes == ()
    file = tmp_path / "store.sqlite3"
    assert not await asyncio.to_thread(file.exists)
    await asyncio.to_thread(file.touch)
    assert (await inspection.episodes()).episodes == ()
    await asyncio.to_thread(file.write_bytes, b"no database " * 100)
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        await inspection.episodes()


async def test_all_episodes_are_exported_the_oldest_first(served: Served) -> None:
    leases = [await served.begin("t", kind="eval") for _ in range(3)]
    for lease in leases[:2]:
        await served.chat(lease, "one")
    await served.end(leases[0], 1.0)
    key = {"authorization": f"Bearer {served.server.keys.role_key('client')}"}
    async with served.http.get(f"{served.url}/samples", headers=key) as answer:
        assert answer.content_type == "application/jsonl"
        assert json.loads(answer.headers["X-Ajet-Export"]) == {"episodes": 3, "pruned": 0, "no_tokens": 0}
        lines = [EpisodeRecord.model_validate_json(line) for line in (await answer.text()).splitlines()]
    assert [(line.id, line.state) for line in lines] == [
        (leases[0]["episode_id"], "ended"), (leases[1]["episode_id"], "open"),
    ]  # fmt: skip
    assert lines == [await Inspection(served.server).episode(line.id) for line in lines]


async def test_an_export_that_cannot_be_is_refused_before_its_first_byte(served: Served) -> None:
    empty = await served.begin("t", kind="eval")
    for name in ("nobody", empty["episode_id"]):
        answer = await served.call("GET", f"/samples?episode={name}", served.admin)
        assert (answer.status, answer.code) == (404, "not_found")
    assert (await served.call("GET", "/samples", served.server.keys.role_key("viewer"))).status == 403


async def test_what_is_given_up_while_it_is_exported_is_a_missing_line(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        await served.chat(await served.begin("t"), "one")
    inspection = Inspection(served.server)
    (listed, *_) = (await inspection.episodes()).episodes
    counts, lines = await inspection.export(None)
    tokens = AsyncMock(side_effect=[NotFound("gone"), await inspection.tokens(listed.id)])
    monkeypatch.setattr(inspection, "tokens", tokens)
    assert (counts.episodes, len([line async for line in lines])) == (2, 1)


async def test_what_was_cut_short_is_no_file(served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    await served.chat(await served.begin("t"), "one")
    monkeypatch.setattr(Inspection, "episode", AsyncMock(side_effect=StoreUnavailable("gone")))
    async with AsyncSwarmClient(served.url, served.admin) as client:
        with pytest.raises(Unreachable, match="did not send all"):
            await client.export(tmp_path / "episodes.jsonl")
    assert "episodes.jsonl" not in os.listdir(tmp_path)


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

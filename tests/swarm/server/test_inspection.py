"""Looking at episodes: every token of an open one, what was written of one that is over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from swarm.backends.fake import EOS_TEXT
from swarm.errors import NotFound
from swarm.server import Keys, SwarmServer
from swarm.server.inspection import Inspection
from swarm.store import FakeStore
from swarm.wire import CallRecord, EpisodeList, EpisodeRecord, EpisodeSummary, TokenSpan
from tests.swarm.server.support import Served, serving


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, script=lambda prompt, rng: "a€" if "one" in prompt else "b") as running:
        yield running


async def looked(served: Served, path: str, role: Any = "viewer") -> Any:
    answer = await served.call("GET", path, served.server.keys.role(role))
    assert answer.status == 200, answer
    return answer.body


async def test_an_open_episode_is_seen_with_every_token(served: Served) -> None:
    lease = await served.begin("t")
    first = await served.chat(lease, "one")
    await served.chat(lease, "one", first.text, "two")
    await served.chat(lease, "one", first.text, "three", max_tokens=1)
    record = EpisodeRecord.model_validate(await looked(served, f"/episodes/{lease['episode_id']}"))
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


async def test_the_list_has_the_newest_first_and_no_more_than_asked_for(served: Served) -> None:
    leases = [await served.begin(task, kind="eval") for task in ("a", "b", "c")]
    listed = EpisodeList.model_validate(await looked(served, "/episodes?limit=2")).episodes
    assert [episode.id for episode in listed] == [leases[2]["episode_id"], leases[1]["episode_id"]]
    assert listed[0].kind == "eval"


@pytest.mark.parametrize("query", ["limit=0", "limit=10001", "limit=x", "colour=red"])
async def test_a_wrong_query_names_its_parameter(served: Served, query: str) -> None:
    answer = await served.call("GET", f"/episodes?{query}", served.admin)
    assert (answer.status, answer.code, answer.body["error"]["param"]) == (400, "invalid_request", query.split("=")[0])


async def test_an_unknown_episode_is_404(served: Served) -> None:
    answer = await served.call("GET", "/episodes/nobody", served.admin)
    assert (answer.status, answer.code) == (404, "not_found")
    assert "GET /episodes" in answer.message


class Written(FakeStore):
    """A store that has two episodes."""

    async def episodes(self, limit: int) -> EpisodeList:
        return EpisodeList(episodes=tuple(EpisodeSummary(**_summary(name)) for name in ("new", "old"))[:limit])

    async def episode(self, episode: str) -> EpisodeRecord | None:
        call = CallRecord(
            index=0,
            parent=None,
            drift="start",
            context=TokenSpan(ids=tuple(b"hi"), texts=()),
            sampled=TokenSpan(ids=(65,), texts=(), logprobs=(-0.5,), versions=(3,)),
        )
        return EpisodeRecord(**_summary(episode), record=(call,)) if episode in ("new", "old") else None


def _summary(name: str) -> dict[str, Any]:
    known = {"task_id": "t", "stream": "s", "kind": "train", "owner": "o", "state": "consumed", "reward": 1.0}
    return {"id": name, **known, "calls": 1, "tokens": 1}


async def test_open_episodes_and_written_ones_are_one_list(served: Served) -> None:
    lease = await served.begin("t")
    inspection = Inspection(served.server, Written)
    assert [episode.id for episode in (await inspection.episodes()).episodes] == [lease["episode_id"], "new", "old"]
    assert [episode.id for episode in (await inspection.episodes(2)).episodes] == [lease["episode_id"], "new"]
    assert await inspection.names() == ["old", "new", lease["episode_id"]]


async def test_a_written_episode_has_its_texts_while_an_engine_runs(served: Served) -> None:
    (call,) = (await Inspection(served.server, Written).episode("old")).record
    assert (call.context.texts, call.sampled.texts) == (("h", "i"), ("A",))


async def test_without_an_engine_what_was_written_is_seen_without_texts(tmp_path: Path) -> None:
    inspection = Inspection(SwarmServer(tmp_path, tmp_path, Keys()), Written)
    record = await inspection.episode("old")
    assert record.record[0].sampled.ids == (65,)
    assert record.record[0].sampled.texts == ()
    assert record.record[0].truncated is None
    with pytest.raises(NotFound):
        await inspection.episode("nobody")

"""A call with `train` false is served and remembered, and nothing it sampled is ever learned."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from swarm.timelines.node import TrainRow
from tests.swarm.conformance.support import saying
from tests.swarm.server.support import MODEL, Answer, Served, job, serving

SAYS = ("first", "second", "third", "fourth")
ASKED = {
    "chat": ("/v1/chat/completions", {}),
    "responses": ("/v1/responses", {}),
    "messages": ("/v1/messages", {"max_tokens": 99}),
}
WAYS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "field": ({"train": False}, {}),
    "header": ({}, {"x-ajet-train": "false"}),
    "both": ({"train": True}, {"x-ajet-train": "false"}),
}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, job(max_tokens=50, steps=3), script=saying(*SAYS)) as one:
        yield one


async def ask(
    served: Served, lease: dict[str, Any], turns: int, *, protocol: str = "chat", way: str | None = None, **fields: Any
) -> Answer:
    """Send what was said in the first turns, and one question more."""
    messages = [
        message
        for said in SAYS[:turns]
        for message in ({"role": "user", "content": "ask"}, {"role": "assistant", "content": said})
    ]
    messages.append({"role": "user", "content": "ask"})
    path, needed = ASKED[protocol]
    more, headers = WAYS[way] if way is not None else ({}, {})
    told = "input" if protocol == "responses" else "messages"
    body = {"model": MODEL, told: messages, **needed, **more, **fields}
    return await served.call("POST", path, lease["api_key"], body, **headers)


async def fill(served: Served, *leases: dict[str, Any]) -> None:
    """End these episodes of task `t`, and play the rest of a batch."""
    for lease in leases:
        assert (await served.end(lease)).status == 200
    for task in ["t"] * (2 - len(leases)) + ["u", "u"]:
        await served.play(task)


def learned(served: Served, lease: dict[str, Any]) -> list[list[str]]:
    """Return, of each row of an episode, the texts that were learned."""
    (episode,) = [one for one in served.backend.learner.batches[0].episodes if one.episode_id == lease["episode_id"]]
    return [_texts(row) for row in episode.rows]


def _texts(row: TrainRow) -> list[str]:
    texts, before = [], 0
    for token, mark in zip(row.ids, row.sampled, strict=True):
        if mark and not before:
            texts.append(b"")
        if mark and token < 256:
            texts[-1] += bytes([token])
        before = mark
    return [text.decode() for text in texts]


@pytest.mark.parametrize(
    ("protocol", "way", "merged"),
    [
        *((protocol, way, "tree") for protocol, way in zip(ASKED, WAYS, strict=True)),
        ("chat", "field", "linear"), ("chat", "field", "none"),
    ],
)  # fmt: skip
async def test_what_it_sampled_is_context_for_what_goes_on_from_it(
    tmp_path: Path, protocol: str, way: str, merged: str
) -> None:
    async with serving(tmp_path, job(max_tokens=50, merging=merged), script=saying(*SAYS)) as served:
        lease = await served.begin()
        for turn, how in enumerate((None, way, None, way)):
            assert (await ask(served, lease, turn, protocol=protocol, way=how)).status == 200
        await fill(served, lease)
        status = await served.until(step=1)
        assert learned(served, lease) == ([["first"], ["third"]] if merged == "none" else [["first", "third"]])
        assert status["metrics"]["calls/untrained"] == 2.0
        trained = sum(row.sampled.count(1) for one in served.backend.learner.batches[0].episodes for row in one.rows)
        assert status["metrics"]["tokens/trained"] == trained
        assert served.rollout.counts["calls_untrained"] == 2


async def test_an_episode_of_such_calls_alone_is_dropped_with_its_reason(served: Served) -> None:
    lease = await served.begin()
    for turn in range(2):
        await ask(served, lease, turn, way="field")
    assert (await served.end(lease)).status == 200
    counts = served.rollout.counts
    assert (counts["drop_no_trained_calls"], counts["drop_no_calls"]) == (1, 0)
    await fill(served)
    await served.until(step=1)
    assert lease["episode_id"] not in {one.episode_id for one in served.backend.learner.batches[0].episodes}


async def test_it_may_be_sampled_as_an_evaluation_is(served: Served) -> None:
    """Nothing has to be computed again, so a judge may be asked greedily in a training episode."""
    lease = await served.begin()
    refused = await ask(served, lease, 0, temperature=0)
    assert (refused.status, refused.body["error"]["param"]) == (400, "temperature")
    assert (await ask(served, lease, 0, way="field", temperature=0, top_p=0.5)).status == 200


async def test_a_header_that_says_neither_is_refused_by_its_name(served: Served) -> None:
    lease = await served.begin()
    refused = await served.chat(lease, headers={"x-ajet-train": "no"})
    assert (refused.status, refused.body["error"]["param"]) == (400, "x-ajet-train")


async def test_it_is_no_less_untrained_after_a_restart(tmp_path: Path) -> None:
    wanted = job(max_tokens=50, steps=3)
    async with serving(tmp_path, wanted, script=saying(*SAYS)) as served:
        lease = await served.begin()
        for turn, way in enumerate(("field", None, "header")):
            await ask(served, lease, turn, way=way)
        assert (await served.end(lease)).status == 200
        silent = await served.begin("u")
        await ask(served, silent, 0, way="field")
        assert (await served.end(silent)).status == 200
    async with serving(tmp_path, wanted, script=saying(*SAYS)) as served:
        for task in "tuu":
            await served.play(task)
        await served.until(step=1)
        assert learned(served, lease) == [["second"]]
        exported = await served.call("GET", f"/episodes/{lease['episode_id']}", served.admin)
        assert [call["trained"] for call in exported.body["record"]] == [False, True, False]


async def test_it_is_masked_in_exports(served: Served) -> None:
    lease = await served.begin()
    for turn, way in enumerate(("field", None)):
        await ask(served, lease, turn, way=way)
    await served.end(lease)
    turns = (await served.get(f"/samples?format=openenv&episode={lease['episode_id']}"))["turns"]
    assert [sum(turn["loss_mask"]) for turn in turns] == [0, len(b"second") + 1]
    assert [turn["metadata"]["trained"] for turn in turns] == [False, True]

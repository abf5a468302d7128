"""Training episodes are played again from the server's record: plays of their tasks pass, anything else is found."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from research.runs.files import AttemptFolder
from research.runs.provenance import LISTED, READS, ReplayAudit, count_overlap, extract_frames, file_hashes, replay
from research.runs.wandb_log import TrackedRun
from swarm.backends.fake import Script, number_script
from swarm.client import Agent, AsyncSwarmClient, Episode
from swarm.environments.base import Outcome, Split, said
from swarm.environments.play import agent_of
from swarm.environments.registry import get_environment
from swarm.wire import CallRecord, EpisodeRecord, EpisodeSummary, TokenSpan
from tests.research.factories import make_order
from tests.swarm.server.support import job, serving


@contextlib.asynccontextmanager
async def served(path: Path, name: str, script: Script = number_script, **fields: Any) -> AsyncIterator[Any]:
    """Serve a job on an environment; yield the server, a client of it, and 48 hidden tasks."""
    environment = get_environment(name)
    wanted = job(environment=name, episodes_per_step=16, **fields)
    async with (
        serving(path, wanted, script=script) as server,
        AsyncSwarmClient(server.url, server.server.keys.role_key("admin")) as client,
    ):
        yield server, client, environment.tasks("hidden")[:48]


async def found(
    path: Path, name: str, agent: Agent | None = None, script: Script = number_script, split: Split = "train"
) -> ReplayAudit:
    environment = get_environment(name)
    async with served(path, name, script, max_context=1024, max_tokens=128) as (_, client, hidden):
        await client.evaluate(agent_of(environment), hidden, concurrency=8)
        await client.rollout(agent or agent_of(environment), environment.tasks(split), concurrency=8)
        return await replay(client, environment, random.Random(1))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["guess", "market"])
async def test_honest_training_passes(name: str, tmp_path: Path) -> None:
    result = await found(tmp_path, name)
    assert (result.looked_at, result.complaint) == (32, None)


@pytest.mark.slow
@pytest.mark.parametrize("leaks", [False, True])
async def test_of_code_that_wrote_the_prompt_hidden_openings_are_looked_for(leaks: bool, tmp_path: Path) -> None:
    environment, shown = get_environment("arith"), get_environment("arith").tasks("hidden")[7]

    def prompt(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        example = environment.game(shown).opening() if leaks else []
        return [{"role": "system", "content": "Think."}, *example, *messages]  # type: ignore[misc]

    async with served(tmp_path, "arith", max_context=1024, max_tokens=128) as (_, client, _):
        await client.rollout(agent_of(environment, prompt=prompt), environment.tasks("train"), concurrency=8)
        result = await replay(client, environment, random.Random(1), rewritten=True)
    assert (result.looked_at, result.complaint is None) == (32, not leaks)
    assert leaks == ("shows the policy a hidden task" in (result.complaint or ""))


@pytest.mark.slow
async def test_honest_training_passes_when_its_server_was_killed_and_gone_on_from(tmp_path: Path) -> None:
    name = "arith"
    environment = get_environment(name)
    agent, tasks = agent_of(environment), environment.tasks("train")
    async with served(tmp_path, name) as (server, client, hidden):
        await client.evaluate(agent, hidden, concurrency=8)
        begun = asyncio.create_task(client.rollout(agent, tasks, concurrency=8))
        await server.until(step=1, state="ROLLING")
        begun.cancel()
        await asyncio.gather(begun, return_exceptions=True)
        cut_short = await client.begin(hidden[0], kind="eval")
        await cut_short.chat(environment.game(hidden[0]).opening())
    async with served(tmp_path, name) as (_, client, _):
        await client.rollout(agent, tasks, concurrency=8)
        result = await replay(client, environment, random.Random(1))
    assert (result.looked_at, result.complaint) == (32, None)


def spoken(*answer: str, special: tuple[int, ...], index: int, context: str) -> CallRecord:
    return CallRecord(
        index=index, parent=index - 1 if index else None, drift="clean", truncated=False,
        context=TokenSpan(ids=(index,), texts=(context,)),
        sampled=TokenSpan(ids=tuple(range(len(answer))), texts=answer, special=special),
    )  # fmt: skip


def test_special_tokens_are_no_part_of_an_answer() -> None:
    environment = get_environment("guess")
    (task, *_) = [task for task in environment.tasks("train") if task.data["secret"] > task.data["low"]]
    opening = str(environment.game(task).opening()[0]["content"])
    (hint,) = environment.game(task).answer(said(str(task.data["low"])))
    calls = (
        spoken("<0>", str(task.data["low"]), "<1>", special=(0, 2), index=0, context=opening),
        spoken(str(task.data["secret"]), "<1>", special=(1,), index=1, context=str(hint["content"])),
    )
    assert extract_frames(EpisodeRecord.model_construct(record=calls), environment, task) == {
        (True, "\0"),
        (False, "<1>\0"),
    }


SUM = {"role": "user", "content": "7+12"}


def opening(episode: Episode[Any], name: str = "arith") -> list[Any]:
    return [*get_environment(name).game(episode.task).opening()]


async def hidden_content(episode: Episode[Any]) -> None:
    environment, own = get_environment("arith"), str(opening(episode)[0]["content"])
    others = (environment.game(task).opening() for task in environment.tasks("hidden"))
    await episode.chat(next(other for other in others if own not in str(other[0]["content"])))


async def more_than_the_game(episode: Episode[Any]) -> None:
    await episode.chat([{"role": "user", "content": opening(episode)[0]["content"] + " or 7+12"}])


async def two_conversations(episode: Episode[Any]) -> None:
    await episode.chat([SUM])
    await agent_of(get_environment("arith"))(episode)


async def a_turn_too_many(episode: Episode[Any]) -> None:
    reply = await episode.chat(opening(episode))
    await episode.chat([*opening(episode), {"role": "assistant", "content": reply.content}, SUM])


async def impatient(episode: Episode[Any]) -> None:
    await episode.chat(opening(episode, "guess"))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "play", "split", "why"), [
    ("arith", hidden_content, "train", "not show"), ("arith", more_than_the_game, "train", "more than its game"),
    ("arith", two_conversations, "train", "conversation"), ("arith", a_turn_too_many, "train", "goes on after"),
    ("guess", impatient, "train", "ends before"), ("arith", None, "hidden", "not for training"),
])  # fmt: skip
async def test_what_is_no_play_of_a_training_task_is_found(
    name: str, play: Callable[[Episode[Any]], Awaitable[None]] | None, split: Split, why: str, tmp_path: Path
) -> None:
    async def agent(episode: Episode[Any]) -> Outcome:
        assert play is not None
        await play(episode)
        return Outcome(1.0, True)

    result = await found(tmp_path, name, agent if play else None, split=split)
    assert result.complaint
    assert result.looked_at == 32
    assert len(result.foreign) == 32 or play is impatient  # some guess right at once
    assert all(why in said for said in result.foreign.values())


@pytest.mark.slow
async def test_training_hidden_behind_a_flood_of_episodes_that_were_given_up_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = get_environment("arith")
    monkeypatch.setattr("research.runs.provenance.LISTED", 80)
    given_up: list[str] = []

    async def flooding(episode: Episode[Any]) -> Outcome:
        given_up.append(episode.id)
        if len(given_up) % 2:
            raise ValueError("given up")
        return await agent_of(environment)(episode)  # type: ignore[return-value]

    result = await found(tmp_path, "arith", flooding)
    assert "given up" in str(result.complaint)
    monkeypatch.setattr("research.runs.provenance.LISTED", 1000)
    honest = await found(tmp_path / "other", "arith", flooding)
    assert honest.complaint is None  # where all are listed, those given up hide nothing


@pytest.mark.parametrize(
    ("looked_at", "foreign", "told"),
    [(64, 0, "None"), (64, 4, "None"), (64, 5, "5 of 64"), (8, 1, "1 of 8"), (0, 0, "no training episode")],
)
def test_a_few_odd_plays_are_forgiven_and_unseen_ones_are_not(looked_at: int, foreign: int, told: str) -> None:
    assert told in str(ReplayAudit(looked_at, dict.fromkeys(map(str, range(foreign)), "odd")).complaint)


def summary(task: str, **changed: Any) -> EpisodeSummary:
    known: dict[str, Any] = {"kind": "train", "state": "consumed", "step": 1} | changed
    return EpisodeSummary(id=task, task_id=task, stream="default", owner="x", calls=1, tokens=1, **known)


def test_only_tasks_that_were_both_trained_on_and_evaluated_overlap() -> None:
    listed = [
        summary("a"), summary("b"), summary("b"),
        summary("c", kind="eval", step=None),
        summary("d", step=None, state="aborted"),
    ]  # fmt: skip
    assert (count_overlap(listed, {"b", "c", "d", "e"}), count_overlap(listed, {"x"})) == (1, 0)
    assert count_overlap([summary("a")] * LISTED, {"a"}) is None  # some may be missing from the list


class Reader:
    """Reads a log as one that was closed or not, and lets W&B write on meanwhile."""

    def __init__(self, *ended: bool, writes: int = 0) -> None:
        self._ended = iter(ended)
        self._writes = writes

    def __call__(self, path: Path) -> TrackedRun:
        if self._writes:
            self._writes -= 1
            path.write_bytes(path.read_bytes() + b"more")
        return TrackedRun(ended=next(self._ended, True))


@pytest.mark.parametrize(
    ("ended", "writes", "log"),
    [((True,), 0, b"log"), ((False, True), 2, b"logmoremore"), ((False,) * READS, 0, None)],
    ids=["whole", "still written", "never whole"],
)
def test_files_are_hashed_as_they_are_and_a_log_once_it_is_whole(
    tmp_path: Path, ended: tuple[bool, ...], writes: int, log: bytes | None
) -> None:
    folder, order = AttemptFolder(tmp_path), make_order()
    assert file_hashes(folder, order, Reader()) == {}
    folder.evaluation("final").write_text("{}")
    path = tmp_path / "wandb" / f"offline-run-1-{order.tracking_id}" / f"run-{order.tracking_id}.wandb"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"log")
    contents = {"evaluation-final.json": b"{}", **({} if log is None else {str(path.relative_to(tmp_path)): log})}
    assert file_hashes(folder, order, Reader(*ended, writes=writes)) == {
        name: hashlib.sha256(content).hexdigest() for name, content in contents.items()
    }

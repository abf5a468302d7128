"""The rollout frees what dead and stuck clients hold, counts every drop, and acknowledges only what is written."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from swarm import errors
from swarm.backends.fake import EOS_ID, FakeRenderer
from swarm.rendering.messages import BackendError
from swarm.rollout import episodes
from swarm.rollout.episodes import Closing, LeasedEpisode
from swarm.rollout.keys import Claims
from swarm.rollout.rollout import Rollout
from swarm.rollout.state import Admission, StateMachine
from swarm.rollout.teams import IN_DOUBT_S
from swarm.store.changes import EpisodeClosed, EpisodePrepared
from swarm.store.reading import RecoveredState
from swarm.store.tables import Sample, StreamRow
from swarm.timelines import Drift, Node
from swarm.wire import BeginRequest, EndAck, EndRequest, EpisodeKind, EpisodeRecord, EpisodeState, PrepareRequest
from swarm.wire import ServerState as S
from tests.swarm.server.support import Clock, job
from tests.swarm.store.support import FakeStore


class Scene:
    """A rollout in ROLLING, without HTTP and without a step loop: two groups of two."""

    def __init__(self, *states: S, **fields: Any) -> None:
        self.clock = Clock()
        self.store = FakeStore()
        self.machine = StateMachine()
        self.rollout = Rollout(
            job(**{"lease_ttl_s": 30, "drain_timeout_s": 10, **fields}), self.machine, self.store, self.clock
        )
        self.rollout.renderer = FakeRenderer()
        for state in states or (S.BOOTING, S.ROLLING):
            self.machine.transition_to(state, "broke" if state is S.FAILED else None)

    async def begin(self, task: str = "a", kind: EpisodeKind = "train", wait_s: float = 0.0) -> LeasedEpisode:
        return await self.rollout.begin(BeginRequest(task_id=task, kind=kind, wait_s=wait_s))

    def call(self, episode: LeasedEpisode) -> None:
        prompt = episode.tree.prompt([{"role": "user", "content": "q"}])
        version, answer = self.rollout.version, {"role": "assistant", "content": ""}
        episode.tree.keep(prompt, episode.tree.make_node(prompt, [EOS_ID], [-0.1], [version], text=""), answer)
        self.rollout.leases.touch(episode)

    async def end(self, episode: LeasedEpisode, reward: float = 1.0) -> EndAck:
        return await self.rollout.end(claims(episode), EndRequest(reward=reward))

    async def pass_time(self, seconds: float) -> None:
        """Sweep after so many seconds; what that begins in the background comes to its end."""
        self.clock.now += seconds
        self.rollout.sweep()
        async with asyncio.timeout(120):
            while any(held.settling is not None for held in self.rollout.leases.prepared):  # noqa: ASYNC110
                await asyncio.sleep(0)
            for _ in range(3):
                await asyncio.sleep(0)

    async def outcome(self, episode: LeasedEpisode) -> str:
        return (await self.rollout.teams.outcome(claims(episode))).state

    def closed(self) -> list[EpisodeClosed]:
        return [change for change in self.store.changes if isinstance(change, EpisodeClosed)]

    async def fill(self) -> list[LeasedEpisode]:
        episodes = [await self.begin(task) for task in "aabb"]
        for episode in episodes:
            self.call(episode)
        return episodes


@pytest.fixture
def scene() -> Scene:
    return Scene()


def claims(episode: LeasedEpisode) -> Claims:
    return Claims("lease", episode=episode.id, fencing_token=1)


async def play(scene: Scene, task: str = "a") -> LeasedEpisode:
    episode = await scene.begin(task)
    scene.call(episode)
    return episode


async def waiting(scene: Scene, task: str) -> asyncio.Task[LeasedEpisode]:
    line = scene.rollout.admission
    before, begun = len(line), asyncio.create_task(scene.begin(task, wait_s=10))
    async with asyncio.timeout(120):
        while len(line) == before and not begun.done():  # noqa: ASYNC110  -- the line tells nobody
            await asyncio.sleep(0)
    return begun


async def test_what_waits_in_line_hears_why_nobody_begins_and_a_place_given_to_one_who_left_is_given_back() -> None:
    for is_over, error in ((True, errors.JobFinished), (False, errors.EngineUnavailable)):
        scene = Scene()
        first, *_ = await scene.fill()
        with pytest.raises(errors.Throttled) as refusal:
            await scene.begin("c")
        assert (bool(refusal.value.retry_after), scene.rollout.counts["throttled"]) == (True, 1)
        gone = await waiting(scene, "a")
        await scene.rollout.abort(claims(first), "")  # whose place is given to it, but it does not hear of that
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone
        assert (scene.rollout.counts["begun"], scene.rollout.counts["aborted"], len(scene.rollout.leases)) == (5, 2, 3)
        begun = await waiting(scene, "c")
        if is_over:
            scene.rollout.finish()
        else:
            scene.machine.transition_to(S.OFFLINE)
        scene.rollout.notify()
        with pytest.raises(error):
            await begun
    with pytest.raises(errors.LeaseLost, match="was lost when the server was restarted"):
        await Scene().end(first)  # the next life, where its beginning was not written


async def test_a_slow_client_has_more_time_before_its_first_call(scene: Scene) -> None:
    slow, silent = await scene.begin(), await scene.begin()
    await scene.pass_time(100)
    scene.call(slow)
    await scene.pass_time(29)
    assert (await scene.end(slow)).state == "ended"
    with pytest.raises(errors.LeaseLost):
        await scene.end(silent)


async def test_groups_nobody_goes_on_with_make_room_once_they_are_idle(scene: Scene) -> None:
    for task in "ab":  # both places of the batch: one member each, of a client that is gone
        await scene.end(await play(scene, task))
        scene.clock.now += 10
    assert scene.rollout.streams().streams[0].unfinished == {"a": 1, "b": 1}
    begun = await waiting(scene, "c")
    for passed in (5, 5):
        assert not begun.done()
        await scene.pass_time(passed)
    assert (await begun).task_id == "c"
    assert scene.rollout.counts["drop_partial_group"] == 1
    assert scene.rollout.streams().streams[0].unfinished == {"b": 1}


async def draining(ended: int, **asked: Any) -> tuple[Scene, list[LeasedEpisode]]:
    """Return a full batch of four, so many of which have ended, and the others."""
    scene = Scene()
    episodes = [await scene.rollout.begin(BeginRequest(task_id=task, **asked)) for task in "aabb"]
    for episode in episodes:
        scene.call(episode)
    for done in episodes[:ended]:
        await scene.end(done)
    scene.machine.transition_to(S.ROLLING_POST)
    scene.rollout.full_since = scene.rollout.clock()
    scene.rollout.sweep()
    return scene, episodes[ended:]


def passes(scene: Scene, seconds: float, *heard: LeasedEpisode) -> None:
    for _ in range(int(seconds / 5)):
        scene.clock.now += 5
        for episode in heard:
            scene.rollout.heartbeat(claims(episode))
        scene.rollout.sweep()


@pytest.mark.parametrize(
    ("ended", "asked", "is_heard", "most_s"),
    [(3, {}, False, 10), (3, {"timeout_s": 100}, True, 100), (0, {"timeout_s": 100}, True, 100), (0, {}, True, 600)],
)
async def test_who_holds_a_batch_up_is_fenced_once_its_time_is_over_and_its_place_is_played_anew(
    ended: int, asked: dict[str, float], is_heard: bool, most_s: float
) -> None:
    scene, stragglers = await draining(ended, **asked)
    heard = stragglers if is_heard else []
    passes(scene, most_s - 5, *heard)
    assert scene.rollout.counts["fenced"] == 0
    passes(scene, 5, *heard)
    assert scene.rollout.counts["drop_held_up_batch"] == len(stragglers)
    for straggler in stragglers:
        with pytest.raises(errors.LeaseLost):
            await scene.end(straggler)
    for task in "aabb"[ended:]:
        await scene.end(await play(scene, task))
    assert scene.rollout.groups.complete


async def test_a_batch_in_which_all_are_still_at_work_has_no_stragglers() -> None:
    """However long their tools take, heartbeats or not: the drain time runs once half of the batch is done."""
    scene, (first, second, *others) = await draining(0)
    passes(scene, 25)
    await scene.end(first)
    assert scene.rollout.counts["fenced"] == 0
    await scene.end(second)
    for episode in others:
        scene.rollout.heartbeat(claims(episode))
    passes(scene, 10)
    assert scene.rollout.counts["fenced"] == 0
    passes(scene, 5)
    assert scene.rollout.counts["drop_held_up_batch"] == 2


async def test_in_the_update_begins_wait_and_in_booting_they_are_told_so() -> None:
    scene = Scene(S.BOOTING, S.ROLLING, S.ROLLING_POST, S.WEIGHT_SYNCING)
    begun = await waiting(scene, "a")
    assert not begun.done()
    scene.machine.transition_to(S.ROLLING)
    scene.rollout.notify()
    assert (await begun).task_id == "a"
    with pytest.raises(errors.EngineUnavailable, match="booting"):
        await Scene(S.BOOTING).begin("a")
    with pytest.raises(errors.EngineUnavailable, match="off"):
        await Scene(S.BOOTING, S.OFFLINE).begin("a")


async def test_an_end_is_acknowledged_once_it_is_written_and_meanwhile_nothing_else_gets_at_the_episode(
    scene: Scene,
) -> None:
    episode = await play(scene)
    scene.store.hold()
    ending = asyncio.create_task(scene.end(episode, 0.5))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not ending.done()
    assert scene.rollout.groups.collected == 0
    await scene.pass_time(1000)
    with pytest.raises(errors.EpisodeEnded, match="being ended"):
        await scene.rollout.abort(claims(episode), "")
    with pytest.raises(errors.EpisodeEnded, match="being ended"):
        scene.rollout.leases.find_and_renew(claims(episode))
    ending.cancel()  # it goes on though its client went away
    scene.store.release()
    assert (await scene.end(episode, 0.5)).state == "ended"
    (closed,) = scene.closed()
    assert closed.sample is not None
    assert (closed.episode, closed.state, closed.sample.reward, closed.sample.group) == (
        episode.id,
        "ended",
        0.5,
        "a#1",
    )
    assert scene.rollout.groups.collected == 1


async def test_an_end_told_again_changes_nothing_and_another_one_is_refused(scene: Scene) -> None:
    played = await play(scene, "b")
    assert (await scene.end(played, 1.0)).state == (await scene.end(played, 1.0)).state == "ended"
    with pytest.raises(errors.EpisodeEnded, match="another reward"):
        await scene.end(played, -1.0)


async def test_a_pool_too_small_for_a_batch_fails_with_its_reason_instead_of_spinning(scene: Scene) -> None:
    scene.rollout.groups._most_bytes = 500
    waiting = asyncio.create_task(scene.rollout.wait_until(lambda: scene.rollout.groups.complete))
    for _ in range(20):
        await scene.end(await play(scene))
        await asyncio.sleep(0)
        if waiting.done():
            break
    with pytest.raises(BackendError, match="pool_bytes"):
        await waiting
    assert scene.rollout.counts["drop_pool_bytes"] >= 4


def recovered(scene: Scene, **fields: Any) -> RecoveredState:
    nothing: dict[str, Any] = {
        "checkpoints": (), "step": 0, "replay": {}, "pool": (), "prepared": (), "fencing_tokens": {}, "streams": (),
        "begun": scene.rollout.counts["begun"], "counts": {},
    }  # fmt: skip
    return RecoveredState(**{**nothing, **fields})


def ended(name: str, group: str, reward: float = 1.0) -> Sample:
    node = Node(0, None, (1,), (2,), (-0.1,), (0,), "", Drift.START)
    return Sample(name, "a", "default", "me", group, reward, None, 1.0, (node,))


async def test_nobody_is_told_that_an_episode_is_over_before_it_is_known() -> None:
    ended, scene = claims(await Scene().begin()), Scene(S.BOOTING)
    for verb in (
        scene.rollout.end(ended, EndRequest(reward=1.0)),
        scene.rollout.abort(ended, ""),
        asyncio.to_thread(scene.rollout.heartbeat, ended),
        asyncio.to_thread(scene.rollout.renew_episode, ended),
        scene.rollout.teams.outcome(ended),
    ):
        with pytest.raises(errors.EngineUnavailable, match="booting"):
            await verb


async def test_an_orphaned_group_is_kept_while_a_team_may_still_decide() -> None:
    scene = Scene(group_size=4)
    await scene.end(await play(scene, "a"))
    held = await prepared(scene, "a", **DECIDER)
    await scene.pass_time(31)
    assert scene.rollout.groups.collected == 1
    await scene.rollout.abort(claims(held), "its team aborted")
    await scene.pass_time(31)
    assert scene.rollout.counts["drop_partial_group"] == 1


async def test_shares_that_cannot_be_written_down_do_not_count() -> None:
    scene = Scene(streams={"a": 1, "b": 1})
    before = scene.rollout.streams()
    scene.store.fail = "disk full"
    with pytest.raises(errors.StoreUnavailable):
        await scene.rollout.set_shares({"a": 3, "b": 1})
    assert scene.rollout.streams() == before
    scene.store.fail = None
    assert [stream.share for stream in (await scene.rollout.set_shares({"a": 3, "b": 1})).streams] == [0.75, 0.25]
    written = {change.name: change.share for change in scene.store.changes if isinstance(change, StreamRow)}
    assert written == {"a": 0.75, "b": 0.25}


async def test_who_waits_for_a_store_that_does_not_answer_is_told_to_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.rollout.episodes.SETTLING_S", 0.05)
    scene = Scene()
    episode = await play(scene)
    scene.store.hold()
    for _ in range(2):
        with pytest.raises(errors.StoreUnavailable, match="ask again"):
            await scene.end(episode)
    scene.store.release()
    assert (await scene.end(episode)).state == "ended"
    assert [closed.state for closed in scene.closed()] == ["ended"]


async def test_a_batch_that_falls_apart_while_calls_are_waited_for_is_waited_for_again(scene: Scene) -> None:
    for episode in await scene.fill():
        await scene.end(episode)
    quiet, apart = scene.rollout.quiesce, asyncio.Event()

    async def interrupted() -> None:
        await quiet()
        if not apart.is_set():
            apart.set()
            scene.rollout.groups._most_bytes = scene.rollout.groups.bytes - 1
            scene.rollout.drop(scene.rollout.groups.drop_heavy(), "pool_bytes")

    scene.rollout.quiesce = interrupted  # type: ignore[method-assign]
    taking = asyncio.create_task(scene.rollout.wait_for_batch())
    async with asyncio.timeout(120):
        await apart.wait()
        await scene.rollout.gate.enter()
        scene.rollout.gate.leave()
        assert not taking.done()
        scene.rollout.groups._most_bytes *= 2
        await scene.end(await play(scene))
        assert [group.name for group in await taking] == ["a#1", "b#2"]


async def test_a_place_that_a_stream_without_a_share_left_is_dealt_out_anew() -> None:
    scene = Scene(streams={"a": 1, "b": 1})
    left = await scene.rollout.begin(BeginRequest(task_id="x", stream="a"))
    await scene.rollout.set_shares({"b": 1})
    await scene.rollout.begin(BeginRequest(task_id="x", stream="b"))
    with pytest.raises(errors.Throttled):
        await scene.rollout.begin(BeginRequest(task_id="y", stream="b"))
    await scene.rollout.abort(claims(left), "no share")
    scene.rollout.sweep()
    assert (await scene.rollout.begin(BeginRequest(task_id="y", stream="b"))).stream == "b"


async def test_a_lease_runs_out_after_its_time_unless_it_is_renewed_or_a_call_is_in_flight(scene: Scene) -> None:
    episode, call = await play(scene), Mock(generating=False)
    for _ in range(2):
        scene.clock.now += 29
        scene.rollout.heartbeat(claims(episode))
    episode.calls.add(call)
    await scene.pass_time(1000)
    assert scene.rollout.heartbeat(claims(episode)).state == "open"
    scene.rollout.fence(episode, "held_up_update")
    (told,) = call.interrupt.call_args.args
    assert isinstance(told, errors.LeaseLost)
    repeats: Closing | None
    for repeats in (None, "ended", "aborted"):
        with pytest.raises(errors.LeaseLost):
            scene.rollout.leases.find(claims(episode), repeats)


async def test_only_so_many_closed_episodes_are_remembered(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "CLOSED_KEPT", 2)
    first, *_, last = await scene.fill()
    for episode in list(scene.rollout.leases):
        await scene.rollout.abort(claims(episode), "")
    with pytest.raises(errors.EpisodeEnded, match="long ago"):
        await scene.rollout.abort(claims(first), "")
    assert (await scene.rollout.abort(claims(last), "")).state == "aborted"


DECIDER = {"decider": "http://127.0.0.1:1/episodes/x", "decider_token": "token"}


async def prepared(scene: Scene, task: str = "a", **decider: Any) -> LeasedEpisode:
    episode = await play(scene, task)
    await scene.rollout.teams.prepare(claims(episode), PrepareRequest(reward=0.5, weight=2.0, **decider))
    return episode


async def test_a_prepared_episode_is_durable_keeps_its_place_and_is_not_trained_before_its_commit(scene: Scene) -> None:
    episode = await prepared(scene, **DECIDER)
    (change,) = [change for change in scene.store.changes if isinstance(change, EpisodePrepared)]
    written = change.sample.columns("episode", "reward", "success", "weight", *DECIDER)
    assert written == {"episode": episode.id, "reward": 0.5, "success": None, "weight": 2.0, **DECIDER}
    assert scene.rollout.groups.collected == 0
    assert scene.rollout.groups.group_of(episode.id) is not None
    assert scene.rollout.heartbeat(claims(episode)).state == "prepared"
    with pytest.raises(errors.EpisodeEnded, match="prepared"):
        scene.rollout.leases.find_and_renew(claims(episode))
    with pytest.raises(errors.EpisodeEnded, match="prepared"):
        await scene.end(episode)
    assert (await scene.rollout.teams.commit(claims(episode))).state == "ended"
    (waiting,) = [sample for group in scene.rollout.groups for sample in group.ended]
    assert (waiting.episode, waiting.reward, waiting.weight, waiting.decider) == (episode.id, 0.5, 2.0, None)


async def test_nothing_is_acknowledged_that_could_not_be_written(scene: Scene) -> None:
    episode = await play(scene)
    teams, request = scene.rollout.teams, PrepareRequest(reward=1.0)
    scene.store.fail = "disk full"
    with pytest.raises(errors.StoreUnavailable):
        await teams.prepare(claims(episode), request)
    assert scene.rollout.heartbeat(claims(episode)).state == "open"
    scene.store.fail = None
    await teams.prepare(claims(episode), request)
    scene.store.fail = "disk full"
    for attempt in (teams.commit(claims(episode)), scene.rollout.abort(claims(episode), "")):
        with pytest.raises(errors.StoreUnavailable):
            await attempt
    assert scene.rollout.heartbeat(claims(episode)).state == "prepared"
    scene.store.fail = None
    assert (await teams.commit(claims(episode))).state == "ended"


async def test_neither_an_evaluation_nor_a_follower_without_a_token_is_prepared(scene: Scene) -> None:
    episode, evaluation = await scene.begin("a"), await scene.begin("a", kind="eval")
    with pytest.raises(errors.InvalidRequest, match="evaluation"):
        await scene.rollout.teams.prepare(claims(evaluation), PrepareRequest(reward=1.0))
    with pytest.raises(errors.InvalidRequest, match="decider"):
        await scene.rollout.teams.prepare(claims(episode), PrepareRequest(reward=1.0, decider="http://x/episodes/y"))


async def test_a_prepared_follower_never_expires_and_an_undecided_decider_aborts_itself(scene: Scene) -> None:
    decider, follower = await prepared(scene), await prepared(scene, **DECIDER)
    scene.clock.now += 29
    scene.rollout.heartbeat(claims(decider))
    await scene.pass_time(29)
    assert await scene.outcome(decider) == "prepared"
    await scene.pass_time(1)
    assert await scene.outcome(decider) == "aborted"
    assert await scene.outcome(follower) == "prepared"
    assert [(change.state, change.reason) for change in scene.closed()] == [("aborted", "undecided")]
    with pytest.raises(errors.EpisodeEnded, match="aborted"):
        await scene.rollout.teams.commit(claims(decider))


async def test_a_follower_whose_decider_is_away_for_a_day_is_given_up_counted_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    follower = await prepared(scene, **DECIDER)  # its partner's place is taken by nobody: no batch is full without it
    await scene.pass_time(IN_DOUBT_S - 1)
    assert await scene.outcome(follower) == "prepared"
    scene.store.fail = "disk full"
    await scene.pass_time(1)
    assert await scene.outcome(follower) == "prepared", "not written yet"
    scene.store.fail = None
    await scene.pass_time(0)
    assert await scene.outcome(follower) == "fenced"
    (change,) = scene.closed()
    assert (change.state, change.reason, change.fencing_token, change.team) == ("fenced", "team_in_doubt", 2, True)
    assert (scene.rollout.counts["fenced"], scene.rollout.counts["drop_team_in_doubt"]) == (1, 1)
    assert f"episode={follower.id}" in caplog.text
    assert DECIDER["decider"] in caplog.text
    assert not list(scene.rollout.groups), "a free place"
    with pytest.raises(errors.LeaseLost):
        await scene.rollout.teams.commit(claims(follower))


async def test_an_episode_in_doubt_gives_its_place_up_after_the_drain_time_and_joins_a_later_batch() -> None:
    scene = Scene()
    in_doubt = await prepared(scene, "a", **DECIDER)
    for task in "abb":
        await scene.end(await play(scene, task))
    scene.machine.transition_to(S.ROLLING_POST)
    scene.rollout.full_since = scene.rollout.clock()
    await scene.pass_time(11)
    await scene.end(await play(scene))
    assert [group.name for group in scene.rollout.take_batch()] == ["a#1", "b#2"]
    await scene.rollout.teams.commit(claims(in_doubt))
    assert scene.closed()[-1].sample.group == "a#3"
    partner = await scene.begin("a")
    assert [(group.name, len(group)) for group in scene.rollout.groups] == [("a#3", 2)]
    assert partner.id != in_doubt.id


@pytest.mark.parametrize(
    ("written", "told"),
    [("ended", "ended"), ("in_step", "ended"), ("consumed", "ended"), ("dropped", "ended"), ("fenced", "fenced")],
)
async def test_an_outcome_that_memory_forgot_is_read_from_the_store(written: EpisodeState, told: str) -> None:
    scene = Scene()
    record = EpisodeRecord(
        id="old", task_id="a", stream="default", kind="train", owner="me", state=written, calls=1, tokens=1, record=()
    )

    async def read(episode: str) -> EpisodeRecord | None:
        return record

    scene.store.episode = read  # type: ignore[method-assign]
    old = Claims("lease", episode="old", fencing_token=1)
    assert (await scene.rollout.teams.outcome(old)).state == told


async def test_a_commit_that_is_being_written_while_its_episode_becomes_too_old_is_dropped_and_counted_once() -> None:
    scene = Scene(max_staleness=1, steps=9)
    outdated = await prepared(scene)
    rollout = scene.rollout
    rollout.finish_update(2)
    for task in "bbcc":
        await scene.end(await play(scene, task))
    scene.store.hold()
    committing = asyncio.create_task(rollout.teams.commit(claims(outdated)))
    for _ in range(3):  # into the store
        await asyncio.sleep(0)
    assert len(rollout.take_batch()) == 2
    scene.store.release()
    assert (await committing).state == "ended"
    assert (rollout.counts["ended"], rollout.counts["drop_stale"], rollout.groups.collected) == (5, 1, 0)


async def test_a_restart_gives_no_place_to_what_is_prepared_and_too_old_to_be_learned() -> None:
    former = Scene(max_staleness=1, steps=9)
    episodes = [await prepared(former, task, **DECIDER) for task in "abcd"]  # every place there is
    samples = [held.sample for held in former.rollout.leases.prepared]
    scene = Scene(max_staleness=1, steps=9)
    scene.rollout.recover(replace(recovered(former, prepared=samples), step=3))
    assert scene.rollout.leases.prepared
    assert list(scene.rollout.groups) == []
    assert (await scene.begin("e")).task_id == "e"
    await scene.rollout.teams.commit(claims(episodes[0]))
    assert (scene.rollout.counts["ended"], scene.rollout.counts["drop_stale"]) == (1, 1)


async def test_an_end_and_a_prepare_at_once_have_one_outcome_and_the_other_is_told(scene: Scene) -> None:
    episode = await play(scene)
    scene.store.hold()
    preparing = asyncio.create_task(scene.rollout.teams.prepare(claims(episode), PrepareRequest(reward=1.0)))
    await asyncio.sleep(0)
    ending = asyncio.create_task(scene.rollout.end(claims(episode), EndRequest(reward=1.0)))
    await asyncio.sleep(0)
    scene.store.release()
    assert (await preparing).state == "prepared"
    with pytest.raises(errors.EpisodeEnded, match="prepared"):
        await ending


async def test_where_there_is_no_room_for_one_nobody_is_tried_who_asks_the_same() -> None:
    tried: list[str] = []

    def attempt(name: str) -> None:
        tried.append(name)

    admission = Admission[str](lambda _: None)
    asked = [("a", "this"), ("b", "this"), ("c", "that"), ("d", None), ("e", None)]
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(admission.admit(partial(attempt, name), 60.0, what)) for name, what in asked]
        await asyncio.sleep(0)  # all stand in the line
        tried.clear()
        admission.admit_waiting()
        for each in waiting:
            each.cancel()
    assert tried == ["a", "c", "d", "e"]

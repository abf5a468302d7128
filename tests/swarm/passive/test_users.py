"""What users decide: consent and its withdrawal, feedback, deletion; and what a killed front leaves behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from swarm.errors import EngineUnavailable
from swarm.wire import EraseRequest, Erasure
from tests.swarm.passive.support import QUESTION, balance, chatting, episodes, fronted
from tests.swarm.server.support import MODEL, eventually, job, serving

pytestmark = pytest.mark.slow

ROOMY = {"group_size": 4, "episodes_per_step": 64, "steps": 2}
"""No batch is full in a test, so what is pooled stays pooled."""
STEPS = {"group_size": 4, "episodes_per_step": 4, "steps": 50, "max_staleness": 1, "checkpoint_every": 1}


async def test_after_a_withdrawal_nothing_is_trained_and_what_waited_is_erased(tmp_path: Path) -> None:
    async with serving(tmp_path / "server", job(**ROOMY)) as served, chatting(served, tmp_path) as front:
        await front.consent("ann")
        assert (await front.chat("ann")).headers["x-ajet-trained"] == "true"
        await front.until_counted("group_scored")
        assert served.server.training.rollout.groups.collected == 4
        await front.consent("ann", given=False)
        assert served.server.training.rollout.groups.collected == 0
        assert [(e.state, e.reason, e.record) for e in await episodes(served)] == [("dropped", "erased", ())] * 4
        assert (await front.chat("ann")).headers["x-ajet-trained"] == "false; no_consent"
        held = (await front.call("GET", "/v1/users/ann")).body
        assert [said["given"] for said in held["consents"]] == [True, False]
        assert held["episodes"] == held["replies"] == []
        await front.until_erased()
        balance(served)


@pytest.mark.parametrize("verb", ["withdraw", "delete"])
async def test_a_word_that_comes_while_answers_are_compared_stops_their_training(tmp_path: Path, verb: str) -> None:
    flag = tmp_path / "compared"
    slow = (
        "import pathlib, time\n"
        f"flag = pathlib.Path({str(flag)!r})\n"
        "def score(request, answers):\n"
        "    flag.with_suffix('.begun').touch()\n"
        "    until = time.monotonic() + 20\n"
        "    while not flag.exists() and time.monotonic() < until:\n"
        "        time.sleep(0.01)\n"
        "    return [1.0, 2.0, 3.0, 4.0]\n"
    )
    async with serving(tmp_path / "server", job(**ROOMY)) as served, chatting(served, tmp_path, score=slow) as front:
        await front.consent("ann")
        asked = asyncio.create_task(front.chat("ann"))
        await eventually(flag.with_suffix(".begun").exists, bool)
        if verb == "withdraw":
            await front.consent("ann", given=False)
        else:
            assert (await front.call("DELETE", "/v1/users/ann")).body["episodes_erased"] == 4
        flag.touch()
        answer = await asked
        assert (answer.status, answer.headers["x-ajet-trained"]) == (200, "false; withdrawn")
        assert [(e.state, e.record) for e in await episodes(served)] == [("aborted", ())] * 4
        assert (await front.call("GET", "/v1/users/ann")).body["replies"] == []
        balance(served)


async def test_withdrawals_racing_with_requests_leave_nothing_of_the_user(tmp_path: Path) -> None:
    async with serving(tmp_path / "server", job(**ROOMY)) as served, chatting(served, tmp_path) as front:
        for round_ in range(4):
            await front.consent("ann")
            asked = [asyncio.create_task(front.chat("ann")) for _ in range(3)]
            await asyncio.sleep(0.01 * round_)  # at different moments of the requests
            await front.consent("ann", given=False)
            assert all(answer.status == 200 for answer in await asyncio.gather(*asked))
        await eventually(front.status, lambda status: status["groups"] == 0)
        await front.until_erased()
        assert served.server.training.rollout.groups.collected == 0
        assert not any(episode.record for episode in await episodes(served))
        balance(served)


async def test_deletion_reaches_what_was_trained_once_a_checkpoint_holds_it(tmp_path: Path) -> None:
    async with serving(tmp_path / "server", job(**STEPS)) as served, chatting(served, tmp_path) as front:
        for user in ("ann", "bob"):
            await front.consent(user)
            assert (await front.chat(user)).headers["x-ajet-trained"] == "true"
            await front.until_counted("group_scored", 1 + (user == "bob"))
        await eventually(lambda: episodes(served), lambda found: [e.state for e in found] == ["consumed"] * 8)
        told = (await front.call("DELETE", "/v1/users/ann")).body
        assert told == {"deleted": True, "episodes_erased": 4, "episodes_pending": 0}
        found = await episodes(served)
        assert [bool(episode.record) for episode in found] == [False] * 4 + [True] * 4  # bob's are there
        assert [episode.tokens > 0 for episode in found] == [True] * 8  # what they were counted as
        assert (await front.call("GET", "/v1/users/ann")).body["consents"] == []
        assert len((await front.call("GET", "/v1/users/bob")).body["episodes"]) == 4
        balance(served)
    async with serving(tmp_path / "server", job(**STEPS)) as again:  # the newest checkpoint is gone on from
        assert again.server.training.step == 2


async def test_the_operator_deletes_a_user_of_any_application(tmp_path: Path) -> None:
    async with serving(tmp_path / "server", job(**ROOMY)) as served, chatting(served, tmp_path) as front:
        await front.consent("ann")
        path = "/admin/applications/chat/users/ann"
        assert (await front.call("DELETE", path)).status == 401
        assert (await front.call("DELETE", path, key=front.admin)).body["deleted"]
        assert (await front.call("GET", "/v1/users/ann")).body["consents"] == []


async def test_feedback_within_its_window_takes_the_scorers_place(tmp_path: Path) -> None:
    async with (
        serving(tmp_path / "server", job(**ROOMY)) as served,
        chatting(served, tmp_path, "--feedback-s", "30") as front,
    ):
        await front.consent("ann")
        answer = await front.chat("ann", n=2)
        reply = {"response_id": answer.body["id"]}
        wrong = await front.call("POST", "/v1/feedback", {**reply, "choice": 2})
        assert (wrong.status, wrong.body["error"]["param"]) == (400, "choice")
        other = await front.application("other")
        assert (await front.call("POST", "/v1/feedback", reply, key=other)).body == {"counted": False}
        assert (await front.call("POST", "/v1/feedback", {**reply, "choice": 1})).body == {"counted": True}
        await front.until_counted("group_feedback")
        assert (await front.call("POST", "/v1/feedback", reply)).body == {"counted": False}
        rewards = {e.reward: "".join(map(chr, e.record[0].sampled.ids[:-1])) for e in await episodes(served)}
        assert rewards[1.0] == answer.body["choices"][1]["message"]["content"]
        down = await front.chat("ann")
        said = {"response_id": down.body["id"], "rating": "down"}
        assert (await front.call("POST", "/v1/feedback", said)).body == {"counted": True}
        await front.until_counted("group_feedback", 2)
        newest = (await episodes(served))[4:]
        lowest = min(newest, key=lambda episode: episode.reward or 0.0)
        assert "".join(map(chr, lowest.record[0].sampled.ids[:-1])) == down.text


async def test_leases_outlive_the_window_and_its_end_brings_the_scorers_rewards(tmp_path: Path) -> None:
    async with (
        serving(tmp_path / "server", job(**ROOMY, lease_ttl_s=0.5)) as served,
        chatting(served, tmp_path, "--feedback-s", "1.5") as front,
    ):
        await front.consent("ann")
        await front.chat("ann")
        await front.until_counted("group_scored")
        assert [episode.state for episode in await episodes(served)] == ["ended"] * 4


async def test_where_feedback_alone_judges_what_got_none_is_dropped(tmp_path: Path) -> None:
    async with (
        serving(tmp_path / "server", job(**ROOMY)) as served,
        chatting(served, tmp_path, "--feedback-s", "0.2", score=None) as front,
    ):
        await front.consent("ann")
        await front.chat("ann")
        await front.until_counted("group_dropped_no_feedback")
        await front.until_erased()
        assert [(e.state, e.record) for e in await episodes(served)] == [("aborted", ())] * 4


async def test_groups_that_wait_are_bounded_the_oldest_is_scored_early(tmp_path: Path) -> None:
    async with (
        serving(tmp_path / "server", job(**ROOMY)) as served,
        chatting(served, tmp_path, "--feedback-s", "60", "--most-groups", "2") as front,
    ):
        await front.consent("ann")
        for _ in range(3):
            assert (await front.chat("ann")).headers["x-ajet-trained"] == "true"
        await front.until_counted("group_scored")
        assert (await front.status())["groups"] == 2


async def test_a_front_that_is_killed_forgets_nothing_and_trains_nothing_it_left_open(tmp_path: Path) -> None:
    async with serving(tmp_path / "server", job(**ROOMY)) as served:
        async with chatting(served, tmp_path, "--feedback-s", "60", apart=True) as front:
            key = front.key
            await front.consent("ann")
            await front.chat("ann")
            await front.kill()
        async with fronted(served, tmp_path, "--feedback-s", "60") as front:
            front.key = key
            await front.until_erased()
            assert [(e.state, e.record) for e in await episodes(served)] == [("aborted", ())] * 4
            held = (await front.call("GET", "/v1/users/ann")).body
            assert [reply["state"] for reply in held["replies"]] == ["front_restarted"]
            answer = await front.chat("ann")
            assert answer.headers["x-ajet-trained"] == "true"
            said = {"response_id": answer.body["id"]}
            assert (await front.call("POST", "/v1/feedback", said)).body == {"counted": True}
            await front.until_counted("group_feedback")
            balance(served)


async def test_a_front_that_is_stopped_settles_what_waits(tmp_path: Path) -> None:
    async with serving(tmp_path / "server", job(**ROOMY)) as served:
        async with chatting(served, tmp_path, "--feedback-s", "60", apart=True) as front:
            await front.consent("ann")
            await front.chat("ann")
            front.process.terminate()
            assert await front.process.wait() == 0
        found = await episodes(served)
        assert [episode.state for episode in found] == ["ended"] * 4
        assert sum(episode.reward or 0.0 for episode in found) == pytest.approx(2.0)


@pytest.mark.parametrize("other_job", [False, True], ids=["engine off", "another job"])
async def test_a_deletion_is_carried_out_though_the_users_training_does_not_run(
    tmp_path: Path, other_job: bool
) -> None:
    async with serving(tmp_path / "server", job(**STEPS)) as served, chatting(served, tmp_path) as front:
        await front.consent("ann")
        await front.chat("ann")
        await eventually(lambda: episodes(served), lambda found: [e.state for e in found] == ["consumed"] * 4)
        await served.server.stop()
        if other_job:
            served.server.load(job(**STEPS, seed=7))
            await served.server.start()
            await served.until(state="ROLLING")
        told = (await front.call("DELETE", "/v1/users/ann")).body
        assert told == {"deleted": True, "episodes_erased": 4, "episodes_pending": 0}
        await served.server.stop()
        served.server.load(job(**STEPS))
        await served.server.start()
        assert [bool(episode.record) for episode in await episodes(served)] == [False] * 4


async def test_a_deletion_that_a_server_cannot_carry_out_yet_says_why_and_is_done_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path / "server", job(**STEPS)) as served, chatting(served, tmp_path) as front:

        async def booting(_: EraseRequest) -> Erasure:
            raise EngineUnavailable("the engine is still booting; try again")

        async def learning(asked: EraseRequest) -> Erasure:
            return Erasure(erased=(), left=asked.episodes[:1], unknown=asked.episodes[1:])

        await front.consent("ann")
        await front.chat("ann")
        await eventually(lambda: episodes(served), lambda found: [e.state for e in found] == ["consumed"] * 4)
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(served.server, "erase", booting)
            told = (await front.call("DELETE", "/v1/users/ann")).body
            assert (told["episodes_pending"], told["pending_because"]) == (4, "the engine is still booting; try again")
            assert (await front.status())["erasing_waits_for"] == "the engine is still booting; try again"
            meanwhile.setattr(served.server, "erase", learning)
            await eventually(front.status, lambda status: "1 episodes wait for a ch" in status["erasing_waits_for"])
            assert "3 episodes are not known to the swarm server" in (await front.status())["erasing_waits_for"]
        await front.until_erased()
        assert (await front.status())["erasing_waits_for"] is None
        assert not any(episode.record for episode in await episodes(served))


async def test_the_served_model_can_judge(tmp_path: Path) -> None:
    async with (
        serving(
            tmp_path / "server",
            job(**ROOMY, max_context=4096),
            script=lambda prompt, _: "2,1,4,3" if "numbered" in prompt else "a",
        ) as served,
        chatting(served, tmp_path, "--judge", "self", score=None) as front,
    ):
        await front.consent("ann")
        await front.chat("ann")
        await front.until_counted("group_scored")
        await front.until_erased()
        played = [episode for episode in await episodes(served) if episode.kind == "train"]
        assert sorted(episode.reward or 0.0 for episode in played) == pytest.approx([0.0, 1 / 3, 2 / 3, 1.0])
        balance(served)


async def test_openais_request_names_the_user_by_a_header_too(tmp_path: Path) -> None:
    async with serving(tmp_path / "server", job(**ROOMY)) as served, chatting(served, tmp_path) as front:
        await front.consent("ann")
        body = {"model": MODEL, "messages": QUESTION}
        answer = await front.call("POST", "/v1/chat/completions", body, **{"x-ajet-user": "ann"})
        assert answer.headers["x-ajet-trained"] == "true"

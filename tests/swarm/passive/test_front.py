"""Passive mode end to end: a front, a real server with a fake backend, OpenAI's own SDK."""

from __future__ import annotations

import asyncio
import random
import re
import stat
from pathlib import Path

import openai
import pytest

from tests.swarm.passive.support import QUESTION, balance, chatting, episodes
from tests.swarm.server.support import MODEL, eventually, job, serving

pytestmark = pytest.mark.slow

FOUR = {"group_size": 4, "episodes_per_step": 4, "steps": 50, "max_staleness": 1}


async def test_a_user_who_consents_gets_the_best_of_a_group_that_is_trained(tmp_path: Path) -> None:
    async with serving(tmp_path / "server", job(**FOUR)) as served, chatting(served, tmp_path, apart=True) as front:
        await front.consent("ann")
        answer = await front.chat("ann")
        assert answer.headers["x-ajet-trained"] == "true"
        await front.until_counted("group_scored")
        await eventually(lambda: served.server.training.step, lambda step: step >= 1)
        played = await episodes(served)
        said = ["".join(map(chr, played_one.record[0].sampled.ids[:-1])) for played_one in played]
        assert answer.text == max(said, key=float)
        assert sum(episode.reward or 0 for episode in played) == pytest.approx(2.0)  # the mean is 0.5 whatever they say
        assert played[said.index(answer.text)].reward == max(episode.reward or 0 for episode in played)
        assert {(episode.stream, episode.kind, episode.task_id) for episode in played} == {
            ("passive", "train", played[0].task_id)
        }
        assert "ann" not in str(played)
        balance(served)


async def test_without_consent_an_answer_is_given_and_nothing_of_it_is_kept(tmp_path: Path) -> None:
    async with serving(tmp_path / "server", job(**FOUR)) as served, chatting(served, tmp_path) as front:
        for user, why in ((None, "no_user"), ("bob", "no_consent")):
            answer = await front.chat(user)
            assert answer.status == 200
            assert answer.headers["x-ajet-trained"] == f"false; {why}"
        await front.until_erased()
        found = await episodes(served)
        assert [(episode.kind, episode.state, episode.record) for episode in found] == [("eval", "aborted", ())] * 2
        assert (await front.call("GET", "/v1/users/bob")).body == {
            "consents": [], "replies": [], "feedback": [], "episodes": [],
        }  # fmt: skip
        balance(served)


async def test_openais_sdk_streams_the_chosen_answer_and_lists_the_model(tmp_path: Path) -> None:
    async with serving(tmp_path / "server", job(**FOUR)) as served, chatting(served, tmp_path) as front:
        await front.consent("ann")
        async with front.openai() as sdk:
            assert [model.id for model in (await sdk.models.list()).data] == [MODEL]
            whole = await sdk.chat.completions.create(model=MODEL, messages=QUESTION, user="ann")
            assert 100 <= int(whole.choices[0].message.content) <= 999
            assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
            stream = await sdk.chat.completions.create(
                model=MODEL, messages=QUESTION, user="ann", stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            assert 100 <= int(text) <= 999
            assert chunks[-1].usage is not None
            several = await sdk.chat.completions.create(model=MODEL, messages=QUESTION, user="ann", n=3)
            said = [int(choice.message.content) for choice in several.choices]
            assert said == sorted(said, reverse=True)
            assert len(said) == 3


async def test_a_stream_that_waits_says_that_it_lives(tmp_path: Path) -> None:
    slow = "import time\ndef score(request, answers):\n    time.sleep(6)\n    return [1.0] * len(answers)\n"
    async with serving(tmp_path / "server", job(**FOUR)) as served, chatting(served, tmp_path, score=slow) as front:
        await front.consent("ann")
        body = {"model": MODEL, "messages": QUESTION, "user": "ann", "stream": True}
        headers = {"authorization": f"Bearer {front.key}"}
        async with served.http.post(f"{front.url}/v1/chat/completions", json=body, headers=headers) as reply:
            text = await reply.text()
        assert text.startswith(": ")
        assert text.endswith("data: [DONE]\n\n")


async def test_where_the_server_has_no_room_the_answer_is_untrained_at_once(tmp_path: Path) -> None:
    wanted = job(**{**FOUR, "max_staleness": 0})
    async with serving(tmp_path / "server", wanted) as served:
        for _ in range(4):
            await served.begin("other")  # the batch is full, and waits for them
        async with chatting(served, tmp_path) as front:
            await front.consent("ann")
            answer = await front.chat("ann")
            assert (answer.status, answer.headers["x-ajet-trained"]) == (200, "false; throttled")


async def test_after_the_last_step_answers_go_on_untrained(tmp_path: Path) -> None:
    async with serving(tmp_path / "server", job(**{**FOUR, "steps": 1})) as served, chatting(served, tmp_path) as front:
        await front.consent("ann")
        assert (await front.chat("ann")).headers["x-ajet-trained"] == "true"
        await served.until(finished=True)
        assert (await front.chat("ann")).headers["x-ajet-trained"] == "false; job_finished"


async def test_a_server_that_is_gone_is_503_in_openais_form(tmp_path: Path) -> None:
    async with serving(tmp_path / "server", job(**FOUR)) as served, chatting(served, tmp_path) as front:
        await served.server.stop()
        await front.consent("ann")
        answer = await front.chat("ann")
        assert (answer.status, answer.code) == (503, "engine_unavailable")
        assert int(answer.headers["retry-after"]) >= 1
        async with front.openai() as sdk:
            with pytest.raises(openai.InternalServerError):
                await sdk.chat.completions.create(model=MODEL, messages=QUESTION)


async def test_wrong_keys_and_requests_are_refused_in_openais_form(tmp_path: Path) -> None:
    async with serving(tmp_path / "server", job(**FOUR)) as served, chatting(served, tmp_path, apart=True) as front:
        async with front.openai("ajet-app-of-nobody") as sdk:
            with pytest.raises(openai.AuthenticationError):
                await sdk.chat.completions.create(model=MODEL, messages=QUESTION)
        old, front.key = front.key, await front.application("chat")
        assert (await front.call("GET", "/v1/models", key=old)).status == 401
        assert (await front.call("GET", "/admin/status")).status == 401
        for body, param in (
            ({"model": MODEL}, "messages"),
            ({"model": MODEL, "messages": QUESTION, "n": 9}, "n"),
            ({"model": "other", "messages": QUESTION}, "model"),
            ({"model": MODEL, "messages": QUESTION, "user": "u" * 300}, "user"),
            ({"model": MODEL, "messages": QUESTION, "stream": "yes"}, "stream"),
        ):
            answer = await front.call("POST", "/v1/chat/completions", body)
            assert answer.status in (400, 404)
            assert answer.body["error"]["param"] == param
        assert (await front.call("POST", "/v1/users/ann/consent", {"given": True})).body["error"]["param"] == "version"
        for path in (front.folder / "records.sqlite3", front.folder / "secrets.json", front.folder / "front.json"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        log = (tmp_path / "log").read_text()
        assert front.key not in log
        assert old.encode() not in (front.folder / "records.sqlite3").read_bytes()


async def test_wrong_keys_are_made_to_wait_and_cost_the_disk_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.connections.FAILURES", 2)
    monkeypatch.setattr("swarm.connections.REFILL_S", 1e6)
    async with serving(tmp_path / "server", job(**FOUR)) as served, chatting(served, tmp_path) as front:
        written = (front.folder / "records.sqlite3").read_bytes()
        tried = [await front.call("GET", path, key="a guess") for path in ("/v1/models", *["/admin/status"] * 3)]
        assert [answer.status for answer in tried] == [401, 401, 429, 429]
        assert (front.folder / "records.sqlite3").read_bytes() == written
        assert (await front.call("GET", "/v1/models")).status == 200
        assert (await front.counts())["wrong_keys"] == 4
        assert (await front.chat()).status == 200
        assert (await front.counts())["wrong_keys"] == 4  # written down by now


async def test_a_user_and_an_application_are_held_to_their_rates(tmp_path: Path) -> None:
    async with (
        serving(tmp_path / "server", job(**FOUR)) as served,
        chatting(served, tmp_path, "--per-user", "2", "--per-application", "4") as front,
    ):
        assert [(await front.chat("ann")).status for _ in range(3)] == [200, 200, 429]
        refused = await front.chat("bob"), await front.chat("cid")
        assert [answer.status for answer in refused] == [200, 429]
        assert refused[1].code == "throttled"
        assert int(refused[1].headers["retry-after"]) >= 1
        front.key = await front.application("other")
        assert (await front.chat("ann")).status == 200  # another application's ann is another user


@pytest.mark.parametrize(
    "code",
    ["raise RuntimeError('of the operator')", "return [1.0]", "return [float('nan')] * len(answers)", "return None"],
)
async def test_a_scorer_that_fails_costs_the_group_and_not_the_answer(tmp_path: Path, code: str) -> None:
    score = f"def score(request, answers):\n    {code}\n"
    async with serving(tmp_path / "server", job(**FOUR)) as served, chatting(served, tmp_path, score=score) as front:
        await front.consent("ann")
        answer = await front.chat("ann")
        assert (answer.status, answer.headers["x-ajet-trained"]) == (200, "false; scorer_failed")
        assert (await front.counts())["group_dropped_scorer_failed"] == 1
        await front.until_erased()
        assert [(episode.state, episode.record) for episode in await episodes(served)] == [("aborted", ())] * 4
        balance(served)


async def test_no_user_is_shown_what_another_one_asked(tmp_path: Path) -> None:
    echo = "def score(request, answers):\n    return [float(len(a)) for a in answers]\n"

    def repeat(prompt: str, _: random.Random) -> str:
        return re.findall(r"secret-\d", prompt)[0]

    async with (
        serving(tmp_path / "server", job(**FOUR), script=repeat) as served,
        chatting(served, tmp_path, score=echo) as front,
    ):
        users = [f"user-{number}" for number in range(6)]
        for user in users:
            await front.consent(user)

        async def ask(user: str) -> str:
            return (await front.chat(user, [{"role": "user", "content": f"this is secret-{user[-1]}"}])).text

        assert await asyncio.gather(*map(ask, users)) == [f"secret-{user[-1]}" for user in users]

"""A client finds the servers of its machine and notices what is gone; plain functions wait in threads of their own."""

from __future__ import annotations

import asyncio
import fcntl
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from swarm.client import AsyncSwarmClient, NamedTask, SwarmClient, threads, transport
from swarm.client.threads import run_in_thread
from swarm.client.transport import Transport, server_folder
from swarm.errors import InvalidRequest, SwarmError, Unreachable
from swarm.server.__main__ import _lock_directory
from swarm.wire import EndAck, ServerState
from tests.swarm.server.support import Served, job, serving
from tests.swarm.server.test___main__ import running


async def test_a_call_nobody_waits_for_any_more_is_cut() -> None:
    came, gone = asyncio.Event(), asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        while await reader.read(65536):
            pass
        gone.set()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with asyncio.timeout(60), server, Transport(url) as client:
        asked = asyncio.create_task(client.call("POST", "/v1/chat/completions", "key", b"{}"))
        await came.wait()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await gone.wait()


async def test_what_is_asked_at_once_goes_as_one_request_and_what_is_wrong_is_refused_alone(
    served: Served, client: AsyncSwarmClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def alone(*_: object) -> None:
        raise AssertionError("a request that went alone")

    monkeypatch.setattr(client._transport, "call", alone)
    episodes = await asyncio.gather(*(client.begin(NamedTask(name), kind="eval") for name in "abc"))
    for episode in episodes:
        episode.bundled = True
    replies = await asyncio.gather(*(each.chat([{"role": "user", "content": "between 3 and 5"}]) for each in episodes))
    assert {reply.finish_reason for reply in replies} == {"stop"}
    one, *others = await asyncio.gather(
        episodes[0].end(1.0, by_agent={"nobody": 1.0}),
        *(each.end(1.0) for each in episodes[1:]),
        return_exceptions=True,
    )
    assert isinstance(one, InvalidRequest)
    assert [other.state for other in others if isinstance(other, EndAck)] == ["ended", "ended"]
    monkeypatch.undo()
    broken, whole = await asyncio.gather(  # of a bundle that is refused as a whole, each goes alone
        episodes[0].chat([{"role": "user", "content": "\ud83d"}]), episodes[0].end(1.0), return_exceptions=True
    )
    assert isinstance(broken, SwarmError)
    assert isinstance(whole, EndAck)


async def test_a_bundle_is_cut_once_nobody_waits_for_any_of_it() -> None:
    came, gone = asyncio.Event(), asyncio.Event()
    heads: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.read(65536))
        came.set()
        while await reader.read(65536):
            pass
        gone.set()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with asyncio.timeout(60), server, Transport(url) as client:
        first, second = (asyncio.create_task(client.share("/episodes", "key", "{}", own=False)) for _ in range(2))
        await came.wait()
        first.cancel()
        assert (await asyncio.wait({first}))[0]
        assert not second.done()
        second.cancel()
        await gone.wait()
    assert heads[0].startswith(b"POST /bundle ")


async def test_what_is_asked_while_others_are_answered_goes_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "GATHER_S", 0.1)
    monkeypatch.setattr(transport, "WORTH_GATHERING", 1)
    heads, over = asyncio.Queue[bytes](), asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.put_nowait(await reader.read(65536))
        await over.wait()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with asyncio.timeout(60), server, Transport(url) as client:
        asked = [asyncio.create_task(client.share("/episodes", "key", "{}", own=False))]
        assert (await heads.get()).startswith(b"POST /episodes ")
        for _ in range(3):
            asked.append(asyncio.create_task(client.share("/episodes", "key", "{}", own=False)))
            await asyncio.sleep(0)
        assert (await heads.get()).count(b'"path"') == 3
        over.set()
        assert {type(lost) for lost in await asyncio.gather(*asked, return_exceptions=True)} == {Unreachable}


async def test_what_still_gathers_when_all_is_closed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "GATHER_S", 3600.0)
    monkeypatch.setattr(transport, "WORTH_GATHERING", 0)
    client = Transport("http://127.0.0.1:9")
    asked = asyncio.create_task(client.share("/episodes", "key", "{}", own=False))
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(Unreachable):
        await asked


def test_the_kernel_notices_within_two_minutes_that_the_other_side_is_gone() -> None:
    with transport._keepalive_socket((socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("", 0))) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, interval, count, unacknowledged = (
            made.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in transport._KEEPALIVE
        )
    assert idle + interval * count <= 120
    assert unacknowledged <= 120_000


async def test_no_call_is_made_while_too_many_have_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_left_behind", set())
    go_on = threading.Event()
    for _ in range(threads.MOST_LEFT):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await run_in_thread(go_on.wait, 120)
    with pytest.raises(TimeoutError, match="have not returned"):
        await run_in_thread(int)
    left = list(threads._left_behind)
    go_on.set()
    for thread in left:
        await asyncio.to_thread(thread.join, 120)
    assert await run_in_thread(int) == 0


async def test_a_secret_gives_up_the_episodes_of_its_client_alone(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, job()) as served,
        AsyncSwarmClient(served.url, served.admin, owner="same") as one,
        AsyncSwarmClient(served.url, served.admin, owner="same") as other,
    ):
        mine, theirs = await one.begin(NamedTask("a")), await other.begin(NamedTask("a"))
        guessed = await served.post("/owners/release", served.admin, {"secret": one.owner.rpartition(":")[2] * 4})
        assert guessed.body == {"episodes": 0}
        told = await served.post("/owners/release", served.admin, {"secret": one._secret})
        assert told.body == {"episodes": 1}
        await theirs.heartbeat()
        states = {episode.id: episode.state for episode in (await one.episodes()).episodes}
        assert states == {mine.id: "fenced", theirs.id: "open"}


@pytest.mark.slow
def test_a_server_that_was_killed_is_not_there_though_its_record_is(tmp_path: Path) -> None:
    folder = server_folder(tmp_path, "speaker")
    with running(folder, "--port", "0") as (process, url):
        with SwarmClient.from_home("speaker", home=tmp_path, role="client") as client:
            assert client.status().state is ServerState.OFFLINE
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (folder / "server.json").exists(), "what is left of it, with an address that anybody may take"
    for kind in (SwarmClient, AsyncSwarmClient):
        with pytest.raises(Unreachable, match=f"{url}.*--name speaker`"):
            kind.from_home("speaker", home=tmp_path)


@pytest.mark.slow
def test_a_server_that_is_stopped_in_its_tracks_is_there(tmp_path: Path) -> None:
    with running(server_folder(tmp_path), "--port", "0") as (process, url):
        process.send_signal(signal.SIGSTOP)
        with SwarmClient.from_home(home=tmp_path) as client:
            assert client.url == url
        process.send_signal(signal.SIGCONT)


def test_a_server_starts_though_a_client_looks_for_it_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "server.lock").touch()
    with (tmp_path / "server.lock").open("rb") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        monkeypatch.setattr(time, "sleep", lambda _: fcntl.flock(look, fcntl.LOCK_UN))  # while the server tries again
        _lock_directory(tmp_path).release()

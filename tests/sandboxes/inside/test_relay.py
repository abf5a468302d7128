from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxes.inside import relay
from tests.sandboxes.proxies import DEADLINE_S, Endless, Speak, echo, send, soon, speaking


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


async def ask(port: int, words: bytes = b"asked") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(words)
    writer.write_eof()
    answer = await reader.read(-1)
    writer.close()
    return answer


@pytest.fixture
def relayed(tmp_path: Path) -> tuple[int, Path]:
    """A port, and the path of the socket it leads to."""
    port, path = free_port(), tmp_path / "server.sock"
    relay.serve({port: str(path)})
    return port, path


async def test_bytes_pass_unchanged_until_both_sides_have_ended_their_sending(relayed: tuple[int, Path]) -> None:
    port, path = relayed
    body = bytes(index % 251 for index in range(3_000_000))
    async with speaking(echo, path), asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        sending = asyncio.create_task(send(writer, body))
        assert await reader.read(-1) == body
        await sending
        writer.close()


async def test_an_agent_that_goes_away_is_noticed_at_the_gateway(relayed: tuple[int, Path]) -> None:
    gone = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        gone.set()

    port, path = relayed
    async with speaking(wait, path):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        await soon(gone)


@pytest.mark.parametrize("sent", [b"body", bytes(20_000_000)], ids=["all it sends", "while it still sends"])
async def test_what_the_gateway_said_before_it_closed_still_arrives(relayed: tuple[int, Path], sent: bytes) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        writer.write(b"refused")

    port, path = relayed
    async with speaking(refuse, path), asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert await reader.read(-1) == b"refused"
        await writer.drain()
        writer.close()


async def test_more_connections_than_there_is_room_for_wait_their_turn(
    relayed: tuple[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "MOST_CONNECTIONS", 4)
    port, path = relayed
    async with speaking(echo, path), asyncio.timeout(DEADLINE_S):
        agents = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
        for number, (reader, writer) in enumerate(agents):
            writer.write(b"%d" % number)
            writer.write_eof()
            assert await reader.read(-1) == b"%d" % number
            writer.close()


async def test_a_gateway_that_comes_back_is_found_by_those_who_wait(tmp_path: Path, relayed: tuple[int, Path]) -> None:
    port, path = relayed
    async with asyncio.timeout(DEADLINE_S):
        early = asyncio.create_task(ask(port))  # there is no socket yet
        async with speaking(echo, path):
            assert await early == b"asked"
        late = asyncio.create_task(ask(port))  # there is one that nobody serves
        await asyncio.sleep(0)
        async with speaking(echo, path):
            assert await late == b"asked"


async def test_an_agent_is_reset_when_the_gateway_stays_away_and_the_next_one_is_not(
    relayed: tuple[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "PATIENCE_S", 0.05)
    port, path = relayed
    async with asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        async with speaking(echo, path):
            assert await ask(port, b"") == b""


async def test_who_does_not_read_stops_the_other_and_nobody_else(relayed: tuple[int, Path]) -> None:
    endless = Endless()

    async def of_those_who_ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(1):
            await endless(reader, writer)

    port, path = relayed
    async with speaking(of_those_who_ask, path), asyncio.timeout(DEADLINE_S):
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 10)
        writer.write(b"x")
        assert await endless.stands_still()
        assert await ask(port, b"") == b""
        writer.transport.abort()


async def test_each_port_leads_to_its_own_socket(tmp_path: Path) -> None:
    def named(name: bytes) -> Speak:
        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(name)

        return speak

    ports = {free_port(): "a", free_port(): "b"}
    relay.serve({port: str(tmp_path / name) for port, name in ports.items()})
    async with (
        speaking(named(b"a"), tmp_path / "a"),
        speaking(named(b"b"), tmp_path / "b"),
        asyncio.timeout(DEADLINE_S),
    ):
        assert {port: await ask(port) for port in ports} == {port: name.encode() for port, name in ports.items()}


def test_it_needs_the_standard_library_only_and_says_nothing(tmp_path: Path) -> None:
    folder = Path(relay.__file__).parent
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); import relay; relay.serve({{{free_port()}: '/none'}})"
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, check=True)
    assert (ran.stdout, ran.stderr) == (b"", b"")

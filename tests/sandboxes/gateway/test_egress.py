"""The way to the Internet on real loopback sockets; a fake resolver stands in where a name must mean something."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import socket
import struct
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.gateway import egress
from sandboxes.gateway.egress import Address, Destination, why_not_public
from sandboxes.gateway.gateway import PORTS, Gateway
from sandboxes.gateway.reverse_proxy import CONNECT_TIMEOUT_S, IDLE_TIMEOUT_S, Upstream
from sandboxes.spec import SandboxError
from tests.sandboxes.proxies import (
    DEADLINE_S,
    LoopClock,
    Raw,
    Seen,
    echo,
    error_of,
    eventually,
    raw,
    send,
    serving,
    soon,
    speaking,
    turns,
)

UNLISTED = "not on the list"
SMUGGLED = "GET /smuggled HTTP/1.1\r\n\r\n"


class FakeNames:
    """A resolver that says what it was told, a new thing each time."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, name: str, port: int) -> Sequence[Address]:
        self.asked.append(name)
        if not self.answers:
            raise socket.gaierror("Name or service not known")
        return [ipaddress.ip_address(text) for text in self.answers.pop(0)]


def connecting(target: str | int) -> bytes:
    """Return the request for a way to a target, or a port of this machine."""
    target = f"127.0.0.1:{target}" if isinstance(target, int) else target
    return f"CONNECT {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


@dataclass
class Proxy:
    """A gateway that is open, and the agent's side of its way out."""

    gateway: Gateway
    folder: Path

    def raw(self) -> contextlib.AbstractAsyncContextManager[Raw]:
        return raw(self.folder / "exchange" / PORTS[3128])

    async def connect(self, target: str) -> int:
        async with self.raw() as agent:
            return await agent.status(connecting(target))

    @contextlib.asynccontextmanager
    async def tunnel(self, port: int) -> AsyncIterator[Raw]:
        async with self.raw() as agent:
            assert await agent.status(connecting(port)) == 200
            yield agent

    @property
    def log(self) -> list[dict[str, Any]]:
        path = self.folder / "egress.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def counts(self) -> dict[str, int]:
        return dict(self.gateway.counts)


@contextlib.asynccontextmanager
async def proxy(
    folder: Path, *allow: str, upstream: Upstream | None = None, names: egress.Resolve = egress.resolve_here
) -> AsyncIterator[Proxy]:
    entries = [Destination.parse(text) for text in allow]
    log = folder / "egress.jsonl"
    async with Gateway(folder / "exchange", upstream=upstream, allow=entries, log=log, resolve=names) as gateway:
        yield Proxy(gateway, folder)


async def test_a_tunnel_to_an_entry_carries_bytes_as_they_are_and_its_ends(tmp_path: Path) -> None:
    body = bytes(index % 251 for index in range(2_000_000))
    async with speaking(echo) as port, proxy(tmp_path, f"127.0.0.1:{port}") as out:
        async with out.raw() as agent:
            hasty = connecting(port) + b"early"  # what a client sends along belongs to the tunnel
            assert await agent.status(hasty) == 200
            assert await agent.reader.readexactly(5) == b"early"
            sending = asyncio.create_task(send(agent.writer, body))
            assert await agent.rest() == body
            await sending
        await eventually(lambda: len(out.log) == 1)
        line = out.log[0]
        assert line["seconds"] >= 0
        assert {name: line[name] for name in line.keys() - {"at", "seconds"}} == {
            "host": "127.0.0.1", "port": port, "verdict": "allowed", "reason": "",
            "bytes_up": len(body) + 5, "bytes_down": len(body) + 5,
        }  # fmt: skip
        assert out.counts == {"egress allowed": 1}


async def test_a_plain_request_goes_out_in_origin_form_with_a_host_that_fits(tmp_path: Path) -> None:
    seen = Seen()
    async with serving(seen) as port, proxy(tmp_path, f"127.0.0.1:{port}") as out:
        async with out.raw() as agent:
            sent = (
                f"POST http://127.0.0.1:{port}/a/b?secret=1 HTTP/1.1\r\nHost: another:80\r\nContent-Length: 4\r\n"
                "Proxy-Authorization: Basic abc\r\nX-Forwarded-For: 1.2.3.4\r\nX-Kept: yes\r\n\r\nbody"
            )
            status, _, body = await agent.ask(sent.encode())
            assert (status, json.loads(body)) == (200, {"ok": True})
        async with out.raw() as agent:
            status, *_ = await agent.ask(f"GET http://127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert status == 200
        assert [(method, path, body) for method, path, _, body in seen.requests] == [
            ("POST", "/a/b?secret=1", b"body"),
            ("GET", "/", b""),
        ]
        headers = seen.requests[0][2]
        assert (headers["host"], headers["x-kept"]) == (f"127.0.0.1:{port}", "yes")
        assert headers["connection"] == "close"
        assert not {"proxy-authorization", "x-forwarded-for"} & set(headers)
        await eventually(lambda: [line["verdict"] for line in out.log] == ["allowed"] * 2)
        assert "secret" not in (tmp_path / "egress.jsonl").read_text()


@pytest.mark.parametrize(("framing", "body", "status", "arrived"), [
    ("", "", 200, b""), ("Content-Length: 4\r\n", "body", 200, b"body"),
    ("Transfer-Encoding: chunked\r\n", "4\r\nbody\r\n0\r\n\r\n", 400, None),
    ("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "body", 400, None),
    ("Content-Length: 4\r\nContent-Length: 5\r\n", "body", 400, None), ("X: y\r\n" * 120, "", 431, None),
])  # fmt: skip
async def test_a_plain_request_is_all_that_goes_to_its_host(
    tmp_path: Path, framing: str, body: str, status: int, arrived: bytes | None
) -> None:
    heard: list[bytes] = []
    answered, over, seen = asyncio.Event(), asyncio.Event(), Seen()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await answered.wait()
        with contextlib.suppress(OSError):  # it was cut off for what followed
            writer.write_eof()
            heard.append(await reader.read())
        over.set()

    async with (
        serving(seen) as port,
        speaking(hear) as other,
        proxy(tmp_path, f"127.0.0.1:{port}", f"127.0.0.1:{other}") as out,
    ):
        sent = "POST http://127.0.0.1:{}/a HTTP/1.1\r\nHost: x\r\n" + f"{framing}\r\n{body}{SMUGGLED}"
        async with out.raw() as agent:
            assert await agent.status(sent.format(port).encode()) == status
        async with out.raw() as agent:
            assert await agent.status(sent.format(other).encode()) in (status, 200)
            await turns()
            answered.set()
            if heard:
                await soon(over)
    assert [body for *_, body in seen.requests] == ([] if arrived is None else [arrived])
    assert b"smuggled" not in b"".join(heard)


async def test_what_no_entry_covers_is_refused_and_written_down(tmp_path: Path) -> None:
    for allow in ([], ["127.0.0.1:9"], ["*.example.com:443", "10.0.0.1:80"]):
        (tmp_path / "egress.jsonl").unlink(missing_ok=True)
        async with speaking(echo) as port, proxy(tmp_path, *allow) as out:
            for target in (f"127.0.0.1:{port}", "example.com:443", "169.254.169.254:80", "[::1]:80"):
                async with out.raw() as agent:
                    status, _, body = await agent.ask(connecting(target))
                assert (status, error_of(body)["code"]) == (403, "forbidden")
            assert out.counts == {f"egress refused: {UNLISTED}": 4}
            assert [(line["verdict"], line["reason"]) for line in out.log] == [("refused", UNLISTED)] * 4


@pytest.mark.parametrize("address", [
    "127.0.0.1", "10.1.2.3", "169.254.169.254", "fd00:ec2::254", "::1", "fe80::1", "::ffff:127.0.0.1",
    "64:ff9b::7f00:1",
])  # fmt: skip
async def test_a_name_that_stands_for_an_address_of_our_own_leads_nowhere(tmp_path: Path, address: str) -> None:
    names = FakeNames([address])
    async with speaking(echo) as port, proxy(tmp_path, f"*.example.com:{port}", names=names) as out:
        assert await out.connect(f"rebound.example.com:{port}") == 403
        assert (out.log[0]["verdict"], out.log[0]["host"]) == ("refused", "rebound.example.com")
        assert out.log[0]["reason"] != UNLISTED


async def test_an_address_of_our_own_leads_nowhere_even_public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"egress refused: this machine": 1}
    async with proxy(tmp_path, "localhost:80") as out:  # resolved on our side
        assert (await out.connect("localhost:80"), out.counts) == (403, here)
    monkeypatch.setattr(egress, "why_not_public", lambda _: None)
    for address in ("127.0.0.1", "::1"):
        async with speaking(echo) as port, proxy(tmp_path, f"a.example:{port}", names=FakeNames([address])) as out:
            assert (await out.connect(f"a.example:{port}"), out.counts) == (403, here)


async def test_an_entry_for_an_address_opens_it_for_no_name(tmp_path: Path) -> None:
    async with (
        speaking(echo) as port,
        proxy(tmp_path, f"127.0.0.1:{port}", f"example.com:{port}", names=FakeNames(["127.0.0.1"])) as out,
    ):
        assert (await out.connect(f"example.com:{port}"), await out.connect(f"127.0.0.1:{port}")) == (403, 200)


async def test_the_checked_address_is_connected_to_and_no_name_is_resolved_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = FakeNames(["10.0.0.1", "203.0.113.1", "203.0.113.2"], ["127.0.0.1"])
    monkeypatch.setattr(egress, "why_not_public", lambda address: "private" if str(address) == "10.0.0.1" else None)
    loop, tried = asyncio.get_running_loop(), []

    async def connect(make: Any, host: str, port: int) -> Any:
        tried.append((host, port))
        raise ConnectionRefusedError

    async with proxy(tmp_path, "example.com:443", names=names) as out:
        monkeypatch.setattr(loop, "create_connection", connect)
        assert await out.connect("example.com:443") == 502
    assert (tried, names.asked) == ([("203.0.113.1", 443), ("203.0.113.2", 443)], ["example.com"])


async def test_a_destination_that_cannot_be_reached_is_told_apart(tmp_path: Path, clock: LoopClock) -> None:
    async def names(name: str, port: int) -> Sequence[Address]:
        if name == "silent.example.com":
            await clock.forward(CONNECT_TIMEOUT_S + 1)
            await asyncio.Event().wait()
        raise socket.gaierror("Name or service not known")

    async with speaking(echo) as port:
        pass
    async with proxy(tmp_path, f"127.0.0.1:{port}", "*.example.com:443", names=names) as out:
        for target in (f"127.0.0.1:{port}", "nowhere.example.com:443", "silent.example.com:443"):
            assert await out.connect(target) == 502
        reasons = ["ConnectionRefusedError", "gaierror", "TimeoutError"]
        assert [(line["verdict"], line["reason"]) for line in out.log] == [("failed", reason) for reason in reasons]
        assert out.counts == {"egress failed": 3}


@pytest.mark.parametrize("line", [
    "CONNECT user@127.0.0.1:{port}", "CONNECT user:pass@127.0.0.1:{port}", "CONNECT 127.0.0.1",
    "CONNECT http://127.0.0.1:{port}/", "CONNECT 127.1:{port}", "CONNECT 2130706433:{port}",
    "CONNECT [::ffff:127.0.0.1:{port}", "CONNECT 127.0.0.1:{port}/x", "CONNECT 127.0.0.1:0{port}0",
    "GET http://user@127.0.0.1:{port}/", "GET http://127.0.0.1:{port}@elsewhere/", "GET https://127.0.0.1:{port}/",
    "GET http:///x", "GET http://127.0.0.1:{port}#x/", "GET /", "GET ftp://127.0.0.1:{port}/", "OPTIONS *",
    "GET http://127.0.0.1:{port}\\@elsewhere/",
])  # fmt: skip
async def test_a_target_that_two_readers_might_read_differently_is_refused(tmp_path: Path, line: str) -> None:
    seen = Seen()
    async with serving(seen) as port, proxy(tmp_path, f"127.0.0.1:{port}") as out, out.raw() as agent:
        sent = f"{line.format(port=port)} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n{SMUGGLED}"
        status, *_ = await agent.ask(sent.encode())
        assert status in (400, 403)
        await agent.rest()
        assert seen.requests == []


async def test_names_that_do_not_resolve_use_only_own_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, asked = threading.Event(), list[str]()

    def slow(name: str, *_: object, **__: object) -> list[Any]:
        asked.append(name)
        answer.wait(DEADLINE_S)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    try:
        async with proxy(tmp_path, "*.example.com:443") as out, contextlib.AsyncExitStack() as agents:
            for number in range(2 * egress.MOST_LOOKUPS):
                agent = await agents.enter_async_context(out.raw())
                agent.writer.write(connecting(f"n{number}.example.com:443"))
            await eventually(lambda: len(asked) == egress.MOST_LOOKUPS)
            await asyncio.to_thread(lambda: None)  # the loop's own threads are free
        assert len(asked) == egress.MOST_LOOKUPS
    finally:
        answer.set()


async def test_a_tunnel_through_which_nothing_goes_is_cut(tmp_path: Path, clock: LoopClock) -> None:
    async with speaking(echo) as port, proxy(tmp_path, f"127.0.0.1:{port}") as out, out.tunnel(port) as agent:
        await clock.forward(IDLE_TIMEOUT_S + 1)
        with contextlib.suppress(ConnectionResetError):
            assert await agent.rest() == b""
        await eventually(lambda: [line["reason"] for line in out.log] == ["idle"])


async def test_a_tunnel_counts_until_both_of_its_ends_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxes.gateway.gateway.MOST_WAYS_OUT", 1)
    gone = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(4_000_000))
        await writer.drain()
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        gone.set()

    async with speaking(talk) as port, proxy(tmp_path, f"127.0.0.1:{port}") as out:
        with socket.socket(socket.AF_UNIX) as silent:
            silent.connect(str(out.folder / "exchange" / PORTS[3128]))
            silent.send(connecting(port))
            await gone.wait()
            for _ in range(10):
                async with out.raw() as another:
                    assert (await another.reply())[0] == 503
            assert out.log == []
        await eventually(lambda: len(out.log) == 1)


async def test_the_log_is_bounded_and_keeps_the_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress, "LOG_BYTES", 1000)
    async with proxy(tmp_path) as out:
        for number in range(30):
            await out.connect(f"host{number}.example.com:443")
        assert out.log[-1]["host"] == "host29.example.com"
    for name in ("egress.jsonl", "egress.jsonl.1"):
        assert len((tmp_path / name).read_bytes()) < 1200


async def test_a_log_that_cannot_be_written_stops_nothing_and_is_counted(tmp_path: Path) -> None:
    (tmp_path / "egress.jsonl").mkdir()
    async with speaking(echo) as port, proxy(tmp_path, f"127.0.0.1:{port}") as out:
        assert await out.connect(f"127.0.0.1:{port}") == 200
        await eventually(lambda: out.counts == {"egress allowed": 1, "egress log lost": 1})


async def test_what_was_refused_is_told_apart_from_what_failed(tmp_path: Path) -> None:
    seen, gone = Seen(), []

    async def lost(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        gone.append(await reader.readuntil(b"\r\n\r\n"))

    async with serving(seen) as good, speaking(lost) as bad:
        upstream = Upstream(f"http://127.0.0.1:{bad}", "token", lambda r: None if r.path == "/lost" else "no")
        async with proxy(tmp_path, *(f"127.0.0.1:{port}" for port in (good, bad, 9)), upstream=upstream) as out:
            for port in (good, bad, 9, 10):
                async with out.raw() as agent:
                    agent.writer.write(f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                    assert ((await agent.reply())[0] == 502) is (port in (bad, 9))
            for path in ("lost", "refused"):
                async with raw(out.folder / "exchange" / PORTS[8000]) as agent:
                    await agent.ask(f"GET /{path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert out.counts == {
                "egress allowed": 2, "egress failed": 1, "egress lost": 1, f"egress refused: {UNLISTED}": 1,
                "lost": 1, "refused: no": 1,
            }  # fmt: skip
            assert out.gateway.refused == {f"egress refused: {UNLISTED}": 1, "refused: no": 1}


# Which destinations an entry covers, and which addresses are of the public Internet


@pytest.mark.parametrize(("entry", "covered", "others"), [
    ("api.example.com:443", ["API.example.com:443", "api.example.com.:443"],
     ["example.com:443", "x.api.example.com:443", "api.example.com:80", "api.example.com.evil:443"]),
    ("*.example.com:443", ["a.example.com:443", "a.b.example.com:443"],
     ["example.com:443", "aexample.com:443", "a.example.com:444", "a.example.com.evil:443"]),
    ("192.0.2.7:80", ["192.0.2.7:80"], ["192.0.2.8:80", "[::ffff:192.0.2.7]:80"]),
    ("[2001:db8::7]:443", ["[2001:db8:0:0::7]:443"], ["[2001:db8::8]:443"]),
])  # fmt: skip
def test_an_entry_covers_its_host_and_port_and_no_more(entry: str, covered: list[str], others: list[str]) -> None:
    parsed = Destination.parse(entry)
    assert str(parsed) == entry
    for text in (*covered, *others):
        asked = Destination.parse(text)
        assert parsed.covers(asked.host, asked.port) is (text in covered)


@pytest.mark.parametrize("text", [
    "", ":", "example.com", "example.com:", "example.com:0", "example.com:65536", "example.com:4 43", "example.com:+1",
    "example.com:٤٤٣", "https://example.com:443", "user@example.com:443", "ex ample.com:443", "-a.com:443", "a..b:443",
    "2001:db8::7:443", "[192.0.2.7]:80", "[::1:80", "*:443", "*.com:443", "*.192.0.2.7:80", "a.*.com:443",
    "**.a.com:443", "127.1:80", "2130706433:80", "0x7f000001:80", "0177.0.0.1:80", "1.2.3.4.5:80",
    "a" * 64 + ".com:443", "é.com:443", "a.b" * 90 + ":443", "example.com/x:443", "example.com\r\n:443",
])  # fmt: skip
def test_what_is_no_destination_is_refused_with_examples(text: str) -> None:
    with pytest.raises(SandboxError, match="expected a") as refused:
        Destination.parse(text)
    assert len(str(refused.value)) < 300


NOT_OF_THE_INTERNET = [ipaddress.ip_network(text) for text in (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/29",
    "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
    "224.0.0.0/4", "240.0.0.0/4", "::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48",
    "100::/64", "2001::/32", "2001:db8::/32", "2002::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
)]  # fmt: skip


@given(st.sampled_from(NOT_OF_THE_INTERNET), st.integers(0, 2**128 - 1), st.ip_addresses(v=4))
def test_no_address_of_another_network_is_public_nor_one_that_embeds_another(
    network: ipaddress.IPv4Network | ipaddress.IPv6Network, number: int, inner: ipaddress.IPv4Address
) -> None:
    assert why_not_public(network[number % network.num_addresses]) is not None
    for outer, shift in ((0xFFFF << 32, 0), (0x64FF9B << 96, 0), (0x2002 << 112, 80), (0x20010000 << 96, 0), (0, 0)):
        assert why_not_public(ipaddress.IPv6Address(outer | (int(inner) << shift))) is not None


@given(st.ip_addresses())
def test_what_is_public_is_global_to_pythons_mind_too(address: Address) -> None:
    if why_not_public(address) is None:
        assert address.is_global
        assert not any([address.is_private, address.is_loopback, address.is_link_local, address.is_multicast])

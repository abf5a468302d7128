from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import resource
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.gateway import reverse_proxy
from sandboxes.gateway.gateway import DESCRIPTORS, PORTS, Gateway
from sandboxes.gateway.reverse_proxy import LINGER_S, PLACEHOLDER, SEND_TIMEOUT_S, Request, Upstream, strip_headers
from sandboxes.spec import SandboxError
from tests.sandboxes.proxies import (
    GET,
    HOST,
    Endless,
    LoopClock,
    Raw,
    Seen,
    error_of,
    eventually,
    raw,
    request,
    serving,
    soon,
    speaking,
    turns,
)

TOKEN = "the-token-of-the-run"
TOKENS = st.from_regex(r"[a-z0-9!#$%&'*+.^_`|~-]{1,12}", fullmatch=True)
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def admit_all(_: Request) -> str | None:
    return None


@dataclass
class Opened:
    gateway: Gateway
    folder: Path
    http: aiohttp.ClientSession

    @property
    def counts(self) -> dict[str, int]:
        return dict(self.gateway.counts)

    def raw(self) -> contextlib.AbstractAsyncContextManager[Raw]:
        return raw(self.folder / PORTS[8000])

    async def get(self, path: str = "/health") -> int:
        async with self.http.get(path) as reply:
            return reply.status

    async def post(self, path: str, body: Any) -> int:
        async with self.http.post(path, data=body) as reply:
            return reply.status

    async def answers(self) -> bool:
        """Say whether there is room for another connection."""
        async with self.raw() as another:
            return await another.status(GET) == 200


@contextlib.asynccontextmanager
async def opened(
    folder: Path, where: int | str | None, admits: Callable[[Request], str | None] = admit_all
) -> AsyncIterator[Opened]:
    url = f"http://127.0.0.1:{where}" if isinstance(where, int) else where
    upstream = None if url is None else Upstream(url, TOKEN, admits)
    exchange = folder / "exchange"
    connector = aiohttp.UnixConnector(str(exchange / "server.sock"), limit=0)
    async with (
        Gateway(exchange, upstream=upstream, log=folder / "egress.jsonl") as gateway,
        aiohttp.ClientSession("http://127.0.0.1:8000", connector=connector) as http,
    ):
        yield Opened(gateway, exchange, http)


@contextlib.asynccontextmanager
async def recorded(
    folder: Path, admits: Callable[[Request], str | None] = admit_all
) -> AsyncIterator[tuple[Opened, Seen]]:
    seen = Seen()
    async with serving(seen) as port, opened(folder, port, admits) as both:
        yield both, seen


@dataclass
class Hanging:
    """A server whose answer does not come, or begins and does not end; it knows when it was asked and given up."""

    begins: bool = False
    began: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        if self.begins:
            await web.StreamResponse().prepare(request)
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        raise AssertionError


@pytest.mark.parametrize(("name", "sent", "arrives"), [
    ("Authorization", f"Bearer {PLACEHOLDER}", f"Bearer {TOKEN}"), ("X-API-Key", PLACEHOLDER, TOKEN),
    *(("Authorization", key, key) for key in ("Bearer an-episode's", f"Bearer {PLACEHOLDER}x", f"Basic {PLACEHOLDER}")),
])  # fmt: skip
async def test_just_the_placeholder_becomes_the_runs_token(tmp_path: Path, name: str, sent: str, arrives: str) -> None:
    async with recorded(tmp_path) as (both, seen):
        async with both.http.post("/v1/chat/completions", data=b"{}", headers={name: sent}) as reply:
            assert reply.status == 200
        assert seen.headers[name.lower()] == arrives
        assert both.counts == {"forwarded": 1}


async def test_the_server_sees_the_address_the_agent_used_and_no_claim_of_another(tmp_path: Path) -> None:
    claims = {
        "X-Forwarded-For": "10.0.0.1", "X-Forwarded-Host": "elsewhere", "Forwarded": "for=10.0.0.1",
        "Via": "1.1 elsewhere", "X-Real-IP": "10.0.0.1", "Connection": "x-secret, keep-alive",
        "X-Secret": "of one hop", "TE": "trailers", "Proxy-Authorization": "Basic abc",
    }  # fmt: skip
    async with recorded(tmp_path) as (both, seen):
        async with both.http.get("/health", headers={**claims, "X-Kept": "yes"}) as reply:
            assert reply.status == 200
        assert (seen.headers["host"], seen.headers["x-kept"]) == ("127.0.0.1:8000", "yes")
        assert not {name.lower() for name in claims} & set(seen.headers)


@given(st.lists(st.tuples(TOKENS, st.just("x")), max_size=6), TOKENS)
def test_a_header_named_by_connection_goes_no_further(headers: list[tuple[str, str]], name: str) -> None:
    asked = [*headers, ("Connection", f"Keep-Alive, {name.upper()}"), (name, "x")]
    for framing in (True, False):
        kept = [kept for kept, _ in strip_headers(asked, framing=framing)]
        assert not {name, "Connection"} & set(kept)
        assert framing or not {"content-length", "transfer-encoding"} & {one.lower() for one in kept}


async def test_each_piece_of_a_reply_arrives_before_the_next_is_made(tmp_path: Path) -> None:
    turn = asyncio.Event()

    async def stream(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(3):
            await response.write(b"data: %d\n\n" % number)
            await turn.wait()
            turn.clear()
        return response

    async with serving(stream) as port, opened(tmp_path, port) as both, both.http.get("/v1/events") as reply:
        for number in range(3):
            assert await reply.content.readany() == b"data: %d\n\n" % number
            turn.set()
        assert await reply.content.read() == b""


async def test_an_agent_that_goes_away_takes_its_request_at_the_server_with_it(tmp_path: Path) -> None:
    server = Hanging()
    async with serving(server) as port, opened(tmp_path, port) as both:
        async with both.raw() as agent:
            agent.writer.write(request("POST", "/v1/responses", b"{}"))
            await soon(server.began)
        await soon(server.ended)


async def test_a_reply_that_was_cut_short_never_looks_whole(tmp_path: Path) -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n")
        await writer.drain()

    async with speaking(half) as port, opened(tmp_path, port) as both, both.http.get("/health") as reply:
        with pytest.raises(aiohttp.ClientPayloadError):
            await reply.read()


async def test_a_server_that_cannot_be_reached_or_goes_away_is_an_error_that_clients_try_again(tmp_path: Path) -> None:
    async def gone(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async with speaking(gone) as port, opened(tmp_path, port) as both, both.http.get("/health") as reply:
        assert (reply.status, reply.headers["Retry-After"]) == (502, "1")
        assert error_of(await reply.read())["code"] == "engine_unavailable"
    async with opened(tmp_path, port) as both:
        async with both.http.post("/v1/responses", data=b"{}") as reply:
            assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
        assert both.counts == {"unreachable": 1}


def certify(folder: Path) -> None:
    """Make two authorities, `ca` and `other`, and a certificate of a server by the first."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for name in ("ca", "other"):
        openssl("req", "-x509", *key, "-keyout", f"{name}-key.pem", "-out", f"{name}.pem", "-subj", f"/CN={name}")
    (folder / "extensions").write_text("subjectAltName=IP:127.0.0.1\n")
    openssl("req", *key, "-keyout", "server-key.pem", "-out", "server.csr", "-subj", "/CN=server")
    openssl(
        "x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial",
        "-extfile", "extensions", "-out", "server.pem",
    )  # fmt: skip


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl, to make certificates")
async def test_a_server_that_proves_who_it_is_may_speak_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certify(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "server.pem", tmp_path / "server-key.pem")
    seen = Seen()
    async with serving(seen, tls=tls) as port:
        for trusted, expected in (("ca.pem", 200), ("other.pem", 503)):
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / trusted))
            async with opened(tmp_path, f"https://127.0.0.1:{port}") as both:
                assert [await both.post("/v1/files", bytes(300_000)) for _ in range(2)] == [expected] * 2
    assert [len(body) for *_, body in seen.requests] == [300_000] * 2


async def test_a_head_request_an_old_client_and_one_that_waits_for_a_sign_are_served(tmp_path: Path) -> None:
    async with recorded(tmp_path) as (both, seen):
        async with both.http.head("/health") as reply:
            assert (reply.status, await reply.read()) == (200, b"")
        async with both.raw() as agent:
            status, _, body = await agent.ask(b"GET /health HTTP/1.0\r\n" + HOST + b"\r\n")
            assert (status, json.loads(body)) == (200, {"ok": True})
            assert await agent.rest() == b""
        async with both.http.post("/v1/files", data=b"body", expect100=True) as reply:
            assert reply.status == 200
        assert [(method, path, body) for method, path, _, body in seen.requests] == [
            ("HEAD", "/health", b""), ("GET", "/health", b""), ("POST", "/v1/files", b"body")
        ]  # fmt: skip


@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=6), st.data())
async def test_however_bytes_of_requests_are_cut_the_same_arrive(bodies: list[bytes], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # the path of a socket is short
        async with recorded(Path(folder)) as (both, seen), both.raw() as agent:
            for number, body in enumerate(bodies):
                chunked = b"POST /%d HTTP/1.1\r\n" % number + HOST + CHUNKED
                pieces = b"\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
                sent = chunked + pieces if number % 2 else request("POST", f"/{number}", body)
                cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=4)))
                for start, end in itertools.pairwise([0, *cuts, len(sent)]):
                    agent.writer.write(sent[start:end])
                    await asyncio.sleep(0)
                assert (await agent.reply())[0] == 200
            found = [(path, body) for _, path, _, body in seen.requests]
            assert found == [(f"/{number}", body) for number, body in enumerate(bodies)]


@given(st.binary(max_size=300), st.booleans(), st.data())
async def test_however_a_replys_bytes_are_cut_the_same_arrives(body: bytes, chunked: bool, data: st.DataObject) -> None:
    framed = CHUNKED + b"\r\n" if chunked else b"Content-Length: %d\r\n\r\n" % len(body)
    pieces = b"%x\r\n%b\r\n" % (len(body), body) if chunked and body else body
    sent = b"HTTP/1.1 200 OK\r\n" + framed + pieces + (b"0\r\nTrailer: x\r\n\r\n" if chunked else b"")
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=5))), len(sent)]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for start, end in itertools.pairwise(cuts):
            writer.write(sent[start:end])
            await asyncio.sleep(0)
        await reader.read()

    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # the path of a socket is short
        async with speaking(answer) as port, opened(Path(folder), port) as both, both.http.get("/health") as reply:
            assert await reply.read() == body


# What is refused


def only_training(request: Request) -> str | None:
    if request.path == "/job":
        return "job"
    if (request.method, request.path) == ("POST", "/episodes") and request.body.get("kind") != "train":
        return "kind"
    return None


@pytest.mark.parametrize(("path", "body", "reason"), [("/job", {}, "job"), ("/episodes", {"kind": "eval"}, "kind")])
async def test_what_the_judge_does_not_admit_is_refused_and_counted_by_its_reason(
    tmp_path: Path, path: str, body: dict[str, str], reason: str
) -> None:
    async with recorded(tmp_path, only_training) as (both, seen):
        async with both.http.post(path, json=body) as reply:
            assert reply.status == 403
            error = error_of(await reply.read())
        assert error["code"] == "forbidden"
        assert reason in error["message"]
        assert both.counts == {f"refused: {reason}": 1}
        assert await both.post("/episodes", b'{"kind": "train"}') == 200
        assert seen.lines == [("POST", "/episodes")]


@pytest.mark.parametrize("path", ["/episodes", "/episodes/e-1/end", "/bundle"])
async def test_what_is_judged_is_what_is_sent(tmp_path: Path, path: str) -> None:
    async with recorded(tmp_path, only_training) as (both, seen):
        for sent, status in (
            (b'{"kind": "eval", "kind": "train"}', 400), (b'{"kind": "train"} {"kind": "eval"}', 400),
            (b"[" * 50_000, 400), (b'{"kind":\t"tra\\u0069n"}', 200), ('{"kind": "train"}'.encode("utf-16"), 200),
        ):  # fmt: skip
            assert await both.post(path, sent) == status
        assert [body for *_, body in seen.requests] == [b'{"kind": "train"}'] * 2
        assert both.counts == {"body": 3, "forwarded": 2}


async def test_what_was_judged_is_not_kept_while_its_answer_is_waited_for(tmp_path: Path) -> None:
    server = Hanging()
    async with serving(server) as port, opened(tmp_path, port) as both, both.raw() as agent:
        agent.writer.write(request("POST", "/bundle", b'{"asked of a gateway": [[]]}'))
        await soon(server.began)
        assert [each for each in gc.get_objects() if type(each) is dict and "asked of a gateway" in each] == []


async def test_what_the_judge_cannot_judge_is_refused_and_counted(tmp_path: Path) -> None:
    def broken(request: Request) -> str | None:
        raise KeyError(request.path)

    async with recorded(tmp_path, broken) as (both, seen):
        for ask in (both.http.get("/health"), both.http.post("/episodes", json={})):
            async with ask as reply:
                assert reply.status == 403
                assert "the judge failed" in error_of(await reply.read())["message"]
        assert (both.counts, seen.requests) == ({"refused: the judge failed (KeyError)": 2}, [])


@pytest.mark.parametrize("target", [
    "//job", "/./job", "/x/../job", "/..", "/%6aob", "/job/", "/episodes//", "/%2e%2e/job", "/a%2fb", "/job%00", "/a;b",
    "/a\\b", "http://127.0.0.1:8000/job", "http://elsewhere/v1/models", "*", "/a/...", "/job#x", "/v1/models?a#b",
])  # fmt: skip
async def test_a_target_that_is_no_plain_path_reaches_neither_judge_nor_server(tmp_path: Path, target: str) -> None:
    judged: list[Request] = []
    async with recorded(tmp_path, judged.append) as (both, seen):
        async with both.raw() as agent:
            status, _, body = await agent.ask(request("GET", target))
        assert (status, error_of(body)["type"]) == (400, "invalid_request_error")
        assert (judged, seen.requests) == ([], [])


POST_A, GET_A = b"POST /a HTTP/1.1\r\n" + HOST, b"GET /a HTTP/1.1\r\n" + HOST


@pytest.mark.parametrize(("sent", "statuses"), [
    *((sent, (400, 405)) for sent in (
        POST_A + b"Content-Length: 4\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
        POST_A + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde", POST_A + b"Content-Length: +4\r\n\r\nabcd",
        POST_A + b"Content-Length: " + b"0" * 5000 + b"4\r\n\r\nabcd",
        POST_A + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        POST_A + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        POST_A + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", POST_A + CHUNKED + b"\r\nzz\r\n\r\n",
        GET_A + b"X: a\r\n Folded: b\r\n\r\n", GET_A + b"X: a\rY: b\r\n\r\n", GET_A + b"X: a\nY: b\r\n\r\n",
        GET_A + b"X: a\x00b\r\n\r\n", GET_A + HOST + b"\r\n", GET_A + b"Upgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
        b"GET /a HTTP/1.1\n" + HOST + b"\n", b"GET /a HTTP/2.0\r\n" + HOST + b"\r\n",
        b"GET /a HTTP/1.1\r\nX: no host\r\n\r\n", b"CONNECT 127.0.0.1:22 HTTP/1.1\r\n" + HOST + b"\r\n",
        b"TRACE /a HTTP/1.1\r\n" + HOST + b"\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    )),
    *((GET_A + head, (400, 431)) for head in (  # large, of many headers, and without an end
        b"X: " + b"x" * 70_000 + b"\r\n\r\n", b"".join(b"X%d: y\r\n" % number for number in range(120)) + b"\r\n",
        b"X: " + b"x" * 70_000, b"x: y\r\n" * 150,
        b"".join(b"X%d: %b\r\n" % (n, b"x" * 900) for n in range(80)) + b"\r\n",
    )),
    *((path + HOST + body, (413,)) for path, body in (  # announced, announced to be judged, in chunks
        (b"POST /v1/files HTTP/1.1\r\n", b"Content-Length: 20000000\r\n\r\n"),
        (b"POST /episodes HTTP/1.1\r\n", b"Content-Length: 2000000\r\n\r\n"),
        (b"POST /v1/files HTTP/1.1\r\n", CHUNKED + b"\r\n" + 17 * (b"%x\r\n%b\r\n" % (1 << 20, bytes(1 << 20)))),
    )),
])  # fmt: skip
async def test_what_is_too_large_or_might_be_read_two_ways_ends_the_connection(
    tmp_path: Path, sent: bytes, statuses: tuple[int, ...]
) -> None:
    async with recorded(tmp_path) as (both, seen), both.raw() as agent:
        status, headers, _ = await agent.ask(sent + request("GET", "/smuggled"))
        assert (status in statuses, headers["connection"]) == (True, "close")
        assert await agent.rest() == b""
        assert seen.requests == []
        assert both.counts
        assert "forwarded" not in both.counts


async def test_a_part_of_a_second_request_before_the_first_is_answered_ends_the_connection(tmp_path: Path) -> None:
    server = Hanging()
    async with serving(server) as port, opened(tmp_path, port) as both, both.raw() as agent:
        agent.writer.write(GET)
        await soon(server.began)
        agent.writer.write(GET[:20])
        status, headers, _ = await agent.reply()
        assert (status, headers["connection"]) == (400, "close")
        assert both.counts == {"pipelined": 1}


async def test_a_second_request_during_a_reply_takes_what_serves_the_first_along(tmp_path: Path) -> None:
    judged: list[str] = []
    server = Hanging(begins=True)
    async with serving(server) as port, opened(tmp_path, port, lambda request: judged.append(request.path)) as both:
        async with both.raw() as agent:
            assert await agent.status(request("GET", "/a")) == 200
            agent.writer.write(request("GET", "/b"))
            assert await agent.rest() == b""
            await soon(server.ended)
        assert (judged, both.counts) == (["/a"], {"forwarded": 1, "pipelined": 1})


@pytest.mark.parametrize(("sent", "counted"), [
    (b"GET /a HTTP/1.1\r\nX\x00: y\r\n\r\n", "malformed"), (2 * GET, "pipelined"),
], ids=["broken head", "two at once"])  # fmt: skip
async def test_a_later_request_is_told_what_is_wrong_and_who_stays_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: LoopClock, sent: bytes, counted: str
) -> None:
    monkeypatch.setattr("sandboxes.gateway.gateway.MOST_CALLS", 1)
    async with recorded(tmp_path) as (both, _), both.raw() as stays:
        assert await stays.status(GET) == 200
        assert await stays.status(sent) == 400
        assert both.counts == {"forwarded": 1, counted: 1}
        await clock.forward(LINGER_S + 1)
        await eventually(both.answers)


async def test_a_head_in_pieces_after_a_large_body_is_no_large_head(tmp_path: Path) -> None:
    async with recorded(tmp_path) as (both, seen), both.raw() as agent:
        sent = request("POST", "/a", bytes(300_000))
        assert await agent.status(sent) == 200
        agent.writer.write(sent[:20])
        await turns()
        assert await agent.status(sent[20:]) == 200
        assert [len(body) for *_, body in seen.requests] == [300_000] * 2


@pytest.mark.parametrize("trailer", [b"x" * 10_000, b"x" * 10_000 + b"\r\nX: "], ids=["one", "many"])
async def test_trailers_beyond_the_bound_of_a_head_are_refused(tmp_path: Path, trailer: bytes) -> None:
    async with recorded(tmp_path) as (both, _), both.raw() as agent:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            agent.writer.write(POST_A + CHUNKED + b"\r\n0\r\nX: ")
            for _ in range(50):
                agent.writer.write(trailer)
                await agent.writer.drain()
            agent.writer.write(b"\r\n\r\n")
            await agent.reply()
        assert both.counts in ({"malformed": 1}, {"head_too_large": 1})


@pytest.mark.parametrize("head", [
    b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 101 On\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
])  # fmt: skip
async def test_a_server_whose_head_does_not_end_or_whose_coding_is_unread_is_left(tmp_path: Path, head: bytes) -> None:
    async with speaking(Endless(head, b"\r\n\r\n")) as port, opened(tmp_path, port) as both:
        assert await both.get() == 502


async def test_a_reader_that_stops_reading_stops_the_server_too(tmp_path: Path) -> None:
    endless = Endless(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n", b"\r\n\r\n")
    async with speaking(endless) as port, opened(tmp_path, port) as both, both.raw() as agent:
        agent.writer.write(GET)
        assert await endless.stands_still()


async def test_a_refused_request_leaves_the_connection_in_use_unless_its_body_waits_for_a_sign(tmp_path: Path) -> None:
    async with recorded(tmp_path, only_training) as (both, seen), both.raw() as agent:
        sent = request("POST", "/job", b"GET /x HT")
        assert await agent.status(sent[:-5]) == 403
        assert await agent.status(sent[-5:] + GET) == 200
        status, headers, _ = await agent.ask(request("POST", "/job", b"..", more=b"Expect: 100-continue\r\n")[:-2])
        assert (status, headers["connection"]) == (403, "close")
        assert seen.lines == [("GET", "/health")]


async def test_who_is_slow_to_send_or_asks_no_more_is_cut_off_and_a_server_may_take_its_time(
    tmp_path: Path, clock: LoopClock
) -> None:
    async def slow(_: web.BaseRequest) -> web.StreamResponse:
        await clock.forward(SEND_TIMEOUT_S + 1)
        return web.Response()

    async with serving(slow) as port, opened(tmp_path, port) as both:
        assert await both.get() == 200
        async with both.raw() as silent:
            await turns()
            await clock.forward(SEND_TIMEOUT_S + 1)
            assert await silent.rest() == b""
        for number, beginning in enumerate((b"GET /a HT", POST_A + b"Content-Length: 5\r\n\r\nab"), 1):
            async with both.raw() as agent:
                agent.writer.write(beginning)
                await eventually(partial(waited, clock, both, number))
                assert (await agent.reply())[0] == 408
        async with both.raw() as idle:
            assert await idle.status(GET) == 200
            await turns()
            await clock.forward(reverse_proxy.IDLE_TIMEOUT_S + 1)
            assert await idle.rest() == b""
        assert both.counts == {"forwarded": 2, "slow": 2}


async def waited(clock: LoopClock, both: Opened, slow: int) -> bool:
    """Let the time for a piece pass; say whether so many were slow."""
    await clock.forward(SEND_TIMEOUT_S + 1)
    return both.counts.get("slow") == slow


async def test_a_server_that_speaks_unasked_is_heard_by_nobody(tmp_path: Path) -> None:
    answered, spoke = asyncio.Event(), asyncio.Event()

    async def unasked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(EMPTY)
        await answered.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        spoke.set()
        with contextlib.suppress(ConnectionError):
            await reader.read()

    async with speaking(unasked) as port, opened(tmp_path, port) as both:
        assert await both.get() == 200
        answered.set()
        await soon(spoke)
        await turns()
        async with both.http.get("/health") as reply:
            assert await reply.read() == b""


@pytest.mark.parametrize("sent", [request("POST", "/episodes/x/end", b"{}"), GET], ids=["POST", "GET"])
async def test_a_request_is_sent_once_however_its_connection_ends(tmp_path: Path, sent: bytes) -> None:
    heads: list[bytes] = []

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(sent[-4:]))
        writer.write(EMPTY)
        heads.append(await reader.readuntil(sent[-4:]))

    async with speaking(once) as port, opened(tmp_path, port) as both, both.raw() as agent:
        assert [await agent.status(sent) for _ in range(2)] == [200, 502]
        assert (len(heads), both.counts) == (2, {"forwarded": 1, "lost": 1})


async def test_too_many_connections_are_refused_the_open_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxes.gateway.gateway.MOST_CALLS", 3)
    async with recorded(tmp_path) as (both, _), contextlib.AsyncExitStack() as stack:
        agents = [await stack.enter_async_context(both.raw()) for _ in range(3)]
        assert [await agent.status(GET) for agent in agents] == [200] * 3
        async with both.raw() as another:
            assert (await another.reply())[0] == 503
        assert await agents[0].status(GET) == 200
        agents[1].writer.close()
        await eventually(both.answers)


# Its sockets


@pytest.mark.parametrize("parent", ["new", "d" * 100 + "/" + "e" * 100], ids=["new", "longer than kernels take"])
async def test_the_sockets_are_there_for_the_container_and_gone_afterwards(tmp_path: Path, parent: str) -> None:
    folder = tmp_path / parent / "exchange"
    async with Gateway(folder, upstream=None, log=tmp_path / "log"):
        assert sorted(path.name for path in folder.iterdir()) == ["egress.sock", "server.sock"]
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o666}
        assert (folder.stat().st_mode & 0o777, folder.parent.stat().st_mode & 0o777) == (0o755, 0o700)
    assert list(folder.iterdir()) == []


async def test_a_folder_that_others_could_enter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxes.gateway.gateway._is_private", lambda folder: False)
    with pytest.raises(SandboxError, match="only its owner"):
        async with Gateway(tmp_path / "exchange", upstream=None, log=tmp_path / "log"):
            pass


async def test_a_process_that_may_have_more_descriptors_takes_them(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        for given_, taken in ((600, min(DESCRIPTORS, hard)), (hard, hard)):
            resource.setrlimit(resource.RLIMIT_NOFILE, (given_, hard))
            async with opened(tmp_path, None):
                assert resource.getrlimit(resource.RLIMIT_NOFILE) == (taken, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_successor_takes_the_sockets_over_without_a_gap(tmp_path: Path) -> None:
    async with opened(tmp_path, None) as first, recorded(tmp_path) as (second, _):
        assert await second.answers()
        await first.gateway.__aexit__(None, None, None)
        assert await second.answers()


async def test_the_token_is_in_no_representation_and_without_an_upstream_everything_is_refused(tmp_path: Path) -> None:
    assert TOKEN not in repr(Upstream("http://127.0.0.1:1", TOKEN, admit_all))
    async with opened(tmp_path, None) as both, both.http.get("/health") as reply:
        assert (reply.status, both.counts, "Server" in reply.headers) == (403, {"no_server": 1}, False)


@pytest.mark.parametrize("url", ["127.0.0.1:1", "http://", "unix:///x", "http://a:99999", "http://[::1"])
async def test_an_upstream_that_is_no_plain_address_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(SandboxError, match="http://HOST:PORT"):
        async with Gateway(tmp_path / "exchange", upstream=Upstream(url, TOKEN, admit_all), log=tmp_path / "log"):
            pass


async def test_a_sandbox_sends_so_much_and_more_when_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reverse_proxy, "MOST_BYTES_AT_ONCE", 1000)
    arrived, answer = asyncio.Event(), asyncio.Event()

    async def slow(request: web.BaseRequest) -> web.StreamResponse:
        await request.content.read()
        arrived.set()
        await answer.wait()
        return web.json_response({"ok": True})

    async with serving(slow) as port, opened(tmp_path, port) as both:
        first = asyncio.create_task(both.post("/v1/chat/completions", b"x" * 600))
        await arrived.wait()
        async with both.http.post("/v1/chat/completions", data=b"x" * 600) as reply:
            assert (reply.status, reply.headers["retry-after"]) == (503, "1")
            assert "at most 1000 bytes" in (await reply.json())["error"]["message"]
        answer.set()
        assert await first == 200
        assert await both.post("/v1/chat/completions", b"x" * 600) == 200
        assert both.counts == {"forwarded": 2, "too_much_at_once": 1}

"""The relay counts each request once, to the byte, however its bytes are cut, and passes all of them on."""

from __future__ import annotations

import asyncio
import itertools

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rig.scale.relay import Exchange, Relay, Requests, kind_of, over_tcp

HEAD = b"POST /episodes/e-1/end?tokens=true HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
bodies = st.lists(st.binary(max_size=40), min_size=1, max_size=4)


def passed(pieces: list[bytes]) -> list[Exchange]:
    found: list[Exchange] = []
    requests = Requests(found)
    for piece in pieces:
        requests.asked(piece)
    return found


@given(bodies, st.lists(st.integers(0, 400), max_size=8))
def test_what_is_counted_does_not_depend_on_where_the_bytes_are_cut(bodies: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(HEAD % len(body) + body for body in bodies)
    places = [0, *sorted(cuts), len(whole)]
    found = passed([whole[start:end] for start, end in itertools.pairwise(places)])
    assert [each.kind for each in found] == ["POST /episodes/ID/end"] * len(bodies)
    assert [each.up for each in found] == [len(HEAD % len(body)) + len(body) for body in bodies]


def test_a_body_of_unknown_length_is_refused() -> None:
    with pytest.raises(ValueError, match="says its length"):
        passed([b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"])


def test_a_kind_names_no_episode_and_no_query() -> None:
    assert kind_of(b"GET /episodes/3b569523-7?labels=true HTTP/1.1\r\n\r\n") == "GET /episodes/ID"
    assert kind_of(b"POST /episodes HTTP/1.1\r\n\r\n") == "POST /episodes"


async def test_it_passes_on_what_it_counts() -> None:
    answer = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 5\r\n\r\nlater"
    seen = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not seen.endswith(b"hello"):
            seen.extend(await reader.read(7))
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with (
        Relay(over_tcp(f"http://127.0.0.1:{port}")) as relay,
        aiohttp.ClientSession(relay.url) as http,
        http.post("/episodes", data=b"hello") as reply,
    ):
        assert (reply.status, await reply.read()) == (429, b"later")
    server.close()
    assert relay.passed == [Exchange("POST /episodes", up=len(seen), down=len(answer), status=429)]

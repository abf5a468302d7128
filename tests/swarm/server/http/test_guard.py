"""The guard: failures are limited per address, keys that were signed here always pass, memory is constant."""

from __future__ import annotations

from typing import Any

import pytest

from swarm.rollout.keys import Keys
from swarm.server.connections import FAILURES, MOST_PEERS, REFILL_S, Failures, peer_of
from swarm.server.http import Guard, authorised
from tests.swarm.server.support import Clock

CHOSEN = "an operator's own words, forty characters"


class Client:
    """Asks a guarded application, whose one route wants a valid key, from an address."""

    def __init__(self, keys: Keys, failures: Failures) -> None:
        self.asked = 0
        self._guard = Guard(self._application, keys, failures)

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        try:
            authorised(scope, roles=("admin",))
            status = 200
        except Exception as error:  # noqa: BLE001
            status = error.status  # type: ignore[attr-defined]
        await send({"type": "http.response.start", "status": status, "headers": []})

    async def ask(self, key: str, host: str = "192.0.2.7") -> int:
        told: list[Any] = []
        scope = {
            "type": "http", "path": "/status", "client": (host, 5000),
            "headers": [(b"authorization", f"Bearer {key}".encode())],
        }  # fmt: skip

        async def send(message: Any) -> None:
            told.append(message)

        await self._guard(scope, None, send)  # type: ignore[arg-type]
        return int(told[0]["status"])


@pytest.fixture
def keys() -> Keys:
    return Keys(CHOSEN)


@pytest.fixture
def client(keys: Keys, clock: Clock) -> Client:
    return Client(keys, Failures(clock))


async def test_an_address_that_goes_on_failing_is_refused_without_a_look_at_its_key(client: Client) -> None:
    assert [await client.ask("wrong") for _ in range(FAILURES)] == [401] * FAILURES
    looked = client.asked
    assert [await client.ask(f"wrong {number}") for number in range(50)] == [429] * 50
    assert client.asked == looked


async def test_another_address_is_not_touched(client: Client) -> None:
    for _ in range(FAILURES + 1):
        await client.ask("wrong")
    assert await client.ask("wrong", "192.0.2.8") == 401
    assert await client.ask(CHOSEN, "192.0.2.8") == 200


async def test_signed_keys_pass_whatever_a_neighbour_does(client: Client, keys: Keys) -> None:
    known = keys.role("admin")
    assert await client.ask(known) == 200
    for _ in range(FAILURES + 10):
        await client.ask("wrong")
    assert await client.ask(known) == 200
    assert await client.ask(Keys(CHOSEN).role("admin")) == 429
    assert await client.ask(keys.role("admin")) == 200


async def test_the_operators_own_token_waits_like_a_guess_and_no_longer_than_documented(
    client: Client, clock: Clock
) -> None:
    assert await client.ask(CHOSEN) == 200
    for _ in range(FAILURES + 10):
        await client.ask("wrong")
    assert await client.ask(CHOSEN) == 429
    clock.now += REFILL_S
    assert await client.ask(CHOSEN) == 200
    assert await client.ask("wrong") == 401
    assert await client.ask(CHOSEN) == 429


async def test_valid_keys_use_nothing_up(client: Client) -> None:
    assert {await client.ask(CHOSEN) for _ in range(3 * FAILURES)} == {200}


def test_allowed_failures_come_back_one_by_one(clock: Clock) -> None:
    failures = Failures(clock)
    for _ in range(FAILURES):
        assert failures.wait_s("a") == 0
        failures.note("a")
    assert failures.wait_s("a") == pytest.approx(REFILL_S)
    clock.now += REFILL_S / 2
    assert failures.wait_s("a") == pytest.approx(REFILL_S / 2)
    clock.now += 10 * FAILURES * REFILL_S
    for _ in range(FAILURES):
        assert failures.wait_s("a") == 0
        failures.note("a")
    assert failures.wait_s("a") > 0


def test_memory_is_constant_and_the_longest_quiet_is_forgotten_first(clock: Clock) -> None:
    failures = Failures(clock)
    for peer in ("quiet", "persistent"):
        for _ in range(FAILURES):
            failures.note(peer)
    for number in range(MOST_PEERS - 2):
        failures.note(f"peer {number}")
    failures.note("persistent")
    assert failures.wait_s("quiet") > 0
    failures.note("one more")
    assert len(failures) == MOST_PEERS
    assert failures.wait_s("quiet") == 0
    assert failures.wait_s("persistent") > 0


@pytest.mark.parametrize(
    ("host", "peer"),
    [
        ("192.0.2.7", "192.0.2.7"), ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"), ("::ffff:192.0.2.7", "192.0.2.7"),
        ("/run/socket", "/run/socket"),
    ],
)  # fmt: skip
def test_an_ipv6_network_is_one_peer(host: str, peer: str) -> None:
    assert peer_of({"type": "http", "client": (host, 1)}) == peer


def test_a_request_of_no_known_address_is_a_peer_too() -> None:
    assert peer_of({"type": "http", "client": None}) == "unknown"

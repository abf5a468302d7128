"""Tests of connections."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swarm.backends.protocols import DiskFull
from swarm.errors import InvalidRequest, NotFound
from swarm.job import Job
from swarm.rollout.keys import Keys
from swarm.server import model_export
from swarm.server.connections import FAILURES, MOST_PEERS, REFILL_S, FailureLimiter, peer_of
from swarm.server.http import Guard, authorize
from swarm.server.model_export import ExportRequest, choose_checkpoint, export_model
from swarm.store.archive import TrainingSummary
from swarm.wire import CheckpointList, CheckpointSummary, EvaluationSummary
from tests.golden import refused
from tests.swarm.server.support import Clock

CHOSEN = "an operator's own words, forty characters"


class Client:
    """Asks a guarded application, whose one route wants a valid key, from an address."""

    def __init__(self, keys: Keys, failures: FailureLimiter) -> None:
        self.asked = 0
        self._guard = Guard(self._application, keys, failures)

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        try:
            authorize(scope, roles=("admin",))
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
    return Client(keys, FailureLimiter(clock))


async def test_an_address_that_goes_on_failing_is_refused_without_a_look_at_its_key(client: Client) -> None:
    assert {await client.ask(CHOSEN) for _ in range(3 * FAILURES)} == {200}, "valid keys use nothing up"
    assert [await client.ask("wrong") for _ in range(FAILURES)] == [401] * FAILURES
    looked = client.asked
    assert [await client.ask(f"wrong {number}") for number in range(50)] == [429] * 50
    assert client.asked == looked
    assert [await client.ask(key, "192.0.2.8") for key in ("wrong", CHOSEN)] == [401, 200], "another is not touched"


async def test_signed_keys_pass_whatever_a_neighbour_does(client: Client, keys: Keys) -> None:
    known = keys.role_key("admin")
    assert await client.ask(known) == 200
    for _ in range(FAILURES + 10):
        await client.ask("wrong")
    assert await client.ask(known) == 200
    assert await client.ask(Keys(CHOSEN).role_key("admin")) == 429
    assert await client.ask(keys.role_key("admin")) == 200


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


def test_memory_is_constant_and_the_longest_quiet_is_forgotten_first(clock: Clock) -> None:
    failures = FailureLimiter(clock)
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
        ("/run/socket", "/run/socket"), (None, "unknown"),
    ],
)  # fmt: skip
def test_an_ipv6_network_is_one_peer(host: str | None, peer: str) -> None:
    assert peer_of({"type": "http", "client": None if host is None else (host, 1)}) == peer


def wanted(tmp_path: Path) -> ExportRequest:
    return ExportRequest(tmp_path / "server", tmp_path / "models", tmp_path / "out", "latest", False)


def found(monkeypatch: pytest.MonkeyPatch, job: Job, written: Any = None) -> None:
    async def known(_: ExportRequest) -> tuple[CheckpointSummary, Path, TrainingSummary]:
        summary = CheckpointSummary(name="step-000001", step=1, size_bytes=1)
        return summary, Path("gone"), TrainingSummary(job, job.digest(), {}, 0, None)

    monkeypatch.setattr(model_export, "_find_training", known)
    monkeypatch.setattr(model_export, "_write_draft", written)


def test_a_full_disk_leaves_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        (arguments[4] / "model.safetensors").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    found(monkeypatch, Job(), full)
    with refused(DiskFull, "out"):
        export_model(wanted(tmp_path), lambda _: None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fields", "apart", "named"), [({"backend": "fake"}, False, "fake"), ({}, True, "lora_rank"), ({}, False, "out")]
)
def test_what_cannot_be_exported_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], apart: bool, named: str
) -> None:
    found(monkeypatch, Job(**fields))
    if named == "out":
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "mine").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with refused(InvalidRequest, named):
        export_model(replace(wanted(tmp_path), apart=apart), lambda _: None)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_without_a_server_is_none(tmp_path: Path) -> None:
    with refused(NotFound):
        export_model(wanted(tmp_path), lambda _: None)


def kept(*steps: int, best: int | None = None) -> CheckpointList:
    found = tuple(CheckpointSummary(name=f"step-{step:06d}", step=step, size_bytes=1) for step in steps)
    score = None if best is None else EvaluationSummary(step=best, episodes=4, reward=1.0)
    return CheckpointList(job_digest="d" * 64, checkpoints=found, best=score)


def test_a_step_the_latest_and_the_best_are_found() -> None:
    listed = kept(30, 20, 10, best=20)
    assert [choose_checkpoint(step, listed).step for step in ("latest", "10", "best")] == [30, 10, 20]


@pytest.mark.parametrize(
    ("step", "listed", "named"),
    [
        *((step, kept(30, 20, 10), "10, 20, 30") for step in ("25", "-1", "last", "", "030")),
        ("best", kept(30, 20), "eval_every"),
        ("latest", CheckpointList(job_digest=None, checkpoints=()), "nothing"),
        ("latest", CheckpointList(job_digest="d" * 64, checkpoints=()), "not saved"),
    ],
)
def test_what_is_not_kept_is_refused_with_what_is(step: str, listed: CheckpointList, named: str) -> None:
    with pytest.raises(NotFound, match=named):
        choose_checkpoint(step, listed)

"""Signed keys, and what a server's directory keeps across restarts.

The directory, readable by its owner alone, holds `secret` (signs keys, so that they survive a restart), `installation`
(its name for the database it writes) and `engine.json` (the job whose engine is on; gone once the engine is stopped,
there after the server itself ended). Files are whole or absent.

Keys expire and carry no address. Three uses are never mixed: a role (admin, client, viewer) on the control plane;
`model` for the calls of one episode, after a slash with an agent's name; `lease` for its heartbeat, end and abort.
Leases do not survive a restart (LeaseLost), and other servers' keys are refused. An operator may add one admin token of
their own, needed for an address that is not loopback.
"""

import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import unquote

import jwt
from pydantic import ValidationError

from swarm.errors import InvalidKey, ServerFailed
from swarm.job import Job

_SECRET_BYTES = 32


class ServerDirectory:
    """The kept files below `path`, which is made if need be; OSError where it cannot be read or written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._engine = path / "engine.json"
        path.mkdir(parents=True, exist_ok=True)

    def secret(self) -> bytes:
        """Return the secret, made the first time; raise ServerFailed if its file is damaged."""
        try:
            return bytes.fromhex(self._read_or_create("secret"))
        except ValueError:
            raise ServerFailed(
                f"{self.path / 'secret'} is damaged: expected {2 * _SECRET_BYTES} hex digits; delete it, and all keys "
                "given so far are void"
            ) from None

    def installation(self) -> str:
        return self._read_or_create("installation")

    def record_engine_on(self, job: Job) -> None:
        write_private(self._engine, json.dumps(job.value()))

    def record_engine_off(self) -> None:
        self._engine.unlink(missing_ok=True)

    def read_interrupted_job(self) -> Job | None:
        """Return the job whose engine was on when the server ended or died, or None. Raises ServerFailed for one this
        version cannot read."""
        try:
            return Job.from_record(self._engine.read_text())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise ServerFailed(
                f"{self._engine} holds a job that this version of ajet does not read ({error.error_count()} fields); "
                "delete it to start without that job"
            ) from None

    def _read_or_create(self, name: str) -> str:
        path = self.path / name
        try:
            return path.read_text()
        except FileNotFoundError:
            write_private(path, secrets.token_hex(_SECRET_BYTES))
            return path.read_text()


def write_private(path: Path, text: str) -> None:
    """Write a file that its owner alone can read, durably, all or nothing."""
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


Role = Literal["admin", "client", "viewer"]
Use = Literal["role", "model", "lease"]

ROLE_LIFE_S = 90 * 86_400
EPISODE_LIFE_S = 8 * 86_400
"""A day more than the longest play (`BeginRequest.timeout_s`); a key is of no use once its episode is over."""
_CACHED = 8192


@dataclass(frozen=True, slots=True)
class Claims:
    """What a key says: a role, or an episode and its epoch; `signed` here, so that nobody can guess it. `agent` is what
    its holder wrote behind it: which of the episode's agents calls."""

    use: Use
    role: Role | None = None
    episode: str = ""
    fencing_token: int = 0
    signed: bool = True
    agent: str = ""


class Keys:
    """Signs and reads keys. `clock` is Unix time in seconds; without a `secret` there is a random one."""

    def __init__(
        self, admin_token: str | None = None, clock: Callable[[], float] | None = None, *, secret: bytes | None = None
    ) -> None:
        self._secret = secret or secrets.token_bytes(32)
        self._admin_token = admin_token
        offset = time.time() - time.monotonic()  # as it passes from now on: set clocks let no key expire
        self._clock = clock or (lambda: offset + time.monotonic())
        self._read: dict[str, tuple[Claims, float]] = {}  # verified keys: reading one again costs no signature

    def role_key(self, role: Role) -> str:
        return self._sign({"use": "role", "role": role}, ROLE_LIFE_S)

    def model_key(self, episode: str, fencing_token: int) -> str:
        return self._sign({"use": "model", "ep": episode, "epoch": fencing_token}, EPISODE_LIFE_S)

    def lease_key(self, episode: str, fencing_token: int) -> str:
        return self._sign({"use": "lease", "ep": episode, "epoch": fencing_token}, EPISODE_LIFE_S)

    def read(self, key: str) -> Claims:
        """Return what a key says; raise InvalidKey if it is forged or expired."""
        if key not in self._read:
            self._keep(key, *self._verify(key))
        claims, expires_at = self._read[key]
        if expires_at <= self._clock():
            raise InvalidKey("the key has expired; begin a new episode, or take a fresh token from tokens.json")
        return claims

    def read_header(self, header: str | None) -> Claims:
        """Return what the key of an Authorization header says, with the name behind it (`swarm.client.episode.key_of`;
        a chosen token has none). Raises InvalidKey where there is none or it is wrong."""
        scheme, _, key = (header or "").partition(" ")
        if scheme.lower() != "bearer" or not (key := key.strip()):
            raise InvalidKey("expected a header `Authorization: Bearer KEY`, found none")
        signed, slash, name = key.partition("/")
        if not slash or self._is_chosen(key):
            return self.read(key)
        claims = self.read(signed)
        if claims.use != "model":
            raise InvalidKey(
                f"expected an agent's name behind an episode's key alone; found it behind {describe_claims(claims)}"
            )
        return replace(claims, agent=unquote(name))

    def write_tokens(self, path: Path) -> None:
        """Write a token of each role to `path` as JSON, readable by the owner alone, atomically."""
        write_private(path, json.dumps({role: self.role_key(role) for role in get_args(Role)}, indent=1))

    def _sign(self, claims: dict[str, Any], life_s: float) -> str:
        signed = {**claims, "exp": int(self._clock() + life_s)}
        key = jwt.encode(signed, self._secret, algorithm="HS256")
        self._keep(key, *_read_claims(signed))
        return key

    def _keep(self, key: str, claims: Claims, expires_at: float) -> None:
        if len(self._read) >= _CACHED:
            self._read.clear()
        self._read[key] = claims, expires_at

    def _is_chosen(self, key: str) -> bool:
        """Compare with the operator's token in a time that says nothing, not even of its length."""
        if self._admin_token is None:
            return False
        digests = [hashlib.sha256(text.encode()).digest() for text in (key, self._admin_token)]
        return hmac.compare_digest(*digests)

    def _verify(self, key: str) -> tuple[Claims, float]:
        if self._is_chosen(key):
            return Claims("role", role="admin", signed=False), float("inf")
        options: Any = {"require": ["exp"], "verify_exp": False}  # `read` judges expiry, by the injected clock
        try:
            signed = jwt.decode(key, self._secret, algorithms=["HS256"], options=options)
        except jwt.InvalidTokenError:
            raise InvalidKey(
                "the key is not one of this server's; set AJET_TOKEN to what `ajet swarm token` prints there, or begin "
                "an episode here"
            ) from None
        return _read_claims(signed)


def _read_claims(signed: Mapping[str, Any]) -> tuple[Claims, float]:
    if signed["use"] == "role":
        return Claims("role", role=signed["role"]), float(signed["exp"])
    return Claims(signed["use"], episode=signed["ep"], fencing_token=signed["epoch"]), float(signed["exp"])


def describe_claims(claims: Claims) -> str:
    return f"the {claims.role} role" if claims.use == "role" else f"a {claims.use} key"

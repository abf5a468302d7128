"""No SDK or framework calls out: telemetry is off, and whoever tries all the same fails its test."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

_QUIET = {
    "DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1", "LANGCHAIN_TRACING_V2": "false",
    "LANGSMITH_TRACING": "false", "OPENAI_AGENTS_DISABLE_TRACING": "1", "OTEL_SDK_DISABLED": "true",
}  # fmt: skip
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@pytest.fixture(autouse=True)
def loopback_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in _QUIET.items():
        monkeypatch.setenv(name, value)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    tried: list[Any] = []
    connect, look_up = socket.socket.connect, socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and address[0] not in _LOOPBACK:
            tried.append(address)
            raise ConnectionRefusedError(f"not loopback: {address}")
        connect(self, address)

    def guarded_look_up(host: Any, *args: Any, **how: Any) -> Any:
        if host not in (None, *_LOOPBACK):
            tried.append(host)
            raise socket.gaierror(f"not loopback: {host}")
        return look_up(host, *args, **how)

    monkeypatch.setattr(socket.socket, "connect", guarded_connect)
    monkeypatch.setattr(socket, "getaddrinfo", guarded_look_up)
    yield
    assert tried == []

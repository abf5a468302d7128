"""A server that is away for a while is waited for, and said once; one that refuses has answered."""

from __future__ import annotations

import httpx
import pytest

from research.serving import patience
from research.serving.patience import patiently

REQUEST = httpx.Request("GET", "http://prefect")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "AGAIN_S", 0.0)


def refusal(status: int) -> httpx.HTTPStatusError:
    return httpx.HTTPStatusError("no", request=REQUEST, response=httpx.Response(status, request=REQUEST))


def asked(*errors: Exception, most_s: float = 60.0) -> tuple[str, list[str]]:
    """Ask a server that fails so, and then answers; return what it answered and what was noted."""
    left, noted = list(errors), list[str]()

    def ask() -> str:
        if left:
            raise left.pop(0)
        return "here"

    return patiently(ask, noted.append, most_s), noted


def test_one_that_starts_again_is_waited_for_and_said_once() -> None:
    answer, noted = asked(httpx.ConnectError("refused"), refusal(503), httpx.ReadTimeout("slow"))
    assert answer == "here"
    assert noted == ["waiting for Prefect: ConnectError: refused"]


def test_a_refusal_is_an_answer() -> None:
    with pytest.raises(httpx.HTTPStatusError):
        asked(refusal(404))


def test_one_that_stays_away_is_given_up() -> None:
    with pytest.raises(httpx.ConnectError):
        asked(httpx.ConnectError("refused"), httpx.ConnectError("refused"), most_s=-1.0)

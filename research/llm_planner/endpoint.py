"""One request to an OpenAI-compatible endpoint: its reply as text, or what went wrong in a form one can act on.

No retry happens here. Errors name the endpoint by host and port only, and neither they nor replies hold the key. The
timeout bounds a request as a whole: a client's own is between bytes, and a server may trickle them for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import openai

Kind = Literal["timeout", "unreachable", "dropped", "status", "unrecorded", "other"]
_SHORTEST_KEY = 8
"""Shorter ones are placeholders (`none`, `x`), which would be found in any text."""
_PASSING = frozenset({408, 409, 425, 429})
_SHOWN = 240


class EndpointError(Exception):
    """A request without a reply."""

    def __init__(self, kind: Kind, text: str = "", status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.status = status
        self.retry_after = retry_after
        """Seconds the endpoint asks to wait, where it does."""

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later."""
        by_status = self.status is not None and (self.status in _PASSING or self.status >= 500)
        return self.kind in ("timeout", "unreachable", "dropped") or by_status


class Endpoint(Protocol):
    """Where requests go."""

    @property
    def where(self) -> str:
        """What an error calls it."""
        ...

    def complete(self, request: Mapping[str, Any], timeout_s: float) -> str:
        """Return the body of the reply to a chat completion request; raise EndpointError."""
        ...

    def redacted(self, text: str) -> str:
        """Return a text in short and without the key."""
        ...


class OpenAiEndpoint:
    """An endpoint behind the openai client."""

    def __init__(self, api_key: str, base_url: str) -> None:
        self._api_key = api_key
        self._base_url = base_url

    @property
    def where(self) -> str:
        """Return host and port."""
        return host_of(self._base_url)

    def complete(self, request: Mapping[str, Any], timeout_s: float) -> str:
        """Return the body of the reply, without the key; raise EndpointError."""
        reply: Future[str] = Future()
        # A thread that nothing waits for: one that hears a trickle ends with it, or with the process.
        threading.Thread(target=self._hear, args=(request, timeout_s, reply), daemon=True).start()
        try:
            return self.bare(reply.result(timeout_s))
        except TimeoutError as error:
            raise EndpointError("timeout") from error

    def _hear(self, request: Mapping[str, Any], timeout_s: float, reply: Future[str]) -> None:
        try:
            reply.set_result(self._asked(request, timeout_s))
        except BaseException as error:  # noqa: BLE001 - it is the asker's, whatever it is
            reply.set_exception(error)

    def _asked(self, request: Mapping[str, Any], timeout_s: float) -> str:
        import openai

        try:
            with openai.OpenAI(
                api_key=self._api_key, base_url=self._base_url, timeout=timeout_s, max_retries=0
            ) as client:
                return client.chat.completions.with_raw_response.create(**request).text
        except openai.OpenAIError as error:
            raise self._told(error) from error

    def redacted(self, text: str) -> str:
        """Return a text in short and without the key; refused tries are written into the event log."""
        return short(self.bare(text))

    def bare(self, text: str) -> str:
        """Return a whole text without the key."""
        return text.replace(self._api_key, "***") if len(self._api_key) >= _SHORTEST_KEY else text

    def _told(self, error: openai.OpenAIError) -> EndpointError:
        import openai

        if isinstance(error, openai.APITimeoutError):
            return EndpointError("timeout")
        if isinstance(error, openai.APIConnectionError):
            # By its name: which HTTP library the client stands on differs between its versions.
            return EndpointError("unreachable" if type(error.__cause__).__name__ == "ConnectError" else "dropped")
        if isinstance(error, openai.APIStatusError):
            waits = _seconds(error.response.headers.get("retry-after"))
            return EndpointError("status", self.redacted(error.message), error.status_code, waits)
        return EndpointError("other", self.redacted(str(error)))


def failure(error: EndpointError, where: str, model: str, timeout_s: float) -> str:
    """Return an endpoint's failure as one line for a person."""
    if error.kind == "unrecorded":
        return f"expected the request in {where}; found {error.text}; record it with --record, or ask without --replay"
    expected = f"expected an OpenAI-compatible endpoint at {where}"
    if error.kind == "timeout":
        return f"{expected}; found no answer within {timeout_s:g} s; try again or another --planner-model"
    if error.kind == "unreachable":
        return (
            f"{expected}; found nothing that answers there; start it, correct OPENAI_BASE_URL, or use --planner rules"
        )
    if error.kind == "dropped":
        return f"{expected}; found a connection that broke off; try again, and check OPENAI_BASE_URL and the network"
    if error.status in (401, 403):
        return f"{expected}; it refuses the key ({error.status}); check OPENAI_API_KEY"
    if error.status == 404:
        return f"{expected} with model {model!r}; found 404; check --planner-model and OPENAI_BASE_URL"
    if error.status == 429:
        return f"{expected}; it refuses for now (429, rate or credit); try again later"
    if error.status is not None:
        return f"{expected}; found status {error.status}: {error.text}; check --planner-model and the endpoint"
    return f"{expected}; found {error.text}; check --planner-model and the endpoint"


def short(text: str) -> str:
    """Return a text on one line, cut."""
    flat = " ".join(text.split())
    return flat if len(flat) <= _SHOWN else flat[: _SHOWN - 1] + "…"


def host_of(base_url: str) -> str:
    """Return scheme, host and port of an address: no user, password, path or query."""
    parts = urlsplit(base_url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}"


def _seconds(text: str | None) -> float | None:
    """Return the seconds of a Retry-After header; None where it names a date, or nothing."""
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:
        return None

"""Every error a swarm server answers with and a swarm client raises: one tree for both.

The wire form is OpenAI's error object: {"error": {"message", "type", "code", "param"}}. `code` is the protocol; the
message is for people and says what was expected, what was found and what to do. `Unreachable`, `UnknownAnswer` and
`TeamAborted` are raised by clients alone.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pydantic import ValidationError

HALF_A_CHARACTER = (
    "expected whole characters, found half of one (a surrogate without its other half); send U+FFFD for it"
)
_SAY_IT_ALL = frozenset({"value_error", "missing", "json_invalid", "extra_forbidden"})
"""Kinds of pydantic's errors after which what was found is not shown again."""
_PLAIN = {
    "extra_forbidden": "there is no such field", "missing": "expected a value, found none",
    "tuple_type": "expected a valid array",
    **dict.fromkeys(("model_type", "model_attributes_type", "dataclass_type"), "expected an object"),
}  # fmt: skip
_FOUND_SHOWN = 80
_BY_CODE: "dict[str, type[SwarmError]]" = {}


class SwarmError(Exception):
    """Base of all swarm errors; `code` and `status` identify it on the wire."""

    code: ClassVar[str] = "server_error"
    status: ClassVar[int] = 500

    def __init_subclass__(cls, code: str = "", status: int | None = None) -> None:
        """Name the error's `code` and `status` (0: raised by clients, never sent) where its base's are not its own."""
        cls.status = cls.status if status is None else status
        cls.code = code or cls.code
        if code and cls.status:
            _BY_CODE[code] = cls

    details: Mapping[str, str] | None = None
    """What Anthropic's form of the error says beside it."""

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after

    def to_wire(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "code": self.code, "param": self.param}}


class InvalidRequest(SwarmError, code="invalid_request", status=400):
    """The request is malformed, or asks for something that is not honoured (`param` names the field)."""


class ContextExceeded(InvalidRequest, code="context_length_exceeded"):
    """Prompt and answer do not fit the model's context."""


class BodyTooLarge(InvalidRequest, code="body_too_large", status=413):
    """The request's body is larger than the server takes."""


class InvalidKey(SwarmError, code="invalid_api_key", status=401):
    """No key, a forged key, or an expired one."""


class Forbidden(SwarmError, code="forbidden", status=403):
    """The key is valid, but its role or its episode does not allow this call."""


class NotFound(SwarmError, code="not_found", status=404):
    """No such episode, model or route."""


class JobConflict(SwarmError, code="job_conflict", status=409):
    """Another job is loaded, or the call does not fit the server's state."""


class LeaseLost(SwarmError, code="lease_lost", status=409):
    """The episode was fenced: its lease expired, or another owner holds it now."""


class EpisodeEnded(SwarmError, code="episode_ended", status=410):
    """The episode was ended or aborted before this call."""


class JobFinished(SwarmError, code="job_finished", status=410):
    """The job's last step is done; training episodes begin no more (evaluation ones still do)."""


class Throttled(SwarmError, code="throttled", status=429):
    """No room for this episode now; try again after `retry_after` seconds."""


class ServerFailed(SwarmError, code="server_failed", status=500):
    """The server broke; the message carries its reason."""


class EngineUnavailable(SwarmError, code="engine_unavailable", status=503):
    """The engine does not serve in the server's present state, or lost this one answer; try again."""


class StoreUnavailable(EngineUnavailable, code="store_unavailable"):
    """What was done could not be made durable (a full disk, a lost database), so it does not count; try again."""


class StoreRefused(SwarmError, code="store_refused", status=500):
    """What was done can never be made durable (a schema, a constraint, a right that lacks), so it does not count."""


class Unreachable(SwarmError, code="unreachable", status=0):
    """Nothing answers at the server's address (raised by clients, never sent)."""


class UnknownAnswer(Unreachable):
    """What answers at the address is no swarm server, or one of another version (raised by clients, never sent)."""


class TeamAborted(SwarmError, code="team_aborted", status=0):
    """Linked episodes could not end together, so all of them were given up (raised by clients, never sent)."""


def from_wire(status: int, body: Any, retry_after: float | None = None) -> SwarmError:
    """Rebuild the error a server sent; an unknown code becomes a plain SwarmError that quotes the body."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        kind = EngineUnavailable if status in (502, 503, 504) else SwarmError  # a proxy's word
        return kind(f"the server answered {status} with {str(body)[:200]!r}", retry_after=retry_after)
    kind = _BY_CODE.get(str(error.get("code")), SwarmError)
    return kind(str(error.get("message")), param=error.get("param"), retry_after=retry_after)


def to_invalid_request(error: "ValidationError") -> InvalidRequest:
    """Return the first of what pydantic found wrong as one line: the field, what was expected, what was found."""
    return describe_invalid(error.errors(include_url=False, include_context=False)[0])


def describe_invalid(first: Mapping[str, Any]) -> InvalidRequest:
    field = ".".join(str(part) for part in first["loc"])
    said = _simplify_message(str(first["type"]), str(first["msg"]))
    if first["type"] not in _SAY_IT_ALL and said != HALF_A_CHARACTER:
        said += f", found {ascii(first['input'])[:_FOUND_SHOWN]}"
    return InvalidRequest((f"{field}: " if field else "") + said, param=field or None)


def _simplify_message(kind: str, message: str) -> str:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind == "union_tag_invalid":
        said, _, known = message.partition(" does not match any of the expected tags: ")
        return f"expected an object whose {said.rpartition(' using ')[2]} is one of {known}"
    if kind == "union_tag_not_found":
        return f"expected an object that says its {message.rpartition('discriminator ')[2]}"
    if kind == "string_unicode" or (kind == "json_invalid" and ("surrogate" in message or "hex escape" in message)):
        return HALF_A_CHARACTER
    if kind == "json_invalid":
        return f"expected JSON, found text that is none: {message.removeprefix('Invalid JSON: ')}"
    asked = message.removeprefix("Input should be ")
    if asked != message:
        return "expected " + ("a value " if asked.startswith(("greater", "less")) else "") + asked
    return message.removeprefix("Value error, ")

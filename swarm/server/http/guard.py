"""What stands before every route: a limit on failed keys, and a limit on the size of bodies.

A peer address may fail FAILURES times at once and once more every REFILL_S seconds; beyond that it is answered 429
with Retry-After, without a look at its key. A key that this server signed and that has not expired is let through
all the same: nobody can guess one, so the failures of a neighbour behind the same address (a NAT, a proxy, the
loopback of a shared machine) never keep an honest client out. The admin token an operator chose may be weaker than
a signed one, so it waits like any guess: from an address that goes on failing it is refused for up to REFILL_S
seconds; the signed tokens of tokens.json are not.

Memory is constant: MOST_PEERS addresses (an IPv6 network of 64 bits is one), the longest quiet forgotten first.
"""

from __future__ import annotations

from functools import partial

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from swarm.connections import Failures, peer_of
from swarm.errors import BodyTooLarge, InvalidKey, SwarmError, Throttled
from swarm.server.http.http import MAX_BODY_BYTES, Tell, authorization, error_response, header, openai_error
from swarm.server.shared.keys import Claims, Keys, Role, Use, permitted

MAX_CONTROL_BYTES = 1024 * 1024
"""Most bytes of a control-plane body: a job is a few kilobytes. Task lists may be as large as conversations."""
KEY_HEADER = b"x-api-key"
"""Where clients of Anthropic's protocol carry their key."""
_KEY = "ajet.key"
"""Where a request's scope has what its key says."""
_NO_KEY_NEEDED = frozenset({"/health"})


class Guard:
    """ASGI middleware around the whole application, or a route of it that tells of errors in its own form.

    It reads the key of a request, once; `authorised` returns what it says. `key_header` may carry the key in place of
    a Bearer token.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Keys,
        failures: Failures | None = None,
        tell: Tell = openai_error,
        key_header: bytes | None = None,
    ) -> None:
        self._app = app
        self._keys = keys
        self._failures = Failures() if failures is None else failures
        self._tell = tell
        self._key_header = key_header

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = _too_large(scope)
        if refusal is None and not self._signed(scope):
            peer = peer_of(scope)
            refusal = self._throttled(scope["path"], peer)
            send = partial(self._counting, send, peer)
        if refusal is not None:
            await error_response(refusal, self._tell(refusal))(scope, receive, send)
            return
        await self._app(scope, _limited(scope, receive), send)

    def _signed(self, scope: Scope) -> bool:
        """Keep with the request what its key says, or why it is refused; return whether it was signed here."""
        try:
            scope[_KEY] = claims = self._keys.read_header(authorization(scope, self._key_header))
        except InvalidKey as refusal:
            scope[_KEY] = refusal.message
            return self._carries_signed(header(scope, KEY_HEADER))
        return claims.signed or self._carries_signed(header(scope, KEY_HEADER))

    def _carries_signed(self, key: str | None) -> bool:
        """Return whether a key is signed here, though its route takes none there: an SDK sends it to all routes."""
        try:
            return key is not None and self._keys.read_header(f"Bearer {key}").signed
        except InvalidKey:
            return False

    def _throttled(self, path: str, peer: str) -> SwarmError | None:
        wait_s = 0.0 if path in _NO_KEY_NEEDED else self._failures.wait_s(peer)
        if wait_s <= 0:
            return None
        return Throttled(f"too many wrong keys came from {peer}; wait {wait_s:.1f} s", retry_after=wait_s)

    async def _counting(self, send: Send, peer: str, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 401:
            self._failures.note(peer)
        await send(message)


def authorised(scope: Scope, *, roles: tuple[Role, ...] = (), uses: tuple[Use, ...] = ()) -> Claims:
    """Return what the key of a guarded request says; raise InvalidKey (401), or Forbidden (403) for a wrong kind."""
    found: Claims | str = scope[_KEY]
    if isinstance(found, str):
        raise InvalidKey(found)
    return permitted(found, roles=roles, uses=uses)


def most_bytes(path: str) -> int:
    """Return how large a body to this path may be: conversations and task lists are long, other bodies are not."""
    return MAX_BODY_BYTES if path.startswith("/v1/") or path == "/streams/tasks" else MAX_CONTROL_BYTES


def _too_large(scope: Scope) -> SwarmError | None:
    length = header(scope, b"content-length") or "0"
    return _refused(scope) if length.isdecimal() and int(length) > most_bytes(scope["path"]) else None


def _refused(scope: Scope) -> BodyTooLarge:
    return BodyTooLarge(f"expected a body of at most {most_bytes(scope['path'])} bytes, found more")


def _limited(scope: Scope, receive: Receive) -> Receive:
    """Return a `receive` that refuses a body without a length once it is too large."""
    if header(scope, b"transfer-encoding") is None:
        return receive
    size, most = 0, most_bytes(scope["path"])

    async def counted() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > most:
            raise _refused(scope)
        return message

    return counted

"""Who may do what on the pages, and what stands before each: keys, sessions, roles, hosts, origins, sizes, headers.

Keys are 32 random bytes, so that nobody can guess one and nobody has to wait after a wrong one; the file of an
installation holds their sha256 alone. The owner's key is made at each start and is nowhere. A session is a cookie of 12
hours that this process knows; it ends with its key.

A page is told to nobody who did not sign in here. Another site's page cannot reach it: Host has to be one of ours
(DNS rebinding), a POST has to come from a page of ours (Origin, Sec-Fetch-Site) and to carry its session's token.
"""

import hashlib
import hmac
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args
from urllib.parse import quote

from filelock import FileLock
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from research.errors import BadInput, ResearchError
from research.files import write_bytes
from studies.records.base import Record

Role = Literal["viewer", "reviewer", "owner"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
"""Each may do what those before it may: look; comment and sign; steer."""
SESSION_S: Final = 12 * 3600.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")


@dataclass(frozen=True, slots=True)
class Person:
    """Who looks at a page."""

    name: str
    role: Role

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


class _Key(Record):
    name: str
    role: Role
    sha256: str


class _KeyFile(Record):
    keys: tuple[_Key, ...] = ()


@dataclass(frozen=True, slots=True)
class _Session:
    key: str
    csrf: str
    ends: float


class Access:
    """The keys of an installation, and who is signed in at this process."""

    def __init__(self, file: Path, owner: str = "owner", clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = file, clock
        self.owner_key: Final = secrets.token_urlsafe(32)
        self._owner = _Key(name=owner, role="owner", sha256=_digest(self.owner_key))
        self._sessions: dict[str, _Session] = {}
        self._lock = threading.Lock()

    def keys(self) -> tuple[_Key, ...]:
        """Return the keys that were handed out; raise BadInput where their file is not one."""
        try:
            return _KeyFile.model_validate_json(self._file.read_bytes()).keys
        except FileNotFoundError:
            return ()
        except (OSError, ValueError) as error:
            raise BadInput(
                f"expected the keys of readers in {self._file}; it cannot be read: remove it, and hand out new keys"
            ) from error

    def add(self, name: str, role: str) -> str:
        """Hand out a key and return it; it is kept nowhere."""
        if not _NAME.fullmatch(name):
            raise BadInput(f"expected a name of up to 40 letters, digits, '.', '_' and '-'; found {name[:60]!r}")
        if role not in ROLES:
            raise BadInput(f"expected --role with one of {', '.join(ROLES)}; found {role[:60]!r}")
        made = secrets.token_urlsafe(32)
        with self._alone():
            known = self.keys()
            if any(key.name == name for key in known):
                raise BadInput(f"{name} has a key already; take it back first: ajet ui key revoke {name}")
            self._write((*known, _Key.model_validate({"name": name, "role": role, "sha256": _digest(made)})))
        return made

    def revoke(self, name: str) -> None:
        known = self.keys()
        if all(key.name != name for key in known):
            names = ", ".join(key.name for key in known) or "nobody"
            raise BadInput(f"expected the name of who has a key: {names}; found {name[:60]!r}")
        with self._alone():
            self._write(tuple(key for key in self.keys() if key.name != name))

    def sign_in(self, key: str) -> str | None:
        """Return a new session; None for a key that is none."""
        found = next((each for each in self._all() if hmac.compare_digest(each.sha256, _digest(key))), None)
        if found is None:
            return None
        token, now = secrets.token_urlsafe(32), self._clock()
        with self._lock:
            self._sessions = {name: each for name, each in self._sessions.items() if each.ends > now}
            self._sessions[token] = _Session(found.sha256, secrets.token_urlsafe(32), now + SESSION_S)
        return token

    def sign_out(self, session: str) -> None:
        with self._lock:
            self._sessions.pop(session, None)

    def person(self, session: str) -> Person | None:
        """Return who has this session; None where it is over, or its key was taken back."""
        known = self._sessions.get(session)
        if known is None or known.ends <= self._clock():
            return None
        key = next((each for each in self._all() if each.sha256 == known.key), None)
        return None if key is None else Person(key.name, key.role)

    def csrf(self, session: str) -> str:
        """Return what each form of a session carries; empty without one."""
        known = self._sessions.get(session)
        return "" if known is None else known.csrf

    def _all(self) -> tuple[_Key, ...]:
        return (self._owner, *self.keys())

    def _alone(self) -> FileLock:
        """Return what one process at a time holds to change the keys: none that was taken back comes back."""
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return FileLock(self._file.with_suffix(".lock"), mode=0o600, fallback_to_soft=False)

    def _write(self, keys: tuple[_Key, ...]) -> None:
        write_bytes(self._file, _KeyFile(keys=keys).model_dump_json(indent=1).encode(), mode=0o600)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


COOKIE: Final = "ajet"
MOST_BODY: Final = 64 * 1024
CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
REPORT_CSP: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'; form-action 'none'; "
    "base-uri 'none'; sandbox"
)
"""Of a report, which has its style in itself and no script."""
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": CSP, "x-content-type-options": "nosniff", "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin", "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store", "permissions-policy": "camera=(), microphone=(), geolocation=()",
}  # fmt: skip


class PageGuard:
    """ASGI middleware around all pages; `hosts` are the exact values of Host that are ours."""

    def __init__(self, app: ASGIApp, access: Access, hosts: Collection[str], scheme: str = "http") -> None:
        self._app, self._access = app, access
        self._hosts = frozenset(hosts)
        self._origins = frozenset(f"{scheme}://{host}" for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    own.setdefault(name, value)
            await send(message)

        try:
            refused = self._refuse(scope, headers)
        except ResearchError as error:
            refused = _say(503, str(error))
        answer: ASGIApp = refused or self._app
        await answer(scope, _limited(receive), send_with_headers)

    def _refuse(self, scope: Scope, headers: Headers) -> Response | None:
        host = ", ".join(headers.getlist("host"))  # two are none
        if host not in self._hosts:
            return _say(421, f"expected one of the hosts {', '.join(sorted(self._hosts))}; found {host[:80]!r}")
        if scope["method"] not in ("GET", "HEAD"):
            origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
            if (origin is not None and origin not in self._origins) or site not in ("same-origin", "none"):
                return _say(403, "expected a form of these pages; found one of another site")
            if not (length := headers.get("content-length", "")).isdecimal() or int(length) > MOST_BODY:
                return _say(413, f"expected a form of at most {MOST_BODY} bytes")
        # empty without one; others' cookies of this host may be as they like
        session = cookie_parser("; ".join(headers.getlist("cookie"))).get(COOKIE, "")
        scope["session"], scope["person"] = session, self._access.person(session)
        if scope["person"] is not None or scope["path"].startswith(("/sign-in", "/static/")):
            return None
        if scope["method"] != "GET" or scope["path"] == "/live":
            return _say(401, "you are signed out, nothing was done: sign in at /sign-in, then send it again")
        asked = scope["path"] + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
        return RedirectResponse(f"/sign-in?next={quote(asked)}", 303)


def _say(status: int, text: str) -> Response:
    return PlainTextResponse(f"{text}\n", status)


def _limited(receive: Receive) -> Receive:
    """Return a `receive` that ends with the connection's end where a body is longer than it said it was."""
    size = 0

    async def receive_limited() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        return {"type": "http.disconnect"} if size > MOST_BODY else message

    return receive_limited

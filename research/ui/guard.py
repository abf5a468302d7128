"""What stands before every page: hosts, origins, sizes, sign-in, headers.

A page is told to nobody who did not sign in here. Another site's page cannot reach it: Host has to be one of ours
(DNS rebinding), a POST has to come from a page of ours (Origin, Sec-Fetch-Site) and to carry its session's token.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from research.errors import ResearchError
from research.ui.access import Access

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
_OPEN: Final = ("/sign-in", "/static/")
"""Where somebody may be who did not sign in."""


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
        if scope["person"] is not None or scope["path"].startswith(_OPEN):
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

"""`ajet ui`'s application: addresses, sign-in, errors as pages, and what moved, told to open pages as events.

While anybody listens, the heads of all logs are read as often as their database's file changes, else each second; the
progress of running attempts is looked at by the times of their files, and told every other second at most, so that open
pages cost a training little. A page fetches itself again then. Nothing is told that it could miss: who connects again
fetches first.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cache
from importlib import resources
from pathlib import Path
from socket import socket
from typing import Any, Final, cast
from urllib.parse import parse_qsl, quote

import uvicorn
from sqlalchemy import make_url
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from research.errors import ResearchError
from research.ui.access import COOKIE, HEADERS, REPORT_CSP, SESSION_S, PageGuard
from research.ui.actions import act, back_of
from research.ui.site import Page, PageMaker, Site, View, render, templates
from sandboxes import SandboxError
from studies.errors import StudiesError
from studies.report.plots import DARK, LIGHT, variables
from swarm.errors import SwarmError

LOOK_S: Final = 0.4
PROGRESS_S: Final = 2.0
ALIVE_S: Final = 10.0
"""After so long without news a stream says that it lives."""
MOST_LISTENERS: Final = 64
MOST_OF_ONE: Final = 16
"""Streams of one reader: nobody takes those of all."""

Stamps = tuple[tuple[str, int, int], ...]


class LiveHub:
    """Tells its listeners which studies moved."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._listeners: dict[asyncio.Queue[str | None], str] = {}
        self._task: asyncio.Task[None] | None = None
        self.looked = asyncio.Event()
        """Whether it has seen how things stand, so that it tells of what moves from there."""
        url = make_url(site.home.database)
        self._file = Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None

    async def listen(self, who: str = "", stays: Callable[[], bool] = lambda: True) -> AsyncIterator[str]:
        """Yield server-sent events until the listener leaves, may not `stay`, or the hub closes."""
        queue: asyncio.Queue[str | None] = asyncio.Queue(100)
        self._listeners[queue] = who
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())
        try:
            yield "retry: 1000\n\n"
            while True:
                try:
                    message = await asyncio.wait_for(queue.get(), ALIVE_S)
                except TimeoutError:
                    message = "event: alive\ndata: {}\n\n"
                if message is None or not stays():
                    return
                yield message
        finally:
            self._listeners.pop(queue, None)

    def is_full(self, who: str) -> bool:
        of_one = sum(name == who for name in self._listeners.values())
        return len(self._listeners) >= MOST_LISTENERS or of_one >= MOST_OF_ONE

    def close(self) -> None:
        for queue in self._listeners:
            with suppress(asyncio.QueueFull):
                queue.put_nowait(None)
        if self._task is not None:
            self._task.cancel()

    def touch(self, *studies: str) -> None:
        """Tell that something about studies changed that their logs do not have: a comment."""
        self._tell("moved", studies)

    def tell_checked(self) -> None:
        """Tell of which studies the files are checked by now that a page did not wait for."""
        checked = self._site.late_checks
        if studies := {checked.popleft() for _ in range(len(checked))}:
            self._tell("moved", sorted(studies))

    def _tell(self, event: str, studies: tuple[str, ...] | list[str]) -> None:
        message = f"event: {event}\ndata: {json.dumps({'studies': list(studies)})}\n\n"
        for queue in self._listeners:
            with suppress(asyncio.QueueFull):  # it fetches all that it shows, at whichever event
                queue.put_nowait(message)

    async def _look(self) -> None:
        heads: Mapping[str, str] | None = None
        stamps: Stamps = ()
        progress: Mapping[str, Stamps] = {}
        clock = asyncio.get_running_loop().time
        told, read = clock(), 0.0
        while self._listeners:
            now_stamps = () if self._file is None else _stamps([self._file, Path(f"{self._file}-wal")])
            if now_stamps != stamps or self._file is None or clock() - read > ALIVE_S:
                before, stamps, read = heads, now_stamps, clock()
                with suppress(StudiesError):  # the pages say what is wrong with the database
                    heads = await run_in_threadpool(self._site.log.heads)
                if before is not None and heads is not None and before != heads:
                    self._tell("moved", [study for study, head in heads.items() if before.get(study) != head])
            if heads is not None:
                self.looked.set()
            self.tell_checked()
            if clock() - told >= PROGRESS_S:
                before_progress, told = progress, clock()
                progress = await run_in_threadpool(self._progress)
                moved = [study for study, found in progress.items() if before_progress.get(study, found) != found]
                if moved:
                    self._tell("progress", moved)
            await asyncio.sleep(LOOK_S if self._file is not None else 1.0)

    def _progress(self) -> Mapping[str, Stamps]:
        """Return the times of the progress files of attempts that run, by study."""
        found: dict[str, Stamps] = {}
        for study in self._site.open_studies():
            with suppress(StudiesError, HTTPException):  # whoever opens it is told why it cannot be read
                state = self._site.state(study)
                active = [(run.run_id, run.active.number) for run in state.every_run.values() if run.active is not None]
                folders = [self._site.home.attempt(study, *each) for each in active]
                found[study] = _stamps([folder / "progress.json" for folder in folders])
        return found


def _stamps(paths: list[Path]) -> Stamps:
    found = []
    for path in paths:
        with suppress(OSError):
            stat = path.stat()
            found.append((str(path), stat.st_size, stat.st_mtime_ns))
    return tuple(found)


log = logging.getLogger(__name__)
EXPECTED: Final = (ResearchError, StudiesError, SwarmError, SandboxError)
"""What every room raises for a person to read."""
_TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "html": "text/html"}


def make_app(site: Site, pages: Mapping[str, PageMaker], hosts: Iterable[str], scheme: str = "http") -> Starlette:
    """Return the application over a site, with pages by address, that answers to these hosts alone."""

    hub = LiveHub(site)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        hub.close()
        site.close()

    shown = [Route(path, _shows(maker), methods=["GET"]) for path, maker in pages.items()]
    others = [
        Route("/s/{study}/{name:path}", _report_file, methods=["GET"]),
        Route("/do/{action}", _do, methods=["POST"]),
        Route("/live", _live, methods=["GET"]),
        Route("/static/{name}", _static, methods=["GET"]),
        Route("/sign-in", _sign_in, methods=["GET", "POST"]),
        Route("/sign-out", _sign_out, methods=["POST"]),
    ]
    handlers: Mapping[Any, Any] = {HTTPException: _tell, Exception: _tell, **dict.fromkeys(EXPECTED, _tell)}
    guard = Middleware(PageGuard, access=site.access, hosts=frozenset(hosts), scheme=scheme)
    made = Starlette(routes=[*shown, *others], middleware=[guard], lifespan=lifespan, exception_handlers=handlers)
    made.state.site, made.state.hub = site, hub
    return made


class PageServer(uvicorn.Server):
    """A server that ends what open pages listen to before it waits for them to leave."""

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        cast(Starlette, self.config.app).state.hub.close()  # which stands behind what reads a proxy's headers
        await super().shutdown(sockets)


def make_view(request: Request) -> View:
    query: dict[str, tuple[str, ...]] = {}
    for name, value in request.query_params.multi_items():
        query[name] = (*query.get(name, ()), value)
    address = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    csrf = request.app.state.site.access.csrf(request.scope["session"])
    return View(request.scope["person"], dict(request.path_params), query, csrf, address)


def _shows(maker: PageMaker) -> Callable[[Request], Any]:
    async def show(request: Request) -> Response:
        site, view = request.app.state.site, make_view(request)

        def made() -> Response:
            site.require_database()
            study = view.path.get("study", "")
            if study and not site.is_read(study):
                said = f"study {study[:80]} is being read; this page shows it as soon as it is"
                page = Page("error.html.jinja", "Being read", {"said": said}, status=202)
                return HTMLResponse(render(page, view), page.status, {"refresh": "1"})
            page = maker(site, view)
            return HTMLResponse(render(page, view), page.status)

        return await run_in_threadpool(made)

    return show


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; HTTPException (400) where there is none."""
    if request.headers.get("content-type", "").split(";")[0] != "application/x-www-form-urlencoded":
        raise HTTPException(400, "expected a form, sent as application/x-www-form-urlencoded")
    try:
        text = (await request.body()).decode()
        return dict(parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), max_num_fields=200))
    except ValueError as error:
        raise HTTPException(400, "expected a form in UTF-8 of at most 200 fields") from error


async def _do(request: Request) -> Response:
    site, view, form = request.app.state.site, make_view(request), await read_form(request)
    if not view.csrf or form.pop("csrf", "") != view.csrf:
        raise HTTPException(403, "expected a form of this session; load the page again, and send it once more")

    def done() -> Response:
        site.require_database()
        try:
            answer = act(site, view, request.path_params["action"], form)
        except EXPECTED as error:
            values = {"said": " ".join(str(error).split()), "back": back_of(form)}
            answer = Page("error.html.jinja", "Not done", values, status=422)
        if isinstance(answer, Page):
            return HTMLResponse(render(answer, view), answer.status)
        return RedirectResponse(answer, 303)

    response = await run_in_threadpool(done)
    request.app.state.hub.touch(form.get("study", ""))
    return response


async def _live(request: Request) -> Response:
    hub: LiveHub = request.app.state.hub
    access, session, who = request.app.state.site.access, request.scope["session"], request.scope["person"]
    if hub.is_full(who.name):
        raise HTTPException(503, "too many pages are open; close some, or load this one again to see what is new")
    return StreamingResponse(
        hub.listen(who.name, lambda: access.person(session) is not None), media_type="text/event-stream"
    )


async def _sign_in(request: Request) -> Response:
    access, wrong = request.app.state.site.access, ""
    asked = request.query_params.get("next", "/")
    if request.method == "POST":
        form = await read_form(request)
        asked = form.get("next", "/")
        if (session := access.sign_in(form.get("key", "").strip())) is not None:
            response = RedirectResponse(_own_address(asked), 303)
            secure = request.url.scheme == "https"
            response.set_cookie(COOKIE, session, int(SESSION_S), httponly=True, samesite="strict", secure=secure)
            return response
        wrong = "that is no key of this installation, or it was taken back"
    values = {"wrong": wrong, "next": _own_address(asked)}
    text = templates().get_template("sign_in.html.jinja").render(values)
    return HTMLResponse(text, 401 if wrong else 200)


async def _sign_out(request: Request) -> Response:
    request.app.state.site.access.sign_out(request.scope["session"])
    response = RedirectResponse("/sign-in", 303)
    response.delete_cookie(COOKIE)
    return response


def _own_address(asked: str) -> str:
    """Return an address of ours, or that of the desk where it is another's."""
    return quote(back_of({"back": asked}), safe="/?=&#%:,;+~@!$'()*")


async def _report_file(request: Request) -> Response:
    """Return a page or figure of a report as it was written, and none that was changed since."""
    site, study, name = request.app.state.site, request.path_params["study"], request.path_params["name"]
    kind = _TYPES.get(name.rpartition(".")[2], "text/plain")
    return Response(
        await run_in_threadpool(site.report_file, study, name), 200, {"content-security-policy": REPORT_CSP}, kind
    )


@cache
def static_files() -> Mapping[str, bytes]:
    colours = {"light": variables(LIGHT), "dark": variables(DARK)}
    style = templates().get_template("ui.css.jinja").render(colours).encode()
    scripts = list(resources.files("research.ui").joinpath("static").iterdir())
    return {"ui.css": style, **{entry.name: entry.read_bytes() for entry in scripts if entry.name.endswith(".js")}}


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if (found := static_files().get(name)) is None:
        raise HTTPException(404, f"there is no {name[:80]}")
    return Response(found, 200, {"cache-control": "max-age=60"}, _TYPES[name.rpartition(".")[2]])


async def _tell(request: Request, error: Exception) -> Response:
    """Answer what is refused, or a defect, with a page that says it in one line."""
    if isinstance(error, HTTPException):
        status, said = error.status_code, error.detail
    elif isinstance(error, EXPECTED):
        status, said = 422, str(error)
    else:
        log.error("defect at %s", request.url.path, exc_info=error)
        status, said = 500, "the page has a defect; what it met stands in the output of ajet ui"
    person = request.scope.get("person")
    if person is None:
        return Response(f"{said}\n", status, media_type="text/plain")
    page = Page("error.html.jinja", "Not shown", {"said": " ".join(said.split())}, status=status)
    return HTMLResponse(render(page, make_view(request)), status, dict(HEADERS))

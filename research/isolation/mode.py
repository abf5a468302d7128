"""Where clients and evaluators run: in containers or plain processes; one engine thread.

The choice is made once, when the study is created, and is one of its settings: by `--sandbox`, else AJET_SANDBOX, else
containers wherever an engine answers and has the client image or can make it. Packages of an environment that cannot be
had there are an error: that they are missing takes no study's isolation away.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from research.errors import BadEnvironment, BadInput, NotReady
from research.installation.home import Home
from research.installation.tiny_model import Note
from research.text import describe
from sandboxes import ContainerHandle, DockerSandbox, SandboxError
from sandboxes.docker.engine import HOW_TO_GET_DOCKER, ContainerEngine, connect
from sandboxes.images.build import identity

P = ParamSpec("P")
T = TypeVar("T")
Kind = Literal["process", "docker"]
VARIABLE = "AJET_SANDBOX"
ENGINE_VARIABLES = ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG")
"""What names an engine, and is therefore passed on to an attempt."""


class EngineThread:
    """The one thread of calls to an engine, whose SDK blocks, so that they have an order; each is made in `errors`."""

    def __init__(self, errors: Callable[[], AbstractContextManager[object]] = nullcontext) -> None:
        self._errors = errors
        self._thread = ThreadPoolExecutor(1, "engine")

    async def do(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a call returns; it is not made if its caller is cancelled while it waits for its turn."""

        def made() -> T:
            with self._errors():
                return call(*args, **kwargs)

        return await asyncio.wrap_future(self._thread.submit(made))

    async def do_shielded(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do the same; the call is made even if its caller is cancelled while it waits for its turn."""
        return await asyncio.shield(self.do(call, *args, **kwargs))

    def close(self) -> None:
        self._thread.shutdown()


class Sandboxing(BaseModel):
    """Where the client and the evaluators of a study's runs run."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    kind: Kind = "process"
    image: str | None = None
    """Id of the client image; None for processes."""
    base: str | None = None
    """Name of the image it was made from."""
    engine: str | None = None
    """Version of the engine."""
    lacks: tuple[str, ...] = ()
    """What the engine does not hold, for which it runs no generated code."""

    @property
    def isolates(self) -> bool:
        return self.kind == "docker" and not self.lacks

    def describe(self) -> str:
        if self.image is None:
            return "processes, not isolated"
        return f"containers of image {self.image[:19]} on Docker Engine {self.engine}"


@dataclass(frozen=True, slots=True)
class _UnreachableEngine:
    error: SandboxError

    def reap(self, labels: Mapping[str, str]) -> list[str]:
        raise self.error

    def adopt(self, name: str) -> ContainerHandle | None:
        raise self.error


Containers = DockerSandbox | _UnreachableEngine


@dataclass(frozen=True, slots=True)
class Isolation:
    """A study's choice, with the means to end its containers (None where it has none)."""

    sandboxing: Sandboxing
    containers: Containers | None = None


PROCESS = Sandboxing()
UNISOLATED = Isolation(PROCESS)


def choose(asked: str | None, environ: Mapping[str, str], home: Home, note: Note, requirements: str = "") -> Isolation:
    """Return what a new study is to use, with an image that holds what the text of a requirements.txt names. Raises
    BadInput; SandboxError where no containers can be had that are asked for, BadEnvironment where no packages."""
    kind = resolve_kind(asked, environ)
    if kind == "process":
        return UNISOLATED
    try:
        return _isolate_in_containers(connect(environ), home, note, requirements)
    except SandboxError as error:
        if kind == "docker":
            raise
        note(f"clients and evaluators run as processes, which isolates nothing: {one_line(error)}")
        return UNISOLATED


def reopen(
    settings: Mapping[str, Any], environ: Mapping[str, str], home: Home, note: Note,
    requirements: Callable[[], str] = str,
) -> Isolation:  # fmt: skip
    """Return what a study that exists uses, on the engine that answers now; an image that is gone is made again, with
    what `requirements` says. Raises SandboxError when the study uses containers and none can be had here now."""
    chosen = read_sandboxing(settings)
    if chosen.kind == "process":
        return UNISOLATED
    engine = connect(environ)
    if identity(engine, str(chosen.image)) is None:
        note(f"the study's client image {str(chosen.image)[:19]} is gone; making it again")
        return _isolate_in_containers(engine, home, note, requirements())
    found = chosen.model_copy(update={"engine": engine.version, "lacks": engine.lacks})
    return Isolation(found, DockerSandbox(home.containers, engine))


def supervise(settings: Mapping[str, Any], environ: Mapping[str, str], home: Home) -> Isolation:
    """Return the means to end what a study has running; an engine that is gone is an error once there is need of it."""
    chosen = read_sandboxing(settings)
    if chosen.kind == "process":
        return UNISOLATED
    try:
        return Isolation(chosen, DockerSandbox(home.containers, connect(environ)))
    except SandboxError as error:
        return Isolation(chosen, _UnreachableEngine(error))


def read_sandboxing(settings: Mapping[str, Any]) -> Sandboxing:
    """Return the choice among a study's settings; a study from before there was one used processes."""
    try:
        return Sandboxing.model_validate(settings.get("sandbox") or {})
    except ValidationError as error:
        raise BadInput(f"expected the study's own sandbox setting; found another: {describe(error)}") from error


def require_isolation(sandboxing: Sandboxing, what: str) -> None:
    """Raise NotReady unless `what`, untrusted code, would run in containers."""
    if sandboxing.kind != "docker":
        raise NotReady(
            f"expected containers to run {what} in, for it is generated code; found --sandbox {sandboxing.kind}, which "
            f"isolates nothing. To run it: {HOW_TO_GET_DOCKER}, and begin the study with --sandbox docker"
        )
    if sandboxing.lacks:
        raise NotReady(
            f"expected an engine that isolates {what}, for it is generated code; this one lacks "
            f"{'; '.join(sandboxing.lacks)}"
        )


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def resolve_kind(asked: str | None, environ: Mapping[str, str]) -> Kind | None:
    """Return the kind that is asked for, None where the machine is to decide; raises BadInput."""
    found, source = (asked, "--sandbox") if asked is not None else (environ.get(VARIABLE) or None, VARIABLE)
    if found is not None and found not in get_args(Kind):
        raise BadInput(f"expected {source} to be docker or process; found {found!r}")
    return cast(Kind | None, found)


def _isolate_in_containers(engine: ContainerEngine, home: Home, note: Note, requirements: str) -> Isolation:
    from research.isolation.client_image import ensure_client_image, ensure_derived_image

    image = ensure_client_image(engine, home, note)
    if requirements.strip():
        try:
            image = ensure_derived_image(engine, home, requirements, note)
        except SandboxError as error:
            raise BadEnvironment(
                "expected the packages that the environment names in the image of its containers; they cannot be had: "
                f"{one_line(error)}; mend its requirements, or run it as processes, not isolated: --sandbox process"
            ) from error
    sandboxing = Sandboxing(kind="docker", image=image.id, base=image.base, engine=engine.version, lacks=engine.lacks)
    return Isolation(sandboxing, DockerSandbox(home.containers, engine))

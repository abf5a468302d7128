"""Calls to a container engine: whatever fails becomes one line that says what was asked, and of which engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any, cast

from sandboxes.docker.engine import ContainerEngine
from sandboxes.spec import SandboxError


class EngineRefused(SandboxError):
    """The engine answered, and said no."""


@contextmanager
def asking(engine: ContainerEngine, what: str) -> Iterator[None]:
    """Turn the engine's troubles into SandboxError; nothing may be concluded from one but that it was not answered.

    EngineRefused is an answer. A thing that does not exist (docker's NotFound) goes through to the caller.
    """
    from docker.errors import APIError, DockerException, NotFound
    from requests.exceptions import RequestException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except NotFound:
        raise
    except APIError as error:
        refusal = EngineRefused if error.is_client_error() or error.is_server_error() else SandboxError
        raise refusal(f"{what}: the engine at {engine.host} refused: {_line(error.explanation or error)}") from error
    except (DockerException, RequestException, HTTPError, HTTPException, OSError) as error:
        raise SandboxError(
            f"{what}: expected an answer of the engine at {engine.host}; found none ({_line(error)}). "
            "See that it runs (`docker version`), and try again: nothing was concluded"
        ) from error


def inspect(engine: ContainerEngine, container: str) -> Mapping[str, Any] | None:
    """Return what the engine knows of `container`, or None when it says that there is no such one."""
    from docker.errors import NotFound

    try:
        with asking(engine, f"looking at container {container}"):
            return cast(Mapping[str, Any], engine.client.api.inspect_container(container))
    except NotFound:
        return None


def remove(engine: ContainerEngine, container: str) -> None:
    """Remove a container and the volumes it alone has, dead or alive; nothing happens if there is none."""
    from docker.errors import NotFound

    try:
        with asking(engine, f"removing container {container}"):
            engine.client.api.remove_container(container, v=True, force=True)
    except NotFound:
        return


def remove_volume(engine: ContainerEngine, volume: str) -> None:
    """Remove a volume; nothing happens if there is none."""
    from docker.errors import NotFound

    try:
        with asking(engine, f"removing volume {volume}"):
            engine.client.api.remove_volume(volume, force=True)
    except NotFound:
        return


def _line(error: object) -> str:
    return " ".join(str(error).split())[:500]

"""Waiting for a Prefect server that is away for a while: it is started again, or its machine is busy.

Import this module only after `client_environment` is in os.environ: Prefect reads its settings once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, TypeVar

import httpx

PATIENCE_S: Final = 300.0
"""Most seconds that a server is waited for."""
AGAIN_S: Final = 2.0
"""Seconds between two tries."""

Answer = TypeVar("Answer")


def patiently(ask: Callable[[], Answer], note: Callable[[str], None], most_s: float = PATIENCE_S) -> Answer:
    """Return a server's answer; where it is away ask again, for so many seconds, after telling `note` once."""
    until, told = time.monotonic() + most_s, False
    while True:
        try:
            return ask()
        except httpx.HTTPError as error:
            if not _is_away(error) or time.monotonic() > until:
                raise
            if not told:
                note(f"waiting for Prefect: {' '.join(f'{type(error).__name__}: {error}'.split())}")
                told = True
        time.sleep(AGAIN_S)


def _is_away(error: httpx.HTTPError) -> bool:
    """Return whether nobody answered, or somebody who cannot now; a refusal is an answer."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR
    return isinstance(error, httpx.TransportError)

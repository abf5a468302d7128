"""Renames the fields that errors of the server name to those of a dialect."""

from __future__ import annotations

from collections.abc import Mapping

from swarm.errors import SwarmError


def named_as(error: SwarmError, names: Mapping[str, str]) -> SwarmError:
    """Return the error with fields named as the protocol does; `names` has chat's name for each first."""
    if error.param is None or error.param not in names:
        return error
    message = error.message
    for name, own in names.items():
        message = message.replace(f"`{name}`", f"`{own}`")
    return type(error)(message, param=names[error.param], retry_after=error.retry_after)

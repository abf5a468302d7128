"""How a process imports torch and transformers, which make two million objects that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Import large libraries without looking for garbage among what they make: as a decorator, too.

    Python's collector would go through all that is there again and again while modules are made, and find nothing to
    free: a sixth of the time that torch and transformers take to come.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

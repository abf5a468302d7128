"""How a process imports torch and transformers, which make very many objects that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_gc() -> Iterator[None]:
    """Import large libraries, and load what they load, without collecting garbage meanwhile: as a decorator, too.

    Python's collector would go through all that is there again and again while modules are made, and find nothing to
    free. What is left in cycles inside waits for the end.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

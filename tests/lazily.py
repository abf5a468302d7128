"""A library that takes long to import is imported by the test that uses it, not by whoever collects that test."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class _Lazy:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks all that a test module holds whether it is a mock, a test, a wrapper
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


def lazy(name: str) -> Any:
    """Return what stands for the module of this name until an attribute is asked for."""
    return _Lazy(name)

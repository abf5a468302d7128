"""Stand-ins, in SGLang's processes alone, for kernels of GPUs and the like: a function that is called raises."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

STAND_INS = ("IPython", "gguf", "sgl_kernel", "torchvision", "triton")
_DECLARES, _COMPUTES = "triton", "triton.runtime.driver"
"""Triton's decorators and declarations are called when modules are imported; its driver says that there is no GPU."""


class StandIn:
    """Anything of a package that is not there."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name

    def __getattr__(self, name: str) -> Any:
        return _member(self.__name__, name)

    def __call__(self, *given: Any, **named: Any) -> StandIn:
        if not self.__name__.startswith(_DECLARES) or self.__name__.startswith(_COMPUTES):
            raise NotImplementedError(f"{self.__name__} is a stand-in")
        return StandIn(self.__name__)

    def __getitem__(self, grid: Any) -> StandIn:
        raise NotImplementedError(f"{self.__name__} is a stand-in")


class _Kind(type):
    """A class of a package that is not there: its members are their own names."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


def _member(module: str, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name[0].isupper():
        return _Kind(name, (), {"__init__": lambda self, *given, **named: None})
    return StandIn(f"{module}.{name}")


class _Module(types.ModuleType):
    __version__ = "3.9.0"
    __path__: Sequence[str] = ()

    def __getattr__(self, name: str) -> Any:
        return _member(self.__name__, name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] in STAND_INS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Leave it empty: its attributes are made as they are asked for."""
        if module.__name__ == "sgl_kernel":
            _take_no_pinned_memory()


def _take_no_pinned_memory() -> None:
    """Have torch make tensors that SGLang would pin for a GPU: 2.11 did so without one, which 2.13 refuses."""
    import torch

    made = torch.tensor
    torch.tensor = lambda *given, pin_memory=False, **named: made(*given, **named)


sys.meta_path.append(_Finder())

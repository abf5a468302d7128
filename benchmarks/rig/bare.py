"""What a part of `benchmarks/gpu.py` is given, and what lets it run where torch and transformers are all there is.

pydantic is not among what they require. Where it lacks, `stand_in` puts something in its place for as long as the
process lives: fields have their defaults and derived values, unknown ones are refused, and the checks of a job as a
whole run; types and bounds of single fields are not checked. It is for benchmarks of jobs that are written in code.
"""

from __future__ import annotations

import copy
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from inspect import get_annotations
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, Literal


@dataclass(frozen=True, slots=True)
class Bench:
    """Where a part measures, and until when (monotonic seconds). On a CPU everything is tiny: a dry run."""

    device: str
    ends: float

    @property
    def dry(self) -> bool:
        """Whether figures mean nothing."""
        return self.device == "cpu"

    @property
    def dtype(self) -> Literal["float32", "bfloat16"]:
        """Element type of what is timed."""
        return "float32" if self.dry else "bfloat16"

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.ends - time.monotonic()


_REQUIRED = ...
_ORIGIN = "a stand-in"


class _Field:
    metadata: tuple[Any, ...] = ()

    def __init__(self, default: Any = _REQUIRED, *, default_factory: Callable[[], Any] | None = None, **_: Any) -> None:
        self._default, self._factory = default, default_factory

    def get_default(self, **_: Any) -> Any:
        return self._default if self._factory is None else self._factory()


class _Model:
    model_fields: ClassVar[dict[str, _Field]] = {}
    model_fields_set: frozenset[str]

    def __init_subclass__(cls, **_: Any) -> None:
        cls.model_fields = dict(cls.model_fields)
        for name, kind in get_annotations(cls).items():
            if "ClassVar" not in str(kind):
                own = cls.__dict__.get(name, _REQUIRED)
                cls.model_fields[name] = own if isinstance(own, _Field) else _Field(own)

    def __init__(self, **fields: Any) -> None:
        own = {name: fields.get(name, field.get_default()) for name, field in type(self).model_fields.items()}
        wrong = {*fields} - {*own} | {name for name, value in own.items() if value is _REQUIRED}
        if wrong:
            raise TypeError(f"{type(self).__name__}: expected its fields, found unknown or missing {sorted(wrong)}")
        vars(self).update(own, model_fields_set=frozenset(fields))
        for each in type(self).__mro__:
            for check in vars(each).values():
                if getattr(check, "is_check", False):
                    check(self, *[SimpleNamespace(context=None)][: check.__code__.co_argcount - 1])

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.model_dump() == other.model_dump()

    __hash__ = None  # type: ignore[assignment]

    def model_copy(self, *, update: Mapping[str, Any]) -> Any:
        twin = copy.copy(self)
        vars(twin).update(update)
        return twin

    def model_dump(self, **_: Any) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: own.model_dump() if isinstance(own, _Model) else own for name, own in found.items()}


def _model_validator(*, mode: str) -> Callable[[Any], Any]:
    def mark(check: Any) -> Any:
        if mode == "after":
            check.is_check = True
        return check

    return mark


def stand_in() -> bool:
    """Let modules import pydantic where it is not installed; return whether this was needed."""
    if missing(("pydantic",)) is None:
        return False
    pydantic, core = ModuleType("pydantic"), ModuleType("pydantic_core")
    vars(core).update(from_json=lambda text, **_: json.loads(text))
    vars(pydantic).update(
        BaseModel=_Model, ConfigDict=dict, Field=_Field, FiniteFloat=float, ValidationInfo=object,
        ValidationError=type("ValidationError", (ValueError,), {}), AfterValidator=lambda check: check,
        model_validator=_model_validator, model_serializer=lambda **_: lambda dump: dump,
    )  # fmt: skip
    for module in (pydantic, core):
        module.__spec__ = ModuleSpec(module.__name__, None, origin=_ORIGIN)
        sys.modules[module.__name__] = module
    return True


def end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent's thread that started it ends, whatever ends that."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def missing(names: tuple[str, ...]) -> str | None:
    """Return the packages of `names` that are not installed, in words; None where all are."""
    specs = {name: find_spec(name) for name in names}
    absent = [name for name, spec in specs.items() if spec is None or spec.origin == _ORIGIN]
    return f"needs {', '.join(absent)}" if absent else None

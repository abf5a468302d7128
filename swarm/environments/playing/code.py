"""Code from a file: a user's agent or reward function, loaded or refused in one line.

    load("agent.py", "agent")      the function `agent` of agent.py
    load("agent.py:play", "agent") the function `play` of it

The file is imported as a script would be: its folder comes first on Python's path, so that it finds what lies beside
it. Whatever is wrong with it is an InvalidRequest that says where and what to do. This module does not isolate: what
it loads can do whatever its process can.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from swarm.client.threads import in_thread
from swarm.errors import InvalidRequest

_folders: set[Path] = set()
"""Of the files that were loaded."""
HOW_TO_ADD_A_PACKAGE = "name it in a requirements file (`ajet client run --requirements FILE`)"


def load(place: str, default: str, *, takes: str, add_package: str = HOW_TO_ADD_A_PACKAGE) -> Callable[..., Any]:
    """Return the function at `FILE.py[:NAME]`, called `default` if no name is given.

    `takes` names the positional arguments it is called with, for instance "episode"; `add_package` says how its user
    has a package that is missing.
    """
    path, name = _split(place, default)
    module = imported(path, add_package)
    found: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(found):
        raise InvalidRequest(
            f"expected a function `{name}` in {path}; found {_functions(module)}; write one, or name it: {path}:NAME"
        )
    _check_signature(found, name, path, takes)
    return found


async def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call foreign code, async or plain (in a thread of its own), and return what it gives."""
    try:
        result = function(*arguments) if is_async(function) else await in_thread(function, *arguments)
        return await result if inspect.isawaitable(result) else result
    except SystemExit as error:  # it ends its play, not the process
        raise RuntimeError(f"it raised SystemExit({error})") from error


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a function, or an object that is called like one, is async."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _split(place: str, default: str) -> tuple[Path, str]:
    file, colon, name = place.partition(":")
    path = Path(file)
    if path.suffix != ".py" or not path.is_file():
        what = "a folder" if path.is_dir() else "no such file" if path.suffix == ".py" else "another file"
        raise InvalidRequest(f"expected a Python file as FILE.py or FILE.py:NAME, found {place!r}: {what}")
    if colon and not name.isidentifier():
        raise InvalidRequest(f"expected the name of a function after the colon, found {place!r}")
    return path.absolute(), name or default


def imported(path: Path, add_package: str = HOW_TO_ADD_A_PACKAGE) -> ModuleType:
    """Import a file and return its module; raises InvalidRequest."""
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"file_{abs(hash(str(path)))}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _folders.add(path.parent)
    sys.modules[name] = module  # dataclasses and pickle look there
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        raise InvalidRequest(why_not(path, error, add_package)) from error
    return module


def why_not(path: Path, error: BaseException, add_package: str = HOW_TO_ADD_A_PACKAGE) -> str:
    """Return in one line why a file cannot be imported."""
    if isinstance(error, SyntaxError):
        where = f"{Path(error.filename or path).name}, line {error.lineno}"
        return f"cannot read {path}: {where}: {error.msg}: {(error.text or '').strip()!r}; mend the line"
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        missing = error.name.partition(".")[0]
        place = where_of(error)
        return f"cannot import {path}: it needs the package {missing!r}, which is not there{place}; {add_package}"
    return f"cannot import {path}: {said}{where_of(error)}; mend it so that importing the file does nothing but define"


def where_of(error: BaseException) -> str:
    """Return the place in the loaded code where an exception came from, as ` (FILE, line N)`, or nothing."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _folders.isdisjoint(Path(frame.filename).parents)]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def _functions(module: ModuleType) -> str:
    names = [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    ]
    return ", ".join(names[:10]) or "none"


def _check_signature(function: Callable[..., Any], name: str, path: Path, takes: str) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # of a function written in C: the first call shows
        return
    try:
        signature.bind(*takes.split(","))
    except TypeError:
        raise InvalidRequest(
            f"expected {name}({takes}) in {path}; found {name}{signature}; change its arguments"
        ) from None

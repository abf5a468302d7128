"""Adapters: environments of other packages, each by an address such as `reasoning-gym:chain_sum?max_terms=3`.

An adapter only translates; what is posed and what is judged is the package's own. An address takes the options of what
it names, and `tasks`: how many training tasks are drawn, with a quarter as many for the search and half as many hidden.
Their tasks are known by a seed and a view of their beginning, and begun again from the seed.
"""

import importlib
import io
import re
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

from swarm.environments.base import Environment, Task
from swarm.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Adapter:
    """How environments of one package are had."""

    module: str
    """Its module here, with a function `make(name, options) -> Environment`."""
    package: str
    """What is imported."""
    requirement: str
    """What pip is asked for."""
    example: str
    install: str = ""
    """What is typed after `pip install`, where that is more than the requirement."""

    @property
    def command(self) -> str:
        return self.install or f"'{self.requirement}'"


_TABLE: Final = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
ADAPTERS: Final[Mapping[str, Adapter]] = {name: Adapter(**own) for name, own in tomllib.loads(_TABLE).items()}
"""By the scheme of their addresses."""
FEWEST_TASKS: Final = 16
"""For training: half as many are as few hidden ones as there may be."""
SEEDS: Final = 1 << 32
"""Seeds that packages take; tasks are drawn from more (`Environment.generate`)."""


def scheme_of(address: str) -> str | None:
    scheme, colon, _ = address.partition(":")
    return scheme if colon and scheme in ADAPTERS else None


def slug(address: str) -> str:
    """Return an address, or a file's name, as a name: at most 64 lower-case letters, digits, `-`, `_` and `.`."""
    return re.sub(r"[^a-z0-9._-]+", "-", address.lower())[:64].strip("-._") or "tasks"


def adapt(address: str) -> Environment:
    """Return the environment at an address; raise InvalidRequest with what to type where its package is missing."""
    scheme, _, rest = address.partition(":")
    adapter = ADAPTERS[scheme]
    name, _, query = rest.partition("?")
    if not name:
        raise InvalidRequest(f"expected the name of an environment after {scheme}:, such as {adapter.example}")
    options = {key: value_of(text) for key, text in parse_qsl(query, keep_blank_values=True)}
    tasks = options.pop("tasks", Environment.sizes["train"])
    if type(tasks) is not int or tasks < FEWEST_TASKS:
        raise InvalidRequest(f"expected tasks={FEWEST_TASKS} or more in {address}; found {tasks!r:.40}")
    with redirect_stdout(io.StringIO()):  # some packages print when they are imported
        try:
            importlib.import_module(adapter.package)
        except ModuleNotFoundError as error:
            raise InvalidRequest(
                f"expected the package {error.name} for {address}; it is not installed: pip install {adapter.command}"
            ) from error
        made: Environment = importlib.import_module(f"swarm.environments.{adapter.module}").make(name, options)
    made.name = slug(address)  # type: ignore[misc]  # of each one its own
    made.sizes = {"train": tasks, "search": tasks // 4, "hidden": tasks // 2}  # type: ignore[misc]
    return made


def value_of(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def unknown_error(what: str, found: str, known: Iterable[str]) -> InvalidRequest:
    names = sorted(known)
    near = get_close_matches(found, names, 5, 0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(names) or 'none'}"
    return InvalidRequest(f"expected {what}; found {found!r:.60}; {hint}")


def seed_of(seed: int) -> int:
    return seed % SEEDS


def require_same(task: Task, view: str, found: str, package: str) -> None:
    """Raise InvalidRequest unless what is seen of a beginning is what the task says under the name `view`."""
    if found != task.data[view]:
        raise InvalidRequest(f"expected the {view} of {task.id} from {package}; this version begins another")

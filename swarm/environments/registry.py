"""The environments there are, by name: built in, or brought to this installation.

To build one in, put an instance of it in `BUILT_IN`. One that is brought (`swarm.environments.building`) is known by
its name and the hash of what it consists of, `shop@1f2e3d4c5b6a`, and found in any of the folders that a process names
(`add_folder`): as the hash is over all that an environment is, it does not matter in which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from swarm.environments.base import Environment, PlainEnvironment
from swarm.environments.builtin import Arith, Guess, Market
from swarm.environments.custom import CustomEnvironment, is_custom
from swarm.errors import InvalidRequest

BUILT_IN: Final[Mapping[str, PlainEnvironment]] = {each.name: each for each in (Guess(), Arith(), Market())}


class _Catalogue(Mapping[str, Environment]):
    """The built-in environments and the brought ones that were admitted; any other brought one can be looked up, also
    by who is going through these meanwhile."""

    def __init__(self) -> None:
        self.known: dict[str, Environment] = dict(BUILT_IN)
        self.folders: dict[Path, None] = {}

    def __getitem__(self, name: str) -> Environment:
        if isinstance(name, str) and name not in self.known and is_custom(name):  # `in` asks for any object
            for folder in self.folders:  # such a name leads out of none
                if (folder / name).is_dir():
                    self.known[name] = CustomEnvironment.open(folder / name)
                    break
        return self.known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self.known))

    def __len__(self) -> int:
        return len(self.known)


_CATALOGUE = _Catalogue()


def environments() -> Mapping[str, Environment]:
    return _CATALOGUE


def add_folder(folder: Path) -> None:
    _CATALOGUE.folders[folder] = None


def admit(environment: Environment) -> None:
    _CATALOGUE.known[environment.name] = environment


def get_environment(name: str) -> Environment:
    """Return the environment called `name`; raise InvalidRequest, which lists the names, if there is none."""
    try:
        return _CATALOGUE[name]
    except KeyError:
        message = (
            f"expected the environment {name} among those that were brought here; found none; bring it again "
            f"(`ajet env list` shows what is here)"
            if is_custom(name)
            else f"expected an environment among {', '.join(sorted(_CATALOGUE))}; found {name!r}; choose one of them"
        )
        raise InvalidRequest(message, param="environment") from None

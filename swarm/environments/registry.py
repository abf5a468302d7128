"""The environments there are, by name: built in, or brought to this installation.

To build one in, put an instance of it in `_BUILT_IN`. One that is brought (`swarm.environments.building`) is known by
its name and the hash of what it consists of, `shop@1f2e3d4c5b6a`, and found in a folder in which its parts lie under
that name. A process says once which folders those are (`add_folder`); as the hash is over all that an environment is,
it does not matter in which of them one is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from swarm.environments.base import Environment, PlainEnvironment
from swarm.environments.builtin import Arith, Guess, Market
from swarm.environments.custom import CustomEnvironment, is_custom
from swarm.errors import InvalidRequest

_BUILT_IN: tuple[PlainEnvironment, ...] = (Guess(), Arith(), Market())


class _Catalogue(Mapping[str, Environment]):
    """The built-in environments and the brought ones that were admitted; any other brought one can be looked up."""

    def __init__(self) -> None:
        self._known: dict[str, Environment] = {environment.name: environment for environment in _BUILT_IN}
        self._folders: dict[Path, None] = {}

    def add_folder(self, folder: Path) -> None:
        self._folders[folder] = None

    def admit(self, environment: Environment) -> None:
        self._known[environment.name] = environment

    def __getitem__(self, name: str) -> Environment:
        if name not in self._known and is_custom(name):
            for folder in self._folders:  # such a name leads out of none
                if (folder / name).is_dir():
                    self.admit(CustomEnvironment.open(folder / name))
                    break
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and self[name] is not None
        except KeyError:
            return False

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._known))

    def __len__(self) -> int:
        return len(self._known)


_CATALOGUE = _Catalogue()


def environments() -> Mapping[str, Environment]:
    return _CATALOGUE


def get_built_in(name: str) -> PlainEnvironment:
    return {environment.name: environment for environment in _BUILT_IN}[name]


def built_in_names() -> frozenset[str]:
    return frozenset(environment.name for environment in _BUILT_IN)


def add_folder(folder: Path) -> None:
    _CATALOGUE.add_folder(folder)


def admit(environment: Environment) -> None:
    _CATALOGUE.admit(environment)


def get_environment(name: str) -> Environment:
    """Return the environment called `name`; raise InvalidRequest, which lists the names, if there is none."""
    try:
        return _CATALOGUE[name]
    except KeyError:
        raise InvalidRequest(_unknown(name), param="environment") from None


def _unknown(name: str) -> str:
    if is_custom(name):
        return (
            f"expected the environment {name} among those that were brought here; found none; bring it again "
            f"(`ajet env list` shows what is here)"
        )
    return f"expected an environment among {', '.join(sorted(_CATALOGUE))}; found {name!r}; choose one of them"

"""What people type to name an environment, and the one that `ajet env init` writes.

guess                                    one that is built in
shop@1f2e3d4c5b6a                        one that was brought before
reasoning-gym:chain_sum?max_terms=3      one of another package, by an adapter
shop                                     of an installed package, by the entry point group `ajet.environments`
shops.market:Market                      an object of a module
my_shop  or  my_shop/shop.py:Market      a folder with environment.py, or a file
tasks.jsonl (with --reward judge.py)     tasks, and a function that judges answers
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final

from research.errors import BadEnvironment
from research.files import write_bytes
from research.installation.home import cause_of
from research.text import did_you_mean, suggest_path
from studies.records.procedure import EnvironmentRecord
from swarm.environments.adapters import ADAPTERS, scheme_of, slug
from swarm.environments.custom import CODE, MANIFEST, REQUIREMENTS, CodeSource, CustomEnvironment, is_custom
from swarm.environments.registry import environments, get_environment

GROUP: Final = "ajet.environments"
FILE: Final = "environment.py"
DOCS: Final = "docs/environments.md"
HOW = "ajet env list shows what is here, ajet env init FOLDER makes one"
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def find_custom_environments(names: Iterable[str]) -> tuple[CustomEnvironment, ...]:
    """Return the environments among the names that are not built in, each once, in order; raise InvalidRequest."""
    known = map(get_environment, dict.fromkeys(names))
    return tuple(environment for environment in known if isinstance(environment, CustomEnvironment))


def records_of(names: Iterable[str]) -> tuple[EnvironmentRecord, ...]:
    """Return what the lock says of the environments among the names that are not built in."""
    return tuple(
        EnvironmentRecord(
            name=known.full_name, title=known.title, reference=known.reference, code=known.hashes["code"],
            data=known.hashes["data"], requirements=known.hashes["requirements"], drawn_by=known.drawn_by,
            tasks={str(split): count for split, count in known.splits.items()}, hidden_apart=known.hidden_apart,
        )
        for known in (custom.manifest for custom in find_custom_environments(names))
    )  # fmt: skip


def requirements_of(names: Iterable[str]) -> str:
    texts = (environment.folder / REQUIREMENTS for environment in find_custom_environments(names))
    return "".join(path.read_text(encoding="utf-8").rstrip() + "\n" for path in texts if path.is_file())


def client_files(name: str, within: str) -> Mapping[str, bytes]:
    """Return a client's files of an environment (words and code, no task) by paths in `within`; none if built in."""
    files: dict[str, bytes] = {}
    for brought in find_custom_environments([name]):
        files[f"{within}/{name}/{MANIFEST}"] = (brought.folder / MANIFEST).read_bytes()
        files |= {f"{within}/{name}/{CODE}/{path}": content for path, content in brought.code().items()}
    return files


def write_client_files(name: str, folder: Path) -> None:
    """Write into a folder what a client holds of an environment; nothing for one that is built in. Raises OSError."""
    for path, content in client_files(name, str(folder)).items():
        write_bytes(Path(path), content, durable=False)


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to an environment that is not built in."""

    text: str
    """As it was typed."""
    source: CodeSource
    folder: Path | None = None
    """Where its code is copied from, for a file; None for a module or an adapter."""
    lines: Path | None = None
    """The file of tasks that a reward function judges."""

    @property
    def name(self) -> str:
        """A name for what names itself by nothing: of a file of tasks or an address."""
        return slug(self.lines.stem if self.lines else self.text)


def find_entry_points() -> Mapping[str, EntryPoint]:
    """Return what installed packages offer as environments, by name; nothing of it is imported."""
    return {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}


def is_known(text: str) -> bool:
    """Return whether a text names an environment that is built in, or was brought to this installation."""
    if text in environments():
        return True
    if is_custom(text):
        raise BadEnvironment(f"expected an environment that was brought here; found no {text}; {HOW}")
    return False


def read_reference(text: str, reward: str | None = None) -> Reference:
    """Return what a text refers to; raise BadEnvironment in one line for what it cannot be."""
    place, _, item = text.partition(":")
    path = Path(os.path.expanduser(place))  # which leaves a ~SOMEBODY who is not known here as it is
    if reward is not None or path.suffix == ".jsonl":
        return _parse_tasks_file(text, path, reward)
    if scheme_of(text) is not None:
        return Reference(text, CodeSource(kind="adapter", place=text))
    if (entry := find_entry_points().get(text)) is not None:
        return Reference(text, CodeSource(kind="module", place=entry.module, item=entry.attr))
    if place and os.path.isdir(path):  # also of a name too long to be one
        return _file(text, path / FILE, item)
    if path.suffix == ".py":
        return _file(text, path, item)
    if _MODULE.fullmatch(text) and "/" not in text:
        return Reference(text, CodeSource(kind="module", place=place, item=item))
    raise BadEnvironment(_unknown(text, place, path))


def _parse_tasks_file(text: str, path: Path, reward: str | None) -> Reference:
    def describe(path: Path) -> str:
        there = "a folder" if os.path.isdir(path) else "another file"
        return there if os.path.exists(path) else f"no such file{suggest_path(path)}"

    if path.suffix != ".jsonl" or not os.path.isfile(path):
        raise BadEnvironment(
            f"expected a file TASKS.jsonl for --reward to judge; found {text!r:.120}: {describe(path)}"
        )
    if reward is None:
        raise BadEnvironment(
            f"expected --reward FILE.py[:NAME] beside {text}, the function that judges an answer to its tasks; found "
            f"none; write one ({DOCS})"
        )
    place, _, function = reward.partition(":")
    judge = Path(os.path.expanduser(place))
    if judge.suffix != ".py" or not os.path.isfile(judge):
        raise BadEnvironment(f"expected --reward as FILE.py or FILE.py:NAME; found {reward!r:.120}: {describe(judge)}")
    source = CodeSource(kind="reward", place=judge.name, item=function)
    return Reference(text, source, judge.absolute().parent, path.absolute())


def _file(text: str, path: Path, item: str) -> Reference:
    if not os.path.isfile(path):
        near = suggest_path(path) or f"; write one ({DOCS}), or begin with: ajet env init {path.parent}"
        raise BadEnvironment(f"expected {path.name} in {path.parent}; found none{near}")
    if item and not item.isidentifier():
        raise BadEnvironment(f"expected the name of a class after the colon; found {item!r:.60}")
    return Reference(text, CodeSource(kind="folder", place=path.name, item=item), path.absolute().parent)


def _unknown(text: str, place: str, path: Path) -> str:
    if "/" in text and "://" not in text:
        near = suggest_path(path) or f"; {HOW}"
        return f"expected an environment; found {text!r:.120}, and there is no file or folder of that name{near}"
    names = [*environments(), *find_entry_points()]
    near = did_you_mean(text, [*names, *ADAPTERS]) or suggest_path(path)
    if "://" in text or (":" in text and re.fullmatch(r"[a-z][a-z0-9-]*", place)):
        near = near or f"; addresses begin with {', '.join(f'{scheme}:' for scheme in ADAPTERS)}"
    return (
        f"expected an environment: {', '.join(names)}, a folder, module:Name, tasks.jsonl with --reward, or an address "
        f"such as {next(iter(ADAPTERS.values())).example}; found {text!r:.120}{near or f'; {HOW}'}"
    )


def write_example(folder: Path) -> Path:
    """Write the example into a folder, making it; return the file. Raises BadEnvironment where there is one already."""
    path = folder / FILE
    if not str(folder).isprintable():
        raise BadEnvironment(f"expected a folder's name that can be printed; found {str(folder)!r}; name another")
    if path.exists():
        raise BadEnvironment(f"expected a folder without {FILE}; found {path}, which is left as it is; name another")
    try:
        write_bytes(path, (resources.files("research.environments") / "own_environment.txt").read_bytes())
    except OSError as error:
        raise BadEnvironment(f"expected a folder to write {FILE} into; found {folder}: {cause_of(error)}") from error
    return path

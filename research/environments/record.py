"""What a lock and whoever plays are given of a brought environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from research.files import write_bytes
from studies.records.design_parts import EnvironmentRecord
from swarm.environments.brought import CODE, MANIFEST, REQUIREMENTS, BroughtEnvironment
from swarm.environments.registry import get_environment


def brought_among(names: Iterable[str]) -> tuple[BroughtEnvironment, ...]:
    """Return the environments among the names that are not built in, each once, in their order.

    Raises InvalidRequest for one that is gone.
    """
    known = map(get_environment, dict.fromkeys(names))
    return tuple(environment for environment in known if isinstance(environment, BroughtEnvironment))


def records_of(names: Iterable[str]) -> tuple[EnvironmentRecord, ...]:
    """Return what the lock says of the environments among the names that are not built in."""
    return tuple(map(_record, brought_among(names)))


def requirements_of(names: Iterable[str]) -> str:
    """Return the text of a requirements.txt of all of them; empty where their code needs nothing."""
    texts = (folder / REQUIREMENTS for folder in (environment.folder for environment in brought_among(names)))
    return "".join(path.read_text(encoding="utf-8").rstrip() + "\n" for path in texts if path.is_file())


def client_files(name: str, within: str) -> Mapping[str, bytes]:
    """Return what a client holds of an environment, by paths in the folder `within`: its words and its code, no task.

    Nothing for one that is built in.
    """
    files: dict[str, bytes] = {}
    for brought in brought_among([name]):
        files[f"{within}/{name}/{MANIFEST}"] = (brought.folder / MANIFEST).read_bytes()
        files |= {f"{within}/{name}/{CODE}/{path}": content for path, content in brought.code().items()}
    return files


def hand_out(name: str, folder: Path) -> None:
    """Write into a folder what a client holds of an environment; nothing for one that is built in. Raises OSError."""
    for path, content in client_files(name, str(folder)).items():
        write_bytes(Path(path), content, durable=False)


def _record(brought: BroughtEnvironment) -> EnvironmentRecord:
    known = brought.manifest
    return EnvironmentRecord(
        name=known.full_name, title=known.title, reference=known.reference, code=known.hashes["code"],
        data=known.hashes["data"], requirements=known.hashes["requirements"], drawn_by=known.drawn_by,
        tasks={str(split): count for split, count in known.splits.items()}, hidden_apart=known.hidden_apart,
    )  # fmt: skip

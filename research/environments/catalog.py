"""What people type to name an environment, the one that `ajet env init` writes, and what was measured of each.

    guess                                    one that is built in
    shop@1f2e3d4c5b6a                        one that was brought before
    reasoning-gym:chain_sum?max_terms=3      one of another package, by an adapter
    shop                                     of an installed package, by the entry point group `ajet.environments`
    shops.market:Market                      an object of a module
    my_shop  or  my_shop/shop.py:Market      a folder with environment.py, or a file
    tasks.jsonl (with --reward judge.py)     tasks, or a data set, and a function or a judge's name

Measured alone or with a model, for prices, headroom and planners:

    measured/NAME@HASH/none.json             by its own code: oracle, demonstrations, empty and random answers
    measured/NAME@HASH/MODEL-HASH-HASH.json  with a model: tiny, path or fake (which has none, nor a first hash)

A file is replaced by the next measurement under the same conditions (the second hash); it says nothing of other ones.
"""

import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from research.errors import BadEnvironment
from research.files import write_bytes, write_json
from research.installation.home import Home, cause_of
from research.text import did_you_mean, suggest_path
from studies.records.procedure import EnvironmentRecord
from swarm.environments import datasets, judges
from swarm.environments.adapters import ADAPTERS, scheme_of, slug
from swarm.environments.building import SPLITS
from swarm.environments.custom import CODE, MANIFEST, MARK, REQUIREMENTS, CodeSource, CustomEnvironment, is_custom
from swarm.environments.registry import environments, get_environment
from swarm.errors import InvalidRequest
from swarm.job import Job, ModelSpec, PathModel, TinyModel
from swarm.models import conditions, folder_hash

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
    lines: str | None = None
    """The file of tasks, or address of a data set, that a reward function judges."""

    @property
    def name(self) -> str:
        """A name for what names itself by nothing: of a file of tasks or an address."""
        return slug(Path(self.lines.partition("?")[0]).stem if self.lines else self.text)


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
    data = Path(os.path.expanduser(text.partition("?")[0]))
    if reward is not None or data.suffix in datasets.SUFFIXES or text.startswith(datasets.HUB):
        return _parse_tasks_file(text, data, reward)
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
    if "/" in text and "://" not in text:
        near = suggest_path(path) or f"; {HOW}"
        raise BadEnvironment(
            f"expected an environment; found {text!r:.120}, and there is no file or folder of that name{near}"
        )
    names = [*environments(), *find_entry_points()]
    near = did_you_mean(text, [*names, *ADAPTERS]) or suggest_path(path)
    if "://" in text or (":" in text and re.fullmatch(r"[a-z][a-z0-9-]*", place)):
        near = near or f"; addresses begin with {', '.join(f'{scheme}:' for scheme in ADAPTERS)}"
    raise BadEnvironment(
        f"expected an environment: {', '.join(names)}, a folder, module:Name, tasks.jsonl with --reward, or an address "
        f"such as {next(iter(ADAPTERS.values())).example}; found {text!r:.120}{near or f'; {HOW}'}"
    )


def _parse_tasks_file(text: str, path: Path, reward: str | None) -> Reference:
    def describe(path: Path) -> str:
        there = "a folder" if os.path.isdir(path) else "another file"
        return there if os.path.exists(path) else f"no such file{suggest_path(path)}"

    apart = text.startswith(datasets.HUB) or (os.path.isdir(path) and not os.path.isfile(path / FILE))
    if not apart and (path.suffix not in datasets.SUFFIXES or not os.path.isfile(path)):
        raise BadEnvironment(
            f"expected a file TASKS.jsonl for --reward to judge; found {text!r:.120}: {describe(path)}"
        )
    if reward is None:
        raise BadEnvironment(
            f"expected --reward FILE.py[:NAME] beside {text}, the function that judges an answer to its tasks; found "
            f"none; write one ({DOCS}), or say one of {', '.join(judges.NEEDS)}"
        )
    lines = text if text.startswith(datasets.HUB) else f"{path.absolute()}{''.join(text.partition('?')[1:])}"
    own, _, options = reward.partition("?")
    if own in judges.NEEDS:
        known = CodeSource(kind="judge", place=own, item=judges.complete(own, options))
        return Reference(text, known, None, lines)
    place, _, function = reward.partition(":")
    judge = Path(os.path.expanduser(place))
    if judge.suffix != ".py" or not os.path.isfile(judge):
        raise BadEnvironment(f"expected --reward as FILE.py or FILE.py:NAME; found {reward!r:.120}: {describe(judge)}")
    source = CodeSource(kind="reward", place=judge.name, item=function)
    return Reference(text, source, judge.absolute().parent, lines)


def _file(text: str, path: Path, item: str) -> Reference:
    if not os.path.isfile(path):
        near = suggest_path(path) or f"; write one ({DOCS}), or begin with: ajet env init {path.parent}"
        raise BadEnvironment(f"expected {path.name} in {path.parent}; found none{near}")
    if item and not item.isidentifier():
        raise BadEnvironment(f"expected the name of a class after the colon; found {item!r:.60}")
    return Reference(text, CodeSource(kind="folder", place=path.name, item=item), path.absolute().parent)


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


NO_MODEL: Final = "none"
_DIGITS = 16
_SAMPLING: Final = frozenset({"backend", "max_tokens", "temperature", "foreign_sampling"})
"""Fields of a job that decide what its untrained model says, beside those that speed depends on."""
_WARM_START: Final = "warm_start_steps"


class MeasuredEnvironment(BaseModel):
    """Figures of one environment on this machine; None for what was not measured."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    environment: str
    """Its full name: built in, or with the hash of what it consists of."""
    model: str = NO_MODEL
    """Key of the model (`model_key`)."""
    measured_at: str
    """UTC, in ISO 8601."""
    job: Mapping[str, Any] = {}
    """Job fields that were not at their defaults, but for environment and model, and what `conditions_of` names."""
    faults: tuple[str, ...] | None = None
    """What its check without a model found; None with a model, and where a version that kept none wrote it."""
    calls_per_episode: float | None = None
    """Model calls; without a model those of demonstrations, else of the oracle, else of random answers."""
    environment_seconds_per_episode: float | None = None
    """Seconds of the environment's own code."""
    prompt_tokens: float | None = None
    """Per episode: ids that its prompts add, each counted once."""
    sampled_tokens: float | None = None
    """Per episode."""
    cut_short: float | None = None
    """Share of answers that ended at the job's `max_tokens`."""
    seconds_per_episode: float | None = None
    """Wall seconds of an evaluation over its episodes, with `concurrency` at once."""
    concurrency: int | None = None
    """Episodes at once in that evaluation."""
    runs_at_once: int | None = None
    """Runs among which the server shared the machine's cores, as those of a study do; None where it had them all."""
    seconds_per_trained_episode: float | None = None
    """Wall seconds of a training step over its episodes: played and learned."""
    startup_s: float | None = None
    """Seconds from starting a server to its serving the model, which was made before."""
    base_success: float | None = None
    """Share of search episodes that the untrained model solves."""
    base_success_n: int = 0
    """Episodes behind `base_success`."""
    equal_groups: float | None = None
    """Share of groups, of `group_size` episodes of one task, whose rewards are all equal: they teach nothing."""
    equal_groups_n: int = 0
    """Groups behind `equal_groups`."""
    group_size: int | None = None
    """Episodes of one such group."""


def model_key(model: ModelSpec) -> str:
    """Return what a model is known by among measurements: the hash of how it is made, or of its folder's files."""
    match model:
        case TinyModel():
            return f"tiny-{_hash(model.value())[:_DIGITS]}"
        case PathModel():
            return f"path-{(model.sha256 or folder_hash(Path(model.path)))[:_DIGITS]}"


def conditions_of(job: Job) -> dict[str, Any]:
    """Return what of a job decides what its untrained model says and how fast, beside environment and model."""
    said = {**conditions(job), **job.model_dump(mode="json", include=set(_SAMPLING))}
    return said | ({_WARM_START: job.model.warm_start_steps} if isinstance(job.model, PathModel) else {})


def differences(known: MeasuredEnvironment, job: Job) -> tuple[str, ...]:
    """Return in words in which conditions a job is not as what was measured; empty where it holds for the job."""
    wanted, made = conditions_of(job), _conditions(known)
    return tuple(f"{name} {made[name]}, not {wanted[name]}" for name in wanted if made[name] != wanted[name])


def unusual_conditions(known: MeasuredEnvironment) -> dict[str, Any]:
    model = PathModel(path="") if known.model.startswith("path-") else TinyModel()
    usual = {_WARM_START: 0, **conditions_of(Job(model=model))}
    return {name: value for name, value in _conditions(known).items() if value != usual[name]}


def find_measurements(home: Home, environment: str) -> tuple[MeasuredEnvironment, ...]:
    """Return all that was measured of an environment, without a model first; what cannot be read is left out."""
    measured = _read_measurements(home, environment).values()
    return tuple(sorted(measured, key=lambda known: (known.model != NO_MODEL, known.model, known.measured_at)))


def find_all_measurements(home: Home) -> tuple[MeasuredEnvironment, ...]:
    files = (file for file in resources.files("research.environments").iterdir() if file.name.endswith(".json"))
    shipped = [MeasuredEnvironment.model_validate_json(file.read_bytes()) for file in files]
    folders = sorted(folder.name for folder in home.measured.glob("*") if folder.is_dir())
    return (*shipped, *(known for name in folders for known in find_measurements(home, name)))


def save_measurement(home: Home, measured: MeasuredEnvironment) -> Path:
    """Write a measurement in place of an earlier one under the same conditions; return its file."""
    alone = measured.model == NO_MODEL
    name = measured.model if alone else f"{measured.model}-{_hash(_conditions(measured))[:_DIGITS]}"
    earlier = (
        path for path, known in _read_measurements(home, measured.environment).items()
        if known.model == measured.model and (alone or _conditions(known) == _conditions(measured))
    )  # fmt: skip
    path = next(earlier, home.measured / measured.environment / f"{name}.json")
    write_json(path, measured.model_dump(mode="json"))
    return path


def _read_measurements(home: Home, environment: str) -> dict[Path, MeasuredEnvironment]:
    measured = {}
    for path in sorted((home.measured / environment).glob("*.json")):
        with suppress(OSError, ValidationError):
            measured[path] = MeasuredEnvironment.model_validate_json(path.read_bytes())
    return measured


def _conditions(known: MeasuredEnvironment) -> dict[str, Any]:
    """Return the conditions of a measurement; one that its file does not say is None, and no job's."""
    return {**{name: known.job.get(name) for name in conditions_of(Job())}, _WARM_START: known.job.get(_WARM_START, 0)}


def _hash(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def catalogue(home: Home) -> dict[str, Any]:
    return {
        "built_in": [
            {"name": name, "title": each.title, "tasks": {split: len(each.tasks(split)) for split in SPLITS}}
            for name, each in environments().items()
            if MARK not in name
        ],
        "installed": [{"name": name, "object": entry.value} for name, entry in find_entry_points().items()],
        "brought": [_custom_entry(folder, home) for folder in sorted(home.environments.glob(f"[!.]*{MARK}*"))],
        "addresses": [
            {"scheme": scheme, "example": adapter.example, "requirement": adapter.requirement,
             "here": importlib.util.find_spec(adapter.package) is not None
             or (home.packages / scheme / adapter.package).is_dir()}
            for scheme, adapter in ADAPTERS.items()
        ],
    }  # fmt: skip


def _custom_entry(folder: Path, home: Home) -> dict[str, Any]:
    try:
        manifest = CustomEnvironment.open(folder).manifest
    except InvalidRequest as error:
        return {"name": folder.name, "fault": str(error)}
    measured = find_measurements(home, manifest.full_name)
    return {
        "name": manifest.full_name, "title": manifest.title, "from": manifest.reference,
        "tasks": {split: manifest.splits[split] for split in SPLITS}, "hidden_apart": manifest.hidden_apart,
        "measured_with": list(dict.fromkeys(each.model for each in measured)),
        "faults": [fault for each in measured for fault in each.faults or ()],
        "bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
    }  # fmt: skip

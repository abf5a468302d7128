"""Brings an environment to this installation: a folder under its name and hash.

Its code is copied, its packages are seen to, and its tasks are drawn by a process with limits of time and memory, as
foreign code runs. A second process with only what clients will have poses some tasks, which shows whether that code
alone makes the hidden ones; the files are searched for them too. The result is whole or absent and never changes.
Packages lie in folders of their own, first on the path of the processes that run the code, so that pins clash with
nobody's: an adapter's is made by the user, a requirements.txt's here, once for each text.

The records of a folder are its files `tasks*.json` and `tasks*.jsonl`, and whatever lies in a folder called `tasks` or
`hidden`, but for the modules of a package `tasks`: a client's copy is without them. A copy of the records under another
name gives hidden tasks away, too: in what clients get, runs of words are looked for that stand in a hidden task and in
no other, or the ids of most hidden tasks. What is packed or encrypted is not seen.
"""

import hashlib
import importlib.util
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any, Final

from research.environments import catalog
from research.environments.catalog import Reference
from research.errors import BadEnvironment
from research.files import size_of, write_bytes, write_json
from research.installation.home import Home, home_error
from research.installation.tiny_model import Note
from research.text import did_you_mean
from sandboxes import SandboxError
from sandboxes.docker.launch import read_folder
from sandboxes.spec import describe_exit, last_lines
from studies import EventLog, EventType, LogCorrupt, fold
from swarm.environments import custom
from swarm.environments.adapters import ADAPTERS, scheme_of
from swarm.environments.base import Environment, Split, Task
from swarm.environments.building import SPLITS, describe_too_large
from swarm.environments.custom import CODE, MANIFEST, MARK, REQUIREMENTS, CodeSource, CustomEnvironment
from swarm.environments.judges import MATH_REQUIREMENT
from swarm.environments.processes import VARIABLE, watchdog_pipe
from swarm.environments.registry import BUILT_IN, admit, get_environment

MOST_BYTES: Final = 64 << 20
MOST_FILES: Final = 2000
RECORD_FILES: Final = ("tasks*.json", "tasks*.jsonl")
RECORD_FOLDERS: Final = frozenset({"tasks", "hidden"})
_RUN: Final = 6
"""Words of a run at most: longer texts are known by any of the runs in them."""
_LETTERS: Final = 8
"""Fewest letters and digits of a run of words: what is shorter stands in any file by chance."""
_ONE_WORD: Final = 16
"""The same of one word alone."""
_MOST: Final = 0.5
"""Share of the hidden tasks whose ids alone say that they are held."""
_WORD: Final = re.compile(r"\w+")
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CodeFiles:
    """The files of an environment, by their paths, and the packages it needs, as the text of a requirements.txt."""

    files: Mapping[str, bytes]
    requirements: str = ""

    @property
    def shared(self) -> dict[str, bytes]:
        return {path: content for path, content in self.files.items() if not is_record(path)}


def is_record(path: str) -> bool:
    parts = PurePosixPath(path)
    if parts.suffix == ".py" and "hidden" not in parts.parts[:-1]:
        return False
    return not RECORD_FOLDERS.isdisjoint(parts.parts[:-1]) or any(fnmatch(parts.name, own) for own in RECORD_FILES)


def read_code(reference: Reference) -> CodeFiles:
    """Return the files of what a reference names; raise BadEnvironment for what cannot be copied."""
    source = reference.source
    if source.kind == "adapter":
        return CodeFiles({}, ADAPTERS[str(scheme_of(source.place))].requirement + "\n")
    if source.kind == "judge":
        return CodeFiles({}, f"{MATH_REQUIREMENT}\n" if source.place == "math" else "")
    if reference.folder is not None:
        files = _folder(reference.folder, reference.text)
        if reference.lines is not None:
            data = Path(reference.lines.partition("?")[0])
            lines = [_read(file, reference.text) for file in (data, *data.rglob("*")) if file.is_file()]
            files = {path: content for path, content in files.items() if content not in lines}
        return CodeFiles(files, files.get(REQUIREMENTS, b"").decode(errors="replace"))
    # Of a module: the files of its top package, or the one file; it is not imported.
    top = source.place.partition(".")[0]
    here = Path(top)
    if here.is_dir() and (here / "__init__.py").is_file():
        return CodeFiles(_folder(here.absolute(), reference.text, f"{top}/"))
    if (file := Path(f"{top}.py")).is_file():
        return CodeFiles({file.name: _read(file, reference.text)})
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # of a module that was not imported from anywhere
        spec = None
    if spec is None or spec.origin is None or not os.path.isfile(spec.origin):
        text = reference.text
        raise BadEnvironment(f"expected the module {top} of {text} here or installed; found none; check its name")
    requirements = ""  # what its installed package says that it needs, but for extras
    for name in metadata.packages_distributions().get(top, ())[:1]:
        wanted = [line for line in metadata.requires(name) or () if "extra ==" not in line]
        requirements = "".join(f"{line}\n" for line in wanted if not line.lower().startswith("ajet"))
    origin = Path(spec.origin)
    if spec.submodule_search_locations is None:
        return CodeFiles({origin.name: _read(origin, reference.text)}, requirements)
    return CodeFiles(_folder(origin.parent, reference.text, f"{top}/"), requirements)


def _read(file: Path, text: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise BadEnvironment(f"expected to read {file} of {text}; could not ({error.strerror}); mend it") from error


def _folder(folder: Path, text: str, within: str = "") -> dict[str, bytes]:
    try:
        found = read_folder(folder, most_bytes=MOST_BYTES, most_files=MOST_FILES)
    except (SandboxError, OSError) as error:
        raise BadEnvironment(
            f"expected a folder of its own for {text}, as all of it is copied; {' '.join(str(error).split())}"
        ) from error
    return {f"{within}{path}": content for path, content in found.items()}


def find_hidden_leak(files: Mapping[str, bytes], tasks: Mapping[Split, Sequence[Task]]) -> str | None:
    """Return the path of a file that holds text of a hidden task, or names most of them; None if none does."""
    runs = set()  # by which texts are known: those of `_RUN` words, or all of a text that is shorter
    for text in _texts(tasks["hidden"]):
        words = _words(text)
        runs |= {words[at : at + _RUN] for at in range(max(1, len(words) - _RUN + 1))}
    own = {run for run in runs if sum(map(len, run)) >= (_LETTERS if len(run) > 1 else _ONE_WORD)}
    own -= _find_runs(own, (text for split in tasks if split != "hidden" for text in _texts(tasks[split])))
    ids = {_words(task.id) for task in tasks["hidden"] if len(task.id) > 1 and not task.id.isdigit()}
    for path, content in files.items():
        text = content.decode(errors="replace")
        forms = [text]  # as it stands, and with the escapes of JSON and of code read
        if "\\" in text:
            forms.append(_ESCAPE.sub(lambda escape: chr(int(escape[1], 16)) if escape[1] else " ", text))
        held = _find_runs(own | ids, forms)
        if not own.isdisjoint(held) or len(ids & held) > _MOST * len(tasks["hidden"]):
            return path
    return None


def _find_runs(wanted: Set[_Words], texts: Iterable[str]) -> set[_Words]:
    ends: dict[str, set[int]] = {}
    for run in filter(None, wanted):
        ends.setdefault(run[-1], set()).add(len(run))
    runs = set()
    for text in texts:
        last: deque[str] = deque(maxlen=_RUN)
        for match in _WORD.finditer(text.casefold()):
            last.append(word := match[0])
            if word in ends:
                words = tuple(last)
                runs |= {words[-length:] for length in ends[word] if length <= len(words)} & wanted
    return runs


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Task):
        yield from (value.id, *_texts(value.data))
    elif isinstance(value, Mapping | Sequence):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def _words(text: str) -> _Words:
    return tuple(_WORD.findall(text.casefold()))


_PREFIX: Final = ".draft-"
_ABANDONED_S: Final = 24 * 3600.0
"""Far longer than anybody fills one."""
PIP_TIMEOUT_S: Final = 1800.0
MODULE: Final = "swarm.environments.building"
SECONDS: Final = 300.0
"""For each of the two processes."""
_DOING: Final[Mapping[str, str]] = {
    "draw": "its tasks were drawn and demonstrations of them made",
    "probe": "some of its tasks were posed by what clients hold",
}
_EVERYTHING: Final = ".everything"
"""Of a draft: all files of the code, until its tasks are drawn."""
_SECRET_BYTES = 32
_TAIL_BYTES = 64 << 10


@contextmanager
def create_draft(parent: Path, home: Home) -> Iterator[Path]:
    """Yield a fresh folder in `parent`, which is gone afterwards unless it was placed; NotReady where none can be."""
    try:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in parent.glob(f"{_PREFIX}*"):
            with suppress(OSError):  # somebody else sweeps too
                if time.time() - left.stat().st_mtime > _ABANDONED_S:
                    shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent, ignore_cleanup_errors=True) as draft:
            yield Path(draft)
    except OSError as error:
        raise home_error(home.path, error) from error


def publish_draft(draft: Path, folder: Path) -> None:
    """Give a draft its name, unless somebody else was faster: what has the same name holds the same."""
    try:
        draft.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def remove_folder(folder: Path, home: Home) -> None:
    """Remove a folder that was placed: it is gone at once, and whole until then; raises NotReady."""
    try:
        gone = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder.parent))
        folder.rename(gone)
    except OSError as error:
        raise home_error(home.path, error) from error
    shutil.rmtree(gone, ignore_errors=True)


def python_path(home: Home, source: CodeSource, requirements: str, note: Note) -> tuple[Path, ...]:
    """Return the folders of packages for an environment's code, making what is not there; raises BadEnvironment."""
    if source.kind == "adapter":
        own = home.packages / str(scheme_of(source.place))
        return (own,) if own.is_dir() else ()
    here = source.kind == "judge" and importlib.util.find_spec("math_verify") is not None
    if source.kind == "module" or not requirements.strip() or here:
        return ()  # an installed module's packages are installed beside it
    wanted = f"{sys.version_info[:2]}\n{requirements}"
    folder = home.packages / hashlib.sha256(wanted.encode()).hexdigest()[:16]
    if folder.is_dir():
        return (folder,)
    with create_draft(home.packages, home) as draft:
        note("installing the packages that the environment names")
        text = draft / ".requirements.txt"
        text.write_text(requirements, encoding="utf-8")
        command = [
            sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check",
            "--target", str(draft), "--requirement", str(text),
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise BadEnvironment(f"pip did not bring the packages in {PIP_TIMEOUT_S:g} s; try again") from error
        if done.returncode:
            lines = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
            reason = " ".join(lines[-2:]) or last_lines(done.stderr, 1, 300) or "it said nothing"
            raise BadEnvironment(f"expected pip to bring what requirements.txt names; it could not: {reason}")
        publish_draft(draft, folder)
    return (folder,)


def how_to_install_apart(home: Home, address: str) -> str:
    scheme = str(scheme_of(address))
    return f"pip install --target {home.packages / scheme} {ADAPTERS[scheme].command}"


def load_environment(text: str, reward: str | None, home: Home, note: Note, play_s: float | None = None) -> Environment:
    """Return the environment that a text names, bringing it unless it is built in; raises BadEnvironment."""
    if reward is None and catalog.is_known(text):
        return get_environment(text)
    return install_environment(catalog.read_reference(text, reward), home, note, play_s)


def install_environment(reference: Reference, home: Home, note: Note, play_s: float | None = None) -> CustomEnvironment:
    """Bring what a reference names, or take one with the same parts; its demonstrations may take `play_s`, or 20 s."""
    code = read_code(reference)
    packages = python_path(home, reference.source, code.requirements, note)
    note(f"bringing the environment {reference.text}")
    with create_draft(home.environments, home) as draft:
        manifest = _fill_draft(reference, code, packages, draft, home, note, play_s)
        folder = home.environments / manifest.full_name
        publish_draft(draft, folder)
    brought = CustomEnvironment.open(folder)
    admit(brought)
    return brought


def packages_of(name: str, home: Home, note: Note) -> tuple[Path, ...]:
    """Return what comes first on the path of processes that run an environment's code, making again what is gone."""
    known = catalog.find_custom_environments([name])
    return python_path(home, known[0].manifest.source, catalog.requirements_of([name]), note) if known else ()


def python_path_variables(packages: Iterable[Path | str]) -> dict[str, str]:
    before = os.environ.get("PYTHONPATH")
    folders = [*map(str, packages), *([before] if before else [])]
    return {"PYTHONPATH": os.pathsep.join(folders)} if folders else {}


def _fill_draft(
    reference: Reference, code: CodeFiles, packages: Sequence[Path], draft: Path, home: Home, note: Note,
    play_s: float | None,
) -> custom.Manifest:  # fmt: skip
    everything = draft / _EVERYTHING
    for place, files in ((everything, code.files), (draft / CODE, code.shared)):
        place.mkdir(parents=True)
        for path, content in files.items():
            write_bytes(place / path, content, durable=False)
    lines = ["--lines", reference.lines, "--name", reference.name] if reference.lines else []
    source = ["--source", reference.source.model_dump_json()]
    source += [] if play_s is None else ["--play-seconds", str(play_s)]
    with _rewrite_paths(reference, draft):
        drawing = ("draw", *source, "--code", str(everything), "--out", str(draft), *lines)
        said = _query_process(reference, packages, home, *drawing)
        probing = ("probe", *source, "--code", str(draft / CODE), "--tasks", str(draft / "tasks"))
        probed = _query_process(reference, packages, home, *probing)
    size = sum(map(len, code.shared.values()))
    for split in SPLITS:
        size_of_tasks = (draft / "tasks" / f"{split}.json").stat().st_size
        if size + size_of_tasks > custom.MOST_GIVEN_BYTES:
            raise BadEnvironment(describe_too_large(reference.text, split, size_of_tasks, size))
    if said.get("left"):
        note(said["left"])
    if (given := sum(said["splits"].values())) < (asked := said.pop("asked", 0)):
        note(
            f"{asked:,} tasks were asked for, {given:,} different ones came: what seeds gave again is left out, so "
            "that kinds with few tasks are rarer than generate() makes them"
        )
    if said["drawn_by"] != "seeds":
        tasks: dict[Split, Sequence[Task]] = {
            split: custom.from_json((draft / "tasks" / f"{split}.json").read_bytes()) for split in SPLITS
        }
        if (leak := find_hidden_leak(code.shared, tasks)) is not None:
            note(f"clients get {leak}, which holds hidden tasks: call it tasks*.json, or move it into a folder hidden/")
            probed["hidden_apart"] = False
    shutil.rmtree(everything)
    needed = {REQUIREMENTS: code.requirements.encode()} if code.requirements.strip() else {}
    for name, content in needed.items():
        write_bytes(draft / name, content, durable=False)
    parts = {"code": code.shared, "requirements": needed}
    hashes = {"data": custom.data_hash(draft)} | {name: custom.files_hash(files) for name, files in parts.items()}
    manifest = custom.Manifest(reference=reference.text, source=reference.source, hashes=hashes, **said, **probed)
    write_json(draft / MANIFEST, manifest.model_dump(mode="json"))
    return manifest


@contextmanager
def _rewrite_paths(reference: Reference, draft: Path) -> Iterator[None]:
    """Name the user's own files where a refusal names those of the draft, which are gone before it is read."""
    folder = "" if reference.folder is None else os.path.relpath(reference.folder)
    own = "" if folder in ("", ".") else f"{folder}/"
    own = own if not own.startswith("../") else f"{os.path.normpath(str(reference.folder))}/"
    try:
        yield
    except BadEnvironment as error:
        said = str(error)
        for place in (draft, draft.resolve()):
            said = said.replace(f"{place / _EVERYTHING}/", own).replace(f"{place / CODE}/", f"a client's copy of {own}")
        raise BadEnvironment(said) from error


def _query_process(reference: Reference, packages: Sequence[Path], home: Home, *arguments: str) -> dict[str, Any]:
    variables = {**python_path_variables(packages), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    secret = _secret(home).hex() if arguments[0] == "draw" else ""  # foreign code can read its process's variables
    with watchdog_pipe() as held, tempfile.TemporaryFile(dir=home.environments) as said, subprocess.Popen(
        [sys.executable, "-m", MODULE, *arguments], env={**os.environ, **variables, VARIABLE: str(held)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, errors="replace",
        start_new_session=True, pass_fds=(held,),
    ) as process:  # fmt: skip
        try:
            out, _ = process.communicate(secret, timeout=SECONDS)
        except subprocess.TimeoutExpired as error:
            raise BadEnvironment(
                f"expected {reference.text} to be brought within {SECONDS:g} s; its code did not return while "
                f"{_DOING[arguments[0]]}; mend it, or give fewer"
            ) from error
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        found = dict(json.loads(out)) if out.endswith("\n") else {}
        if process.returncode == 0 and found:
            return found
        said.seek(max(0, said.seek(0, os.SEEK_END) - _TAIL_BYTES))
        last = last_lines(found.get("refused") or said.read().decode(errors="replace"), 1, 600)
    if "refused" in found:
        apart = reference.source.kind == "adapter" and "pip install" in last
        how = f"; or apart from all else: {how_to_install_apart(home, reference.source.place)}" if apart else ""
        raise BadEnvironment(f"{last}{how}")
    raise BadEnvironment(
        f"expected {reference.text} to give its tasks; its code ended its process {describe_exit(process.returncode)}, "
        f"while {_DOING[arguments[0]]}, last saying: {last or 'nothing'}; mend it: code returns or raises"
    )


def _secret(home: Home) -> bytes:
    """Return the secret from which the seeds of generated hidden tasks follow: of this installation, drawn once."""
    path = home.environments / "secret"
    if not path.is_file():
        with tempfile.NamedTemporaryFile(prefix=".secret.", dir=path.parent) as draft:  # its owner's alone to read
            draft.write(secrets.token_bytes(_SECRET_BYTES))
            draft.flush()
            with suppress(FileExistsError):  # somebody else was faster
                os.link(draft.name, path)
    found = path.read_bytes()
    if len(found) != _SECRET_BYTES:
        raise BadEnvironment(f"expected a secret of {_SECRET_BYTES} bytes in {path}; found {len(found)}; remove it")
    return found


def remove(name: str, home: Home, log: EventLog) -> int:
    """Remove an environment that was brought; return its bytes. Raises BadEnvironment where a study needs it."""
    folder = home.environments / name
    if not custom.is_custom(name) or not folder.is_dir():
        if name in BUILT_IN:
            raise BadEnvironment(
                f"expected an environment that was brought here; found {name!r}, which is built in and stays"
            )
        here = sorted(path.name for path in home.environments.glob(f"[!.]*{MARK}*"))
        own = [each for each in here if each.partition(MARK)[0] == name]
        hint = f"; did you mean {' or '.join(own)}?" if own else did_you_mean(name, here)
        raise BadEnvironment(
            f"expected the full name of an environment that was brought here; found {name!r:.120}"
            f"{hint or '; ajet env list shows what is here'}"
        )
    with home.creation_lock():
        if using := [study for study in log.studies() if _needs(study, name, home, log)]:
            raise BadEnvironment(
                f"expected no study that still needs {name}; found {', '.join(using)}, not concluded; let "
                f"{'it' if len(using) == 1 else 'them'} conclude first (ajet study resume STUDY)"
            )
        size = size_of(folder)
        remove_folder(folder, home)
    return size


def _needs(study: str, name: str, home: Home, log: EventLog) -> bool:
    try:
        events = log.read(study)
        state = fold(events)
    except LogCorrupt:  # nobody can go on with it
        return False
    made = state.rounds_before or state.explorations or state.noise_plan is not None or state.design is not None
    if not made and events[-1].type is EventType.STUDY_STOPPED and events[-1].actor == "system":
        return False  # it came to nothing at its planning, of which no run is made: it could only be asked again
    elsewhere = (made or state.hypotheses) and not home.study(study).is_dir()
    named = any(name in json.dumps(event.payload, default=str) for event in events)
    return named and state.status != "concluded" and not elsewhere

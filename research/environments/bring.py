"""Bringing an environment to this installation: from what was typed to a folder under its name and hash.

Its code is copied, its packages are seen to, and its tasks are drawn by a process that has a limit of time and memory,
as it runs foreign code. A second process, which has only what clients will have, poses some tasks, and shows whether
that code makes the hidden tasks by itself; whether those files hold them all the same is looked for. What comes of it
is whole or not there, and never changes: a study goes on with what it was begun with, whatever becomes of the files
that it was brought from.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

from research.environments.code_files import CodeFiles, read_code
from research.environments.drafts import draft_in, place
from research.environments.hidden_texts import holds_hidden
from research.environments.packages import how_to_install_apart, python_path
from research.environments.record import brought_among, requirements_of
from research.environments.reference import Reference, known_already, read_reference
from research.errors import BadEnvironment
from research.files import write_bytes, write_json
from research.installation.home import Home
from research.installation.tiny_model import Note
from sandboxes.shown import how_it_ended, last_lines
from swarm.environments.base import Environment, Split, Task
from swarm.environments.bringing.drawing import SPLITS, too_large
from swarm.environments.brought import (
    CODE,
    MANIFEST,
    MOST_GIVEN_BYTES,
    REQUIREMENTS,
    BroughtEnvironment,
    Manifest,
    data_hash,
    files_hash,
)
from swarm.environments.playing.lifeline import VARIABLE, lifeline
from swarm.environments.registry import admit, get_environment
from swarm.environments.tasks_file import from_json

MODULE: Final = "swarm.environments.bringing"
SECONDS: Final = 300.0
"""For each of the two processes."""
_DOING: Final[Mapping[str, str]] = {
    "draw": "its tasks were drawn and demonstrations of them made",
    "probe": "some of its tasks were posed by what clients hold",
}
"""What each of them is for."""
_EVERYTHING: Final = ".everything"
"""Of a draft: all files of the code, until its tasks are drawn."""
_SECRET_BYTES = 32
_TAIL_BYTES = 64 << 10


def environment_of(text: str, reward: str | None, home: Home, note: Note, play_s: float | None = None) -> Environment:
    """Return the environment that a text names, bringing it unless it is built in; raises BadEnvironment."""
    if reward is None and known_already(text):
        return get_environment(text)
    return bring(read_reference(text, reward), home, note, play_s)


def bring(reference: Reference, home: Home, note: Note, play_s: float | None = None) -> BroughtEnvironment:
    """Bring what a reference names; one that is here with the same parts is taken as it is. Raises BadEnvironment.

    A demonstration of its code may take `play_s` seconds, 20 where that is left out.
    """
    code = read_code(reference)
    packages = python_path(home, reference.source, code.requirements, note)
    note(f"bringing the environment {reference.text}")
    with draft_in(home.environments, home) as draft:
        manifest = _written(reference, code, packages, draft, home, note, play_s)
        folder = home.environments / manifest.full_name
        place(draft, folder)
    brought = BroughtEnvironment.open(folder)
    admit(brought)
    return brought


def packages_of(name: str, home: Home, note: Note) -> tuple[Path, ...]:
    """Return what comes first on the path of processes that run an environment's code, making again what is gone."""
    return tuple(
        path
        for brought in brought_among([name])
        for path in python_path(home, brought.manifest.source, requirements_of([name]), note)
    )


def path_with(packages: Iterable[Path | str]) -> dict[str, str]:
    """Return the variables of a process whose path begins with these folders; none for no folder."""
    before = os.environ.get("PYTHONPATH")
    folders = [*map(str, packages), *([before] if before else [])]
    return {"PYTHONPATH": os.pathsep.join(folders)} if folders else {}


def _written(
    reference: Reference, code: CodeFiles, packages: Sequence[Path], draft: Path, home: Home, note: Note,
    play_s: float | None,
) -> Manifest:  # fmt: skip
    """Fill a draft with all that the environment consists of; return its manifest."""
    everything = draft / _EVERYTHING
    _write(everything, code.files)
    _write(draft / CODE, code.shared)
    lines = ["--lines", str(reference.lines), "--name", reference.name] if reference.lines else []
    source = ["--source", reference.source.model_dump_json()]
    source += [] if play_s is None else ["--play-seconds", str(play_s)]
    with _in_own_words(reference, draft):
        drawing = ("draw", *source, "--code", str(everything), "--out", str(draft), *lines)
        said = _asked(reference, packages, home, *drawing)
        probing = ("probe", *source, "--code", str(draft / CODE), "--tasks", str(draft / "tasks"))
        probed = _asked(reference, packages, home, *probing)
    _require_fitting(reference, code.shared, draft)
    if (given := sum(said["splits"].values())) < (asked := said.pop("asked", 0)):
        note(
            f"{asked:,} tasks were asked for, {given:,} different ones came: what seeds gave again is left out, so "
            "that kinds with few tasks are rarer than generate() makes them"
        )
    if said["drawn_by"] != "seeds" and (path := holds_hidden(code.shared, _tasks_in(draft))) is not None:
        note(f"clients get {path}, which holds hidden tasks: call it tasks*.json, or move it into a folder hidden/")
        probed["hidden_apart"] = False
    shutil.rmtree(everything)
    if code.requirements.strip():
        (draft / REQUIREMENTS).write_text(code.requirements, encoding="utf-8")
    hashes = {
        "code": files_hash(code.shared),
        "data": data_hash(draft),
        "requirements": files_hash({REQUIREMENTS: code.requirements.encode()} if code.requirements.strip() else {}),
    }
    manifest = Manifest(reference=reference.text, source=reference.source, hashes=hashes, **said, **probed)
    write_json(draft / MANIFEST, manifest.model_dump(mode="json"))
    return manifest


def _tasks_in(draft: Path) -> dict[Split, tuple[Task, ...]]:
    return {split: from_json((draft / "tasks" / f"{split}.json").read_bytes()) for split in SPLITS}


def _require_fitting(reference: Reference, shared: Mapping[str, bytes], draft: Path) -> None:
    """Raise BadEnvironment unless code and tasks of a split fit into what one that plays is given."""
    code = sum(map(len, shared.values()))
    for split in SPLITS:
        size = (draft / "tasks" / f"{split}.json").stat().st_size
        if code + size > MOST_GIVEN_BYTES:
            raise BadEnvironment(too_large(reference.text, split, size, code))


@contextmanager
def _in_own_words(reference: Reference, draft: Path) -> Iterator[None]:
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


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True)
    for path, content in files.items():
        write_bytes(folder / path, content, durable=False)


def _asked(reference: Reference, packages: Sequence[Path], home: Home, *arguments: str) -> dict[str, Any]:
    """Return what a process says of the environment; raise BadEnvironment with its reason, or how it ended."""
    variables = {**path_with(packages), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    secret = _secret(home).hex() if arguments[0] == "draw" else ""  # foreign code can read its process's variables
    with lifeline() as held, tempfile.TemporaryFile(dir=home.environments) as said, subprocess.Popen(
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
            _end(process)
        found = _answer(out)
        if process.returncode == 0 and found:
            return found
        last = last_lines(found.get("refused") or _end_of(said), 1, 600)
    if "refused" in found:
        raise BadEnvironment(_refusal(reference, last, home))
    raise BadEnvironment(
        f"expected {reference.text} to give its tasks; its code ended its process {how_it_ended(process.returncode)}, "
        f"while {_DOING[arguments[0]]}, last saying: {last or 'nothing'}; mend it: code returns or raises"
    )


def _answer(out: str) -> dict[str, Any]:
    """Return the line of JSON that a process ends with; nothing where its code ended it before."""
    return dict(json.loads(out)) if out.endswith("\n") else {}


def _end_of(said: IO[bytes]) -> str:
    said.seek(max(0, said.seek(0, os.SEEK_END) - _TAIL_BYTES))
    return said.read().decode(errors="replace")


def _end(process: subprocess.Popen[str]) -> None:
    """End the process and all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _refusal(reference: Reference, said: str, home: Home) -> str:
    if reference.source.kind == "adapter" and "pip install" in said:
        return f"{said}; or apart from all else: {how_to_install_apart(home, reference.source.place)}"
    return said


def _draw_secret(path: Path) -> None:
    with tempfile.NamedTemporaryFile(prefix=".secret.", dir=path.parent) as draft:  # its owner's alone to read
        draft.write(secrets.token_bytes(_SECRET_BYTES))
        draft.flush()
        with suppress(FileExistsError):  # somebody else was faster
            os.link(draft.name, path)


def _secret(home: Home) -> bytes:
    """Return the secret from which the seeds of generated hidden tasks follow: of this installation, drawn once."""
    path = home.environments / "secret"
    if not path.is_file():
        _draw_secret(path)
    found = path.read_bytes()
    if len(found) != _SECRET_BYTES:
        raise BadEnvironment(f"expected a secret of {_SECRET_BYTES} bytes in {path}; found {len(found)}; remove it")
    return found

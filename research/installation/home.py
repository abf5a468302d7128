"""The installation: the folder of event log, studies, sandboxes, models, Prefect's state.

It is `.ajet/` of the working directory, or AJET_HOME. Only its owner can read the folder.
"""

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from research.errors import NotReady
from research.installation.shared_files import SharedFiles
from swarm.environments.registry import add_folder

BEGINNING_S: Final = 30.0
"""How long others are waited for that begin a study at the same time: each takes less than a second."""

_ADVICE = {
    errno.ENOSPC: "the disk is full: free some space", errno.EDQUOT: "the disk quota is used up: free some space",
    errno.EROFS: "the disk is read-only", errno.EACCES: "it may not be written", errno.EPERM: "it may not be written",
    errno.ENOTDIR: "a part of its path is a file", errno.EEXIST: "a file has its name",
}  # fmt: skip
_LEFT_OPEN = ("ajet.db", "ajet.db-wal", "ajet.db-shm", "studies", "models", "environments", "plans", "prefect")
"""What earlier versions left open to others in a folder that somebody else had made."""


class Home:
    """Where all of an installation lies: `path` is absolute, `database` and `files` are URLs of what is shared."""

    def __init__(self, path: Path, database: str, files: str = "") -> None:
        self.path = path
        self.database = database
        self.files = SharedFiles(files, path)
        self.sandboxes = path / "sandboxes"
        self.containers = path / "containers"
        self.models = path / "models"
        self.environments = path / "environments"
        self.measured = path / "measured"
        self.images = path / "images"
        self.packages = path / "packages"
        self.prefect = path / "prefect"

    @classmethod
    def locate(cls, environment: Mapping[str, str] = os.environ) -> "Home":
        """Return the home of this process without touching the disk: AJET_HOME or `.ajet/`, AJET_DATABASE_URL."""
        path = Path(environment.get("AJET_HOME") or ".ajet").expanduser().absolute()
        database = environment.get("AJET_DATABASE_URL")
        if "?" in str(path) and not database:  # it would end the path in the database's URL: another file's
            raise NotReady(f"expected a home (AJET_HOME) without ? in its path, found {path}; give it another name")
        return cls(path, database or f"sqlite:///{path / 'ajet.db'}", environment.get("AJET_FILES", ""))

    def prepare(self) -> "Home":
        """Make the folder and see that it can be written; raises NotReady with the reason."""
        probe = self.path / f".probe.{os.getpid()}"
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in map(self.path.joinpath, _LEFT_OPEN):
                with suppress(OSError):  # it is not there, or is somebody else's
                    if not path.is_symlink() and (mode := path.stat().st_mode) & 0o077:
                        path.chmod(mode & 0o700)
            # A page, because a disk can be full and still take an empty file.
            probe.write_bytes(b"\0" * 4096)
            probe.unlink(missing_ok=True)  # another thread's has the same name
        except OSError as error:
            raise home_error(self.path, error) from error
        if self.files.url:
            self.files.open()
        add_folder(self.environments)
        return self

    def for_reading(self) -> "Home":
        """Return it to be looked at: one that is there is not written to, for its disk may be read-only."""
        add_folder(self.environments)
        return self if self.path.is_dir() else self.prepare()

    def study(self, study: str) -> Path:
        return self.path / "studies" / study

    def attempt(self, study: str, run_id: str, attempt: int) -> Path:
        return attempt_in(self.study(study), run_id, attempt)

    @contextmanager
    def creation_lock(self) -> Iterator[None]:
        """Be the one that begins a study here, or removes what one may need; NotReady where others take long."""
        lock = FileLock(self.path / "beginning.lock", timeout=BEGINNING_S, mode=0o600, fallback_to_soft=False)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout as error:
            raise NotReady(
                f"expected to begin within {BEGINNING_S:g} s; another process holds {lock.lock_file}; is it stopped?"
            ) from error
        except OSError as error:
            raise home_error(self.path, error) from error
        try:
            yield
        finally:
            lock.release()


def attempt_in(study: Path, run_id: str, attempt: int) -> Path:
    return study / "attempts" / f"{run_id}-a{attempt}"


def cause_of(error: OSError) -> str:
    return _ADVICE.get(error.errno or 0, error.strerror or str(error))


def home_error(path: Path, error: OSError) -> NotReady:
    expected = f"expected a folder that can be written at {path}"
    return NotReady(f"{expected}; {cause_of(error)}. Mend it, or set AJET_HOME to another")

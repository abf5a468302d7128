"""Files of studies that several hosts share beside the database: AJET_FILES, a folder or a bucket.

Before an event is appended, what a study's folder holds is stored: each content under its sha256, then a manifest of
names and hashes under the event's own hash. Only manifests of events in the log are read: whoever sees an event finds
its files, and what was stored in vain (by a controller that was killed, overtaken, or had lost its lease) is nobody's.
Half a content is stored again by the next push. Here, it is noted which manifests were stored or fetched: while the
newest is one of them, files here are as new or newer.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final, cast

from filelock import FileLock

from research.errors import NotReady
from research.files import write_bytes
from studies import Event, EventLog, StoreError, StudiesError

NOT_SHARED: Final = ("attempts", "prefect.json")
"""What stays where it was made: folders of attempts with their checkpoints, and what one Prefect's server knows."""
_LOCK_S: Final = 60.0
_MANIFEST: Final = re.compile(r"(\d+)-([0-9a-f]{64})\.json")


class FilesAway(StoreError):
    """The shared files cannot be read or written now, or do not hold what was stored."""


class SharedFiles:
    """The shared files of an installation; without a `url` nothing is shared, and nothing is done."""

    def __init__(self, url: str, home: Path) -> None:
        self.url, self._shown = url, re.sub(r"//.*@", "//", url).partition("?")[0]  # no password
        self._studies, self._notes = home / "studies", home / "shared"
        self._hashed: dict[Path, tuple[tuple[int, int, int], str]] = {}  # of a file that looks as it did then
        self._stored: dict[str, set[str]] = {}  # by study, hashes of contents that are there for certain
        self._newest: dict[str, Mapping[str, str]] = {}  # by study, the manifest that was fetched, or appended after
        self._looked: dict[str, str] = {}  # by study, the head of its log when all was here

    @contextmanager
    def push(self, event: Event) -> Iterator[None]:
        """Store what a study's folder holds now; in the block, the event is appended. Raises FilesAway, OSError."""
        if not self.url:
            yield
            return
        study, stored = event.study, self._stored.setdefault(event.study, set())
        files, new = self._read(study, stored)
        if files != self._newest.get(study):
            with self._translate("write"):
                for sha256, data in new.items():
                    self._put(f"{study}/files/{sha256}", data)
                    stored.add(sha256)
                self._put(f"{study}/manifests/{event.seq:06}-{event.hash}.json", json.dumps(files).encode())
            with self._translate("note"), self._lock(study):
                write_bytes(self._notes / study, " ".join({*self._known(study), event.hash}).encode())
        yield
        self._newest[study] = files

    def pull(self, log: EventLog, study: str) -> None:
        """Fetch what a study's log was written after and is not here; raises FilesAway. A file that the log names after
        the newest manifest (by a host that shared nothing) stays."""
        if not self.url or (head := log.last(study)) is None or self._looked.get(study) == head.hash:
            return
        with self._translate("read"), self._lock(study):
            rows = log.read_unverified(study)
            newest = self._find_newest(study, {row["seq"]: row["hash"] for row in rows})
            if newest is not None:
                named = self._newest[study] = self._read_manifest(study, newest)
                self._stored.setdefault(study, set()).update(named.values())
                new, folder = newest[1] not in self._known(study), self._studies / study
                if lacking := {name: each for name, each in named.items() if new or not (folder / name).exists()}:
                    self._fetch(study, lacking, "".join(row["payload"] for row in rows if row["seq"] > newest[0]))
                if new:
                    write_bytes(self._notes / study, newest[1].encode())
            self._looked[study] = rows[-1]["hash"]

    def forget(self, study: str) -> None:
        """Have the next pull replace what is here: a controller that lost its lease may have written beside another."""
        self._looked.pop(study, None)
        (self._notes / study).unlink(missing_ok=True)

    def _fetch(self, study: str, named: Mapping[str, str], later: str) -> None:
        here, _ = self._read(study, set(named.values()))
        for name, sha256 in named.items():
            present = here.get(name, "")
            if present == sha256 or (present and present in later and present not in named.values()):
                continue
            data = self._get(f"{study}/files/{sha256}")
            if (found := hashlib.sha256(data).hexdigest()) != sha256:
                raise ValueError(f"expected {name} of study {study} with the sha256 {sha256[:12]}, found {found[:12]}")
            write_bytes(self._studies / study / name, data)

    def _read(self, study: str, stored: set[str]) -> tuple[dict[str, str], dict[str, bytes]]:
        """Return the sha256 of each file in a study's folder by name, and the contents that are not stored."""
        folder, files, new = self._studies / study, dict[str, str](), dict[str, bytes]()
        kept = [path for path in folder.iterdir() if path.name not in NOT_SHARED] if folder.is_dir() else []
        found_here = [path for top in kept for path in (top.rglob("*") if top.is_dir() else (top,))]
        for path in sorted(path for path in found_here if path.name[0] != "." and not path.is_dir()):
            with suppress(FileNotFoundError):  # it was somebody's for a moment
                found = path.stat()
                stamp = found.st_size, found.st_mtime_ns, found.st_ino
                known = self._hashed.get(path)
                if known is None or known[0] != stamp or known[1] not in stored:
                    data = path.read_bytes()
                    known = self._hashed[path] = stamp, hashlib.sha256(data).hexdigest()
                    if known[1] not in stored:
                        new[known[1]] = data
                files[path.relative_to(folder).as_posix()] = known[1]
        return files, new

    def _find_newest(self, study: str, log: Mapping[int, str]) -> tuple[int, str] | None:
        store, root = self.open()
        try:
            names = [path.rpartition("/")[2] for path in store.ls(f"{root}/{study}/manifests", detail=False)]
        except FileNotFoundError:
            return None
        found = ((int(each[1]), each[2]) for each in map(_MANIFEST.fullmatch, names) if each)
        return max((each for each in found if log.get(each[0]) == each[1]), default=None)

    def _read_manifest(self, study: str, event: tuple[int, str]) -> dict[str, str]:
        named: dict[str, str] = json.loads(self._get(f"{study}/manifests/{event[0]:06}-{event[1]}.json"))
        for path in map(PurePosixPath, named):
            if path.is_absolute() or ".." in path.parts or path.parts[0] in NOT_SHARED:
                raise ValueError(f"expected names of files in the folder of study {study}; found {str(path)!r:.80}")
        return named

    def _lock(self, study: str) -> FileLock:
        self._notes.mkdir(parents=True, exist_ok=True)
        return FileLock(self._notes / f"{study}.lock", mode=0o600, timeout=_LOCK_S)

    def _known(self, study: str) -> set[str]:
        note = self._notes / study
        return set(note.read_text().split()) if note.exists() else set()

    def open(self) -> tuple[Any, str]:
        """Return the store and the path in it; raise NotReady where no installed package reads the URL."""
        try:
            from fsspec.core import url_to_fs

            store, root = url_to_fs(self.url, use_listings_cache=False)  # made once for a URL, by fsspec
        except (ImportError, ValueError) as error:
            said = f"expected of AJET_FILES a URL that fsspec reads here, found {self._shown}: {error}"
            raise NotReady(f"{said}; s3:// takes pip install 'ajet[s3]'") from error
        return store, root.rstrip("/")

    def _put(self, name: str, data: bytes) -> None:
        store, root = self.open()
        with suppress(FileNotFoundError):
            if self._get(name) == data:  # what is whole is not opened again
                return
        if "file" in store.protocol:
            write_bytes(Path(root, name), data)
        else:
            store.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
            store.pipe_file(f"{root}/{name}", data)

    def _get(self, name: str) -> bytes:
        store, root = self.open()
        return cast(bytes, store.cat_file(f"{root}/{name}"))

    @contextmanager
    def _translate(self, action: str) -> Iterator[None]:
        try:
            yield
        except (NotReady, StudiesError):
            raise
        except Exception as error:
            told = str(error).replace(self.url, self._shown)
            said = f"could not {action} the shared files at {self._shown}: {type(error).__name__}: {told}"
            raise FilesAway(f"{' '.join(said.split())}. Check AJET_FILES, then go on with the study") from error

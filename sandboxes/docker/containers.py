"""The Docker sandbox: runs untrusted code in containers that outlive their controller and can harm nothing.

What a container may do is in `sandboxes.docker.options`. As with the process sandbox, the truth about one is in its
folder, and any later controller of this machine reads the same:

    spec.json       what to run; no value of its environment
    lock            held while it is launched or settled
    started.json    it was started, when and in which engine: it will never be started again
    stop.json       somebody asked to stop it
    exit.json       how it ended, which results it left (hashed), which not and why; written once
    output.log      its output: the beginning and the end of it;  results/NAME
    cleared         the engine holds nothing of it any more

While it runs the engine holds it under a name made of its own and the installation's, a random id in
`root/.installation`; by that label only what this installation started is ever touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from sandboxes.docker import launching, options
from sandboxes.docker.asking import asking
from sandboxes.docker.engine import ContainerEngine
from sandboxes.docker.handles import ContainerHandle, Installation
from sandboxes.folders import locked, read, write_once
from sandboxes.spec import Handle, SandboxError, SandboxSpec

REAPED_AT_ONCE = 8


class DockerSandbox:
    """Launches containers in an engine, exactly once by name, with their folders under `root`."""

    def __init__(self, root: Path, engine: ContainerEngine) -> None:
        self._ours = Installation(root, engine)

    @property
    def isolates(self) -> bool:
        """True: see `sandboxes.docker.options`."""
        return True

    @property
    def installation(self) -> str:
        """The random id of this installation, a label of all it has in the engine."""
        return self._ours.id

    def run(self, spec: SandboxSpec) -> ContainerHandle:
        """Launch `spec`, or adopt what was launched under its name; raise SandboxError when it must not run."""
        from docker.errors import NotFound

        options.check(spec)
        folder = self._ours.root / spec.name
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(folder):
                if not self._begun(spec.name):
                    self._launch(spec, folder)
        except NotFound as error:  # an OSError, too
            raise SandboxError(
                f"sandbox {spec.name}: expected its parts to stay in the engine; somebody removed one meanwhile "
                f"({error.explanation}). Launch it again"
            ) from error
        except OSError as error:
            raise SandboxError(f"cannot launch sandbox {spec.name} in {folder}: {error}") from error
        return ContainerHandle(self._ours, spec.name)

    def adopt(self, name: str) -> ContainerHandle | None:
        """Return the handle of what was launched under `name`, or None if nothing was."""
        return ContainerHandle(self._ours, name) if self._begun(name) else None

    def reap(self, labels: Mapping[str, str]) -> list[str]:
        """Stop, settle and remove what this installation has in the engine under `labels`; return the names."""
        names = sorted(self._held(labels))
        with ThreadPoolExecutor(REAPED_AT_ONCE) as pool:
            return list(pool.map(self._reap, names))

    def list(self, labels: Mapping[str, str] | None = None) -> list[Handle]:
        """Return handles of all sandboxes whose labels include `labels`, oldest first."""
        wanted = (labels or {}).items()
        specs = [(spec["created_at"], path.parent.name) for path in self._ours.root.glob("*/spec.json")
                 if (spec := read(path)) is not None and wanted <= spec["labels"].items()]  # fmt: skip
        return [ContainerHandle(self._ours, name) for _, name in sorted(specs) if self._begun(name)]

    def _reap(self, name: str) -> str:
        with self._lock(name):
            if not self._begun(name):
                launching.clear(self._ours.engine, name, self.installation)
                return name
        ContainerHandle(self._ours, name).stop()
        with self._lock(name):
            launching.clear(self._ours.engine, name, self.installation)
        return name

    def _lock(self, name: str) -> AbstractContextManager[None]:
        (self._ours.root / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        return locked(self._ours.root / name)

    def _begun(self, name: str) -> bool:
        """Return whether it was started and never must be again."""
        return any((self._ours.root / name / file).exists() for file in ("started.json", "exit.json"))

    def _launch(self, spec: SandboxSpec, folder: Path) -> None:
        ours = self._ours
        status = launching.launched(ours.engine, ours.id, spec.name)
        if status is None:
            launching.make(ours.engine, ours.id, spec, folder)
        else:
            write_once(folder / "spec.json", launching.to_json(spec))
        if status in (None, "created"):
            ours.start(spec.name)
        else:  # it was started, and the folder does not know: starting what has ended would run it again
            launching.note_started(ours.engine_id, folder)

    def _held(self, labels: Mapping[str, str]) -> set[str]:
        """Return the names of the sandboxes of which the engine holds anything."""
        ours = {options.INSTALLATION: self.installation, **{options.OF_SPEC + key: of for key, of in labels.items()}}
        wanted: dict[str, Any] = {"label": [f"{key}={value}" for key, value in ours.items()]}
        api = self._ours.engine.client.api
        with asking(self._ours.engine, "listing this installation's containers and volumes"):
            found = [*api.containers(all=True, filters=wanted), *(api.volumes(filters=wanted)["Volumes"] or [])]
        return {thing["Labels"][options.NAME] for thing in found}

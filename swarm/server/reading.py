"""ReadingServer: episodes out of the store of a training that ended; no engine, nothing written.

The store is opened where it lies, immutable, so that a read-only disk will do. One whose server was killed, or that an
earlier version wrote, would have to be written first: a copy of it is read.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from swarm.client.transport import is_running
from swarm.errors import InvalidRequest, StoreUnavailable
from swarm.job import Job, TinyModel
from swarm.models import model_place
from swarm.rendering.messages import BackendError, Renderer
from swarm.rollout.keys import Keys
from swarm.server.service import SwarmServer, default_store
from swarm.store.archive import newest_job
from swarm.store.database import connect, migrate
from swarm.wire import Status

log = logging.getLogger(__name__)


@contextmanager
def readable_store(folder: Path) -> Iterator[str]:
    """Yield the URL of what can be read in a server's folder; InvalidRequest where none can, or a server runs there."""
    file = folder / "store.sqlite3"
    if not file.is_file():
        raise InvalidRequest(f"expected the folder of a swarm server, found no {file.name} in {folder}")
    if is_running(folder):
        raise InvalidRequest(f"expected a folder whose server ended; one runs in {folder}: ask it")
    beside = file.with_name(f"{file.name}-wal")
    in_place = f"sqlite:///file:{quote(str(file.absolute()))}?immutable=1&mode=ro&uri=true"
    try:
        with connect(in_place).connect() as connection:
            migrate(connection)
        whole = not (beside.exists() and beside.stat().st_size)
    except SQLAlchemyError:  # of an earlier version, or no database: read, it says which
        whole = False
    if whole:
        yield in_place
        return
    with TemporaryDirectory(prefix="ajet-read-") as scratch:
        for path in (file, *([beside] if beside.exists() else [])):
            shutil.copyfile(path, Path(scratch, path.name))
        yield default_store(Path(scratch))


class ReadingServer(SwarmServer):
    """Serves what a store holds to whoever has its viewer's key; `why_no_texts` says why ids have none."""

    def __init__(self, folder: Path, models: Path, store: str) -> None:
        super().__init__(folder, models, Keys(), store=store)
        self.why_no_texts: str | None = None

    def status(self) -> Status:
        return super().status().model_copy(update={"reason": self.why_no_texts})

    def renderer(self) -> Renderer | None:
        return self._renderer

    @cached_property
    def _renderer(self) -> Renderer | None:
        try:
            return None if (job := newest_job(self._store)) is None else load_tokenizer(job, self._models)
        except (BackendError, ImportError, StoreUnavailable, ValidationError) as error:
            self.why_no_texts = " ".join(f"ids without texts: {error}".split())
            log.warning("event=no_texts reason=%r", self.why_no_texts)
            return None


def load_tokenizer(job: Job, models: Path) -> Renderer:
    """Return what a job's ids are read with; BackendError where the folder of its model is not there any more."""
    if job.backend == "fake":
        from swarm.backends.fake import FakeRenderer

        return FakeRenderer()
    from swarm.rendering.renderer import load_renderer

    if job.start_from is not None:
        folder = model_place(job.start_from, models)
    elif isinstance(job.model, TinyModel):
        from swarm.backends.tiny_model import tiny_hash

        folder = models / tiny_hash(job.model, job.environment)
    else:
        folder = model_place(job.model.path, models)
    if not folder.is_dir():
        raise BackendError(f"the folder of the job's model, {folder}, is gone")
    return load_renderer(folder)

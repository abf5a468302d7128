"""Episodes out of the store of a training that ended, a line of JSON to each question; nothing is written.

The store is opened where it lies, immutable, so that a read-only disk will do. One whose server was killed, or that an
earlier version wrote, would have to be written first: a copy of it is read.
"""

import asyncio
import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from select import select
from tempfile import TemporaryDirectory
from typing import Final, TextIO
from urllib.parse import quote

from pydantic_core import to_json
from sqlalchemy.exc import SQLAlchemyError

from swarm.client.transport import is_running
from swarm.errors import InvalidRequest, SwarmError
from swarm.job import TinyModel
from swarm.models import model_place, tiny_folder
from swarm.rendering.messages import BackendError, Renderer
from swarm.server.service import default_store
from swarm.server.watching import with_texts
from swarm.store.archive import Archive
from swarm.store.database import connect, migrate
from swarm.wire import EpisodeRecord

IDLE_S: Final = 300.0
"""After which a reader that nobody asks anything ends."""


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


def answer_lines(folder: Path, models: Path, asked: TextIO, told: TextIO) -> None:
    """Answer `{"limit": N}` with `episodes`, `{"episode": ID}` with its `record` and the `reason` why its ids have no
    texts, or with an `error`, until there is no more to read or nobody asks for a while."""
    with readable_store(folder) as store, redirect_stdout(sys.stderr), ThreadPoolExecutor(1) as thread:
        archive = Archive(store, None)
        loading = thread.submit(load_tokenizer, archive, models)  # which takes seconds, before somebody waits for it
        while select([asked], [], [], IDLE_S)[0] and (line := asked.readline()):
            question = json.loads(line)
            try:
                if "limit" in question:
                    found: object = asyncio.run(archive.episodes(question["limit"]))
                else:
                    found = _with_texts(asyncio.run(archive.episode(question["episode"])), loading)
            except (SwarmError, ValueError) as error:
                found = {"error": str(error)}
            print(to_json(found).decode(), file=told, flush=True)


def _with_texts(record: EpisodeRecord | None, loading: Future[Renderer | None]) -> Mapping[str, object]:
    try:
        renderer = loading.result()
    except (BackendError, ImportError, SwarmError) as error:
        return {"record": record, "reason": " ".join(f"ids without texts: {error}".split())}
    return {"record": record if record is None or renderer is None else with_texts(record, renderer), "reason": ""}


def load_tokenizer(archive: Archive, models: Path) -> Renderer | None:
    """Return what the ids of the newest training are read with; None where there was none."""
    if (newest := asyncio.run(archive.summarize(0))) is None:
        return None
    job = newest.job
    if job.backend == "fake":
        from swarm.backends.fake import FakeRenderer

        return FakeRenderer()
    from swarm.rendering.renderer import load_renderer

    if job.start_from is not None:
        folder = model_place(job.start_from, models)
    elif isinstance(job.model, TinyModel):
        folder = tiny_folder(job.model, job.environment, models)
    else:
        folder = model_place(job.model.path, models)
    if not folder.is_dir():
        raise BackendError(f"the folder of the job's model, {folder}, is gone")
    return load_renderer(folder)

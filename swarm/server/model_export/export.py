"""One export: a kept checkpoint, with its card, under a name that appears once all of it is there.

Promises: what stands in the way is refused before anything is written; a folder that is there and not empty stays as it
is; on a full disk, or where anything else goes wrong, nothing is left behind. The server whose folder it reads may run
meanwhile: nothing there is changed.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from swarm.backends.protocols import NO_ROOM, NoRoom
from swarm.errors import InvalidRequest, NotFound
from swarm.job import Job
from swarm.models import folder_hash
from swarm.models.card import CARD, MeasuredSuccess, ModelCard
from swarm.server.model_export.kept import chosen
from swarm.server.service.core import SwarmServer, default_store
from swarm.server.shared.keys import Keys
from swarm.store import Archive, Outline
from swarm.wire import CheckpointSummary


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is exported, and where to. `directory` is the server's, `job` whose training (None: the newest one's)."""

    directory: Path
    models: Path
    to: Path
    step: str
    apart: bool
    store: str | None = None
    job: Job | None = None


def exported(wanted: Wanted, say: Callable[[str], None]) -> ModelCard:
    """Write the folder and return its card; raise SwarmError, BackendError or OSError with what is wrong."""
    _require_free(wanted.to)
    summary, folder, known = asyncio.run(_found(wanted))
    if known.job.backend == "fake":
        raise InvalidRequest(
            "expected a training of the backend local or verl, found one of 'fake', which has no model"
        )
    if wanted.apart and not known.job.lora_rank:  # said before the libraries of models are imported
        raise InvalidRequest(
            "expected a job with a lora_rank to keep its adapter apart, found one that trains all weights"
        )
    draft = wanted.to.absolute().parent / f".{wanted.to.name}.{secrets.token_hex(4)}.part"
    try:
        draft.mkdir(parents=True)
        card = _written(wanted, summary, folder, known, draft, say)
        os.rename(draft, wanted.to)
    except (OSError, NoRoom) as error:
        if isinstance(error, OSError) and error.errno not in NO_ROOM:
            raise
        raise NoRoom(f"the disk of {wanted.to} is full: nothing was written; free space and try again") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return card


def _require_free(to: Path) -> None:
    if to.exists() and not (to.is_dir() and not any(to.iterdir())):
        raise InvalidRequest(f"expected a folder that is not there yet, or empty, found {to}: choose another name")


async def _found(wanted: Wanted) -> tuple[CheckpointSummary, Path, Outline]:
    """Return the checkpoint that is meant, its folder, and what is known of its training."""
    if not wanted.directory.is_dir():
        raise NotFound(f"expected the folder of a swarm server at {wanted.directory}, found none: train first")
    store = wanted.store or default_store(wanted.directory)
    server = SwarmServer(wanted.directory, wanted.models, Keys(), store=store)
    if wanted.job is not None:
        server.load(wanted.job)
    kept = await server.checkpoints()
    summary = chosen(wanted.step, kept)
    known = await Archive(store, wanted.job).outline(summary.step)
    assert known is not None
    if wanted.job is not None and not (wanted.job.same(known.job) or wanted.job.continues(known.job)):
        raise NotFound("expected a training of the job that is named, found none here: leave --job out, or train it")
    return summary, server.checkpoints_of(known.job_digest) / summary.name, known


def _written(
    wanted: Wanted, summary: CheckpointSummary, folder: Path, known: Outline, draft: Path, say: Callable[[str], None]
) -> ModelCard:
    from swarm.backends.exporting.folder import write_model

    made = write_model(known.job, wanted.models, folder, draft, apart=wanted.apart, say=say)
    measured = known.evaluation
    card = ModelCard(
        ajet=version("ajet"),
        job_digest=known.job_digest,
        job=known.job.value(),
        environment=known.job.environment,
        step=summary.step,
        checkpoint=summary.name,
        dtype=known.job.dtype,
        adapter=made.adapter,
        base=str(made.base),
        base_weights=made.base_weights,
        template=made.template,
        sha256=folder_hash(draft),
        data=known.lists,
        trained_episodes=known.trained,
        measured=None if measured is None else MeasuredSuccess(**asdict(measured)),
    )
    (draft / CARD).write_text(card.model_dump_json(indent=2) + "\n", encoding="utf-8")
    (draft / "README.md").write_text(card.readme(), encoding="utf-8")
    return card

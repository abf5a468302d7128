"""Export of a kept checkpoint as a model folder with its card.

    python -m swarm.server.model_export --directory DIR --models DIR --to DIR [--step latest] [--apart]
                                        [--job JSON] [--environments DIR] --out FILE

A process of its own, so that memory is free when it ends. What stands in the way is refused before anything is written
(exit code 2, one line on stderr); the folder appears under its name once it is whole, one that is not empty stays as it
is, and nothing is left behind on failure. The server may run meanwhile. AJET_SWARM_STORE names a database outside the
folder; it is no flag because a URL may hold a password.
"""

import argparse
import asyncio
import os
import secrets
import shutil
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path

from swarm.backends.protocols import NO_ROOM, DiskFull
from swarm.environments.registry import add_folder
from swarm.errors import InvalidRequest, NotFound, SwarmError
from swarm.job import Job
from swarm.models import CARD, ModelCard, folder_hash
from swarm.rendering.messages import BackendError
from swarm.rollout.keys import Keys
from swarm.server.service import SwarmServer, default_store
from swarm.store.archive import Archive, TrainingSummary
from swarm.wire import CheckpointList, CheckpointSummary

LATEST, BEST = "latest", "best"
STORE = "AJET_SWARM_STORE"


def choose_checkpoint(step: str, kept: CheckpointList) -> CheckpointSummary:
    """Return the checkpoint of `step`: a number, `latest` or `best`; raise NotFound with what is kept instead."""
    if not kept.checkpoints:
        why = "nothing was trained there yet" if kept.job_digest is None else "its training has not saved one yet"
        raise NotFound(f"expected a checkpoint, found none: {why}; let it train, then try again")
    if step == LATEST:
        return kept.checkpoints[0]
    if step == BEST:
        wanted = None if kept.best is None else str(kept.best.step)
        told = "no checkpoint is kept as the best: only a job with eval_every chooses one; say --step latest, or a step"
    else:
        steps = ", ".join(str(each.step) for each in reversed(kept.checkpoints))
        wanted, told = step, f"expected --step to be latest, best or one that is kept ({steps}), found {step[:40]!r}"
    found = next((each for each in kept.checkpoints if str(each.step) == wanted), None)
    if found is None:
        raise NotFound(told)
    return found


def export_model(
    directory: Path, models: Path, to: Path, step: str, job: Job | None, say: Callable[[str], None], *, apart: bool
) -> ModelCard:
    """Write the folder `to` and return its card. `directory` is the server's; `job` whose training (None: the newest
    one's). Raises SwarmError, BackendError or OSError with what is wrong."""
    if to.exists() and not (to.is_dir() and not any(to.iterdir())):
        raise InvalidRequest(f"expected a folder that is not there yet, or empty, found {to}: choose another name")
    if not directory.is_dir():
        raise NotFound(f"expected the folder of a swarm server at {directory}, found none: train first")
    summary, folder, known = asyncio.run(_find_training(directory, models, step, job))
    if known.job.backend == "fake":
        raise InvalidRequest(
            "expected a training of the backend local or verl, found one of 'fake', which has no model"
        )
    if apart and not known.job.lora_rank:  # said before the libraries of models are imported
        raise InvalidRequest(
            "expected a job with a lora_rank to keep its adapter apart, found one that trains all weights"
        )
    draft = to.absolute().parent / f".{to.name}.{secrets.token_hex(4)}.part"
    try:
        draft.mkdir(parents=True)
        from swarm.backends.local.model_files import write_model

        made = write_model(known.job, models, folder, draft, apart=apart, say=say)
        card = ModelCard(
            ajet=version("ajet"), job_digest=known.job_digest, job=known.job.value(), step=summary.step,
            environment=known.job.environment, checkpoint=summary.name, dtype=known.job.dtype, adapter=made.adapter,
            base=str(made.base), base_weights=made.base_weights, template=made.template, sha256=folder_hash(draft),
            data=known.lists, trained_episodes=known.trained, measured=known.evaluation,
        )  # fmt: skip
        (draft / CARD).write_text(card.model_dump_json(indent=2) + "\n", encoding="utf-8")
        (draft / "README.md").write_text(card.readme(), encoding="utf-8")
        os.rename(draft, to)
    except (OSError, DiskFull) as error:
        if isinstance(error, OSError) and error.errno not in NO_ROOM:
            raise
        raise DiskFull(f"the disk of {to} is full: nothing was written; free space and try again") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return card


async def _find_training(
    directory: Path, models: Path, step: str, job: Job | None
) -> tuple[CheckpointSummary, Path, TrainingSummary]:
    store = os.environ.get(STORE) or default_store(directory)
    server = SwarmServer(directory, models, Keys(), store=store)
    if job is not None:
        server.load(job)
    summary = choose_checkpoint(step, await server.checkpoints())
    known = await Archive(store, job).summarize(summary.step)
    assert known is not None
    if job is not None and not (job.equals(known.job) or job.continues(known.job)):
        raise NotFound("expected a training of the job that is named, found none here: leave --job out, or train it")
    return summary, server.checkpoints_of(known.job_digest) / summary.name, known


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m swarm.server.model_export", description="Export a model.")
    parser.add_argument("--directory", required=True, type=Path, help="folder of the swarm server")
    parser.add_argument("--models", required=True, type=Path, help="folder of models")
    parser.add_argument("--to", required=True, type=Path, help="the folder to write")
    parser.add_argument("--step", default=LATEST, help="a kept step, latest or best")
    parser.add_argument("--apart", action="store_true", help="keep a LoRA adapter apart from its model")
    parser.add_argument("--job", help="JSON of the job whose training it is; the newest one's where left out")
    parser.add_argument("--environments", type=Path, help="folder of environments that were brought")
    parser.add_argument("--out", required=True, type=Path, help="file that the card is written to")
    given = parser.parse_args(arguments)
    if given.environments is not None:
        add_folder(given.environments)
    job = None if given.job is None else Job.from_record(given.job)
    folders = (given.directory, given.models, given.to)
    try:
        card = export_model(*folders, given.step, job, partial(print, flush=True), apart=given.apart)
    except (ImportError, SwarmError, BackendError, OSError, MemoryError) as error:
        why = str(error) or "the memory is full: export on a machine with more"
        if isinstance(error, ImportError):
            why += "; install the extra `local`: pip install 'ajet[local]'"
        sys.stderr.write(f"{' '.join(why.split())}\n")
        return 2
    given.out.write_text(card.model_dump_json(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

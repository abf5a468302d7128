"""A tiny model learned a step, then written as a checkpoint and as a model to publish: bytes for each parameter."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from swarm.backends.protocols import Batch, TrainEpisode
from swarm.job import Job, TinyModel
from swarm.timelines.node import TrainRow

Dtype = Literal["float32", "bfloat16"]
MODEL = TinyModel(hidden_size=256, layers=4, warm_start_steps=0)


def measured(folder: Path, dtype: Dtype, lora_rank: int = 0) -> dict[str, Any]:
    """Return bytes by file and by parameter of a checkpoint, and of the weights that are exported from it."""
    from swarm.backends.local.model_files import write_model

    job = Job(backend="local", model=MODEL, dtype=dtype, lora_rank=lora_rank, device="cpu", max_context=64)
    saved, to = folder / "saved", folder / "exported"
    to.mkdir(parents=True)
    asyncio.run(_learned(job, folder / "models", saved))
    write_model(job, folder / "models", saved, to, apart=bool(lora_rank), say=lambda _: None)
    checkpoint = {path.stem: tensors(path) for path in sorted(saved.glob("*.safetensors"))}
    published = tensors(next(to.glob("*model.safetensors")))
    parameters = checkpoint["model"]["elements"]
    return {
        "trained parameters": parameters,
        "checkpoint, bytes a parameter": {
            name: round(checkpoint[name]["bytes"] / parameters, 4) for name in ("model", "optimizer")
        },
        "published, bytes a parameter": round(published["bytes"] / published["elements"], 4),
        "published parameters": published["elements"],
        "bytes beside the tensors": sum(path.stat().st_size for path in saved.iterdir())
        - sum(checkpoint[name]["bytes"] for name in ("model", "optimizer")),
    }


def tensors(path: Path) -> dict[str, int]:
    """Return how many elements a safetensors file holds, and the bytes of these alone, by its own header."""
    with path.open("rb") as file:
        header: Mapping[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    found = [entry for name, entry in header.items() if name != "__metadata__"]
    return {
        "elements": sum(_product(entry["shape"]) for entry in found),
        "bytes": sum(entry["data_offsets"][1] - entry["data_offsets"][0] for entry in found),
    }


def _product(shape: list[int]) -> int:
    found = 1
    for size in shape:
        found *= size
    return found


async def _learned(job: Job, models: Path, saved: Path) -> None:
    """Make the model, one step of its optimiser, and a checkpoint."""
    from swarm.backends.local import LocalBackend

    backend = LocalBackend(job, models)
    await backend.start()
    try:
        await asyncio.to_thread(backend.learner.update, Batch(1, (_episode(0, 0.0), _episode(1, 1.0))))
        await asyncio.to_thread(backend.learner.save, saved)
    finally:
        await backend.stop()


def _episode(number: int, reward: float) -> TrainEpisode:
    ids = (5, 6, 7, 8 + number)
    row = TrainRow(ids, sampled=(0, 0, 1, 1), logprobs=(0.0, 0.0, -1.0, -1.0), versions=(-1, -1, 0, 0))
    return TrainEpisode(f"e{number}", "g", reward, (row,))

"""How new weights come into SGLang's process: from files that it maps, and not one number of the older ones stays.

Promises: all weights are made no numbers before the first file is read, so that one which did not come is found
whatever the model calls it; what goes wrong is written down for whoever asked, as SGLang's process would end over it.
`command` runs in SGLang's process, the rest in the one that asks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from swarm.backends.protocols import BackendError

COMMAND: Final = f"{__name__}.command"
"""The loader's name for SGLang, one of its `custom_weight_loader`."""


def asked(what: str, answers: Path, path: str = "") -> list[tuple[str, torch.Tensor]]:
    """Return what SGLang takes for weights and brings to `command`: begin, load a file, or finish."""
    return [(json.dumps({"what": what, "path": path, "answers": str(answers)}), torch.zeros(1))]


def answered(answers: Path, processes: int) -> list[str]:
    """Return the names of weights that did not come, by any of the processes; raise BackendError for what failed."""
    found = [json.loads(file.read_text()) for file in sorted(answers.iterdir())]
    if errors := [each["error"] for each in found if each["error"]]:
        raise BackendError(f"SGLang did not load the weights: {errors[0]}")
    if len(found) != processes:
        raise BackendError(f"expected {processes} processes of SGLang to load the weights, {len(found)} answered")
    return sorted({name for each in found for name in each["missing"]})


def command(model: torch.nn.Module, named: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Do what is asked of one process, and write its answer to a file of its own."""
    order = json.loads(named[0][0])
    missing, error = [], ""
    try:
        missing = _done(model, order["what"], order["path"])
    except Exception as failure:  # noqa: BLE001 - the process's edge: whatever it was is told to who asked
        error = f"{type(failure).__name__}: {failure}"
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    (Path(order["answers"]) / str(rank)).write_text(json.dumps({"missing": missing, "error": error}))


def _done(model: Any, what: str, path: str) -> list[str]:
    """Do it; return the names of weights that did not come, once all are asked for."""
    with torch.no_grad():
        weights = [(name, weight) for name, weight in model.named_parameters() if weight.is_floating_point()]
        if what == "begin":
            for _, weight in weights:
                weight.fill_(math.nan)
        elif what == "load":
            model.load_weights(list(torch.load(path, mmap=True, weights_only=True, map_location="cpu").items()))
        else:
            return [name for name, weight in weights if weight.isnan().any()]
    return []

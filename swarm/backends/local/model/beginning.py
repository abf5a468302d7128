"""Beginning with weights that were trained before: a job's `start_from`, held to the job's own model.

Promises: the folder is whole and, where a card of ajet lies in it, holds what was exported; its architecture and its
tokenizer are those of the job's model, so that nothing else of the job means anything new. Each refusal is one line.
Reads configurations and tokenizers, no weights.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from swarm.backends.protocols import BackendError, not_loaded
from swarm.errors import InvalidRequest
from swarm.models import folder_hash, require_model_folder
from swarm.models.card import CARD

_OF_A_COPY = frozenset({"_name_or_path", "transformers_version", "dtype", "torch_dtype", "auto_map", "use_cache"})
"""What a configuration says of a copy of a model, and not of the model."""
_NAMED = 3


def require_beginning(start: Path, own: Path) -> None:
    """Raise BackendError unless training of the model in `own` can begin with the weights in the folder `start`."""
    try:
        require_model_folder(start)
    except InvalidRequest as error:
        raise BackendError(f"start_from: {error}") from error
    _require_as_exported(start)
    mine, theirs = _architecture(own), _architecture(start)
    differing = sorted(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name))
    if differing:
        found = ", ".join(f"{name} {theirs.get(name)!r}, not {mine.get(name)!r}" for name in differing[:_NAMED])
        raise BackendError(
            f"start_from: expected the architecture of the job's model, found {found} in {start}: name the job's "
            "model as it was when these weights were trained"
        )
    if _tokenizer(own) != _tokenizer(start):
        raise BackendError(
            f"start_from: expected the tokenizer of the job's model, found another in {start}: its weights were "
            "trained on other ids (a tiny model's are those of its environment)"
        )


def _require_as_exported(start: Path) -> None:
    try:
        said = json.loads((start / CARD).read_bytes())["sha256"]
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BackendError(
            f"start_from: {start / CARD} is no card of an export ({error}): copy the folder again"
        ) from error
    if (found := folder_hash(start)) != said:
        raise BackendError(
            f"start_from: expected {start} as it was exported (sha256 {str(said)[:12]}), found other files "
            f"({found[:12]}): copy it again, or take {CARD} away if it was changed on purpose"
        )


def _architecture(folder: Path) -> dict[str, Any]:
    from transformers import AutoConfig

    try:
        whole = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False).to_dict()
    except (OSError, ValueError, KeyError) as error:
        raise not_loaded(f"the model in {folder}", error) from error
    return {name: value for name, value in whole.items() if name not in _OF_A_COPY}


def _tokenizer(folder: Path) -> str:
    return hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()

"""A whole model folder made by hand, of files alone: nothing heavy is imported."""

from __future__ import annotations

import json
from pathlib import Path


def weights_file(path: Path, numbers: int = 4) -> None:
    """Write a file of safetensors with one tensor of zeros."""
    header = {"__metadata__": {}, "w": {"dtype": "F32", "shape": [numbers], "data_offsets": [0, 4 * numbers]}}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4 * numbers))


def whole_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    weights_file(folder / "model.safetensors")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder

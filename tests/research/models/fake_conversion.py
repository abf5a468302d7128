"""A fake of `swarm.backends.local.model_files`: writes a folder of files in place of a model, or fails as told."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from pathlib import Path

from tests.swarm.models.folders import whole_folder

source, target = Path(sys.argv[sys.argv.index("--source") + 1]), Path(sys.argv[sys.argv.index("--target") + 1])
assert import_module("gguf").READS == "everything"
said = source.read_text()
print("reading the weights", flush=True)
whole_folder(target)
if said == "cut":
    (target / "tokenizer.json").unlink()
if said == "odd":
    sys.exit("ValueError: what an odd file")
if said == "huge":
    os.kill(os.getpid(), signal.SIGKILL)

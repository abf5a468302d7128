"""A GGUF file into a model folder in fp32: config, safetensors, fast tokenizer, chat template.

    python -m swarm.backends.conversion.gguf --source FILE.gguf --target DIR

Needs the package `gguf`. Quantised weights are dequantised: they are what the file holds, a little worse than what it
was made of. Promises that the same file gives the same weights; not that a folder it could not finish is empty, so give
it one that is thrown away then. Prints a line as each part begins.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

_WHATEVER_IS_WRONG = (OSError, ValueError, KeyError, IndexError, RuntimeError, ImportError, TypeError, AttributeError)
"""What transformers raises on files that it does not know."""


def convert(source: Path, target: Path) -> None:
    """Write the model in `source` to the folder `target`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    _say("reading the tokenizer")
    tokenizer: Any = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name, local_files_only=True)
    _say("reading the weights")
    read: Any = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32, local_files_only=True
    )
    _say("writing the weights in fp32")
    # What was read from GGUF remembers its quantisation and refuses to be saved: a fresh model has the weights alone.
    fresh = type(read)(read.config)
    fresh.load_state_dict(read.state_dict())
    fresh.generation_config = read.generation_config
    fresh.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    """Convert as the command line says; return the exit code (2: it could not be, with one line on stderr)."""
    from safetensors import SafetensorError
    from transformers.utils.logging import disable_progress_bar

    parser = argparse.ArgumentParser(
        prog="python -m swarm.backends.conversion.gguf", description="Convert a GGUF file."
    )
    parser.add_argument("--source", required=True, type=Path)
    parser.add_argument("--target", required=True, type=Path)
    given = parser.parse_args(arguments)
    disable_progress_bar()
    try:
        convert(given.source, given.target)
    except (*_WHATEVER_IS_WRONG, SafetensorError) as error:
        sys.stderr.write(f"{type(error).__name__}: {' '.join(str(error).split())}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

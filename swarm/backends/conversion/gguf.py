"""A GGUF file into a model folder in fp32: config, safetensors, fast tokenizer, chat template.

    python -m swarm.backends.conversion.gguf --source FILE.gguf --target DIR

Needs the package `gguf`. Quantised weights are dequantised: they are what the file holds, a little worse than what it
was made of. Promises that the same file gives the same weights; not that a folder it could not finish is empty, so give
it one that is thrown away then. Prints a line as each part begins.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

_WHATEVER_IS_WRONG = (OSError, ValueError, KeyError, IndexError, RuntimeError, ImportError, TypeError, AttributeError)
"""What transformers raises on files that it does not know."""


def convert(source: Path, target: Path) -> None:
    """Write the model in `source` to the folder `target`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _parsed_once():
        _say("reading the tokenizer")
        own: Any = {"gguf_file": source.name, "local_files_only": True, "trust_remote_code": False}
        tokenizer: Any = AutoTokenizer.from_pretrained(source.parent, **own)
        _say("reading the weights")
        read: Any = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **own)
    _say("writing the weights in fp32")
    # What was read from GGUF remembers its quantisation and refuses to be saved: a fresh model has the weights alone.
    fresh = type(read)(read.config)
    fresh.load_state_dict(read.state_dict())
    fresh.generation_config = read.generation_config
    fresh.save_pretrained(target)
    tokenizer.save_pretrained(target)


@contextmanager
def _parsed_once() -> Iterator[None]:
    """Keep what the package `gguf` says for as long, where it is installed.

    transformers has it parse the file four times, and make the table of tensor names anew for each module of the model:
    with a vocabulary of 49,000 that is most of a conversion's time. It changes neither.
    """
    try:
        package = import_module("gguf")
    except ImportError:  # transformers says what is missing
        yield
        return
    names = ("GGUFReader", "get_tensor_name_map")
    own = {name: getattr(package, name) for name in names}
    for name, made in own.items():
        setattr(package, name, functools.cache(made))
    try:
        yield
    finally:
        for name, made in own.items():
            setattr(package, name, made)


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

"""The pretrained model that is measured where none is named: the one that `ajet model fetch` puts into this home."""

from __future__ import annotations

from pathlib import Path

from research.installation.home import Home

NAME = "smollm2-135m"


def folder() -> Path:
    """Return where it lies once it was fetched."""
    return Home.locate().models / NAME


def missing() -> str | None:
    """Return why nothing can be measured with it, None where it is here."""
    if (folder() / "config.json").is_file():
        return None
    return f"no pretrained model is here: fetch one (ajet model fetch {NAME})"

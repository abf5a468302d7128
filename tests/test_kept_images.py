"""Keeping images between runs of the checks saves minutes; where it fails, the run goes on and says so."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import requests

SCRIPT = Path(__file__).parent.parent / ".ci" / "kept_images.py"


@pytest.fixture(scope="module")
def kept_images() -> ModuleType:
    spec = spec_from_file_location("kept_images", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Image:
    """An image whose content comes whole, or breaks off."""

    tags = ("ajet-base:1",)

    def __init__(self, *, breaks: bool = False) -> None:
        self._breaks = breaks

    def save(self, named: str) -> Iterator[bytes]:
        yield b"first half, "
        if self._breaks:
            raise requests.exceptions.ConnectionError("Read timed out.")
        yield b"second half"


def engine(*images: Image, load: Any = None) -> Any:
    """Return what an engine has, under the first of the kept names."""
    held = list(images)

    def listed(name: str) -> list[Image]:
        return [held.pop()] if held else []

    return SimpleNamespace(client=SimpleNamespace(images=SimpleNamespace(list=listed, load=load)))


def test_an_image_is_kept_whole(kept_images: ModuleType, tmp_path: Path) -> None:
    kept_images.save(engine(Image()), tmp_path)
    (kept,) = tmp_path.iterdir()
    assert (kept.suffix, kept.read_bytes()) == (".tar", b"first half, second half")


def test_an_image_that_breaks_off_is_not_kept_and_ends_nothing(
    kept_images: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept_images.save(engine(Image(breaks=True)), tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert "Read timed out" in capsys.readouterr().err


def test_a_folder_that_somebody_removed_ends_nothing(
    kept_images: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept_images.save(engine(Image()), tmp_path / "gone")
    assert "No such file" in capsys.readouterr().err


def test_an_engine_that_answers_too_late_makes_the_image_anew(
    kept_images: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(archive: object) -> None:
        raise requests.exceptions.ReadTimeout("Read timed out. (read timeout=120)")

    (tmp_path / "one.tar").write_bytes(b"an image")
    kept_images.load(engine(load=load), tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert "it is made anew" in capsys.readouterr().err

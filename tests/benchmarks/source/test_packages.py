"""Packages and the circles among them are found in a tree of source, which is read and not imported."""

from __future__ import annotations

from pathlib import Path

import pytest
from source.packages import arrows, circles, crossings, files


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for path, text in {
        "room/__init__.py": "from room.upper.door import Door",
        "room/alone.py": "import json",
        "room/upper/__init__.py": "",
        "room/upper/door.py": "def late():\n    from room.lower import key",
        "room/upper/__main__.py": "import room.upper.door",
        "room/lower/__init__.py": "",
        "room/lower/key.py": "from room import alone\nfrom elsewhere import key",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text + "\n")
    return tmp_path


def test_a_folder_a_module_beside_the_door_and_a_main_are_packages_of_their_own(tree: Path) -> None:
    assert arrows(tree, "room") == {
        "": {"upper"},
        "alone": frozenset(),
        "upper": {"lower"},
        "upper.__main__": {"upper"},
        "lower": {"alone"},
    }
    assert ("room.upper.door", "upper", "lower") in set(crossings(tree, "room"))
    assert circles(arrows(tree, "room")) == []


def test_an_import_back_closes_a_circle_of_all_on_its_way(tree: Path) -> None:
    (tree / "room/alone.py").write_text("from room.upper.door import late\n")
    assert circles(arrows(tree, "room")) == [("alone", "lower", "upper")]


def test_an_init_is_no_file_of_its_folder(tree: Path) -> None:
    assert files(tree, "room") == {"room": 1, "room/upper": 2, "room/lower": 1}

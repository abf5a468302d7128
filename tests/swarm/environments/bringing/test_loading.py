"""The code of a brought environment is loaded from its own files, or refused in one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarm.environments.custom import CodeSource, Kind
from swarm.environments.loading import load_source
from swarm.errors import InvalidRequest

HEAD = "from swarm.environments import Environment\n"
WORLD = "class World(Environment):\n    name = 'world'\n"


@pytest.fixture(autouse=True)
def own_modules() -> Iterator[None]:
    """Forget what a test imported, and where from."""
    modules, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def loaded(code: Path, item: str = "", *, kind: Kind = "folder", place: str = "environment.py", **files: str) -> str:
    for name, text in files.items():
        (code / f"{name}.py").write_text(text)
    return load_source(CodeSource(kind=kind, place=place, item=item), code).name


def test_the_one_environment_of_a_file_needs_no_name(tmp_path: Path) -> None:
    assert loaded(tmp_path, environment=HEAD + WORLD) == "world"


def test_what_lies_beside_a_file_is_found_by_it(tmp_path: Path) -> None:
    beside = "NAME = 'beside'\n"
    own = HEAD + "from words_beside import NAME\nclass World(Environment):\n    name = NAME\n"
    assert loaded(tmp_path, environment=own, words_beside=beside) == "beside"


@pytest.mark.parametrize(
    ("item", "text"),
    [("World", WORLD), ("made", WORLD + "made = World()\n"), ("make", WORLD + "def make():\n    return World()\n")],
)
def test_a_class_an_instance_or_a_function_can_be_named(item: str, text: str, tmp_path: Path) -> None:
    assert loaded(tmp_path, item, environment=HEAD + text + "class Other(World):\n    pass\n") == "world"


@pytest.mark.parametrize(
    ("text", "item", "said"),
    [
        ("", "", "expected one subclass of Environment in environment.py; found none"),
        (WORLD + "class Other(World):\n    pass\n", "", "found World, Other; write one, or name it"),
        (WORLD, "Missing", "expected Missing in environment.py to be an Environment; found nothing of that name"),
        (WORLD + "x = 3\n", "x", "to be an Environment; found int"),
        (WORLD + "    def __init__(self):\n        raise RuntimeError('no disk')\n", "", "RuntimeError: no disk"),
        ("1/0\n", "", "(environment.py, line 2)"),  # as `playing/test_code.py` has it of all that a file may do
        ("import surely_not_installed\n", "", "'surely_not_installed'"),
    ],
)
def test_code_that_gives_none_is_refused_in_one_line(text: str, item: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as refused:
        loaded(tmp_path, item, environment=HEAD + text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_module_is_loaded_from_the_files_that_were_brought(tmp_path: Path) -> None:
    assert loaded(tmp_path, "World", kind="module", place="my_brought_world", my_brought_world=HEAD + WORLD) == "world"


@pytest.mark.parametrize("name", ["random", "json", "pydantic"])
def test_a_module_with_the_name_of_another_one_is_not_mistaken_for_it(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text(HEAD + WORLD)
    __import__(name)
    with pytest.raises(InvalidRequest, match=f"module {name} in"):
        load_source(CodeSource(kind="module", place=name, item="World"), tmp_path)

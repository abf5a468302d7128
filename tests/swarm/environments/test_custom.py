"""A brought environment is a folder under the hash of what it consists of, and is taken for nothing else."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.environments import Task, said
from swarm.environments.building import SPLITS
from swarm.environments.custom import (
    CODE,
    DEMONSTRATIONS,
    MANIFEST,
    CodeSource,
    CustomEnvironment,
    Manifest,
    data_hash,
    files_hash,
    is_custom,
    to_json,
)
from swarm.environments.loading import load_playable
from swarm.environments.registry import add_folder, environments, get_environment
from swarm.errors import InvalidRequest
from tests.golden import refused

CODE_TEXT = """
from swarm.environments import Environment, Game, Outcome, text_of
class EchoGame(Game):
    def __init__(self, task): self._task, self._said = task, ""
    def opening(self): return [{"role": "user", "content": self._task.data["word"]}]
    def answer(self, message): self._said = text_of(message)
    def outcome(self): return Outcome(float(self._said == self._task.data["word"]))
class Echo(Environment):
    def game(self, task): return EchoGame(task)
"""


def brought_in(parent: Path, plays: int = 1, code: str = CODE_TEXT, **changed: Any) -> CustomEnvironment:
    draft = parent / "draft"
    (draft / "tasks").mkdir(parents=True)
    (draft / CODE).mkdir()
    (draft / CODE / "environment.py").write_text(code)
    for split in SPLITS:
        tasks = [Task(f"{split}-{n}", {"word": f"{split} {n}"}, "short") for n in range(8)]
        (draft / "tasks" / f"{split}.json").write_text(to_json(tasks))
    if plays:
        (draft / DEMONSTRATIONS).write_text(json.dumps([[{"role": "user", "content": "a"}, said("a")]] * plays))
    manifest = Manifest.model_validate({
        "name": "echo", "title": "an echo", "measures": "it is the same", "reward_range": (0, 1), "solved_at": 1,
        "reference": "./echo", "source": CodeSource(kind="folder", place="environment.py"),
        "splits": dict.fromkeys(SPLITS, 8), "drawn_by": "splits", "hidden_apart": True, "demonstrations": plays,
        "hashes": {"code": files_hash({"environment.py": code.encode()}), "data": data_hash(draft)}, **changed,
    })  # fmt: skip
    (draft / MANIFEST).write_text(manifest.model_dump_json())
    return CustomEnvironment.open(draft.rename(parent / manifest.full_name))


@pytest.fixture
def environment(tmp_path: Path) -> CustomEnvironment:
    return brought_in(tmp_path)


def test_what_was_brought_is_opened_without_its_code(environment: CustomEnvironment) -> None:
    (environment.folder / CODE / "environment.py").unlink()
    again = CustomEnvironment.open(environment.folder)
    assert again.name == environment.folder.name
    assert is_custom(again.name)
    assert again.tasks("hidden")[0] == Task("hidden-0", {"word": "hidden 0"}, "short")
    assert again.imitate(again.tasks("train")[0], random.Random(0))[-1] == said("a")
    assert again.synonyms == ("echo",)


def test_its_name_follows_from_all_that_it_is_and_not_from_what_was_typed(tmp_path: Path) -> None:
    name = brought_in(tmp_path / "a").name
    assert brought_in(tmp_path / "b", reference="/elsewhere/echo").name == name
    assert brought_in(tmp_path / "c", measures="another").name != name
    assert brought_in(tmp_path / "d", plays=2).name != name
    assert brought_in(tmp_path / "e", solved_at=0.5).name != name


@given(st.dictionaries(st.text(min_size=1), st.binary(), min_size=1), st.randoms())
def test_the_hash_of_files_is_of_their_paths_and_contents_in_no_order(files: dict[str, bytes], rng: Any) -> None:
    shuffled = dict(rng.sample(list(files.items()), len(files)))
    assert files_hash(shuffled) == files_hash(files) != files_hash({**files, "one more": b""})
    first, *_ = files
    assert files_hash({**files, first: files[first] + b"x"}) != files_hash(files)


@pytest.mark.parametrize("split", SPLITS)
def test_tasks_that_were_changed_or_are_gone_are_refused(split: str, environment: CustomEnvironment) -> None:
    path = environment.folder / "tasks" / f"{split}.json"
    path.write_text(path.read_text().replace("8", "9").replace("7", "8"))
    with refused(InvalidRequest, "tasks", environment.name):
        CustomEnvironment.open(environment.folder).tasks("train")
    path.unlink()
    with refused(InvalidRequest, "tasks", str(environment.folder)):
        environment.tasks("train")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2}', "\udcff"])
def test_a_manifest_that_is_none_is_refused_in_a_line(text: str, environment: CustomEnvironment) -> None:
    (environment.folder / MANIFEST).write_bytes(text.encode(errors="surrogateescape"))
    with refused(InvalidRequest, "manifest.json", str(environment.folder)):
        CustomEnvironment.open(environment.folder)


def test_a_folder_under_another_name_is_refused(environment: CustomEnvironment) -> None:
    folder = environment.folder
    other = folder.rename(folder.with_name("echo@000000000000"))
    with refused(InvalidRequest, "echo@000000000000", folder.name):
        CustomEnvironment.open(other)


def test_one_without_demonstrations_says_what_to_do_where_they_are_needed(tmp_path: Path) -> None:
    environment = brought_in(tmp_path, plays=0)
    with pytest.raises(InvalidRequest, match="`imitate`"):
        environment.imitate(environment.tasks("train")[0], random.Random(0))


def test_it_is_played_by_its_code_and_by_no_other_though_python_s_caches_lie_there(
    environment: CustomEnvironment,
) -> None:
    (environment.folder / CODE / "__pycache__").mkdir()
    (environment.folder / CODE / "__pycache__" / "environment.cpython-311.pyc").write_bytes(b"x")
    assert list(environment.code()) == ["environment.py"]
    add_folder(environment.folder.parent)
    game = load_playable(environment.name).game(environment.tasks("train")[0])
    assert game.opening() == [{"role": "user", "content": "train 0"}]
    (environment.folder / CODE / "environment.py").write_text(CODE_TEXT + "# another\n")
    with refused(InvalidRequest, "code", environment.name):
        load_playable(environment.name)


def test_a_process_that_looks_in_a_folder_finds_what_lies_there_also_of_a_built_in_name(tmp_path: Path) -> None:
    name = brought_in(tmp_path, name="guess", title="to be found").name
    with refused(InvalidRequest, name):
        get_environment(name)
    assert name not in environments()
    assert None not in environments()
    add_folder(tmp_path)
    assert name in environments()
    assert get_environment(name).title == "to be found"
    assert name in list(environments())
    assert get_environment("guess").title == "the guessing game"


@pytest.mark.parametrize("name", [
    "../x@000000000000", "x/y@000000000000", "@", "x@", "x@y", "X@000000000000", f"{'x' * 300}@000000000000",
    "x@000000000000/..", "x\0@000000000000", "guess@0", ".x@000000000000",
])  # fmt: skip
def test_what_is_no_name_of_one_leads_to_no_folder(name: str, tmp_path: Path) -> None:
    add_folder(tmp_path)
    (tmp_path / "y@000000000000").mkdir()
    assert not is_custom(name)
    assert name not in environments()
    with pytest.raises(InvalidRequest, match=r"among arith, "):
        get_environment(name)

"""Making a tiny model: a maker that was killed is started again, one that gives up is not, and its words are told."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from research.errors import ModelFailed
from research.installation.tiny_model import WEIGHTS, prepare_model
from swarm.job import Job

Maker = Callable[[str], Path]


@pytest.fixture
def maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    """Put a shell script in the place of the maker: it finds its try in $n, and returns the file that counts tries."""

    def stand_in(script: str) -> Path:
        tries, program = tmp_path / "tries", tmp_path / "maker"
        (tmp_path / WEIGHTS).write_bytes(b"weights")
        count = f'echo . >> "{tries}"; n=$(wc -l < "{tries}"); model="{tmp_path}"'
        program.write_text(f"#!/bin/sh\n{count}\n{script}\n")
        program.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(program))
        return tries

    return stand_in


def tries(count: Path) -> int:
    return len(count.read_text().split())


def test_a_maker_that_is_killed_is_started_again(maker: Maker, tmp_path: Path) -> None:
    count = maker('if [ "$n" -lt 3 ]; then echo "warm start 3/4"; kill -KILL $$; fi; echo "$model"')
    said: list[str] = []
    assert prepare_model(Job(), tmp_path, said.append)["sha256"]
    assert tries(count) == 3
    assert sum("signal 9" in line and "warm start 3/4" in line for line in said) == 2


def test_a_maker_that_is_always_killed_is_given_up_with_the_reason_of_each_try(maker: Maker, tmp_path: Path) -> None:
    count = maker('echo "step $n"; kill -KILL $$')
    with pytest.raises(ModelFailed) as failed:
        prepare_model(Job(), tmp_path, lambda line: None)
    assert tries(count) == 3
    assert "short of memory" in failed.value.message
    assert all(f"step {n}" in failed.value.message for n in (1, 2, 3))
    assert "\n" not in failed.value.message


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'cannot write there'; exit 2", "code 2, .*: cannot write there"),
        ("echo half; kill -TERM $$", "signal 15, .*: half"), ("kill -INT $$", "signal 2, .*: nothing"),
    ],
)  # fmt: skip
def test_a_maker_that_gives_up_is_not_started_again(maker: Maker, tmp_path: Path, script: str, said: str) -> None:
    count = maker(script)
    with pytest.raises(ModelFailed, match=said):
        prepare_model(Job(), tmp_path, lambda line: None)
    assert tries(count) == 1

"""Wrong input to the environments' processes is one line and exit code 2, a lost server code 3."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm.environments.__main__ import main

SERVER = "http://127.0.0.1:9"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str, token: str = "t") -> int:
    monkeypatch.setattr("sys.argv", ["swarm.environments", *arguments])
    monkeypatch.setenv("AJET_TOKEN", token)
    try:
        return main()
    except SystemExit as refusal:  # argparse's way out
        return int(refusal.code or 0)


@pytest.mark.parametrize(
    ("option", "value"), [("--concurrency", "0"), ("--episodes", "0"), ("--episodes", "-5"), ("--episodes", "many")]
)
def test_numbers_that_play_nothing_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str, value: str
) -> None:
    out = str(tmp_path / "out.json")
    asked = ("evaluate", "--environment", "guess", "--server", SERVER, "--out", out, option, value)
    assert run(monkeypatch, *asked) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert option in last
    assert value in last


def test_an_unknown_environment_and_a_missing_token_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "play", "--environment", "chess", "--server", SERVER) == 2
    assert "guess" in capsys.readouterr().err
    assert run(monkeypatch, "play", "--environment", "guess", "--server", SERVER, token="") == 2
    assert "AJET_TOKEN" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_one_line_and_code_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "play", "--environment", "guess", "--server", SERVER) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert SERVER in line


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((), "--environment"),
        (("--agent", "agent.py"), "--tasks"),
        (("--environment", "guess", "--agent", "missing.py"), "no such file"),
        (("--environment", "guess", "--agent", "a.py", "--reward", "b.py"), "--agent or --reward"),
        (("--environment", "guess", "--reward", "missing.py"), "no such file"),
        (("--environment", "guess", "--tasks", "missing.json"), "missing.json"),
        (("--environment", "guess", "--timeout", "0"), "above 0"),
    ],
)
def test_who_plays_what_must_fit_together(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], asked: tuple[str, ...], expected: str
) -> None:
    assert run(monkeypatch, "play", "--server", SERVER, *asked) == 2
    assert expected in capsys.readouterr().err.splitlines()[-1]

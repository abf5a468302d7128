"""A reward function's source is checked as text: readable, small, and a function of that shape. It is never run."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.errors import DesignRefused
from research.proposals.reward_code import MOST_BYTES, check_reward, reward_name

PLAIN = "def reward(task: dict, messages: list[dict], outcome: dict) -> float:\n    return outcome['reward']\n"


@pytest.mark.parametrize(
    "source",
    [
        PLAIN, "import math\n\nHALF = 0.5\n\n\n" + PLAIN,
        "def reward(task, messages, outcome):\n\treturn 0.0 if '§' in str(messages) else 1.0",
        "def reward(x):\n    return 0\n\n\n" + PLAIN,
    ],
)  # fmt: skip
def test_a_function_of_the_right_shape_is_taken_as_it_is(source: str) -> None:
    assert check_reward(source) == source


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("", "expected def reward"), (" \n", "expected def reward"), (PLAIN + "#" * MOST_BYTES, "at most 8192 bytes"),
        (PLAIN + "#" + "ä" * (MOST_BYTES // 2), "at most 8192 bytes"),
        ("def reward(task, messages, outcome)\n    return 1", "a syntax error in line 1"),
        ("reward = lambda task, messages, outcome: 1", "found no such function"),
        ("async def reward(task, messages, outcome):\n    return 1", "found no such function"),
        ("class A:\n    def reward(task, messages, outcome):\n        return 1", "found no such function"),
        ("def reward(task, outcome):\n    return 1", "parameters (task, outcome)"),
        ("def reward(task, outcome, messages):\n    return 1", "parameters (task, outcome, messages)"),
        ("def reward(task, messages, outcome, *rest):\n    return 1", "*rest"),
        ("def reward(task, messages, *, outcome):\n    return 1", "*, outcome"),
        (PLAIN + "def reward(task):\n    return 1", "parameters (task)"), (PLAIN + "\0", "U+0000 in line 3"),
        (PLAIN + "x = '\u202egnol'", "U+202E in line 3"), (PLAIN + "x = '\u2066'", "U+2066 in line 3"),
        (PLAIN + "x = 'a\u200bb'", "U+200B"), (PLAIN.replace("\n", "\r\n"), "U+000D in line 1"),
        (PLAIN + "x = '\x1b[2J'", "U+001B"), (PLAIN + "x = '\ud800'", "U+D800"),
        ("\ufeff" + PLAIN, "U+FEFF in line 1"), (PLAIN + "x = " + "-" * 8000 + "1", "what its parser cannot take"),
        (PLAIN + "x = " + "1+" * 4000 + "1", "what its parser cannot take"),
        (PLAIN + "x = " + "(" * 300 + ")" * 300, "too many nested parentheses"), (PLAIN + "x = " + "9" * 5000, "4300"),
    ],
)  # fmt: skip
def test_what_is_not_well_formed_is_refused_in_one_line(source: str, told: str) -> None:
    with pytest.raises(DesignRefused) as caught:
        check_reward(source)
    assert told in caught.value.message
    assert "\n" not in caught.value.message


@given(st.text(max_size=200))
def test_any_text_is_taken_or_refused_and_never_raises_anything_else(text: str) -> None:
    with suppress(DesignRefused):
        assert check_reward(text) == text


def test_checking_a_source_does_not_run_it(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    check_reward(f"open({str(trace)!r}, 'w').write('x')\n{PLAIN}")
    assert not trace.exists()


@pytest.mark.parametrize("name", ["dense-hint", "a", "x2", "built-in"])
def test_a_short_name_is_a_name(name: str) -> None:
    assert reward_name(name) == name


@pytest.mark.parametrize("name", ["", "Dense", "a_b", "-a", "a" * 33, "a b", "../x", 3, True, "é", "a\n"])
def test_anything_else_is_no_name(name: object) -> None:
    with pytest.raises(DesignRefused, match="reward: expected 'built-in' or a"):
        reward_name(name)


@pytest.mark.parametrize("default", ["-" * 2000 + "1", "x" + ".y" * 2000, "1" + "+1" * 2000])
def test_parameters_that_default_to_a_maze_are_refused_like_others(default: str) -> None:
    with pytest.raises(DesignRefused, match=r"found parameters \(task, \*, maze\)"):
        check_reward(f"def reward(task, *, maze={default}):\n    return 1.0\n")

"""Expressions have the value that Python gives them in floats, or none; what is more than arithmetic is refused."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.environments.user_code import MOST_CHARACTERS, Expression
from swarm.errors import InvalidRequest

VALUES = {"reward": 0.75, "turns": 3.0, "n": 4.0}
LEAF = st.sampled_from([*VALUES, "2", "0.5", "1e3", "True"])
TREES = st.recursive(LEAF, lambda part: st.one_of(
    st.tuples(part, st.sampled_from(["+", "-", "*", "/", "<", ">=", "==", "and", "or"]), part).map(" ".join),
    part.map("(-{})".format), part.map("abs({})".format), part.map("({})".format), part.map("(not {})".format),
    st.tuples(part, part).map(lambda pair: f"min({pair[0]}, {pair[1]})"),
    st.tuples(part, part, part).map(lambda parts: f"({parts[0]} if {parts[1]} else {parts[2]})"),
), max_leaves=12)  # fmt: skip


@given(TREES.filter(lambda text: " and " not in text and " or " not in text))
def test_an_expression_is_worth_what_python_says(text: str) -> None:
    try:
        expected = float(eval(text, {"min": min, "abs": abs}, VALUES))
    except ArithmeticError:
        expected = math.nan
    if math.isfinite(expected):
        assert Expression("= " + text)(VALUES) == pytest.approx(expected)
    else:
        with pytest.raises(ValueError, match=r"no (value|finite)"):
            Expression(text)(VALUES)


@given(st.text(max_size=60) | TREES)
def test_any_text_is_a_number_or_refused_and_never_anything_else(text: str) -> None:
    with suppress(InvalidRequest, ValueError):
        assert math.isfinite(Expression(text)(VALUES))


@pytest.mark.parametrize("text", [
    "", "=", "x" * (MOST_CHARACTERS + 1), "__import__('os')", "reward.real", "[1][0]", "'a'", "lambda: 1", "pow(2, 3)",
    "min(1)", "abs(1, 2)", "min(*reward, 1)", "max(1, 2, key=abs)", "(x := 1)", "{1}", "1 if 2", "1 @ 2", "1 // 0",
    "reward in n", "f'{reward}'", "1; 2", "9" * 400, "(" * 250 + "1" + ")" * 250, "1j", "await reward", "x\0",
    "reward  # \u202e", "(reward\n)",
])  # fmt: skip
def test_what_is_more_than_arithmetic_is_refused_as_it_is_read(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Expression(text)
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("text", [
    "1 / 0", "10 ** 999", "9.0 ** 9 ** 9 ** 9", "(-8) ** 0.5", "missing", "1e308 * 10", "1e308 * 10 - 1e308 * 10",
    "0 ** -1",
])  # fmt: skip
def test_what_is_no_finite_number_has_no_value(text: str) -> None:
    with pytest.raises(ValueError, match=r"no (value|finite)"):
        Expression(text)(VALUES)

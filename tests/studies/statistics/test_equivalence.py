from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.statistics.comparison import Comparison, Runs, compare
from studies.statistics.equivalence import equivalent, two_one_sided
from tests.lazily import lazy

weightstats = lazy("statsmodels.stats.weightstats")
A = [0.50, 0.52, 0.51, 0.49, 0.53]
B = [0.51, 0.53, 0.50, 0.50, 0.55]


def found(test: str) -> Comparison:
    result = compare(
        test,  # type: ignore[arg-type]
        Runs({f"a{n}": x for n, x in enumerate(A)}, {f"a{n}": n for n in range(5)}),
        Runs({f"b{n}": x for n, x in enumerate(B)}, {f"b{n}": n for n in range(5)}),
    )
    assert result is not None
    return result


@pytest.mark.parametrize("margin", [0.01, 0.03, 0.1])
def test_p_is_that_of_statsmodels(margin: float) -> None:
    cases = {
        "welch": weightstats.ttost_ind(B, A, -margin, margin, usevar="unequal")[0],
        "pooled": weightstats.ttost_ind(B, A, -margin, margin, usevar="pooled")[0],
        "paired": weightstats.ttost_paired(np.array(B), np.array(A), -margin, margin)[0],
    }
    for test, theirs in cases.items():
        assert two_one_sided(found(test), margin, 0.05).p == pytest.approx(theirs, rel=1e-9), test


@given(st.floats(-0.2, 0.2), st.floats(0.001, 0.1), st.floats(1, 60), st.floats(0.01, 0.3), st.floats(0.0005, 0.3))
def test_it_holds_exactly_when_both_one_sided_tests_reject(
    estimate: float, error: float, df: float, margin: float, alpha: float
) -> None:
    result = two_one_sided(Comparison("welch", estimate, error, df), margin, alpha)
    if abs(result.p - alpha) > 1e-9:
        assert equivalent(result) == (result.p < alpha)
    assert equivalent(result) == (-margin < result.low and result.high < margin)


def test_a_wider_margin_never_takes_equivalence_back() -> None:
    said = [equivalent(two_one_sided(found("welch"), margin, 0.05)) for margin in (0.005, 0.02, 0.05, 0.2)]
    assert said == sorted(said)
    assert said[0] is False
    assert said[-1] is True

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.records.design import Metric
from studies.report.parts import wording
from studies.report.parts.deciding_interval import deciding_interval
from tests.studies.synthetic import design, hypothesis, judged

METRIC = Metric(meaning="share of hidden tasks solved", episodes=512)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(None, "–"), (0.4, "0.4 s"), (9.96, "10.0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (272, "4 min 32 s"),
     (3599.7, "1 h 00 min"), (11_100, "3 h 05 min"), (200_000, "55 h 33 min")],
)  # fmt: skip
def test_durations_are_said_as_people_say_them(seconds: float | None, said: str) -> None:
    assert wording.duration(seconds) == said


def test_numbers_keep_their_sign_and_three_decimals() -> None:
    assert wording.signed(0.12) == "+0.120"
    assert wording.signed(-0.0304) == "\N{MINUS SIGN}0.030"
    assert wording.number(None) == "–"
    assert wording.p_value(1e-9) == "< 0.001"
    assert wording.percent(0.95) == "95 %"
    assert wording.true_minus("from -0.1 to co-run") == "from \N{MINUS SIGN}0.1 to co-run"
    assert [wording.plural(n, "run") for n in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]


def test_a_commands_words_are_quoted_so_that_they_can_be_pasted() -> None:
    assert wording.command_line(["ajet", "research", "is it's so?"]) == """ajet research 'is it'"'"'s so?'"""
    assert wording.command_line("make research") == "make research"


@given(st.lists(st.integers(0, 512), min_size=2, max_size=6), st.lists(st.integers(0, 512), min_size=2, max_size=6))
def test_the_ladder_never_says_more_than_the_verdict(control: list[int], treatment: list[int]) -> None:
    claim = hypothesis()
    verdict = judged(
        claim, {f"c{i}": n / 512 for i, n in enumerate(control)}, {f"t{i}": n / 512 for i, n in enumerate(treatment)},
        alpha=0.05,
    )  # fmt: skip
    text = wording.finding(claim, verdict, METRIC, deciding_interval(design(), verdict))
    assert ("no evidence of an increase" in text) == (verdict.verdict == "inconclusive")
    assert ("other side of zero" in text) == (verdict.verdict == "refuted")
    assert "no effect" not in text
    if verdict.verdict in ("supported", "refuted"):
        assert f"difference {wording.signed(verdict.estimate)}" in text
        assert f"n = {len(treatment)} + {len(control)}" in text


def test_another_metric_is_called_by_its_key() -> None:
    metric = METRIC.model_copy(update={"key": "hidden/reward"})
    verdict = judged(hypothesis(), {"a": 0.1, "b": 0.2}, {"c": 0.8, "d": 0.9}, alpha=0.05)
    said = wording.finding(hypothesis(), verdict, metric, deciding_interval(design(), verdict))
    assert "hidden/reward was 0.850, against 0.150" in said

"""What a report proposes to ask next is read by the rules as that very comparison."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from studies.report.headline.headline import headline
from tests.research.rule_planner.test_planner import compared
from tests.studies.report.headline.test_headline import judged, promised, with_means
from tests.studies.synthetic import base_job


@pytest.mark.parametrize(
    ("means", "sd", "seeds", "expected"),
    [
        ((0.52, 0.66), 0.03, 5, ("group_size", 16, 64)),
        ((0.66, 0.52), 0.03, 5, ("group_size", 16, 4)),
        ((0.55, 0.55), 0.01, 8, ("group_size", 4, 64)),
        ((0.55, 0.57), 0.05, 5, ("group_size", 4, 16)),
    ],
)
def test_the_next_question_is_read_as_it_was_meant(
    tmp_path: Path, means: tuple[float, float], sd: float, seeds: int, expected: tuple[str, int, int]
) -> None:
    design = promised(seeds, base_job=base_job())
    command = shlex.split(headline(judged(with_means(tmp_path, *means, sd), design)).next.command)
    assert compared(command[2]) == [expected]

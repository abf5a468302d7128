from __future__ import annotations

import math
import sys
import unicodedata

import pytest

from research.shown.tokens import LEVELS, PART, level_of, order_calls, prompt_lengths, token_text, visible
from swarm.wire import TokenSpan
from tests.research.shown.records import BRANCHED, span


def test_a_conversation_stays_on_its_depth_what_branches_off_is_set_in_and_a_call_counts_all_the_engine_saw() -> None:
    ordered = [(call.index, depth) for call, depth in order_calls(BRANCHED.record)]
    assert ordered == [(0, 0), (1, 1), (2, 1), (3, 0), (4, 0)]
    assert prompt_lengths(BRANCHED.record)[2] == 6 + 3 + 6 + 4 + 6


@pytest.mark.parametrize("category", ["Cc", "Cf", "Cs", "Co", "Zl", "Zp"])
def test_each_character_that_steers_or_hides_is_written_as_an_escape(category: str) -> None:
    every = (chr(point) for point in range(sys.maxunicode + 1))
    steering = [char for char in every if unicodedata.category(char) == category and char not in "\n\t"]
    assert steering
    assert [char for char in steering[:5000] if not visible(char).startswith("\\")] == []
    assert not set(steering) & set(visible("".join(steering)))


def test_words_lines_and_marks_of_other_scripts_stay_as_they_are() -> None:
    for text in ("a\tb\nc", "caf\u00e9, \u6771\u4eac \u0639\u0631\u0628\u064a \U0001f600\ufe0f", "x\u00a0y"):
        assert visible(text) == text
    assert visible("\u202eabc\u200b\x1b[2J") == "\\u202eabc\\u200b\\x1b[2J"


def test_a_token_shows_its_text_a_part_of_a_character_a_mark_and_without_texts_its_id() -> None:
    assert [token_text(span("a\nb", "", "\x07"), place) for place in range(3)] == ["a↵\nb", PART, "\\x07"]
    assert token_text(TokenSpan(ids=(9,), texts=()), 0) == "9 "


def test_a_level_is_that_of_the_probability() -> None:
    levels = [level_of(math.log(probability)) for probability in (1.0, 0.91, 0.6, 0.2, 0.05, 0.001)]
    assert levels == [0, 0, 1, 2, 3, 4]
    assert (level_of(0.1), level_of(-math.inf), level_of(math.nan)) == (0, len(LEVELS) - 1, len(LEVELS) - 1)

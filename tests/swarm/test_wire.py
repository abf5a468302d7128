"""The wire between servers and clients of different ages."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from swarm.wire import EndRequest, Status, StreamStatus, stream_label


def test_a_client_takes_no_notice_of_what_a_newer_server_says_of_itself() -> None:
    status = Status.model_validate({"state": "ROLLING", "group_size": 4, "learned_to_say_later": {"a": 1}})
    assert status == Status.model_validate({"state": "ROLLING", "group_size": 4})


def test_a_request_with_a_word_nobody_knows_is_refused() -> None:
    with pytest.raises(ValidationError, match="succes"):
        EndRequest.model_validate({"reward": 1.0, "succes": True})


@given(st.lists(st.text(min_size=1, max_size=128), min_size=2, max_size=2, unique=True))
def test_any_two_streams_have_labels_of_their_own_that_any_tracker_takes(streams: list[str]) -> None:
    labels = [stream_label(stream) for stream in streams]
    assert len({*labels, "others+"}) == 3
    assert all(re.fullmatch(r"[A-Za-z0-9._+-]{1,71}", label) for label in labels)


def test_a_plain_name_is_its_own_label() -> None:
    assert stream_label("math.v2") == "math.v2"
    assert stream_label("a/b\nc").startswith("a_b_c+")


def test_a_client_takes_no_notice_of_what_a_newer_server_says_of_a_stream() -> None:
    known: dict[str, Any] = {"name": "a", "share": 0.5, "cursor": 1, "groups_open": 0, "groups_trained": 1}
    assert StreamStatus.model_validate({**known, "later": 1}) == StreamStatus(**known)

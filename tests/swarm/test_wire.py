"""The wire between servers and clients of different ages."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from swarm.wire import EndRequest, Status


def test_a_client_takes_no_notice_of_what_a_newer_server_says_of_itself() -> None:
    status = Status.model_validate({"state": "ROLLING", "group_size": 4, "learned_to_say_later": {"a": 1}})
    assert status == Status.model_validate({"state": "ROLLING", "group_size": 4})


def test_a_request_with_a_word_nobody_knows_is_refused() -> None:
    with pytest.raises(ValidationError, match="succes"):
        EndRequest.model_validate({"reward": 1.0, "succes": True})

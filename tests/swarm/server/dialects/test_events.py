"""Server-sent events stay whole in clients that know more ends of a line than the standard does."""

from __future__ import annotations

import json

from hypothesis import example, given
from hypothesis import strategies as st

from swarm.server.dialects.events import event, named_event


@given(st.text())
@example("a\r\nb\rc\nd\x0be\x0cf\x1cg\x1dh\x1ei\x85j\u2028k\u2029l")
def test_an_event_is_one_line_of_data_for_every_client(text: str) -> None:
    value = {"type": "said", "text": text}
    data, end = event(value).decode().splitlines()
    assert (json.loads(data.removeprefix("data: ")), end) == (value, "")
    assert named_event(value).decode().splitlines() == ["event: said", data, ""]

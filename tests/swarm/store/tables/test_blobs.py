"""Tokens as bytes: what goes in comes out, bit for bit, and the form does not depend on the machine."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.store.tables.blobs import pack_floats, pack_ints, unpack_floats, unpack_ints


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_ids_come_back_and_are_little_endian(values: list[int]) -> None:
    data = pack_ints(values)
    assert unpack_ints(data) == tuple(values)
    assert data == struct.pack(f"<{len(values)}i", *values)


@given(st.lists(st.floats(allow_nan=False)))
def test_logprobs_come_back_exactly(values: list[float]) -> None:
    back = unpack_floats(pack_floats(values))
    assert back == tuple(values)
    assert [math.copysign(1, value) for value in back] == [math.copysign(1, value) for value in values]


def test_an_id_that_does_not_fit_is_refused() -> None:
    with pytest.raises(OverflowError):
        pack_ints([2**31])

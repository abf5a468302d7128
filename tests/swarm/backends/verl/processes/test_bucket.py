"""Weights by name come through a pickle bit for bit, with their bytes beside it."""

from __future__ import annotations

import pickle

import pytest
import torch

from swarm.backends.verl.processes.bucket import Bucket

TENSORS = {
    "float": torch.randn(3, 5),
    "half": torch.randn(7).to(torch.bfloat16),
    "turned": torch.randn(4, 6).t(),
    "counted": torch.arange(3),
    "one": torch.tensor(2.5, dtype=torch.bfloat16),
    "none": torch.zeros(0, 4),
}


@pytest.mark.filterwarnings("error")
def test_tensors_come_back_as_they_were_and_their_bytes_lie_beside_the_pickle() -> None:
    beside: list[pickle.PickleBuffer] = []
    written = pickle.dumps(Bucket(TENSORS), protocol=5, buffer_callback=beside.append)
    assert sum(len(buffer.raw()) for buffer in beside) == sum(tensor.nbytes for tensor in TENSORS.values())
    found = pickle.loads(written, buffers=[bytes(buffer.raw()) for buffer in beside])  # read-only, as the store's are
    assert list(found) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name], tensor)

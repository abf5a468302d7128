"""A swarm server with the fake backend whose second update has no finite loss, for attempts."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from swarm.backends.fake.backend import FakeLearner
from swarm.backends.protocols import Batch, NotFinite
from swarm.server.__main__ import main

_update = FakeLearner.update


def _breaks(learner: FakeLearner, batch: Batch) -> Mapping[str, float]:
    if learner.batches:
        raise NotFinite("the loss is nan: the update was refused and the weights are as before")
    return _update(learner, batch)


if __name__ == "__main__":
    FakeLearner.update = _breaks  # type: ignore[method-assign,assignment]
    sys.exit(main())

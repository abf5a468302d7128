"""A swarm server with the fake backend whose learner is odd in the way that AJET_TEST_LEARNER says, for attempts.

`breaks`: the second update has no finite loss. `blows`: every update leaves its trust region, and those after the first
take long.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping

from swarm.backends.fake import FakeLearner
from swarm.backends.protocols import Batch, NotFinite
from swarm.server.__main__ import main

LONG_S = 8.0
_update = FakeLearner.update


def _breaks(learner: FakeLearner, batch: Batch) -> Mapping[str, float]:
    if learner.batches:
        raise NotFinite("the loss is nan: the update was refused and the weights are as before")
    return _update(learner, batch)


def _blows(learner: FakeLearner, batch: Batch) -> Mapping[str, float]:
    if learner.batches:
        time.sleep(LONG_S)
    return {**_update(learner, batch), "actor/ppo_kl": 5.0}


if __name__ == "__main__":
    FakeLearner.update = {"breaks": _breaks, "blows": _blows}[os.environ["AJET_TEST_LEARNER"]]  # type: ignore[method-assign,assignment]
    sys.exit(main())

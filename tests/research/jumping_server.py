"""A swarm server with the fake backend whose every update says that the policy jumped, for attempts with a watchdog."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from swarm.backends.fake import FakeLearner
from swarm.backends.protocols import Batch
from swarm.server.__main__ import main

_update = FakeLearner.update


def _jumps(learner: FakeLearner, batch: Batch) -> Mapping[str, float]:
    return {**_update(learner, batch), "actor/ppo_kl": 2.0}


if __name__ == "__main__":
    FakeLearner.update = _jumps  # type: ignore[method-assign]
    sys.exit(main())

"""An inquiry that a large language model answered by hand, through `benchmarks/answered_by_hand.py`, and its world.

`by_hand.json` holds what it answered, by round and stage; the trainings were simulated, and their truth was not told.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from simlab.worlds import MainEffect, Planted

from tests.research.planners.scripted_endpoint import Reply, calls, fails, says

TOPIC = (
    "What limits learning in the guessing game: the noise of the baseline, the size of the steps, or exploration? Say "
    "what you would change, and whether it carries over to another environment."
)
WORLD = Planted(
    seed=11,
    knobs={"group_size": (2, 4, 8, 16), "temperature": (0.7, 1.0, 1.3)},
    base={"group_size": 8, "temperature": 1.0},
    effects=(MainEffect("group_size", {16: 0.12, 4: -0.1, 2: -0.2}), MainEffect("temperature", {1.3: -0.05})),
    centre=0.55,
    seed_sd=0.03,
    steps=20,
)


class ByHand:
    """Answers again what was answered, at the same places; elsewhere it gives no answer."""

    def __init__(self) -> None:
        self.left: dict[str, list[Any]] = json.loads(Path(__file__).with_suffix(".json").read_text())

    def __call__(self, request: dict[str, Any]) -> Reply:
        text = request["messages"][1]["content"]
        facts = json.JSONDecoder().raw_decode(text, text.index("Facts:\n") + len("Facts:\n"))[0]
        stage = request["response_format"]["json_schema"]["name"]
        left = self.left.get(f"{facts.get('inquiry', {}).get('round_to_plan', 1)}/{stage}")
        if not left:
            return fails(404, "it was not asked this")
        answer = left.pop(0)
        return (
            calls(*((name, json.dumps(given)) for name, given in answer.get("look", ())))
            if "look" in answer
            else says(answer)
        )

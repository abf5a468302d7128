"""Plays of one run on hidden tasks: how they ended, and what was said in those whose words were kept.

Words are those of a trained model and of its environment: quoted, on one line each, without characters that do not
print, and cut. Which tasks they were is not told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from research.looks.evidence import DATA, collected_file
from research.looks.requests import LookAtEpisodes
from research.planner.quoted import plain
from studies import RunState

MOST_MESSAGES: Final = 8
"""Messages of a play that are shown: the first."""
_PARTS: Final = {"before": "initial", "after": "final"}
Play = Mapping[str, Any]


def plays(run: RunState, folder: Path, request: LookAtEpisodes) -> dict[str, Any]:
    """Return the plays that are asked for, with how many of all were solved."""
    part = collected_file(run, folder, "evaluation")[_PARTS[request.when]]
    words = {entry["task_id"]: entry["messages"] for entry in part.get("transcripts", ())}
    every: Sequence[Play] = part["episodes"]
    spoken = [play for play in every if play["task_id"] in words and play["sample"] == 0]
    chosen = _chosen(spoken or every, request, run.run_id)
    return {
        "notice": DATA,
        "plays": len(every),
        "solved": sum(bool(play["success"]) for play in every),
        "with_words_kept": len(spoken),
        "chosen_among": "plays whose words were kept" if spoken else "all plays, of which no words were kept",
        "quoted": [_quoted(play, words.get(play["task_id"], ())) for play in chosen],
    }


def _chosen(plays: Sequence[Play], request: LookAtEpisodes, run: str) -> Sequence[Play]:
    if request.which == "random":
        return Random(run).sample(plays, min(request.count, len(plays)))
    ordered = sorted(plays, key=lambda play: float(play["reward"]), reverse=request.which == "best")
    return ordered[: request.count]


def _quoted(play: Play, messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    told: dict[str, Any] = {"solved": bool(play["success"]), "reward": float(play["reward"])}
    if play.get("facts"):
        told["facts"] = {plain(name): value for name, value in play["facts"].items()}
    shown = [{"role": plain(entry["role"]), "text": plain(entry["content"])} for entry in messages[:MOST_MESSAGES]]
    left = len(messages) - MOST_MESSAGES
    return told | {"said": shown} | ({"left_out": f"{left} later messages"} if left > 0 else {})

"""Episodes as OpenEnv training traces (schema version 1 of `openenv.core.harness.training`, openenv 0.10).

A trace has one turn per call: the whole prompt the engine saw, what it sampled, the log-prob of each sampled id,
and a loss mask over both, so that every sampled id of the episode's trained calls is trained once; the mask of a call
that is not trained has zeros alone. What OpenEnv has no field for stands in each turn's `metadata`. Rewards are there
too, because OpenEnv takes them from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swarm.wire import CallRecord, EpisodeRecord


@dataclass(frozen=True, slots=True)
class TokenReading:
    """What reads ids: as text, special tokens and all, and as the chat message that answers a prompt's text."""

    text: Callable[[Sequence[int]], str]
    message: Callable[[str, Sequence[int]], Mapping[str, Any]]


def training_trace(record: EpisodeRecord, reading: TokenReading | None = None) -> dict[str, Any]:
    """Return the episode as a TrainingTrace, with words where ids can be read; calls that sampled nothing go."""
    turns = [_turn(record, call, prompt, reading) for call, prompt in prompts(record) if call.sampled.ids]
    return {"schema_version": 1, "turns": turns}


def prompts(record: EpisodeRecord) -> Iterator[tuple[CallRecord, tuple[int, ...]]]:
    """Yield each call with the whole prompt the engine saw."""
    through: dict[int, tuple[int, ...]] = {}
    for call in record.record:  # parents come before children
        before = through[call.parent] if call.parent is not None else ()
        prompt = before + call.context.ids
        through[call.index] = prompt + call.sampled.ids
        yield call, prompt


def words(call: CallRecord, prompt: Sequence[int], reading: TokenReading) -> dict[str, Any]:
    """Return what a call was shown and said, as text, and what it said as a chat message too."""
    shown = reading.text(prompt)
    return {
        "prompt_text": shown,
        "sampled_text": reading.text(call.sampled.ids),
        "message": reading.message(shown, call.sampled.ids),
    }


def _turn(
    record: EpisodeRecord, call: CallRecord, prompt: tuple[int, ...], reading: TokenReading | None
) -> dict[str, Any]:
    return {
        "node_id": f"{record.id}/{call.index}",
        "prompt_token_ids": list(prompt),
        "completion_token_ids": list(call.sampled.ids),
        "per_token_logps": list(call.sampled.logprobs),
        "loss_mask": [0] * len(prompt) + [int(call.trained)] * len(call.sampled.ids),
        "metadata": {
            "episode": record.id,
            "parent": None if call.parent is None else f"{record.id}/{call.parent}",
            "drift": call.drift,
            "versions": list(call.sampled.versions),
            "trained": call.trained,
            **_earned(call),
            **({} if reading is None else words(call, prompt, reading)),
            **record.model_dump(mode="json", include=_OF_THE_EPISODE),
        },
    }


def _earned(call: CallRecord) -> dict[str, Any]:
    """Return what stands in a call's metadata where it has a reward of its own, or said which agent made it."""
    found = {"call_reward": call.reward, "agent": call.agent}
    return {name: value for name, value in found.items() if value is not None}


_OF_THE_EPISODE = {"task_id", "stream", "kind", "state", "reason", "group", "step", "reward", "success", "code"}

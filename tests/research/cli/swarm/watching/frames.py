"""Frames of a training that was never played, for what is drawn of one."""

from __future__ import annotations

from typing import Any

from research.cli.swarm.watching.frame import TopFrame
from swarm.snapshot import DropSnapshot, OwnerSnapshot, Snapshot, StepRecord, StepWait, StreamSnapshot
from swarm.wire import EvaluationSummary, ServerState, Status

RISING = tuple(
    StepRecord(
        step=step,
        metrics={
            "critic/rewards/mean": step / 100, "critic/success/mean": step / 200, "actor/pg_loss": -step / 1000,
            "actor/ppo_kl": 0.0, **({"eval/success/mean": 0.5} if step % 10 == 0 else {}),
        },
    )
    for step in range(1, 41)
)  # fmt: skip


def frame(**fields: Any) -> TopFrame:
    """Return a frame of the 40th step of 100, unless `fields` of its snapshot say otherwise."""
    status = Status(
        state=ServerState.ROLLING, job_digest="ab" * 32, step=40, steps=100, open_episodes=7, collected_episodes=20,
        needed_episodes=64, evaluation=EvaluationSummary(step=40, episodes=64, reward=0.4, success=0.5),
        best=EvaluationSummary(step=30, episodes=64, reward=0.6, success=0.625),
    )  # fmt: skip
    told: dict[str, Any] = {
        "at": 1_700_000_000.0, "status": status, "environment": "guess", "model": "tiny (2 layers of 64)",
        "algorithm": "grpo", "seconds_left": 125.0, "line": 3, "line_age_s": 12.0, "sampled_per_s": 1234.0,
        "trained_per_s": 987.0, "drops": {"lease_expired": 4, "constant_group": 9},
        "waits": (
            StepWait(what="episodes", text="44 episodes of stream hard (nobody plays)", stream="hard", count=44),
            StepWait(what="episodes", text="8 episodes of stream easy (7 in play)", stream="easy", count=8),
        ),
        "streams": (
            StreamSnapshot(name="easy", share=0.4, cursor=9, groups_trained=12, groups_open=3, groups_whole=1,
                           episodes_open=7, lacking=0),
            StreamSnapshot(name="hard", share=0.6, cursor=2, groups_trained=5, groups_open=0, groups_whole=0,
                           episodes_open=0, lacking=2),
        ),
        "owners": (OwnerSnapshot(owner="host:123:abc", open=7, heard_s=0.2, oldest_s=44.0),),
        "recent_drops": (
            DropSnapshot(at=1_700_000_000.0, episode="e1", stream="easy", owner="host:123:abc", reason="lease_expired"),
        ),
    }  # fmt: skip
    return TopFrame("http://127.0.0.1:8700", Snapshot(**{**told, **fields}), RISING[0], RISING)

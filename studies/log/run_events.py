"""What may happen to runs, one small rule for each type of event: planned under a lock, tried, collected, measured."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

from studies.inquiry.exploration import Exploration, exploration_spec
from studies.log.builder import ImpossibleEvent, Payload, StateBuilder
from studies.log.event import Event
from studies.log.study_state import AttemptState, PlannedExploration, RunState, Stamp
from studies.records.design import Arm, Design, RunSpec
from studies.records.noise_plan import NoisePlan
from studies.records.run_data import Measurement
from studies.records.run_specs import (
    NOISE_ARM,
    PLUMBING_ARM,
    confirm_spec,
    noise_spec,
    plumbing_spec,
    replicate_spec,
    screen_spec,
)

ENDINGS: Final = ("finished", "failed", "timeout", "stopped", "lost")
STANDINGS: Final = {
    "sending": "sending", "sent": "sent", "failed": "failed", "same": "sent", "differs": "sent", "lacking": "failed",
}  # fmt: skip
"""How a copy stands, by the word for it in the log: the last three are of logs whose copies were compared."""


def planned(builder: StateBuilder, event: Event, payload: Payload) -> None:
    """A run is written down: exactly one that the lock of its phase leads to."""
    spec = RunSpec.model_validate(payload["spec"])
    run_id = str(payload["run_id"])
    if spec.study != builder.id:
        raise ImpossibleEvent(f"expected a run of study {builder.id}; found one of {spec.study}")
    expected = _expected(builder, spec)
    if spec != expected:
        differing = [name for name in RunSpec.model_fields if getattr(spec, name) != getattr(expected, name)]
        raise ImpossibleEvent(f"the run is not what its lock leads to: {', '.join(differing)} differ")
    if run_id != spec.run_id:
        raise ImpossibleEvent(f"the spec's run id is {spec.run_id}, the event says {run_id}")
    if run_id in builder.runs:
        raise ImpossibleEvent(f"run {run_id} was planned before")
    builder.runs[run_id] = RunState(run_id, spec, planned=event.ts)


def exploration_planned(builder: StateBuilder, event: Event, payload: Payload) -> None:
    """Single runs without a claim are planned, while no claim is open."""
    plan = Exploration.model_validate(payload["plan"])
    if (found := plan.hash()) != payload["hash"]:
        raise ImpossibleEvent(f"the exploration's hash is {found[:12]}, the event says {str(payload['hash'])[:12]}")
    if plan.metric.split != "search":
        raise ImpossibleEvent("an exploration is scored on search tasks; found hidden ones, which are for claims")
    if builder.design is not None and (builder.design.screen is not None or builder.open_claims()):
        raise ImpossibleEvent("an exploration was planned while the round's claims are open")
    if builder.hypotheses and builder.design is None:
        raise ImpossibleEvent("an exploration was planned between a proposal and its lock")
    turn, seconds = str(payload.get("turn", "")), float(payload["seconds_per_run"])
    builder.explorations.append(PlannedExploration(plan, seconds, turn, event.seq))
    builder.prepared.pop("explore", None)  # another exploration may begin with another model


def _expected(builder: StateBuilder, spec: RunSpec) -> RunSpec:
    if spec.phase == "noise":
        return _expected_noise(builder, spec)
    if spec.phase == "explore":
        return _expected_exploration(builder, spec)
    design, lock = builder.design, builder.design_hash
    if design is None or lock is None or spec.design_hash != lock:
        raise ImpossibleEvent(f"expected a run under the locked design {str(lock)[:12]}")
    if spec.phase == "screen":
        return _expected_screen(builder, design, lock, spec)
    if design.screen is not None:
        raise ImpossibleEvent("a run of the confirmation came before the screen was decided")
    arm = _arm(design, spec.arm)
    if spec.phase == "replicate":
        return _expected_replicate(builder, design, lock, arm, spec)
    _check_seed(spec, builder.seeds_of(arm.name, design))
    return confirm_spec(builder.id, design, lock, arm, spec.seed)


def _expected_noise(builder: StateBuilder, spec: RunSpec) -> RunSpec:
    plan: NoisePlan | None = builder.noise_plan
    if plan is None or builder.noise_hash is None or spec.design_hash != builder.noise_hash:
        raise ImpossibleEvent(f"expected an A/A run under the noise plan {str(builder.noise_hash)[:12]}")
    if builder.design is not None:
        raise ImpossibleEvent("an A/A run came after the design was locked")
    if spec.arm == PLUMBING_ARM and plan.plumbing is not None:
        _check_seed(spec, (plan.plumbing,))
        return plumbing_spec(builder.id, plan, builder.noise_hash, spec.seed)
    if spec.arm != NOISE_ARM:
        raise ImpossibleEvent(f"expected the arm {NOISE_ARM!r} of A/A runs; found {spec.arm!r}")
    _check_seed(spec, plan.seeds)
    return noise_spec(builder.id, plan, builder.noise_hash, spec.seed)


def _expected_exploration(builder: StateBuilder, spec: RunSpec) -> RunSpec:
    plan = builder.explorations[-1].plan if builder.explorations else None
    if plan is None or spec.design_hash != plan.hash():
        raise ImpossibleEvent("expected a run of the exploration that was planned last; found another, or none planned")
    arm = next((arm for arm in plan.arms if arm.name == spec.arm), None)
    if arm is None:
        raise ImpossibleEvent(f"the exploration has no arm {spec.arm!r}")
    return exploration_spec(builder.id, plan, arm)


def _expected_screen(builder: StateBuilder, design: Design, lock: str, spec: RunSpec) -> RunSpec:
    if design.screen is None:
        raise ImpossibleEvent(
            f"a screening run came {'after the screen was decided' if builder.selection else 'without a screen'}"
        )
    if spec.arm not in builder.candidates:
        raise ImpossibleEvent(f"the screen was not asked for a candidate {spec.arm!r}")
    _check_seed(spec, (design.screen.seed,))
    steps = spec.job.get("steps")
    if steps not in [rung.steps for rung in design.screen.rungs]:
        raise ImpossibleEvent(f"no rung of the screen has {steps!r} steps")
    return screen_spec(builder.id, design, lock, builder.candidates[spec.arm], int(str(steps)))


def _expected_replicate(builder: StateBuilder, design: Design, lock: str, arm: Arm, spec: RunSpec) -> RunSpec:
    if design.replication is None:
        raise ImpossibleEvent("the locked design has no replication")
    wanted = {name for name, decision in builder.decided.items() if decision.action == "replicate"}
    arms = {design.control_arm} | {arm for h in design.hypotheses if h.id in wanted for arm in design.contrast_of(h)}
    if not wanted or arm.name not in arms:
        raise ImpossibleEvent(f"nothing was decided that replicates the arm {arm.name!r}")
    _check_seed(spec, design.seeds_of(arm.name, design.replication.seeds))
    return replicate_spec(builder.id, design, lock, arm, spec.seed)


def _arm(design: Design, name: str) -> Arm:
    arm = next((arm for arm in design.arms if arm.name == name), None)
    if arm is None:
        raise ImpossibleEvent(f"the design has no arm {name!r}")
    return arm


def _check_seed(spec: RunSpec, seeds: Collection[int]) -> None:
    if spec.seed not in seeds:
        raise ImpossibleEvent(f"expected one of the seeds of the phase {spec.phase}; found {spec.seed}")


def launched(builder: StateBuilder, event: Event, payload: Payload) -> None:
    """An attempt at a run begins, one at a time, with ever higher numbers."""
    run, number = builder.run(payload), int(payload["attempt"])
    if run.status not in ("planned", "ended"):
        raise ImpossibleEvent(f"run {run.run_id} is {run.status}; expected no launch now")
    if run.attempts and number <= run.attempts[-1].number:
        raise ImpossibleEvent(f"expected attempt {run.attempts[-1].number + 1} of run {run.run_id}; found {number}")
    attempt = replace(
        AttemptState(number, str(payload["name"]), event.ts, sandbox=dict(payload.get("sandbox", {}))),
        **_begun(run, payload.get("begins", {})),
    )
    builder.runs[run.run_id] = replace(run, attempts=(*run.attempts, attempt))
    builder.reopen_by(run.spec)  # from now on it is to be accounted for
    if run.spec.phase not in ("noise", "explore"):
        builder.first_launch = builder.first_launch or Stamp(event.seq, event.ts)


def _begun(run: RunState, begins: Payload) -> dict[str, Any]:
    """Return what an event says of how an attempt begins; logs of earlier versions say nothing."""
    resumes = begins.get("resumes")
    if resumes is not None and int(resumes) not in [attempt.number for attempt in run.attempts]:
        raise ImpossibleEvent(f"expected it to go on from an earlier attempt of run {run.run_id}; found {resumes}")
    return {
        "resumes": None if resumes is None else int(resumes),
        "initial_sha256": str(begins.get("initial_sha256", "")),
        "during_sha256": str(begins.get("during_sha256", "")),
        "why": str(begins.get("why", "")),
    }


def ended(builder: StateBuilder, event: Event, payload: Payload) -> None:
    """The attempt that ran is over."""
    run, number = builder.run(payload), int(payload["attempt"])
    active = run.active
    if active is None or active.number != number:
        raise ImpossibleEvent(f"attempt {number} of run {run.run_id} is not running; nothing to end")
    if payload["status"] not in ENDINGS:
        raise ImpossibleEvent(f"expected a status of {', '.join(ENDINGS)}; found {payload['status']!r}")
    over = replace(
        active,
        status=payload["status"],
        code=str(payload["code"]),
        reason=str(payload["reason"]),
        seconds=float(payload["seconds"]),
        refused={str(why): int(count) for why, count in payload.get("refused", {}).items()},
        resumed_at=None if payload.get("resumed_at") is None else int(payload["resumed_at"]),
        ended=event.ts,
    )
    builder.runs[run.run_id] = replace(run, attempts=(*run.attempts[:-1], over))


def copied(builder: StateBuilder, event: Event, payload: Payload) -> None:
    """How W&B's copy of an attempt's log stands; results rest on the log itself, so nothing else changes."""
    run, number, standing = builder.run_of_any_round(payload), int(payload["attempt"]), payload["standing"]
    if standing not in STANDINGS:
        raise ImpossibleEvent(f"expected a standing of {', '.join(STANDINGS)}; found {standing!r}")
    if number not in [attempt.number for attempt in run.attempts]:
        raise ImpossibleEvent(f"there is no attempt {number} of run {run.run_id}; nothing to copy")
    stands, why = STANDINGS[standing], str(payload.get("reason", ""))
    attempts = (
        replace(each, url=str(payload["url"]), standing=stands, standing_reason=why) if each.number == number else each
        for each in run.attempts
    )
    builder.put_in_its_round(replace(run, attempts=tuple(attempts)))


def collected(builder: StateBuilder, event: Event, payload: Payload) -> None:
    """The files of a finished attempt are stored."""
    run, number = builder.run(payload), int(payload["attempt"])
    if run.status in ("collected", "invalid"):
        raise ImpossibleEvent(f"run {run.run_id} is {run.status}; expected nothing more to collect")
    attempt = next((a for a in run.attempts if a.number == number), None)
    if attempt is None or attempt.status not in (None, "finished"):
        raise ImpossibleEvent(f"attempt {number} of run {run.run_id} did not finish; nothing of it may be collected")
    for name in ("snapshot", "evaluation"):
        if not isinstance(payload[name]["path"], str) or not isinstance(payload[name]["sha256"], str):
            raise ImpossibleEvent(f"its {name} lacks a path or a sha256")
    builder.runs[run.run_id] = replace(run, collected=dict(payload), settled=event.ts)


def measured(builder: StateBuilder, event: Event, payload: Payload) -> None:
    """A number about a collected run, bound to one of its files."""
    measurement = Measurement.model_validate(payload)
    run = builder.run(payload)
    if run.collected is None:
        raise ImpossibleEvent(f"run {run.run_id} is {run.status}; expected a measurement of a collected run only")
    if measurement.key in run.measurements:
        raise ImpossibleEvent(f"{measurement.key} of run {run.run_id} was recorded before")
    if measurement.sha256 not in (run.collected["snapshot"]["sha256"], run.collected["evaluation"]["sha256"]):
        raise ImpossibleEvent(f"{measurement.key} of run {run.run_id} is bound to no collected file")
    builder.runs[run.run_id] = replace(run, measurements={**run.measurements, measurement.key: measurement})
    if measurement.key == run.spec.metric.key:
        builder.has_data = builder.has_data or run.spec.phase in ("confirm", "replicate")
        builder.supersede_by(run.spec, but=builder.stands)


def invalidated(builder: StateBuilder, event: Event, payload: Payload) -> None:
    """A run is given up; what it measured counts no more."""
    run = builder.run(payload)
    if run.invalid is not None:
        raise ImpossibleEvent(f"run {run.run_id} was invalidated before")
    given_up = (str(payload["code"]), str(payload["reason"]))
    builder.runs[run.run_id] = replace(run, invalid=given_up, settled=event.ts)
    if run.attempts and run.code != given_up[0]:  # else it counted so
        builder.supersede_by(run.spec)

"""A study told in lines: what happened so far, each line with a key that names it once and for all.

Used where changes are told as they come: a log file, Prefect's log of the flow run.
"""

from __future__ import annotations

from collections.abc import Iterator

from studies import RunState, StudyState


def story(state: StudyState) -> Iterator[tuple[str, str]]:
    """Yield (key, line) for all that happened, roughly in order; a key's line never changes."""
    yield "created", f"study {state.id}: {state.topic}"
    yield from (
        (hypothesis.id, f"hypothesis {hypothesis.id}: {hypothesis.statement}") for hypothesis in state.hypotheses
    )
    if state.design is not None and state.design_hash is not None:
        yield (
            "lock",
            f"design locked: {len(state.design.arms)} arms x {len(state.design.seeds)} seeds, {state.design_hash[:16]}",
        )
    for run in state.runs.values():
        yield from _run(run)
    for verdict in state.verdicts:
        yield (
            f"verdict-{verdict.hypothesis}-{verdict.inputs_sha256}",
            f"{verdict.hypothesis} {verdict.verdict}: {verdict.reason}",
        )
    if state.report is not None:
        yield f"report-{state.report['html']['sha256']}", "report built"


def hidden_success(run: RunState) -> str:
    """Return `before → after` of a measured run, or nothing."""
    before, after = run.measurements.get("hidden/success/initial"), run.measurements.get("hidden/success")
    return f"{before.value:.2f} → {after.value:.2f}" if before is not None and after is not None else ""


def _run(run: RunState) -> Iterator[tuple[str, str]]:
    name = f"run {run.run_id[:8]} ({run.spec.arm} seed {run.spec.seed})"
    for attempt in run.attempts:
        key = f"{run.run_id}-{attempt.number}"
        yield key, f"{name}: try {attempt.number} started"
        if attempt.status not in (None, "finished"):
            yield f"{key}-end", f"{name}: try {attempt.number} {attempt.status}: {attempt.reason}"
    if run.status == "collected" and hidden_success(run):
        yield f"{run.run_id}-done", f"{name}: hidden success {hidden_success(run)}"
    if run.invalid is not None:
        yield f"{run.run_id}-invalid", f"{name} is invalid: {run.invalid[0]}: {run.invalid[1]}"

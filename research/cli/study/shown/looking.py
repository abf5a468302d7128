"""`ajet study show`: one study, as its log has it."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from research.cli.output import console, print_json
from research.cli.study.shown.finding import Json, Name, found
from research.cli.study.shown.summary import (
    answered_of,
    changed_lock,
    ending,
    generated_rewards,
    in_round,
    opening,
    questions_of_the_planner,
    round_number,
    round_of,
    summary,
)
from research.isolation.mode import sandboxing_of
from research.study.progress import progress_of
from studies import RunState, StudyState
from studies.records.design import Design


def show(name: Name = None, json: Json = False) -> None:
    """Show one study: hypotheses, design, runs, verdicts.

    Examples:

        ajet study show

        ajet study show larger-group --json
    """
    home, _, state = found(name)
    if json:
        print_json({**summary(state, home.study(state.id)), **_details(state)})
        return
    out = console()
    if (changed := changed_lock(state, home.study(state.id))) is not None:
        out.print(Text(changed, "bold red"))
    # Topics and statements are people's and models' words: never read as markup.
    now = "" if state.most_rounds == 1 else f", round {state.round} of at most {state.most_rounds}"
    out.print(Text.assemble((state.id, "bold"), f"  {state.status}{now}"))
    for line in opening(state):
        out.print(line)
    for each in state.rounds:
        if each.design is not None:
            out.print(f"design{in_round(each)}  {_design(each, each.design)}")
    for line in generated_rewards(state):
        out.print(line)
    out.print(f"sandbox  {sandboxing_of(state.settings).described()}")
    out.print(f"progress  {progress_of(state)}")
    out.print(_runs(state))
    for line in questions_of_the_planner(state):
        out.print(line)
    out.print(ending(state, home.study(state.id)))


def _design(state: StudyState, design: Design) -> str:
    arms = " vs ".join(arm.name for arm in design.arms)
    most = "at most " if len(design.looks) > 1 else ""
    return f"{arms}, {most}{len(design.seeds)} seeds each, locked as {(state.design_hash or '')[:16]}"


def _details(state: StudyState) -> dict[str, Any]:
    return {
        **({} if state.most_rounds == 1 else {"rounds": [_round(each) for each in state.rounds]}),
        "hypotheses": [hypothesis.model_dump(mode="json") for hypothesis in state.hypotheses],
        "design": state.design.model_dump(mode="json") if state.design else None,
        "sandbox": sandboxing_of(state.settings).model_dump(mode="json"),
        "approvals": [answered_of(entry) for entry in state.approvals],
        "run_table": [
            {
                **round_number(each), "run": run.run_id, "arm": run.spec.arm, "seed": run.spec.seed,
                "status": run.status, "attempts": len(run.attempts), "seconds": run.seconds,
                **{key: measurement.value for key, measurement in run.measurements.items()},
                **_copied(run),
            }
            for each in state.every_round for run in each.runs.values()
        ],
    }  # fmt: skip


def _round(state: StudyState) -> dict[str, Any]:
    """Return what a round of an inquiry asked, and why; its verdicts stand with all others."""
    return {
        **round_of(state),
        "why_asked": state.why_asked,
        "design_hash": state.design_hash,
        "hypotheses": [hypothesis.model_dump(mode="json") for hypothesis in state.hypotheses],
        "design": state.design.model_dump(mode="json") if state.design else None,
    }


def _copied(run: RunState) -> dict[str, str]:
    """Return where the log of a run's last attempt is shown at W&B, and how that copy stands; nothing for none."""
    last = run.attempts[-1] if run.attempts else None
    return {"wandb": last.url, "wandb_copy": last.standing} if last is not None and last.url else {}


def _runs(state: StudyState) -> Table:
    table = Table(box=None, pad_edge=False)
    many = state.most_rounds > 1
    for column in ("run", "arm", "seed", "status", "tries", "hidden before", "hidden after", "seconds"):
        table.add_column(column, header_style="dim", no_wrap=True)
    if many:
        table.add_column("round", header_style="dim", no_wrap=True)
    for each in state.every_round:
        for run in each.runs.values():
            table.add_row(*_run_cells(run), *((str(each.round),) if many else ()))
    return table


def _run_cells(run: RunState) -> tuple[str, ...]:
    values = [run.measurements.get(key) for key in ("hidden/success/initial", "hidden/success")]
    shown = (f"{value.value:.3f}" if value else "" for value in values)
    about = (run.run_id, run.spec.arm, str(run.spec.seed), run.status, str(len(run.attempts)))
    return (*about, *shown, f"{run.seconds:.0f}")

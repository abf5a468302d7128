"""Every arm, run, decision and second of all rounds, where runs were isolated, and what was fixed before data."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from statistics import fmean
from typing import Any, Final

from studies.checks.conditions import INITIAL
from studies.log.entries import AttemptState, PlannerNote, RunState
from studies.log.study import StudyState
from studies.metrics.registry import AT_OWN, metric_at_own
from studies.records.design import KNOB, SUCCESS, Design
from studies.records.procedure import Watchdog
from studies.records.runs import PLUMBING_ARM
from studies.records.statements import metric_name, value_of
from studies.records.verdict import ORIGINS, one_line, quoted
from studies.report import elements, wording
from studies.report.elements import Cell, Fact, Table, format_mean, format_spread, is_campaign, note, pairs, table
from studies.report.evidence import BEFORE, Evidence
from studies.report.prose import mark
from studies.report.wording import NONE, describe_fields, duration, format_size, moment, number, percent, plural
from studies.verdicts.judge import find_collapsed_runs
from studies.verdicts.wording import TESTS

_ACTS: Final = {
    "continue": "gather the next look's seeds", "settle": "gather no more seeds",
    "replicate": "repeat in the other setting",
}  # fmt: skip
SEVERAL: Final = {
    "dunnett_bh": "Dunnett among the arms of one variable, Benjamini-Hochberg across the claims",
    "dunnett_bonferroni": "Dunnett among the arms of one variable; the variables share the round's level",
}
_DRAWN_BY: Final = {
    "splits": "by split", "records": "as one list, split by what they say", "seeds": "made of secret seeds",
}  # fmt: skip
PROCESS = "process"


def warn_sandboxes(state: StudyState, evidence: Evidence) -> Iterator[elements.Remark]:
    """Yield where the attempts' clients and evaluators ran, and what their containers were refused."""
    if state.resumed_count:
        yield note(f"The study was resumed {plural(state.resumed_count, 'time')}.")
    places = _places(state)
    for place, count in sorted(places.items()):
        where = (
            f"in containers of image {place}, with no network but a gateway to the run's own server; the list of "
            "hidden tasks was handed to evaluators alone."
        )
        if place == PROCESS:
            where = "as processes of this machine, which isolates nothing: they were trusted."
        yield note(f"Client and evaluators of {plural(count, 'attempt')} ran {where}")
    servers = Counter(attempt.server for run in state.runs.values() for attempt in run.attempts if attempt.server)
    for server, count in sorted(servers.items()):
        yield note(f"{plural(count, 'attempt')} trained on the swarm server {server}: what it logged is its own word.")
    if len(places) > 1:
        yield elements.threat(
            f"Attempts ran in {len(places)} different sandboxes: what ran in them may have changed during the study."
        )
    attempts = (attempt for run in state.runs.values() for attempt in run.attempts)
    if refused := sum((Counter(attempt.refused) for attempt in attempts), Counter[str]()):
        said = "; ".join(f"{one_line(why)} ({count})" for why, count in sorted(refused.items()))
        yield note(f"{plural(sum(refused.values()), 'request')} of containers were refused, and had no effect: {said}.")


def warn_custom_environments(state: StudyState, evidence: Evidence) -> Iterator[elements.Remark]:
    """Yield what clients held of each environment that is not built in, and what kept hidden tasks from them."""
    places = _places(state)
    kept = ", in containers which could not read the hidden tasks"
    if not places or PROCESS in places:
        kept = "; hidden tasks were handed to evaluators alone"
    if PROCESS in places:
        some = "where they were " if len(places) > 1 else ""
        kept += f", but nothing stopped clients, {some}processes of this machine, from looking for them on its disk"
    for known in state.design.environments if state.design is not None else ():
        brought = f"{known.name} was brought from {one_line(known.reference)}"
        if known.hidden_apart:
            own = "its code is its author's own. Training clients held that code and its training tasks"
            yield note(f"{brought}: {own}{kept}.")
        else:
            yield elements.threat(
                f"{brought}, and its code makes its hidden tasks by itself, or holds them: training clients held that "
                "code, so that nothing but its own honesty keeps them apart."
            )


def _places(state: StudyState) -> Counter[str]:
    attempts = (attempt for run in state.runs.values() for attempt in run.attempts)
    return Counter(place for attempt in attempts if (place := _place(attempt)))


def _place(attempt: AttemptState) -> str:
    return str(attempt.sandbox.get("image") or attempt.sandbox.get("kind") or "")


def arm_cell(design: Design | None, arm: str) -> Cell:
    """Return an arm's name, marked with its colour by its place in the design; unmarked for what is not confirmed."""
    names = [a.name for a in design.arms] if design is not None else []
    return Cell(arm, f"arm-{names.index(arm) % elements.ARMS}" if arm in names else "")


def arm_table(state: StudyState) -> Table | None:
    design = state.design
    if design is None or not any(state.values(arm.name) for arm in design.arms):
        return None
    metric, cut, rows = design.metric, design.metric.cut_at, list[elements.Row]()
    columns = ["Arm", "Runs", "Success before" if metric.kind else "Before", *([] if cut is None else ["Got there"])]
    columns += [f"Mean {metric_name(metric).removeprefix('mean ')}", "95 % interval", "SD between runs"]
    own = metric_at_own(metric) if (there := values_at_own(state)) else metric
    columns += [f"{wording.capital(metric_name(own))} at its own value, which claims nothing"] if there else []
    collapsed = find_collapsed_runs(state)
    for arm in design.arms:
        measured = state.values(arm.name)
        values = [value for run, value in measured.items() if run not in collapsed]
        fallen = len(measured) - len(values)
        count = f"{len(values)} + {fallen} collapsed" if fallen else str(len(values))
        before, ends = state.values(arm.name, BEFORE).values(), elements.arm_interval(metric, values)
        interval = f"{number(ends.low, unit=metric.unit)} to {number(ends.high, unit=metric.unit)}" if ends else NONE
        begun = number(fmean(before)) if before else NONE
        reached = [] if cut is None else [f"{sum(value < cut for value in values)} of {len(values)}"]
        numbers = format_mean(metric, values), interval, format_spread(metric, values)
        at_own = there.get(arm.name, [])
        beside = [f"{format_mean(own, at_own)} (SD {format_spread(own, at_own)})" if at_own else NONE] if there else []
        rows.append([arm_cell(design, arm.name), count, begun, *reached, *numbers, *beside])
    return table(columns, rows, range(1, len(columns)))


def values_at_own(state: StudyState) -> dict[str, list[float]]:
    """Return by arm what its runs that did not collapse came to at their own knobs; nothing where nobody looked."""
    if state.design is None or not state.design.metric.also_own:
        return {}
    key, collapsed = metric_at_own(state.design.metric).key + AT_OWN, find_collapsed_runs(state)
    arms = [(arm.name, state.values(arm.name, key).items()) for arm in state.design.arms]
    return {name: [value for run, value in measured if run not in collapsed] for name, measured in arms}


def merge_rounds(state: StudyState) -> StudyState:
    """Return a study as if all of its runs, decisions, changes and vetoes were of one round, for what counts them."""
    states = state.every_round
    amendments = {amended.seq: amended for each in states for amended in each.amendments}
    decisions = {decision.seq: decision for each in states for decision in each.decisions}
    return replace(
        state, runs=dict(state.every_run), vetoed={name: veto for each in states for name, veto in each.vetoed.items()},
        amendments=tuple(amendments[seq] for seq in sorted(amendments)),
        decisions=tuple(decisions[seq] for seq in sorted(decisions)),
    )  # fmt: skip


def run_table(state: StudyState) -> Table | None:
    """Return every run of every round; by what it was judged and in which image it ran where that tells them apart."""
    several, states = is_campaign(state), state.every_round
    metrics = [each.design.metric for each in states if each.design is not None]
    judged = {metric_name(metric) for metric in metrics} if any(metric.kind for metric in metrics) else set()
    staged = several or bool(state.abandoned)
    staged = staged or any(run.spec.phase != "confirm" or not state.counts(run.spec) for run in state.runs.values())
    placed = len(_places(merge_rounds(state))) > 1
    split = "Search" if {run.spec.metric.split for run in state.every_run.values()} == {"search"} else "Hidden"
    columns = [*(["Round"] if several else []), "Run", "Arm", "Seed", "Outcome", "Attempts", "Time", f"{split} before"]
    columns += [f"{split} after", "Snapshot", *(["For"] if staged else [])]
    columns += [*(judged if len(judged) < 2 else ["Judged by"]), *(["Image"] if placed else [])]
    rows = []
    for each in states:
        for run in each.all_runs.values():
            row = _run_row(each.design, run)
            row = [str(each.round), *row] if several else row
            stage = run.spec.phase if each.counts(run.spec) else "length"
            row += [stage if run.run_id in each.runs else "abandoned"] if staged else []
            known = run.spec.arm != PLUMBING_ARM  # which is evaluated for success alone
            row += [format_measurement(run, run.spec.metric.key) if known else NONE] if judged else []
            if placed:
                image = _place(run.attempts[-1]) if run.attempts else ""
                row.append(image if image in ("", PROCESS) else elements.hash_cell(image.removeprefix("sha256:")))
            rows.append(row)
    return table(columns, rows, (place + several for place in (2, 5, 6, 7)))


def _run_row(design: Design | None, run: RunState) -> list[Cell | str]:
    key = run.spec.metric.key if design is None else design.metric.key
    words = {"ended": "not finished", "running": "still running", "planned": "not launched"}
    outcome = Cell(words.get(run.status, run.status), run.status)
    attempts = [_describe_attempt(attempt) for attempt in run.attempts]
    if run.invalid is not None:
        outcome = Cell(f"{'invalid' if run.attempts else 'never begun'}: {run.invalid[0]}", "invalid")
        attempts += [f"invalid: {one_line(run.invalid[1])}"] if attempts else []
    return [
        Cell(run.run_id, "mono"), arm_cell(design, run.spec.arm), str(run.spec.seed), outcome, "; ".join(attempts),
        duration(run.seconds) if run.seconds else NONE,
        format_measurement(run, BEFORE if design is not None else f"{run.spec.metric.split}/success{INITIAL}"),
        format_measurement(run, SUCCESS if SUCCESS in run.measurements else key),
        elements.hash_cell(run.collected["snapshot"]["sha256"]) if run.collected else NONE,
    ]  # fmt: skip


def _describe_attempt(attempt: AttemptState) -> str:
    begun = str(attempt.number)
    if attempt.resumes is not None:
        after = "" if attempt.resumed_at is None else f" after step {attempt.resumed_at}"
        begun += f" (went on from attempt {attempt.resumes}{after})"
    if attempt.status is None:
        return f"{begun} running"
    why = one_line(": ".join(part for part in (attempt.code, attempt.reason) if part))
    return f"{begun} {attempt.status}" + (f" ({why})" if why and attempt.status != "finished" else "")


def format_measurement(run: RunState, key: str) -> str:
    unit = run.spec.metric.unit if key == run.spec.metric.key else ""
    return number(run.measurements[key].value, unit=unit) if key in run.measurements else NONE


def count_runs(runs: Iterable[RunState]) -> str:
    runs = list(runs)
    if not runs:
        return "No run was planned."
    counts = Counter(run.status for run in runs)
    unfinished = len(runs) - counts["collected"] - counts["invalid"]
    return (
        f"{plural(len(runs), 'planned run')} = {counts['collected']} collected + {counts['invalid']} invalid + "
        f"{unfinished} not finished. They took {plural(sum(len(run.attempts) for run in runs), 'attempt')}; all of "
        "them are listed."
    )


def file_table(state: StudyState) -> Table | None:
    runs = (run for each in state.every_round for run in each.all_runs.values() if run.status == "collected")
    kept = ((run.run_id, run.collected[name]) for run in runs if run.collected for name in ("snapshot", "evaluation"))
    files = ((run_id, file["path"], file["sha256"]) for run_id, file in kept)
    return table(("Run", "File", "sha256"), (tuple(map(Cell, file, ("mono", *["mono long"] * 2))) for file in files))


def copy_table(state: StudyState) -> Table | None:
    standings = {"sending": "not whole yet", "sent": "sent", "failed": "not whole"}
    rows = []
    for run in state.every_run.values():
        for attempt in (attempt for attempt in run.attempts if attempt.url):
            said = ": ".join(filter(None, (standings[attempt.standing], one_line(attempt.standing_reason))))
            rows.append((Cell(run.run_id, "mono"), str(attempt.number), Cell(attempt.url, "page"), said))
    return table(("Run", "Attempt", "Page", "The copy there"), rows, (1,))


def decision_table(state: StudyState) -> Table | None:
    rows = ((moment(d.ts), d.rule, d.action, one_line(d.reason)) for d in merge_rounds(state).decisions)
    return table(("When", "Rule", "Decision", "Why"), rows)


def approval_table(state: StudyState) -> Table | None:
    answers, rows = {answer.asked.digest: answer for answer in state.approvals}, []
    for asked in state.questions:
        most = f"{plural(asked.question.runs, 'run')}, {duration(asked.question.seconds)}"
        said = ("open" if asked == state.open_question else "not needed any more", "", "")
        if (answer := answers.get(asked.digest)) is not None:
            verb = "approved" if answer.granted else "denied"
            said = (f"{verb} {ORIGINS[answer.by]}", moment(answer.ts), one_line(answer.note))
        rows.append((moment(asked.ts), one_line(asked.question.would), most, *said))
    return table(("Asked", "To begin", "At most", "Answer", "When", "Note"), rows)


def planner_table(state: StudyState) -> Table | None:
    rows = []
    for act in state.planner_acts:
        counts = str(act.tries), f"{sum(act.tokens.values()):,}"
        rows.append((act.turn, act.action, *counts, one_line("; ".join(act.rejected)), one_line(act.note)))
    return table(("Turn", "Asked for", "Tries", "Tokens", "Sent back", "Note"), rows, (2, 3))


def notebook_table(state: StudyState) -> Table | None:
    kinds = {"note": "a thought", "revise": "a revision of {}", "ask": "a question to the user", "plan": "a plan"}

    def words(note: PlannerNote) -> str:
        text, reason = (
            mark(said, [each for each in state.rounds if each.round <= note.round]) for said in (note.text, note.reason)
        )
        said = quoted(text) if note.text else "withdrawn"
        return f"{said}, because {quoted(reason)}" if note.kind == "revise" else quoted(text)

    rows = ((str(n.round), n.id, kinds[n.kind].format(n.about), words(n)) for n in state.notebook)
    return table(("Round", "Called", "Is", "In its words"), rows, (0,))


def cost_facts(state: StudyState) -> Iterator[Fact]:
    locked = next((each.design.budget for each in state.rounds if each.design is not None), None)
    most = f", {plural(locked.max_runs, 'run')}" if locked is not None and locked.max_runs else ""
    yield "Wall clock, to its last run, verdict or decision", duration(state.elapsed_s)
    yield "Time worked, pauses left out", duration(state.worked_s)
    yield "Budget", duration(state.budget_s) + most
    if locked is not None and locked.wall_clock_s != state.budget_s:
        yield "Budget, as locked", duration(locked.wall_clock_s)
    yield "Time in runs, all attempts added up", duration(sum(run.seconds for run in state.every_run.values()))
    yield from planner_facts(state)
    if state.model is not None:
        yield "Making or finding the model", duration(sum(float(made["seconds"]) for made in state.prepared.values()))
    for each in state.rounds:
        if each.design is None:
            continue
        price, lead = each.design.price, f"Round {each.round}, runs" if is_campaign(state) else "Runs"
        expected = f"{plural(price.runs, 'run')} of {duration(price.seconds_per_run)}, {price.parallel} at once"
        yield f"{lead}: predicted", f"{duration(price.total_s)} for {expected} ({one_line(price.basis)})"
        over = [one for run in each.runs.values() for one in run.attempts if one.seconds is not None]
        ends = [datetime.fromisoformat(one.launched).timestamp() + (one.seconds or 0.0) for one in over]
        first = None if each.first_launch is None else datetime.fromisoformat(each.first_launch.ts).timestamp()
        paid = max(0.0, max(ends) - first) if ends and first is not None else None
        yield f"{lead}: paid, first launch to last end", duration(paid)


def planner_facts(state: StudyState) -> Iterator[Fact]:
    acts, models = state.planner_acts, state.answered_by
    if models:
        changed = "" if len(models) == 1 else f": it changed {plural(len(models) - 1, 'time')} between answers"
        yield "Planner's model, as its endpoint says", one_line(", then ".join(models[:4]) + changed)
    paid = [sum(each.get("cost", 0.0) for each in act.spent.values()) for act in acts]
    parts = {"Planner tokens": [{**act.tokens, "cost": cost} for act, cost in zip(acts, paid, strict=True)]}
    for purpose in dict.fromkeys(purpose for act in acts for purpose in act.spent):
        parts[f"Planner tokens, {purpose}"] = [dict(act.spent[purpose]) for act in acts if purpose in act.spent]
    for name, spent in parts.items():
        read, written, cost = (sum(each.get(kind, 0) for each in spent) for kind in ("prompt", "completion", "cost"))
        yield name, f"{read:,.0f} in prompts, {written:,.0f} in answers" + (f", for {cost:.4g}" if cost else "")


def lock_proof(state: StudyState) -> str:
    if state.locked is None:
        return "No design was locked."
    said = f"The design was locked as event {state.locked.seq} at {moment(state.locked.ts)}"
    if state.first_launch is None:
        return f"{said}; no run has been launched."
    lead = datetime.fromisoformat(state.first_launch.ts) - datetime.fromisoformat(state.locked.ts)
    said += f", {duration(lead.total_seconds())} before the first run was launched (event {state.first_launch.seq})"
    return f"{said}. The order is part of the hash chain."


def design_arms(design: Design) -> Table | None:
    roles = {arm.name: "control" if arm.name == design.control_arm else "treatment" for arm in design.arms}
    rows = ((arm_cell(design, arm.name), roles[arm.name], describe_fields(arm.overrides)) for arm in design.arms)
    return table(("Arm", "Role", "Sets"), rows)


def constants(state: StudyState, design: Design) -> Table | None:
    """Return every job field that is the same in all arms; first those that the user's job fixed."""
    varied = {field for arm in design.arms for field in arm.overrides}
    given: Any = state.settings.get("base_fixed") or {}
    shared = [(name, value_of(value)) for name, value in sorted(design.base_job.items()) if name not in varied]
    facts = [(f"{name}, as given", value) for name, value in shared if name in given]
    return pairs([*facts, *((name, value) for name, value in shared if name not in given)])


def what_differs(design: Design) -> str:
    declared = {name for claim in design.hypotheses for name in claim.declared}
    return ", ".join(sorted(declared) or [knob.field for knob in (design.screen.knobs if design.screen else ())])


def design_facts(design: Design, design_hash: str | None) -> Table | None:
    return pairs([*_measure_facts(design), *_rule_facts(design), ("sha256 of the design", design_hash or NONE)])


def _measure_facts(design: Design) -> Iterator[Fact]:
    metric = design.metric
    yield "What differs", what_differs(design)
    yield "Environment", design.environment
    for brought in design.environments:
        counts = ", ".join(f"{count:,} {split}" for split, count in brought.tasks.items())
        yield f"What {brought.name} is", f"{one_line(brought.title)}, brought from {one_line(brought.reference)}"
        yield f"Tasks of {brought.name}", f"{counts}; given {_DRAWN_BY.get(brought.drawn_by, brought.drawn_by)}"
        for part in ("code", "data", "requirements"):
            if digest := getattr(brought, part):
                yield f"sha256 of the {part} of {brought.name}", digest
    yield "Metric", f"{metric.key}: {metric.meaning}"
    same = "" if metric.task_seed is None else ", the same tasks in every run"
    yield "Measured on", f"{plural(metric.episodes, 'episode')} of the {metric.split} split, by the harness{same}"
    if metric.evaluate_by:
        yield "Played by", f"{metric.evaluate_by}, in a container without tasks; without one by the built-in agent"
    for name in sorted({name for arm in design.arms for name in arm.overrides if name.startswith(KNOB)}):
        locked = value_of({**design.base_job, **design.arm(design.control_arm).overrides}[name])
        where = f"at {locked} in all arms" if metric.knobs is not None else "at each arm's own value, too"
        more = ", and after training at its own, which claims nothing" if metric.also_own else ""
        yield name, f"trained at each arm's own value, evaluated {where}{more}"
    if metric.kind:
        best = wording.in_unit(f"{metric.best:g}", metric)
        yield "From worst to best", f"{number(metric.worst, unit=metric.unit)} to {best}"
    if metric.kind and metric.threshold is not None:
        yield "Threshold", f"{metric.threshold:g} hidden success"
    if metric.kind and metric.schedule is not None:
        every, episodes = plural(metric.schedule.every, "training episode"), plural(metric.schedule.episodes, "episode")
        yield "Evaluated during training", f"every {every}, by {episodes} of hidden tasks, alike in all arms"
    if design.shared_seeds:
        yield "Seeds, the same in every arm", ", ".join(map(str, design.seeds))
    for arm in design.arms if not design.shared_seeds else ():
        yield f"Seeds of {arm.name}", ", ".join(map(str, design.seeds_of(arm.name, design.seeds)))


def _rule_facts(design: Design) -> Iterator[Fact]:
    metric = design.metric
    looks = f" spent over {len(design.looks)} looks" if len(design.looks) > 1 else ""
    yield "Test", f"{wording.capital(TESTS[design.test])}, two-sided, alpha {design.alpha:g}{looks}"
    if design.promise is not None:
        effect, power = format_size(design.promise.effect, metric), percent(design.promise.power)
        yield "Meant to see", f"a true difference of {effect} with probability {power}"
    if design.equivalence_margin is not None:
        yield "Counts as no difference", f"anything surely within ±{format_size(design.equivalence_margin, metric)}"
    if design.multiplicity in SEVERAL:
        yield "Several claims", SEVERAL[design.multiplicity]
    if design.noise is not None:
        noise, unit = design.noise, metric.unit
        parts = f"{number(noise.sd, unit=unit)} between seeds ({plural(noise.df, 'degree')} of freedom)"
        if noise.evaluation_sd is not None:
            alone = number(noise.evaluation_sd, unit=unit)
            parts += f", of which evaluation alone {alone} at {noise.episodes:,} episodes"
        if noise.correlation is not None:
            shared = f"{number(noise.correlation, 2)} ({plural(noise.pairs, 'pair')})"
            parts += f"; correlation of runs that share a seed {shared}"
        known = "Noise known before" if design.pilot is None else "Noise of the first runs"
        yield known, f"{parts}. {one_line(noise.basis)}"
    if design.replication is not None:
        seeds = plural(len(design.replication.seeds), "seed")
        yield "Replication, if a rule asks for it", f"in {design.replication.environment}, {seeds}"
    if design.spending == "reached":
        yield (
            "Where it ends before a look has its runs",
            "a last look at what is there, with all the level that is left; after a veto, or where the budget was "
            "changed once runs had begun, with that of the part that was reached",
        )
    yield "Attempts per run, at most", str(design.max_attempts)
    yield "Runs dropped from the analysis if", ", ".join(design.exclusions) or "nothing was named"
    if (rule := design.collapse) is not None:
        yield (
            "Collapsed if",
            f"it ended below where it began, or its training success fell by more than {percent(rule.lost)} of what it "
            f"had gained, by more than {rule.errors:g} standard errors each; or it broke down. It is no part of a "
            "mean, and is counted",
        )
    if (start := design.start) is not None:
        yield (
            "Never started if",
            f"it ended where it began, within {start.errors:g} standard errors of its evaluations and of its training "
            "success. It counts with its value",
        )
    if design.collapse is None and design.counted_as_worst:
        size = format_size(metric.worst, metric)
        yield "Runs counted at their worst if", f"{', '.join(design.counted_as_worst)}: the run counts with {size}"
    if design.most_excluded < 1:
        yield "Invalid if more of an arm is dropped than", percent(design.most_excluded)


def analyses_table(design: Design) -> Table | None:
    rows = [
        (str(index), str(look.seeds), f"{look.alpha:.4f}", percent(round(1 - look.alpha, 4)))
        for index, look in enumerate(design.looks, start=1)
    ]
    columns = ("Look", "Seeds of each arm", "Two-sided level", "Interval")
    return table(columns, rows, (0, 1, 2, 3)) if len(rows) > 1 else None


def rules_table(design: Design) -> Table | None:
    kills = [(f"kill {h.id}", h.kill_if, "settle") for h in design.hypotheses if h.kill_if]
    rules = [*kills, *((rule.name, rule.when, rule.then) for rule in design.decision_table)]
    rows = [(name, Cell(when, "mono"), _ACTS[then]) for name, when, then in rules]
    rest = (NONE, "no rule holds", _ACTS["settle"])
    return table(("Rule", "When", "Then"), [*rows, rest]) if rows else None


def stakes_table(design: Design) -> Table | None:
    rows, usual = [], design.promise.effect if design.promise is not None else None
    for claim in (h for h in design.hypotheses if h.smallest_effect or h.falsifier):
        falsifier = one_line(claim.falsifier)
        rows.append((claim.id, number(claim.smallest_effect or usual), f'"{falsifier}"' if falsifier else ""))
    return table(("Hypothesis", "Smallest effect of interest", "Shown false by, as the planner said"), rows, (1,))


def limits_table(watchdog: Watchdog | None) -> Table | None:
    known = type(watchdog).model_fields if watchdog is not None else {}
    limits = [(name, value) for name, value in watchdog or () if value is not None]
    return pairs([(n.replace("_", " "), f"{v:g}: {one_line(known[n].description or '')}") for n, v in limits])

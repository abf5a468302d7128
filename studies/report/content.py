"""Everything a report says, as blocks in the order in which they are read: a pure function of state and evidence.

It makes a report from any state, however early or broken off, and refuses (ReportError) only a verdict that does not
follow from its round's runs. Of several rounds each stands in a section of its own, below what all came to.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from studies.checks.conditions import INITIAL
from studies.errors import ReportError
from studies.log.entries import PlannedExploration
from studies.log.study import StudyState
from studies.records.base import digest
from studies.records.runs import TRAINING_AREA
from studies.records.statements import metric_name, value_of
from studies.records.verdict import ANALYSE, MADE, AnalysisResult, one_line
from studies.report import claims, elements, summary, tables, wording
from studies.report.answer import answer_section, plan_section
from studies.report.elements import Block, Point, Remark, Remarks, Text, drawing, is_campaign, pairs, section, table
from studies.report.evidence import Evidence
from studies.report.figure_data import curves, forecasts, hidden_curves, shifts, training_curves
from studies.report.next_question import ask_next
from studies.report.prose import last_words, mark, why_asked
from studies.report.summary import Headline, headline, last_judged, point_out_round
from studies.report.tables import what_differs
from studies.report.validity import facts_table, others_table, remarks
from studies.verdicts.judge import verdict_follows

_STANDING: Final = {
    "planning": "Partial report: the study is still being planned.",
    "running": "Partial report: the study is not finished.",
    "waiting": "Partial report: the study waits for approval.",
    "paused": "Partial report: the study is paused",
    "stopped": "Partial report: the study is stopped",
}
_URGENT: Final = ("failed", "threat", "feared")
"""Levels of what every reader has to know."""
_TITLE: Final = 110
TRIED: Final = "Tried without a claim"
_OF_FACTS: Final = "No claim rests on these numbers."
_PROMISE: Final = (
    "The first lock allows {} rounds. Over all of them, any false claim of a difference has a probability of at most "
    "{}, and any false claim of no difference as well. A round may spend its own part and what the round before handed "
    "on: all of its level where each of its comparisons ended in a claim of the kind, or none was tested, else "
    "nothing. Neither ledger pays for the other."
)


@dataclass(frozen=True, slots=True)
class ReportContent:
    """A report's whole content: what is read first, and the blocks below it."""

    study: str
    title: str
    partial: str
    """What a reader must know before the answers; empty where there is nothing."""
    warnings: tuple[str, ...]
    head: elements.Head
    planner: str
    body: tuple[Block, ...]


def report_content(state: StudyState, evidence: Mapping[int, Evidence]) -> ReportContent:
    """Return the content of the report; raise ReportError for a verdict that does not follow."""
    several, states = is_campaign(state), state.every_round
    for each in states:
        for verdict in (*each.verdicts, *each.replications):
            if not verdict_follows(each, verdict):
                of = "the replication of " if verdict.phase == "replicate" else ""
                raise ReportError(
                    f"the verdict on {of}{verdict.hypothesis} does not follow from the runs in the event log: expected "
                    f"the inputs {verdict.inputs_sha256[:12]}. Judge the study again; no report is built on it"
                )
    heads = [headline(each, evidence[each.round].lock_error) for each in states]
    standing, reason = _STANDING.get(state.status, ""), state.stopped_reason or state.paused_reason
    standing += f" ({one_line(reason)})." if state.status in ("stopped", "paused") and reason else ""
    asked = [*summary.describe_reproduction(state), Point("Asked", heads[0].question.asked)]
    asked += summary.describe_setting(state)
    left = tuple(dict.fromkeys(mark(line, state.rounds) for head in heads for line in head.question.not_tested))
    untested = [Point("Not tested", line, tone="untested") for line in left]
    known = Point("Topic", *summary.describe_answer(state, untested=bool(left)))
    if several:  # how the inquiry goes on, or what its last judged round leaves open
        goes_on = state.concluded_reason is None or state.asked_next is not None
        follow = ask_next(state if goes_on else last_judged(state))
        points = [*asked, *untested, *summary.point_out_study(state, known)]
    else:
        follow, of_round = heads[0].next, list(point_out_round(heads[0], ""))
        lines = [[point for point in of_round if point.label.startswith(name)] for name in ("Tested", "Verdict", "In ")]
        points = [*asked, *lines[0], *untested, *lines[1], known, *lines[2]]
    points += [*summary.ask_user(state), Point("Ask next", follow.why, command=follow.command)]
    return ReportContent(
        study=state.id,
        title=campaign_title(state) if several else title(state),
        partial=standing,
        warnings=tuple(dict.fromkeys(line for head in heads for line in head.warnings)),
        head=elements.Head(tuple(points), tuple(_study_facts(state) if several else _round_facts(state))),
        planner=claims.quote_planner(state),
        body=tuple(block for block in _body(state, heads, evidence) if block is not None),
    )


def title(state: StudyState) -> str:
    design = state.design
    if design is None:
        topic = one_line(state.topic) or "(no topic)"
        return topic if len(topic) <= _TITLE else f"{topic[: _TITLE - 1]}…"
    if len(design.hypotheses) == 1:
        said = f"{wording.describe_comparison(design.hypotheses[0])}, in {design.environment}"
        if len(said) <= _TITLE:
            return said
    return f"{what_differs(design)} in {design.environment}"


def campaign_title(state: StudyState) -> str:
    designs = [each.design for each in state.rounds if each.design is not None]
    fields = ", ".join(dict.fromkeys(name for design in designs for name in what_differs(design).split(", ") if name))
    places = " and ".join(dict.fromkeys(design.environment for design in designs))
    return f"{f'{fields} in ' if fields else ''}{places}: {wording.plural(len(designs), 'round')} of an inquiry"


def _study_facts(state: StudyState) -> Iterator[elements.Fact]:
    runs = state.every_run.values()
    locked = sum(each.locked_design is not None for each in state.rounds)
    yield "Rounds", f"{locked} of at most {state.most_rounds}"
    yield "Runs that count", str(sum(run.spec.phase == "confirm" and run.status == "collected" for run in runs))
    yield "All runs", str(len(runs))
    yield "Wall clock", wording.duration(state.elapsed_s)


def _round_facts(state: StudyState) -> Iterator[elements.Fact]:
    design = state.design
    if design is None:
        yield "Runs", str(len(state.runs))
    else:
        collected = sum(run.status == "collected" for run in state.runs_in("confirm"))
        most = len(design.arms) * len(design.seeds)
        yield "Runs that count", f"{collected} of {'at most ' if len(design.looks) > 1 else ''}{most}"
        yield "Arms and seeds", f"{len(design.arms)} and {len(design.seeds)}"
        yield "Hidden episodes per run", f"{design.metric.episodes:,}"
    if not is_campaign(state):
        yield "Wall clock", wording.duration(state.elapsed_s)


def _body(state: StudyState, heads: Sequence[Headline], evidence: Mapping[int, Evidence]) -> Iterator[Block | None]:
    states, several = state.every_round, is_campaign(state)
    found = {each.round: remarks(each, evidence[each.round]) for each in states}
    urgent = {key: [remark for remark in rest if remark.level in _URGENT] for key, rest in found.items()}
    locked = [each.round for each in states if each.design is not None]
    counts = Counter(remark for key in locked for remark in dict.fromkeys(urgent[key]))
    shared = [remark for remark, count in counts.items() if count == len(locked)] if len(locked) > 1 else []
    yield (answer := answer_section(state, evidence))
    for each, head in zip(states, heads, strict=True):
        own = [remark for remark in urgent[each.round] if remark not in shared]
        rest = [remark for remark in found[each.round] if remark.level not in _URGENT]
        blocks = _round_blocks(each, evidence[each.round], own, rest, f"round-{each.round}-" if several else "")
        if several:
            yield _round_section(state, each, head, list(blocks))
        else:
            yield from blocks
    yield plan_section(state)
    yield _quote(summary.words_at_end(state), "why it asked no further question, in the planner's words")
    yield _quote(last_words(state) if answer is None else "", "the planner's last words, not a finding")
    yield _analysis_section(state)
    if shared:
        yield section("Threats to every round", Remarks(tuple(shared)), id="validity")
    deviations = claims.deviation_table(tables.merge_rounds(state))
    yield section("Deviations from the lock" + ("s" if several else ""), deviations, id="deviations")
    if several:
        yield _ledger_section(state)
    yield _appendix(state, evidence)


def _quote(words: str, by: str) -> elements.Quote | None:
    return elements.Quote((words,), by) if words else None


def _round_section(state: StudyState, each: StudyState, head: Headline, blocks: Sequence[Block | None]) -> Block | None:
    heading, opening = f"Round {each.round} of at most {state.most_rounds}", "No design is locked yet."
    if each in state.given_up:
        heading, opening = f"{heading}: given up", "It came to no lock: nothing was tested in it."
    lead: Block = Text(opening)
    if each.design is not None:
        heading, level = f"{heading}: {title(each)}", ""
        if (place := each.design.inquiry) is not None:
            level = (
                f"What its tests may spend, looks and arms included: {wording.fine_percent(place.difference)} on "
                f"claims of a difference, {wording.fine_percent(place.equivalence)} on claims of no difference."
            )
        lead = elements.Head(tuple(point_out_round(head, level)), tuple(_round_facts(each)))
    quoted = _quote(why_asked(each), "why it was asked, in the planner's words")
    explored = [_exploration_section(each, entry) for entry in each.explorations]
    return section(heading, lead, *blocks, quoted, *explored, id=f"round-{each.round}")


def _round_blocks(
    state: StudyState, evidence: Evidence, urgent: Sequence[Remark], rest: Sequence[Remark], prefix: str
) -> Iterator[Block | None]:
    predicted = drawing(f"{prefix}predictions", "predictions", forecasts(state))
    mediators = claims.mediator_table(state)
    beside = (mediators, Text(claims.MEDIATORS)) if mediators is not None else ()
    yield section("Predicted and observed", predicted, claims.verdict_table(state), *beside, id=f"{prefix}verdicts")
    if not prefix:  # else they stand at the end of their round
        yield from (_exploration_section(state, entry) for entry in state.explorations)
    moved, learned, selected = shifts(state), curves(state, evidence), ""
    if state.locked_design is not None and state.locked_design.screen is not None:
        selected = f"Confirmed: {state.selection.reason}." if state.selection else "The screen has not led to any arm."
    yield section(
        "Results",
        drawing(f"{prefix}before-after", "before-after", moved),
        tables.arm_table(state),
        drawing(f"{prefix}hidden-curves", "hidden-curves", hidden_curves(state, evidence)),
        drawing(f"{prefix}learning-curves", "learning-curves", learned),
        None if any(run.status == "collected" for run in state.runs.values()) else Text("No run has been collected."),
        Text(claims.describe_noise(state)),
        section("The screen", Text(selected)),
        section("The same comparison in another setting", claims.replication_table(state)),
        id=f"{prefix}results",
    )
    others = " but those to every round" if prefix else ""
    none = Text(f"The rules found no threat{others}; what was checked stands below.")
    yield section("Threats to validity", Remarks(tuple(urgent)) if urgent else none, id=f"{prefix}validity")
    plays = section("Plays before and after training, quoted", *claims.transcripts(state, evidence))
    yield section(
        f"{f'Round {state.round} in' if prefix else 'In'} detail: training, numbers, design, checks",
        section("How training went", drawing(f"{prefix}training", "training", training_curves(state, evidence)), plays),
        *_number_sections(state),
        *_stage_sections(state, evidence),
        _design_section(state, prefix),
        section("What was checked", Remarks(tuple(rest)) if rest else None, id=f"{prefix}checks"),
        id=f"{prefix}detail",
        folded=True,
    )


def _number_sections(state: StudyState) -> Iterator[Block | None]:
    if (numbers := claims.numbers_table(state)) is None:
        yield Text("No hypothesis has been proposed.")
        return
    brier = (
        "Brier score: 0 is a perfect forecast, 0.25 is what a coin’s 50 % earns, 1 is the worst. Only supported and "
        "refuted verdicts are scored."
    )
    asides = (Text(rule, "aside") for rule in (*claims.rules(state), brier))
    yield section("The numbers behind each verdict", numbers, *asides)
    yield section("The hypotheses in words, written before the data", *claims.quotes(state))


def _stage_sections(state: StudyState, evidence: Evidence) -> Iterator[Block | None]:
    screen = state.locked_design.screen if state.locked_design is not None else None
    rules = Text(claims.describe_screen(screen)) if screen is not None else None
    exploratory = "Exploratory: no claim rests on them. No lock names them, and nothing is corrected for their number; "
    others, facts = (Text(said, "aside") for said in (f"{exploratory}all runs enter.", _OF_FACTS))
    for name, lead, found in (
        ("Every candidate of the screen", rules, claims.screen_table(state)),
        ("Look by look", None, claims.interim_table(state)),
        ("Trainings that collapsed", None, claims.collapse_table(state)),
        ("Other measures of the same runs", others, others_table(state, evidence)),
        ("What the environment says of the plays after training", facts, facts_table(state)),
    ):
        yield section(name, lead, found) if found is not None else None


def _design_section(state: StudyState, prefix: str) -> Block | None:
    design = state.design
    if design is None:
        return section("The locked design", Text("No design was locked."), id=f"{prefix}design")
    return section(
        "The locked design",
        Text(tables.lock_proof(state)),
        Text(claims.describe_length(state) + claims.describe_sizing(state)),
        tables.design_arms(design),
        tables.design_facts(design, state.design_hash),
        section("What each hypothesis puts at stake", tables.stakes_table(design)),
        section("Looks at the data", tables.analyses_table(design)),
        section("The decision table", tables.rules_table(design)),
        section("Limits of the watchdog", tables.limits_table(design.watchdog)),
        section("Every field that was held constant", tables.constants(state, design)),
        claims.code_section(state, design, f"{prefix}code"),
        id=f"{prefix}design",
    )


def _exploration_section(state: StudyState, entry: PlannedExploration) -> Block | None:
    plan, rows = entry.plan, list[elements.Row]()
    runs = {(run.spec.arm, run.spec.seed): run for run in state.runs_in("explore")}
    for arm, seed in product(plan.arms, plan.seeds):
        value, before, took, name = "not begun", wording.NONE, wording.NONE, elements.Cell(wording.NONE)
        if (run := runs.get((arm.name, seed))) is not None:
            measured, name = run.measurements.get(run.spec.metric.key), elements.Cell(run.run_id, "mono")
            value = run.status if measured is None else wording.number(measured.value, unit=run.spec.metric.unit)
            value = f"invalid: {run.invalid[0]}" if run.invalid is not None else value
            begun = run.measurements.get(f"{plan.metric.split}/success{INITIAL}")
            before = wording.NONE if begun is None else wording.number(begun.value)
            took = wording.duration(run.seconds) if run.seconds else wording.NONE
        rows.append((arm.name, wording.describe_fields(arm.overrides), name, before, value, took))
    how = "evaluated" if plan.metric.kind == TRAINING_AREA else "scored"
    seeds = ", ".join(map(str, plan.seeds))
    shared = f"seeds {seeds} for all" if plan.more_seeds else f"one seed for all ({seeds})"
    said = (
        f"Exploration: {wording.plural(len(rows), 'single run')} in {plan.environment}, {shared}, "
        f"{how} on {plan.metric.split} tasks. No claim rests on them, and they draw on no ledger."
    )
    why = mark(plan.why, state.rounds)
    columns = ("Arm", "Sets", "Run", "Success before", f"{metric_name(plan.metric)}, one run", "Took")
    quoted = None if state.explores else elements.Quote((why,), "why it was tried, in the planner's words")
    return section(TRIED, Text(said), table(columns, rows, (3, 4, 5)), quoted)


def _analysis_section(state: StudyState) -> elements.Section | None:
    looks = [look for act in state.planner_acts for look in act.tool_calls if look["name"] == ANALYSE]
    shown = list[elements.Section | None]()
    for look in (look for look in looks if MADE in look):
        result, asked = AnalysisResult.model_validate(look[MADE]), look["arguments"]
        cells = [[f"{value:.4g}" if isinstance(value, float) else value_of(value) for value in row.values()]
                 for row in result.table]  # fmt: skip
        shown.append(section(
            f"Analysis {len(shown) + 1}",
            elements.Quote((mark(asked["why"], state.rounds),), "what the planner wanted to know"),
            drawing(f"analysis-{len(shown) + 1}", "analysis", result.figure),
            table(tuple(result.table[0]), cells),
            _quote(mark(result.note, state.rounds, more=result.table), "what the planner's code says of it"),
            Text(f"Source and result have the sha256 {digest([asked['source'], look[MADE]])}; the source:", "aside"),
            Text(asked["source"], "source"),
        ))  # fmt: skip
    said = (
        "No claim rests on this, and nothing is corrected for how often somebody looked. The code ran in a container "
        "over logs and plays of search tasks; of hidden tasks it saw means alone. "
        f"It was run {wording.plural(len(looks), 'time')}; {len(looks) - len(shown)} gave no result."
    )
    return section("Exploratory, by the planner's code", Text(said), *shown, id="analyses") if looks else None


def _ledger_section(state: StudyState) -> elements.Section | None:
    ledgers, locked = state.ledgers, [each.round for each in state.rounds if each.locked_design is not None]
    ended = state.concluded_reason is not None or state.status == "judged"
    if ended and state.design is not None and ledgers.left > 0:
        ledgers = ledgers.after(state.outcome)
    kinds = (("Claims of a difference", ledgers.differences), ("Claims of no difference", ledgers.equivalences))
    blocks: list[Block | None] = [
        Text(_PROMISE.format(ledgers.differences.rounds, wording.percent(ledgers.differences.alpha)))
    ]
    for kind, ledger in kinds:
        rows = []
        for entry in ledger.entries():
            yet = "not over" if entry.round in locked else "not locked: nothing was spent"
            handed = {True: "yes", False: "no", None: yet}[entry.handed_on]
            if entry.round == ledger.rounds and entry.handed_on is not None:
                handed = "the last round"
            rows.append(
                (str(entry.round), *map(wording.fine_percent, (entry.own, entry.received, entry.level)), handed)
            )
        blocks.append(section(kind, table(("Round", "Own part", "Received", "Level", "Handed on"), rows, (1, 2, 3))))
    return section("The error ledgers", *blocks, id="ledgers")


def _appendix(state: StudyState, evidence: Mapping[int, Evidence]) -> Block | None:
    copies = Text("Results are read from the logs on the machine that trained; these are copies to look at.")
    copied = tables.copy_table(state)
    what = "hash, number, level and verdict of every round" if is_campaign(state) else "hash, number and verdict"
    notebook = "The planner's notebook, quoted: its own voice, from which nothing follows"
    built = (
        f"Built from {wording.plural(state.event_count, 'event')}, the last at {wording.moment(state.last_ts)}. "
        "The chain was verified; keep its head hash to prove later that nothing was cut off:"
    )
    return section(
        "Appendix: every run, hashes, decisions, cost, versions",
        section(
            "Every run",
            Text(tables.count_runs(state.every_run.values())),
            tables.run_table(state),
            section("Files and their hashes", tables.file_table(state)),
            section("Copies at Weights & Biases", copies, copied) if copied else None,
            id="runs",
        ),
        section(
            "Decisions",
            tables.decision_table(state) or Text("No decision has been taken."),
            section("What people were asked to approve", tables.approval_table(state)),
            section("Calls on the planner", tables.planner_table(state)),
            section(notebook, tables.notebook_table(state)),
            id="decisions",
        ),
        section("Cost", pairs(tables.cost_facts(state)), id="cost"),
        section(
            "Reproduce",
            Text("Run the same study again:"),
            Text(wording.command_line(state.command), "source"),
            Text(f"Verify it, computing every {what} again:"),
            Text(f"ajet study verify {state.id}", "source"),
            section("Versions", pairs([(name, value_of(value)) for name, value in sorted(state.versions.items())])),
            section("Machine", pairs([(name, value_of(value)) for name, value in sorted(state.machine.items())])),
            section("Event log", Text(built), Text(state.head_hash, "source")),
            id="reproduce",
        ),
        id="appendix",
        folded=True,
    )

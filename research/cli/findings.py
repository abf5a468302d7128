"""Findings, recipe, what two studies differ in, planner's track record."""

from collections.abc import Iterable
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from research.cli.app import Json, Name, answer, make_table, open_installation, open_study, print_json
from research.cli.reports import open_verified
from research.design import known_findings
from research.installation.home import Home
from research.planners.factory import TrackRecord, describe_bins, describe_scores, load_track_record
from research.shown.study import find_differences
from research.text import warn
from studies import EventLog
from studies.records.statements import setting, value_of
from studies.report.wording import NONE

app = typer.Typer(no_args_is_help=True)


@app.command()
def calibration(
    planner: Annotated[str | None, typer.Option(help="Only this planner: `rules` or `llm`; all when left out.")] = None,
    json: Json = False,
) -> None:
    """Score the predictions of all studies of this installation, by planner and model.

    Brier: mean squared distance of the predicted probability of `supported` from what came of it, 0 is perfect; beside
    it a constant forecaster's who knows how often claims are supported. Coverage: how often the predicted interval
    held the estimate; a planner that means what it says covers as often as its level.

    Examples:
        ajet planner calibration
        ajet planner calibration --planner llm --json
    """
    home = Home.locate().prepare()
    record = load_track_record(EventLog(home.database), planner)
    payload = {"planners": record.forecasters, "left_out": record.left_out}
    answer(json, payload, *_calibration_screen(record, planner))


def _calibration_screen(record: TrackRecord, planner: str | None) -> list[Table | Text]:
    reasons = ", ".join(f"{reason}: {count}" for reason, count in sorted(record.left_out.items()))
    if not record.forecasters:
        whose = f" of the planner {planner!r}" if planner else ""
        left = f" ({reasons})" if reasons else ""
        return [Text(f'no prediction{whose} has met its verdict yet{left}; begin a study with: ajet research "..."')]
    lines: list[Table | Text] = []
    for forecaster in record.forecasters:
        lines += [Text(forecaster.title, "bold"), *(Text(f"  {line}") for line in describe_scores(forecaster))]
        names = ("  predicted", "mean", "claims", "supported (95 %)")
        rows = [(f"  {span}", *others) for span, *others in describe_bins(forecaster)]
        table = make_table(names, rows, right=names[1:], padding=(0, 2, 0, 0))
        lines += [table if rows else Text("  nothing to score yet: no verdict is valid"), Text("")]
    if reasons:
        lines.append(Text(f"not scored: {reasons}", "dim"))
    return lines


def recipe(name: Name = None, json: Json = False) -> None:
    """Print the best confirmed job of a study, for `ajet swarm start --job`; its evidence goes to stderr.

    It is the job under all arms with the better value of each comparison whose interval leaves zero out, on fresh
    seeds in the environment that was asked about. Where nothing was confirmed it says so and is that job itself.

    Examples:
        ajet study recipe > job.json
        ajet study recipe larger-group --json
    """
    home, log, state = open_study(name)
    known = known_findings.load_findings(home, log).findings
    told = known_findings.recipe_of(state, home.study(state.id), known)
    if json:
        evidence = [
            {
                "fields": value.fields, "better_than": value.over, "held_by_rounds": value.held_by,
                "not_held_by_rounds": value.not_held_by, **value.finding.model_dump(mode="json"),
            }
            for value in told.confirmed
        ]  # fmt: skip
        apart = {"never_confirmed_together": told.apart, "notes": told.notes}
        print_json({"study": state.id, "job": told.job, "evidence": evidence, **apart})
        return
    for value in told.confirmed:
        over = ", ".join(setting(name, each) for name, each in value.over.items())
        later = [
            f"; {said} by all arms of round {', '.join(map(str, rounds))}"
            for said, rounds in (("held", value.held_by), ("not held", value.not_held_by))
            if rounds
        ]
        told_of = f"{value.finding.study}, {known_findings.describe_evidence(value.finding)}{''.join(later)}"
        warn(f"{value.text} is better than {over}: {told_of}")
    for line in [*told.apart, *told.notes]:
        warn(line)
    print_json(told.job)


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="Study id or its beginning, or the folder of an export.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The same of another one.")],
    json: Json = False,
) -> None:
    """Say in what two studies differ: question, jobs field by field, design, hashes, machine, and what they found.

    What is equal is not listed, nor are seeds, hypotheses' own words and budgets.

    Examples:
        ajet study diff larger-group again-larger-group
        ajet study diff larger-group exports/larger-group-of-somebody --json
    """
    one, other = (open_verified(name) for name in (a, b))
    differ = find_differences(one, other)
    rows = [(name, *(NONE if value is None else value_of(value) for value in both)) for name, both in differ.items()]
    told = make_table(("", one.id, other.id), rows, wraps=("", one.id, other.id)) if rows else Text("nothing differs")
    answer(json, {"a": one.id, "b": other.id, "differ": differ}, told)


_HEADER = ("finding", "verdict", "effect", "interval", "runs", "model", "job", "claim")


def findings(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="Words that a finding has in its claim, its study, its verdict or its conditions."),
    ] = None,
    json: Json = False,
) -> None:
    """List what the studies of this installation found, and what they did not: every verdict, with its conditions.

    Findings on the same values that contradict one another are flagged, with the conditions in which they differ.

    Examples:
        ajet findings
        ajet findings learning rate guess
        ajet findings equivalent --json
    """
    home, log = open_installation()
    collection = known_findings.load_findings(home, log)
    shown = known_findings.search_findings(collection.findings, words or ())
    against = known_findings.find_contradictions(shown)
    payload = {
        "findings": [{"name": finding.name, **finding.model_dump(mode="json")} for finding in shown],
        "contradictions": [
            {"one": _names(pair.one), "other": _names(pair.other), "differ": pair.differ} for pair in against
        ],
        "left_out": collection.left_out,
    }
    lines: list[Table | Text]
    if shown:
        lines = [make_table(_HEADER, map(_row, shown), wraps=_HEADER)]
    elif words and collection.findings:
        lines = [Text(f"none of {len(collection.findings)} findings has all of these words")]
    else:
        lines = [Text('no study has found anything yet; begin one with: ajet research "..."')]
    for pair in against:
        one, other = ", ".join(_names(pair.one)), ", ".join(_names(pair.other))
        differ = "; ".join(pair.differ) or "nothing that is recorded"
        lines.append(Text(f"contradiction  {one} against {other}; they differ in {differ}", "yellow"))
    lines += (Text(f"left out  {study}: {why}", "dim") for study, why in collection.left_out.items())
    answer(json, payload, *lines)


def _row(finding: known_findings.KnownFinding) -> tuple[str, ...]:
    where, interval = finding.conditions, ""
    effect = "" if finding.estimate is None else f"{finding.estimate:+.3g}"
    if finding.low is not None and finding.high is not None:
        level = "" if finding.level is None else f" {100 * finding.level:.4g} %"
        interval = f"[{finding.low:.3g}, {finding.high:.3g}]{level}"
    return (
        finding.name, f"{finding.verdict}{' (exploratory)' if finding.exploratory else ''}", effect, interval,
        f"{finding.n_control}+{finding.n_treatment}", where.model, where.job[:8],
        finding.doubt or finding.claim + finding.standing,
    )  # fmt: skip


def _names(findings: Iterable[known_findings.KnownFinding]) -> list[str]:
    return [each.name for each in findings]

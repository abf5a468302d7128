"""`ajet audit`: tables of runs that were made elsewhere, from a file or W&B; terminal lines, and the report's page."""

import csv
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from research.cli.app import Json, answer, make_table, takes_options
from research.errors import BadInput, NotReady
from research.shown.tokens import visible
from research.text import did_you_mean, suggest_path
from studies.checks.conditions import CollectError
from studies.report import elements
from studies.report.figure_data import ArmShift, Shifts
from studies.report.wording import NONE, p_value, percent, plural, true_minus
from studies.statistics import comparison, pd
from studies.statistics.proportions import MOST_SEEDS
from studies.verdicts.audit import Audit, AuditedClaim, AuditQuestion
from studies.verdicts.audit import audit as audit_table

PAGE: Final = "audit.html"
STEPS: Final = ("_step", "step", "steps", "global_step", "epoch", "iteration", "timestep", "timesteps", "frame")
OBSERVATIONAL: Final = (
    "Observational: nothing was locked before these data; tables, runs and metrics may have been chosen, and whether "
    "budgets, code and machines were equal is not known. A verdict says what chance alone would not do, and not why."
)
COLUMNS: Final = ("verdict", "difference", "interval", "p", "one run errs", "seeds needed", "could see")
LEGEND: Final = (
    "Interval and verdict are corrected for the number of comparisons, p is not. One run errs: how probable it is that "
    "one run of each, drawn at random, stand in the other order. Seeds needed: runs an arm that see such a difference "
    "with power 0.8 at 5 %, were it as large as it looks. Could see: the difference that these runs see so."
)
_MOST: Final = 400
"""Runs of an arm that are drawn (of more every so many, by their value)."""
_FIGURES: Final = 12
"""Groups that have a figure of their own."""


@takes_options(AuditQuestion)
def audit(
    ask: AuditQuestion,
    source: Annotated[str, typer.Argument(help="A CSV file, wandb:FOLDER of offline runs, or wandb:[ENTITY/]PROJECT.")],
    to: Annotated[Path | None, typer.Option(help=f"Folder to write the report into ({PAGE}).")] = None,
    json: Json = False,
) -> None:
    """Say which claims of a table of finished runs hold, and which are noise: ajet's own statistics, observational.

    For each pair of arms: difference and interval, corrected for the number of comparisons, how probable it is that one
    run of each says the opposite, how many seeds an arm would have been needed, and what these could have seen.

    Exit codes: 0 done, whatever it says; 2 a table that cannot be read so.

    Examples:
        ajet audit runs.csv --arm agent --metric final --group game --to audit
        ajet audit steps.csv --arm lr --metric loss --better lower --run run_id --at 1000 --baseline 0.001
        ajet audit wandb:./wandb --arm learning_rate --metric eval/success --target 0.8 --json
    """
    online = source.startswith("wandb:")
    ask = ask.model_copy(update={"run": ask.run or ("run" if online else "")})
    columns = ask.model_dump(include={"arm", "metric", "group", "seed", "run", "step"})
    table = read_wandb(source[6:], ask.metric) if online else read_csv(Path(source), [*columns.values()])
    names = list(table.columns)
    for option, name in columns.items():
        if (name or option in ("arm", "metric")) and (names.count(name) != 1 or [*columns.values()].count(name) > 1):
            listing = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
            found = f"{listing}{did_you_mean(name, names)}"
            raise BadInput(f"expected one column{f' {name!r}' * bool(name)} for --{option} alone; found {found}")
    free = {name.lower(): name for name in names if name not in columns.values()}
    columns["seed"] = ask.seed or free.get("seed", "")
    columns["step"] = ask.step or next((free[name] for name in STEPS if name in free), "")
    if ask.at is not None and not (columns["run"] and columns["step"]):
        raise BadInput("expected columns of runs and of steps with --at; found none; give --run FIELD and --step FIELD")
    result = audit_table(table.map(visible), ask.model_copy(update=columns))
    if to is not None:
        write_report(result, source, to)
    payload = {"observational": True, "source": source, **{name: getattr(result, name) for name in result.__slots__}}
    answer(json, payload, _lines(result), *([] if to is None else [str(to / PAGE)]))


def read_csv(path: Path, wanted: Sequence[str]) -> Any:
    """Return a table of text by the delimiter under which its header has the columns wanted."""
    if not path.is_file():
        what = "a folder" if path.is_dir() else f"which is none{suggest_path(path)}"
        raise BadInput(f"expected a CSV file, or wandb:FOLDER; found {path}, {what}")
    try:
        text = path.read_bytes().decode("utf-8-sig").lstrip("\r\n")
        marks = {mark: next(csv.reader(StringIO(text, newline=""), delimiter=mark), []) for mark in ",;\t|"}
        headers = {mark: [" ".join(name.split()) for name in header] for mark, header in marks.items()}
        mark = max(headers, key=lambda mark: (sum(name in headers[mark] for name in wanted), len(headers[mark])))
        options = {"sep": mark, "dtype": str, "keep_default_na": False, "index_col": False, "skiprows": 1}
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table = pd.read_csv(StringIO(text), header=None, names=range(len(headers[mark])), **options)
    except (ValueError, Warning, csv.Error) as error:
        found = str(error).rpartition("C error: ")[2].partition(". This leads")[0].strip()
        raise BadInput(f"expected a table in {path}, each row as wide as its header, in UTF-8; {found}") from error
    if table.empty:
        raise BadInput(f"expected rows below a header in {path}; found none; add runs")
    return table.fillna("").apply(lambda column: column.str.strip()).set_axis(headers[mark], axis=1)


def read_wandb(place: str, metric: str) -> Any:
    """Return a row for each step of W&B's runs that logged the metric, with their configs, as text."""
    runs, steps, seen = list[dict[str, Any]](), list[tuple[str, int, str]](), set[str]()
    for own, config, history in _read_folder(Path(place)) if Path(place).is_dir() else _ask_wandb(place, metric):
        runs.append({**config, **own})
        seen.update(*history.values())
        steps += [(own["run"], at, row[metric]) for at, row in history.items() if metric in row]
    if not steps:
        listing = ", ".join(sorted(seen)[:12]) or "none"
        raise BadInput(f"expected W&B's runs with {metric!r} in {place}; found {listing}{did_you_mean(metric, seen)}")
    configs = pd.json_normalize(runs).drop(columns=[metric, "_step"], errors="ignore").drop_duplicates("run")
    logged = pd.DataFrame(steps, columns=["run", "_step", metric])
    return configs.merge(logged, on="run", how="left").map(
        lambda cell: "" if cell is None or cell != cell else f"{cell:.12g}" if isinstance(cell, float) else str(cell)
    )


WandbRuns = Iterator[tuple[dict[str, str], dict[str, Any], dict[int, dict[str, str]]]]
"""What each run is, its config, and what it logged by step, as text."""


def _read_folder(folder: Path) -> WandbRuns:
    from research.runs.wandb_log import read_log

    for path in sorted(folder.rglob("run-*.wandb")):
        try:
            log = read_log(path)
        except CollectError as error:
            raise BadInput(f"expected a log of W&B's; found: {error.reason}; move {path} away") from error
        history = {at: {name: repr(value) for name, value in row.items()} for at, row in log.history.items()}
        for at, names in log.not_finite.items():
            history.setdefault(at, {}).update(dict.fromkeys(names, "nan"))
        state = "finished" if log.ended else "not closed"
        yield {"run": log.id, "wandb_group": log.group, "state": state}, log.config, history


def _ask_wandb(place: str, metric: str) -> WandbRuns:
    from research.controller.wandb import wandb_login

    if (login := wandb_login(os.environ)).online is None:
        raise NotReady(
            f"expected a folder, or a project and W&B's key; found no {place}, and {login.why}; `wandb login`"
        )
    import wandb

    try:
        for one in wandb.Api(timeout=60).runs(place):
            rows = one.scan_history(keys=["_step", metric]) if one.state != "running" else ()
            history = {int(row["_step"]): {metric: str(row[metric])} for row in rows}
            yield {"run": one.id, "wandb_group": one.group or "", "state": one.state}, one.config, history
    except (wandb.Error, ValueError, OSError) as error:
        raise NotReady(f"expected runs of W&B's project {place}; found: {error}; name it as ENTITY/PROJECT") from error


def _size(value: float | None, sign: str = "+") -> str:
    return NONE if value is None else true_minus(f"{value:{sign},.3g}" if abs(value) < 1000 else f"{value:{sign},.0f}")


def _name(claim: AuditedClaim) -> str:
    return f"{claim.treatment} over {claim.control}"


def _cells(claim: AuditedClaim) -> tuple[str, ...]:
    errs = NONE if claim.other_order is None else f"{claim.other_order:.0%}"
    ends = claim.reason if claim.low is None else f"{_size(claim.low)} to {_size(claim.high)}"
    needed = NONE if claim.p is None else str(claim.seeds_needed or f"> {MOST_SEEDS}")
    word = claim.verdict + ", and not zero" * (claim.verdict == "equivalent" and claim.nonzero)
    return word, _size(claim.estimate), ends, p_value(claim.p), errs, needed, _size(claim.detectable, "")


def _count(claims: Sequence[AuditedClaim]) -> str:
    counts = ", ".join(f"{count} {name}" for name, count in Counter(claim.verdict for claim in claims).most_common())
    level = next((claim.level for claim in claims if claim.level), 0.0)
    ends = f" (intervals of {percent(round(level, 4 if level < 0.999 else 6))})" if level else ""
    low = sum(claim.p is not None and claim.p <= 0.05 for claim in claims)
    return f"{counts}{ends}; p alone is below 5 % in {low}"


def _points(result: Audit) -> Iterator[elements.Point]:
    ask, claims, sizes = result.question, result.claims, [len(v) for of in result.cells.values() for v in of.values()]
    pairs = f"each against {ask.baseline}" if ask.baseline else "all pairs"
    unit = "" if ask.margin else ", in standard deviations of a group's runs"
    over = f", over {len(result.cells)} groups ({ask.group}){unit}" if ask.group else ""
    count = f"{min(sizes)}{f' to {max(sizes)}' if max(sizes) > min(sizes) else ''} an arm"
    yield elements.Point("Asked", f"whether {ask.metric} ({ask.better} is better) differs by {ask.arm}, {pairs}{over}")
    yield elements.Point("Runs", f"{sum(sizes):,} with a value, {count}{' and group' if ask.group else ''}")
    held = sum(claim.nonzero for claim in claims)
    tone = "supported" if held else "inconclusive"
    yield elements.Point("Verdicts", _count(claims), f"{held} of {len(claims)} differ by more than chance", tone)
    if noise := [_name(claim) for claim in claims if claim.verdict == "inconclusive"]:
        more = f"; and {len(noise) - 5} more" if len(noise) > 5 else ""
        yield elements.Point("Not told from noise", "; ".join(noise[:5]) + more)
    orders = [(claim.other_order, _name(claim)) for claim in claims if claim.other_order is not None]
    if errs := max(orders, default=None):
        yield elements.Point("One run each", f"says the opposite in up to {errs[0]:.0%} of draws ({errs[1]})")
    if ask.group:
        yield elements.Point("In each group", _count(result.in_groups))
    for name, rate in result.reached.items():
        limits = f"{rate.mean:.0%} of all runs (95 % limits {rate.low:.0%} to {rate.high:.0%})"
        yield elements.Point(f"Reached {ask.target:g}", f"{name}: {limits}")


def _threats(result: Audit) -> Iterator[str]:
    many = plural(len(result.claims) + len(result.in_groups), "comparison")
    yield f"{many}: corrected for that number, not for arms, metrics and tables that are not here"
    yield from result.remarks
    for name, values in result.confounds.items():
        settings = ", ".join(f"{arm}: {value or NONE}" for arm, value in [*values.items()][:4])
        yield f"{name} goes with the arm ({settings}): a difference may be laid to either"


def _lines(result: Audit) -> Iterator[Any]:
    yield Text(OBSERVATIONAL, "yellow")
    for point in _points(result):
        yield Text.assemble((f"{point.label}  ", "dim"), f"{point.lead}: " if point.lead else "", point.text)
    rows = [(_name(claim), *_cells(claim)) for claim in result.claims]
    yield make_table(("claim", *COLUMNS), rows, right=COLUMNS[1:], wraps=("claim",))
    yield from (Text(f"threat  {line}", "dim") for line in _threats(result))


def write_report(result: Audit, source: str, folder: Path) -> None:
    """Write the page of an audit into a folder."""
    from studies.report.build import render_pages

    ask, drawn = result.question, [_draw_arms(result, group, at) for at, group in enumerate([*result.cells][:_FIGURES])]
    figure, legend = _draw_groups(result) if ask.group else drawn[0], elements.Text(LEGEND, "aside")
    inside = (elements.section(_name(claim), _table(ask.group, _within(result, claim))) for claim in result.claims)
    threats = elements.Remarks(tuple(map(elements.threat, _threats(result))))
    whole = _table("claim", ((_name(claim), claim) for claim in result.claims))
    sections = (
        elements.section("Comparisons", whole, legend, figure),
        elements.section("What else may be the cause", threats),
        elements.section("In each group", *inside, *drawn, folded=True) if ask.group else None,
    )
    content = SimpleNamespace(
        study=Path(source).name, title=f"{ask.metric} by {ask.arm}: what holds, and what is noise", partial="",
        warnings=[OBSERVATIONAL], head=elements.Head(tuple(_points(result)), ()), body=list(filter(None, sections)),
        planner="Numbers and figures are computed by code from the table, by the tests of ajet's own verdicts.",
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PAGE).write_text(render_pages(content, {PAGE: "audit.html.jinja"})[PAGE], encoding="utf-8")


def _within(result: Audit, claim: AuditedClaim) -> list[tuple[str, AuditedClaim]]:
    pair = claim.treatment, claim.control
    return [(one.group or "", one) for one in result.in_groups if (one.treatment, one.control) == pair]


def _table(name: str, claims: Iterable[tuple[str, AuditedClaim]]) -> elements.Table | None:
    rows: list[elements.Row] = []
    for label, claim in claims:
        word, *rest = _cells(claim)
        rows.append((label, elements.Cell(word, claim.verdict, claim.reason), *rest))
    return elements.table((name, *COLUMNS), rows, range(2, len(COLUMNS) + 1))


def _draw_arms(result: Audit, group: str, at: int) -> elements.Drawing | None:
    shown = []
    for index, (arm, values) in enumerate(result.cells[group].items()):
        every = -(-len(values) // _MOST)
        name = f"{arm} (every {every}th by value)" if every > 1 else arm
        pairs = tuple(("run", None, value) for value in values[:: every or 1])
        shown += [ArmShift(name, index, pairs, comparison.mean_interval(values))] if pairs else []
    data = Shifts(tuple(shown), f"{result.question.metric} {group}".strip(), both=False)
    return elements.drawing(f"arms-{at}", "before-after", data if shown else None)


def _draw_groups(result: Audit) -> elements.Drawing | None:
    unit, shown = "" if result.question.margin else ", in standard deviations of a group's runs", list[ArmShift]()
    for index, claim in enumerate(result.claims):
        if claim.estimate is not None and claim.low is not None and claim.high is not None:
            own = [(name, one.estimate) for name, one in _within(result, claim) if one.estimate is not None]
            marks = sorted(((name, None, value / result.scales[name]) for name, value in own), key=lambda one: one[2])
            ends = comparison.Interval(claim.estimate, claim.low, claim.high)
            shown.append(ArmShift(_name(claim), index, tuple(marks), ends))
    data = Shifts(tuple(shown), f"difference in {result.question.metric}{unit}", both=False, each="group")
    return elements.drawing("groups", "before-after", data if shown else None)

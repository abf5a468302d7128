"""Audit of a table of finished runs: which claims hold, by the rules of verdicts, and what chance alone would do.

Nothing was locked before these data: every verdict is observational. Each pair of arms is a claim: that an arm is
better than the baseline or, without one, that the arm with the better mean is. Tests and corrections are those of
`studies.statistics`: Welch's test, as the arms of somebody's table may be unequally loud; Dunnett among the arms of a
baseline, Benjamini-Hochberg among families, which are groups (with a baseline) or pairs of arms. Over groups a claim is
about the mean of their differences, each in standard deviations of all runs of its group, whatever their arm: a
contrast of all cells, each with its own variance. So runs are drawn within cells (stratified), and groups stay.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache, partial
from itertools import chain, combinations
from statistics import fmean
from typing import Any, Final, Literal

from pydantic import ConfigDict, Field

from studies.errors import StudiesError
from studies.records.alpha import ALPHA
from studies.records.base import Record
from studies.records.procedure import InterimAnalysis
from studies.records.verdict import VerdictName
from studies.statistics import comparison, np, pd, power, proportions
from studies.statistics.comparison import Comparison, Interval
from studies.verdicts.wording import TESTS

MISSING: Final = ("", "-", "na", "n/a", "#n/a", "none", "null")
"""Cells without a value, in lower case; `nan` and `inf` are values that are not finite."""
MOST_COMPARISONS: Final = 3_000
LARGEST: Final = 1e150
"""From here on a value counts as not finite: its square would be."""
RUNS: Final = ("run", "run_id", "run_name", "run id", "run name", "id", "uuid", "checkpoint")
"""Columns that name runs, in lower case, where no other is said to."""
Cells = dict[str, dict[str, list[float]]]
"""Values in their order by group (one without a name where nothing is grouped) and arm."""


class AuditQuestion(Record):
    """What is asked of a table: its columns, empty where there is none, and how its runs are compared."""

    model_config = ConfigDict(allow_inf_nan=False)

    arm: str = Field("", description="Column that says what is compared.")
    metric: str = Field("", description="Column of the result.")
    better: Literal["higher", "lower"] = Field("higher", description="Which results are better.")
    target: float | None = Field(None, description="Count the runs of each arm that reached it.")
    group: str = Field("", description="Column of games, tasks, ...: arms are compared in each, and over all of them.")
    seed: str = Field("", description="Column of seeds, one row each in an arm; by default `seed`, where there is one.")
    run: str = Field("", description="Column that names runs of several rows, of which the last one counts.")
    at: float | None = Field(None, description="With --run: compare runs at this step, and not at their ends.")
    step: str = Field("", description="Column of steps; by default `step` and the like, where there is one.")
    baseline: str = Field("", description="Arm that all others are compared with; all pairs when left out.")
    margin: float | None = Field(None, gt=0, description="Differences within it do not matter: equivalence is tested.")


@dataclass(frozen=True, slots=True)
class AuditedClaim:
    """That `treatment` is better than `control`, with what the runs say of it; `group` is None of the whole table."""

    treatment: str
    control: str
    group: str | None
    n_treatment: int
    n_control: int
    estimate: float | None = None
    """Treatment less control; over groups in standard deviations of a group's runs, but for those with a margin."""
    verdict: VerdictName = "invalid"
    reason: str = "a test needs 2 runs in each arm"
    """The test, or why there is none."""
    low: float | None = None
    high: float | None = None
    level: float | None = None
    """Of the interval, corrected for the number of comparisons; `p` is of this one alone."""
    p: float | None = None
    other_order: float | None = None
    """Probability that one run of each, drawn at random, stand in the other order than the means; a tie counts half."""
    seeds_needed: int | None = None
    """Fewest runs an arm that see such a difference with power 0.8 at 5 %; None beyond `MOST_SEEDS`, or untested."""
    detectable: float | None = None
    """The difference that these runs see so."""
    nonzero: bool = False  # whether the interval leaves 0 out, as it may of equivalent arms, too


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit says."""

    question: AuditQuestion
    claims: tuple[AuditedClaim, ...]
    in_groups: tuple[AuditedClaim, ...]
    cells: Cells
    scales: Mapping[str, float]
    """What the differences of each group are divided by over groups."""
    reached: Mapping[str, Interval]
    """Share of all runs of each arm that reached the target, with exact 95 % limits."""
    confounds: Mapping[str, Mapping[str, str]]
    """Other columns that never vary inside an arm and differ between arms, with the value of each."""
    remarks: tuple[str, ...]


def audit(table: Any, ask: AuditQuestion) -> Audit:
    """Return the audit of a data frame of text; StudiesError where it cannot be read as the question says."""
    spelt = _find_spellings([*table[ask.arm].unique(), ask.baseline])
    ask = ask.model_copy(update={"baseline": spelt.get(ask.baseline, ask.baseline)})
    runs, remarks = collect_runs(table.assign(**{ask.arm: table[ask.arm].replace(spelt)}), ask)
    remarks += [f"one number is one arm: {_list([' as '.join(both) for both in spelt.items()])}"] if spelt else []
    named = (pd.Series(sorted(runs[name].unique())) for name in ("arm", "group"))
    number = partial(pd.to_numeric, errors="coerce")  # numbers by their size, then what is none
    arms, groups = (list(of.sort_values(key=number, kind="stable")) for of in named)
    _refuse_arms(arms, len(groups), ask)
    finite = runs[runs["value"].notna()].sort_values("value").groupby(["group", "arm"])["value"].apply(list)
    cells: Cells = {group: {arm: finite.get((group, arm), []) for arm in arms} for group in groups}
    # A margin is in the metric's own units, and so is what is compared with it.
    pools = {group: [] if ask.margin else [*chain(*of.values())] for group, of in cells.items()}
    scales = {group: comparison.spread(values) or 1.0 for group, values in pools.items()}
    counts, reached = runs.groupby("arm")["value"].agg(["size", "count"]), dict[str, Interval]()
    if lost := [f"{size - count} of {size} of {arm}" for arm, (size, count) in counts.iterrows() if count < size]:
        remarks.append(f"left out without a finite value, as if that said nothing: {_list(lost)}")
    if few := [f"{arm} {group}".strip() for group in groups for arm in arms if len(cells[group][arm]) < 2]:
        remarks.append(f"not tested, with fewer than 2 values: {_list(few)}")
    if ask.target is not None:
        runs["there"] = runs["value"] >= ask.target if ask.better == "higher" else runs["value"] <= ask.target
        there = runs.groupby("arm")["there"].agg(["sum", "size"]).map(int)
        reached = {arm: proportions.exact_limits(*there.loc[arm]) for arm in arms}
    whole, inside = _claims(cells, scales, arms, ask)
    return Audit(ask, whole, inside, cells, scales, reached, find_confounds(table, runs, ask), tuple(remarks))


def _find_spellings(names: Iterable[str]) -> dict[str, str]:
    """Return, where all names are numbers, those that repeat one in other digits, each with the first one's."""
    first = dict[Decimal, str]()
    try:
        return {name: one for name in names if name and (one := first.setdefault(Decimal(name), name)) != name}
    except (ArithmeticError, TypeError):
        return {}


def collect_runs(table: Any, ask: AuditQuestion) -> tuple[Any, list[str]]:
    """Return arm, group and value (NaN where it is not finite) of each run, by the row that counts, and remarks."""
    keys = [name for name in (ask.arm, ask.group, ask.run) if name]
    rows = table[(table[keys] != "").all(axis=1)]
    if rows.empty:
        raise StudiesError(f"expected rows with something in {', '.join(keys)}; found none of {len(table)}; see --arm")
    lost, equal = len(table) - len(rows), int(rows.duplicated().sum())
    remarks = [f"{lost} of {len(table)} rows have nothing in {' or '.join(keys)}: left out"] if lost else []
    if equal and len(table.columns) > len(keys) + 1:
        remarks.append(f"{equal} rows are equal to another one in each column: is a run there twice?")
    if not ask.run:
        _refuse_repeats(rows, keys, ask)
    remarks += _find_recurring(rows, ask)
    frame = pd.DataFrame({
        "arm": rows[ask.arm], "group": rows[ask.group] if ask.group else "",
        "name": rows[ask.run] if ask.run else rows.index, "value": _numbers(rows, ask.metric),
        "step": _numbers(rows, ask.step) if ask.run and ask.step else rows.index,
        "logged": ~rows[ask.metric].str.lower().isin(MISSING),
    })  # fmt: skip
    if ask.at is not None:
        at = frame["step"][frame["step"] <= ask.at].max()
        remarks += [f"no row is at step {ask.at:g}: the last ones before count, to step {at:g}"] if at != ask.at else []
        late, ends = frame["step"] > ask.at, frame.groupby(["arm", "group", "name"])["step"].transform("max")
        frame = frame.assign(value=frame["value"].mask(late | (ends < at)), logged=frame["logged"] & ~late)
    ends = frame[frame["logged"]].groupby(["arm", "group", "name"])["step"].max()
    if ask.run and ask.step and ask.at is None and ends.nunique() > 1:
        remarks.append(f"runs end at unlike steps, {ends.min():g} to {ends.max():g}: --at STEP compares them at one")
    ordered = frame.sort_values(["logged", "step"], kind="stable", na_position="first")
    runs = ordered.groupby(["arm", "group", "name"]).tail(1)
    if len(runs) < len(rows):
        inside = rows.groupby(keys).nunique().max().drop([ask.metric, ask.step], errors="ignore")
        varying = [name for name in inside.index[inside > 1] if pd.to_numeric(rows[name], errors="coerce").isna().any()]
        remarks += [f"inside a run, of which one row counts, differs: {_list(varying)}"] if varying else []
    return runs.assign(value=runs["value"].where(runs["value"].abs() < LARGEST)).sort_index(), remarks


def find_confounds(table: Any, runs: Any, ask: AuditQuestion) -> dict[str, dict[str, str]]:
    """Return the other columns that are constant in every arm of every group, and differ between arms of one."""
    confounds, keys = dict[str, dict[str, str]](), [runs["group"], runs["arm"]]
    own = {ask.arm, ask.metric, ask.group, ask.seed, ask.run, ask.step}
    if runs.groupby(keys).size().max() > 1:  # whatever there is never varies inside an arm of one run
        for name in (name for name in table.columns.drop_duplicates(keep=False) if name not in own):
            cells = table.loc[runs.index, name].groupby(keys)
            if cells.nunique().max() == 1:
                values = cells.first().unstack()
                apart = values[values.nunique(axis=1) > 1]
                confounds |= {name: apart.iloc[0].dropna().to_dict()} if len(apart) else {}
    return confounds


def _numbers(rows: Any, name: str) -> Any:
    cells = rows[name].where(~rows[name].str.lower().isin(MISSING))
    numbers = pd.to_numeric(cells, errors="coerce").astype(float)
    wrong = numbers.isna() & cells.notna() & ~cells.str.lower().isin(("nan", "+nan", "-nan"))
    if wrong.any():
        where = f"{name}, row {wrong.idxmax() + 1}; found {cells[wrong.idxmax()][:60]!r}"
        raise StudiesError(f"expected a number in {where}; leave the cell empty for none; decimals have a point")
    return numbers


def _list(names: Sequence[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _refuse_arms(arms: Sequence[str], groups: int, ask: AuditQuestion) -> None:
    if len(arms) < 2:
        raise StudiesError(f"expected two arms or more in {ask.arm}; found {arms[0]} alone; see --arm")
    if ask.baseline and ask.baseline not in arms:
        raise StudiesError(f"expected an arm as --baseline: {_list(arms, 12)}; found {ask.baseline}; name one of them")
    if (count := groups * (len(arms) - 1 if ask.baseline else math.comb(len(arms), 2))) > MOST_COMPARISONS:
        counted = f"found {count:,} ({len(arms)} arms in {ask.arm}, {groups} groups)"
        raise StudiesError(f"expected {MOST_COMPARISONS:,} comparisons at most; {counted}; --baseline, or see --arm")


def _find_recurring(rows: Any, ask: AuditQuestion) -> list[str]:
    """Refuse runs that are in several groups, whose values depend on each other; remark on seeds that are."""
    if not (name := ask.group and (ask.run or ask.seed)):
        return []
    recur = rows[rows[name] != ""].groupby([ask.arm, name])[ask.group].nunique()
    if recur.empty or recur.max() < 2:
        return []
    found = f"{', '.join(recur.idxmax())} ({name}) in {recur.max()} groups"
    if ask.run:
        raise StudiesError(
            f"expected runs of one group each, as values of one run depend on each other; found {found}; give a row a "
            "run, with its mean over groups; or name them apart where they are not one run"
        )
    return [f"{found}: if that is one run, its values depend on each other, and too much is claimed; name it by --run"]


def _refuse_repeats(rows: Any, keys: Sequence[str], ask: AuditQuestion) -> None:
    way = f"name the run by --run FIELD (its last row counts, or --at STEP){'' if ask.group else ', or give --group'}"
    repeats = rows[rows[ask.seed] != ""].groupby([*keys, ask.seed]).size() if ask.seed else pd.Series([1])
    if not repeats.empty and repeats.max() > 1:
        where = ", ".join(repeats.idxmax())
        raise StudiesError(f"expected one row a run; found {repeats.max()} of {where} ({ask.seed}); {way}")
    for name in (name for name in rows.columns if name.lower() in RUNS and name not in (*keys, ask.metric)):
        named = rows[rows[name] != ""].groupby([*keys, name]).size()
        if not named.empty and named.max() > 1:
            found = f"{named.max()} of {', '.join(named.idxmax())} ({name})"
            raise StudiesError(f"expected one row a run; found {found}; {way}")
    if ask.step and not ask.seed and rows[ask.step].nunique() > 1:
        raise StudiesError(f"expected one row a run; found a column {ask.step} that varies, as of a row a step; {way}")


_Tested = tuple[AuditedClaim, Comparison | None, tuple[int, ...]]
"""A claim before it is known at which level it is judged, its test, and the runs of all arms that this corrects for."""
_Claims = tuple[AuditedClaim, ...]


def _claims(
    cells: Cells, scales: Mapping[str, float], arms: Sequence[str], ask: AuditQuestion
) -> tuple[_Claims, _Claims]:
    over, inside = list[_Tested](), list[_Tested]()
    pairs = [(ask.baseline, arm) for arm in arms if arm != ask.baseline] if ask.baseline else combinations(arms, 2)
    for a, b in pairs:
        least = max((min(len(of[a]), len(of[b]), 2) for of in cells.values()), default=1)  # as many as are tested
        both = {name: of for name, of in cells.items() if min(len(of[a]), len(of[b])) >= max(1, least)}
        apart = [(fmean(of[b]) - fmean(of[a])) / scales[name] for name, of in both.items()]
        ahead = ask.baseline or (math.fsum(apart) >= 0) == (ask.better == "higher")
        control, treatment = (a, b) if ahead else (b, a)
        inside += [_test(name, control, treatment, of, ask) for name, of in cells.items()]
        over += [_test_over(control, treatment, cells, scales)] if ask.group else []
    within = _judge(inside, ask, pairwise=not ask.baseline)
    return (_judge(over, ask, pairwise=True), within) if ask.group else (within, ())


def _test(group: str, control: str, treatment: str, of: Mapping[str, list[float]], ask: AuditQuestion) -> _Tested:
    a, b = of[control], of[treatment]
    claim = AuditedClaim(treatment, control, group if ask.group else None, len(b), len(a))
    if not a or not b:
        return claim, None, ()
    claim = replace(claim, estimate=fmean(b) - fmean(a))
    if min(len(a), len(b)) < 2:
        return claim, None, ()
    claim = replace(claim, other_order=_other_order(a, b, fmean(b) - fmean(a)))
    if comparison.is_constant(a) and comparison.is_constant(b):
        same = abs(fmean(b) - fmean(a)) <= comparison.SAME
        reason = f"no run differs from its arm: {'no difference' if same else 'without variance no test'}"
        return replace(claim, verdict="inconclusive" if same else "invalid", reason=reason), None, ()
    others = tuple(len(values) for arm, values in of.items() if arm != control and len(values) > 1)
    test, sizes = comparison.welch(a, b), others if ask.baseline else (len(b),)
    return _size(claim, test, [a, b]), test, sizes


def _test_over(control: str, treatment: str, cells: Cells, scales: Mapping[str, float]) -> _Tested:
    both = [name for name, of in cells.items() if min(len(of[control]), len(of[treatment])) > 1]
    arms = [[value / scales[name] for value in cells[name][arm]] for name in both for arm in (control, treatment)]
    claim = AuditedClaim(treatment, control, None, sum(map(len, arms[1::2])), sum(map(len, arms[::2])))
    weights = tuple(sign / len(both) for _ in both for sign in (-1, 1))
    if not both or (test := comparison.contrast(arms, weights)) is None:
        return replace(claim, reason="no group has 2 runs of each arm, or none differs from its arm"), None, ()
    other = fmean(_other_order(a, b, test.estimate) for a, b in zip(arms[::2], arms[1::2], strict=True))
    claim = replace(claim, estimate=test.estimate, other_order=other)
    return _size(claim, test, arms, weights), test, (1,)


def _other_order(control: Sequence[float], treatment: Sequence[float], estimate: float) -> float:
    """Return the share of all pairs of runs, both sorted, whose order is not that of the means."""
    below = [float(np.searchsorted(control, treatment, side).mean()) for side in ("left", "right")]
    above = fmean(below) / len(control)
    return 1 - above if estimate >= 0 else above


@lru_cache(maxsize=256)
def _detectable(shape: power.PowerDesign) -> float:
    return power.min_detectable_effect(shape, 1.0)


def _size(
    claim: AuditedClaim, test: Comparison, arms: Sequence[Sequence[float]], weights: tuple[float, ...] = ()
) -> AuditedClaim:
    """Add what these runs could see, at the noise that they have, and how many would have seen the difference."""
    sd, effect = math.sqrt(fmean((comparison.spread(of) or 0.0) ** 2 for of in arms)), abs(test.estimate)
    alike = max(2, math.floor(len(arms) / sum(1 / len(of) for of in arms) + 1e-9))
    looks = (InterimAnalysis(seeds=alike, alpha=ALPHA),)
    shape = power.PowerDesign("contrast" if weights else "welch", looks, weights=weights)
    needed = power.seeds_needed(shape, effect, sd) if effect > 1e-9 * sd else None
    return replace(claim, reason=TESTS[test.test], p=test.p, seeds_needed=needed, detectable=sd * _detectable(shape))


def _judge(tested: Sequence[_Tested], ask: AuditQuestion, pairwise: bool) -> _Claims:
    """Return the claims with their verdicts, at the level that the number of families leaves."""
    families, claims, count = dict[Any, float](), list[AuditedClaim](), sum(test is not None for _, test, _ in tested)
    for claim, test, sizes in tested:
        if test is not None:
            key = (claim.group, *((claim.treatment, claim.control) if pairwise else ()))
            families[key] = min(power.dunnett_p(test.t, test.df, claim.n_control, sizes), families.get(key, 1.0))
    level = comparison.effective_level([*families.values()], ALPHA) if families else ALPHA
    for claim, test, sizes in tested:
        if test is not None:
            low, high = test.within(power.dunnett_critical(1 - level, test.df, claim.n_control, sizes))
            verdict: VerdictName = "supported" if (low > 0) == (ask.better == "higher") else "refuted"
            if ask.margin and comparison.is_equivalent(comparison.two_one_sided(test, ask.margin, ALPHA / count)):
                verdict = "equivalent"
            elif low <= 0 <= high:
                verdict = "inconclusive"
            claim = replace(claim, verdict=verdict, low=low, high=high, level=1 - level, nonzero=not low <= 0 <= high)
        claims.append(claim)
    return tuple(claims)

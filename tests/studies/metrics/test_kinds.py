from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.scheduler.required_runs import EVERY_RUN
from studies.metrics import (
    Asked,
    MetricKind,
    Refused,
    Results,
    Value,
    kind_named,
    kind_of,
    kinds,
    other_environment,
    registry,
)
from studies.metrics.base import Curve, success_curve
from studies.metrics.registry import define_metric, values_of
from studies.records.design import GAIN, SUCCESS, Metric, Schedule
from studies.records.runs import screen_metric
from tests.golden import refused
from tests.outside import install

ASKED = Asked(measures="the number is found", episodes=20, horizon=64, horizon_s=30.0)


def part(version: int, solved: int, of: int = 20, **facts: float) -> dict[str, Any]:
    said = {"tokens": 6, **({"facts": facts} if facts else {})}
    return {"policy_version": version, "episodes": [{"success": n < solved, "reward": 0.5, **said} for n in range(of)]}


def run(*solved: int) -> Results:
    first, *during, last = (part(version, count) for version, count in enumerate(solved))
    return Results(first, last, during, rows(len(solved) - 1), part(len(solved) - 1, 3))


def value_of(metric: Metric, results: Results) -> float:
    return kind_of(metric).measure(metric, results)[metric.key].value


def rows(steps: int) -> list[dict[str, Any]]:
    known = {"batch/episodes": 16.0, "timing_s/step": 8.0, "tokens/trained": 10.0}
    return [{"step": n, "metrics": {**known, "critic/success/mean": n / 10}} for n in range(1, steps + 1)]


def batches(*shares: float | None, of: float = 16.0, stopped: str | None = None) -> Results:
    """Return a training of these batches, which evaluations tell nothing about."""
    metrics = [{"batch/episodes": of} | ({} if share is None else {"critic/success/mean": share}) for share in shares]
    history = [{"step": n, "metrics": each} for n, each in enumerate(metrics, start=1)]
    return Results(part(0, 0), part(len(shares), 20), (), history, None, stopped)


@pytest.mark.parametrize("name", [name for name in kinds() if name not in ("fact", "collapse", "logged")])
def test_every_kind_reads_its_own_key_within_its_range_and_success_beside_it_also_of_a_screening_run(name: str) -> None:
    kind = kind_named(name)
    of = "25" if name.startswith("success-at-") else "words"
    asked = replace(ASKED, of=of if "of" in kind.takes else "", tokens=64)
    threshold = 0.5 if "threshold" in kind.takes and name != "tokens" else None
    metric = kind.define(replace(asked, threshold=threshold))
    found = kind.measure(metric, run(2, 6, 12, 16, 18))
    assert {metric.key, SUCCESS, f"{SUCCESS}/initial"} <= found.keys()
    low, high = sorted((metric.worst, metric.best))
    assert low <= found[metric.key].value <= high
    assert (metric.best > metric.worst) == metric.higher_is_better
    assert kind_of(metric) is kind
    screening = screen_metric(metric)
    assert screening.split == "search"
    assert "hidden" not in screening.key
    assert screening.key in kind_of(screening).measure(screening, run(2, 6, 12, 16, 18))


def test_designs_from_before_there_were_kinds_are_of_success_or_of_its_gain_and_an_unknown_kind_is_refused() -> None:
    plain = Metric(meaning="m", episodes=4)
    assert kind_of(plain).name == "success"
    assert kind_of(plain.model_copy(update={"key": GAIN})).name == "gain"
    assert "kind" not in plain.model_dump()
    with refused(Refused, "success, ", "'speed'", "`ajet metric list`"):
        kind_named("speed")


def test_a_time_is_cut_at_the_horizon_and_an_area_below_a_threshold_tells_no_level_above_it() -> None:
    kind = kind_named("episodes")
    metric = kind.define(replace(ASKED, threshold=0.5))
    slow, fast = run(0, 2, 4, 6, 8), run(0, 8, 16, 18, 20)
    assert (value_of(metric, slow), kind.measure(metric, slow)[f"{metric.key}/reached"].value) == (64.0, 0.0)
    assert value_of(metric, fast) < 32
    assert kind.measure(metric, fast)[f"{metric.key}/reached"].value == 1.0
    assert metric.unit == "episodes"
    assert value_of(kind_named("seconds").define(replace(ASKED, threshold=0.5)), slow) == 30.0
    kind = kind_named("area")
    metric = kind.define(replace(ASKED, threshold=0.5))
    assert value_of(metric, run(10, 10, 10, 10, 10)) == value_of(metric, run(10, 20, 20, 20, 20)) == 0.5


@pytest.mark.parametrize(("name", "at", "value"), [("tokens", 10, 0.2), ("tokens", 25, 0.5), ("seconds", 12, 0.3)])
def test_success_at_equal_tokens_or_seconds_lies_between_the_evaluations_around_them(
    name: str, at: int, value: float
) -> None:
    metric = kind_named(f"success-at-{name}").define(replace(ASKED, of=str(at)))
    assert (metric.schedule is not None, metric.higher_is_better, metric.unit) == (True, True, "")
    assert value_of(metric, run(0, 4, 8, 12, 16)) == pytest.approx(value)
    assert value_of(metric, replace(run(0, 4), stopped_by="stalled")) == 0.2, "as much as it ever will"
    with pytest.raises(Refused, match=f"^expected a training of {at}0 .*; found one that ended after"):
        value_of(metric.model_copy(update={"of": f"{at}0"}), run(0, 4))


def test_an_amount_that_no_training_comes_to_is_refused_and_so_are_logs_without_a_count_of_it() -> None:
    kind = kind_named("success-at-tokens")
    for of in ("", "0", "1e3", "-5", "ten"):
        with pytest.raises(Refused, match=f"^expected a whole number of trained tokens .*; found {of or 'none'};"):
            kind.define(replace(ASKED, of=of))
    with refused(Refused, "6401"):
        kind.define(replace(ASKED, of="6401", tokens=100))
    with refused(Refused, "31"):
        kind_named("success-at-seconds").define(replace(ASKED, of="31"))
    silent = replace(run(0, 4, 8), history=batches(0.5, 0.5).history)
    with refused(Refused, "tokens/trained", "2 steps without it"):
        value_of(kind.define(replace(ASKED, of="10")), silent)


@pytest.mark.parametrize(
    ("results", "area", "episodes"),
    [
        (batches(0.5, 0.5, 0.5, 0.5), 0.5, 64),
        (batches(0.0, 0.4, 0.8, 1.0), (0.2 + 0.6 + 0.9 + (1.0 + 0.55) / 2) / 4, 64),  # then the last 256's mean holds
        (batches(0.0, 1.0, of=32), 0.625, 64),  # a batch tells the policy before its step
        (batches(0.0, 0.5, of=256), 64 / 512 * 0.5, 512),  # beyond the horizon nothing counts
        (batches(0.2, 0.6, stopped="kl_blow_up"), (0.4 + (0.6 + 0.4) / 2 + 2 * 0.4) / 4, 32),
    ],
)
def test_the_training_area_is_read_off_the_batches_alone_to_one_horizon(
    results: Results, area: float, episodes: int
) -> None:
    metric = kind_named("training-area").define(ASKED)
    assert (metric.horizon, metric.schedule) == (64.0, None)
    found = kind_of(metric).measure(metric, results)[metric.key]
    assert found == Value(pytest.approx(area), episodes)  # type: ignore[arg-type]


@pytest.mark.parametrize("shares", [(), (0.5, None, 0.5)])
def test_a_training_that_does_not_tell_its_success_at_every_step_has_no_training_area(
    shares: tuple[float | None, ...],
) -> None:
    metric = kind_named("training-area").define(ASKED)
    with refused(Refused, f"{len(shares) - shares.count(None)} of {len(shares)} steps"):
        kind_of(metric).measure(metric, batches(*shares))


@pytest.mark.parametrize(
    ("name", "expected", "threshold"),
    [
        *(("episodes", "a threshold", at) for at in (None, 0.0, 1.0, -0.1, 1.5, 0.999999999)),
        *(("tokens", "the most tokens", at) for at in (0.7, 0.0, -1.0, float("inf"), float("nan"))),
    ],
)
def test_a_threshold_that_cannot_be_reached_and_missed_is_refused(
    name: str, expected: str, threshold: float | None
) -> None:
    with pytest.raises(Refused, match=f"^expected {expected}"):
        kind_named(name).define(replace(ASKED, threshold=threshold))


def test_a_fact_is_one_that_the_environment_declares_and_says_of_every_play() -> None:
    kind = kind_named("fact")
    with refused(Refused, "fact"):
        kind.define(replace(ASKED, of="calls"))
    metric = kind.define(replace(ASKED, of="calls", facts={"calls": (10.0, 0.0)}))
    assert (metric.worst, metric.best, metric.higher_is_better, metric.unit) == (10.0, 0.0, False, "calls")
    whole = Results(part(0, 1, calls=4.0), part(1, 2, calls=3.0))
    assert value_of(metric, whole) == 3.0
    whole.final["episodes"][3]["facts"] = {}
    with refused(Refused, "1 of 20"):
        value_of(metric, whole)


@pytest.mark.parametrize(
    ("reduction", "value"), [("first2", 8.0), ("mean:2-3", 5.0), ("max", 9.0), ("slope", -8.4), ("first9", 5.0)]
)
def test_a_fact_is_reduced_over_the_policies_that_are_evaluated_after_these_steps(reduction: str, value: float) -> None:
    """The untrained policy is none of them."""
    asked = replace(ASKED, of=f"calls:{reduction}", facts={"calls": (10.0, 0.0)})
    metric = kind_named("fact").define(asked)
    first, *during, last = (part(step, 4, calls=calls) for step, calls in enumerate((99.0, 9.0, 7.0, 3.0, 1.0)))
    assert value_of(metric, Results(first, last, during)) == pytest.approx(value)
    ends = (10.0, -10.0) if reduction == "slope" else (10.0, 0.0)
    assert (metric.worst, metric.best, metric.unit, metric.schedule is not None) == (*ends, "calls", True)
    plain = kind_named("fact").define(replace(asked, of="calls:last"))
    assert plain == kind_named("fact").define(replace(asked, of="calls"))


@pytest.mark.parametrize("of", ["calls:median", "calls:first3:0..99", "other:first3", "calls:mean:9-3", ":last"])
def test_a_fact_has_its_environments_range_and_no_reduction_that_there_is_not(of: str) -> None:
    with pytest.raises(Refused, match=r"^expected (fact:|a fact)"):
        kind_named("fact").define(replace(ASKED, of=of, facts={"calls": (10.0, 0.0)}))


def test_a_schedule_is_the_same_by_episodes_whatever_an_arms_batch_and_of_too_few_evaluations_is_refused() -> None:
    schedule = Schedule(every=100, episodes=32)
    assert schedule.steps({"episodes_per_step": 50, "steps": 8}) == (2, 4, 6)
    assert schedule.steps({"episodes_per_step": 100, "steps": 4}) == (1, 2, 3)
    assert schedule.steps({"episodes_per_step": 400, "steps": 1}) == ()
    sparse = Asked("it is solved", 64, 100, threshold=0.7, schedule=Schedule(every=34, episodes=8))
    for kind in map(kind_named, ("area", "episodes")):
        with refused(Refused, "2 evaluations", "34 of 100"):
            kind.define(sparse)
        assert kind.define(replace(sparse, schedule=Schedule(every=33, episodes=8))).schedule is not None


@pytest.mark.parametrize(("solved", "cost"), [(20, 6.0), (10, 12.0), (2, 60.0), (1, 100.0), (0, 100.0)])
def test_a_solved_task_costs_the_tokens_of_all_plays_up_to_the_cut(solved: int, cost: float) -> None:
    kind = kind_named("tokens")
    metric = kind.define(replace(ASKED, threshold=100.0))
    assert (metric.worst, metric.best, metric.higher_is_better, metric.unit) == (100.0, 0.0, False, "tokens")
    found = kind.measure(metric, run(5, solved))
    assert found[metric.key] == Value(cost, 20)
    assert found[f"{metric.key}/initial"] == Value(24.0, 20)


def test_success_elsewhere_is_of_another_environment_and_needs_its_name_and_its_evaluation() -> None:
    kind = kind_named("transfer")
    metric = kind.define(replace(ASKED, of="words"))
    assert other_environment(metric, {}) == "words"
    assert other_environment(Metric(meaning="m", episodes=4), {}) is None
    whole = replace(run(2, 10), other=part(1, 5))
    assert kind.measure(metric, whole)["hidden/success_on_words"] == Value(0.25, 20)
    assert kind.measure(metric, whole)[SUCCESS].value == 0.5
    with refused(Refused, "name"):
        kind.define(ASKED)
    with refused(Refused, "words"):
        kind.measure(metric, replace(whole, other=None))


COLLAPSE = kind_named("collapse")
METRIC = COLLAPSE.define(Asked(measures="the number is found", episodes=100, horizon=2560))


def course(shares: list[float], end: int, **how: Any) -> Results:
    metrics = [{"batch/episodes": 128.0, "critic/success/mean": share} for share in shares]
    rows = [{"step": n, "metrics": row} for n, row in enumerate(metrics, 1)]
    return Results(part(0, 30, 100), part(len(shares), end, 100), history=rows, **how)


RISES = [0.2 + 0.03 * n for n in range(20)]
FALLS = [*RISES, *(0.75 - 0.06 * n for n in range(10))]


@pytest.mark.parametrize(
    ("found", "collapsed"),
    [
        (course(RISES, 80), 0.0), (course([0.2] * 20, 30), 0.0), (course(FALLS, 35), 1.0), (course([0.2] * 20, 0), 1.0),
        (course([0.2], 0), 1.0), (course(RISES, 80, stopped_by="kl_blow_up"), 1.0),
        (course(RISES, 80, stopped_by="stalled"), 0.0),
    ],
    ids=["rises", "stays", "falls", "ends below", "falls at once", "breaks down", "is stopped"],
)  # fmt: skip
def test_a_training_has_one_or_none(found: Results, collapsed: float) -> None:
    assert value_of(METRIC, found) == collapsed


def test_what_cannot_show_a_collapse_is_refused_and_two_arms_are_two_rates() -> None:
    with refused(Refused, "768 training episodes"):
        value_of(METRIC, course([0.2, 0.3], 40))
    with refused(Refused, "768 episodes", "512"):
        COLLAPSE.define(Asked(measures="m", episodes=100, horizon=512))
    assert (METRIC.worst, METRIC.best, METRIC.higher_is_better, COLLAPSE.rates) == (1.0, 0.0, False, True)
    assert METRIC.cut_at is None


SHARES = st.lists(st.floats(0, 1), min_size=4, max_size=12)


def even(ys: Sequence[float]) -> Curve:
    return Curve(tuple(100.0 * at for at in range(len(ys))), tuple(ys))


@given(SHARES, st.floats(0.05, 0.95))
def test_a_line_is_crossed_where_the_mean_of_three_reaches_it_and_not_before(ys: list[float], line: float) -> None:
    curve = even(ys)
    found = curve.crossing(line)
    means = [ys[0], *(sum(ys[at - 1 : at + 2]) / len(ys[at - 1 : at + 2]) for at in range(1, len(ys)))]
    first = next((at for at, mean in enumerate(means) if mean >= line), None)
    if first is None:
        assert found is None
    else:
        assert 100.0 * max(0, first - 1) - 1e-9 <= found <= 100.0 * first + 1e-9


def test_a_straight_curve_has_the_area_and_the_crossing_of_a_line() -> None:
    curve = even([0.0, 0.25, 0.5, 0.75, 1.0])
    assert curve.area(400.0) == pytest.approx(0.5)
    assert curve.area(200.0) == pytest.approx(0.25)
    assert curve.area(800.0) == pytest.approx(0.75)
    assert curve.area(400.0, 0.5) == pytest.approx(0.375)
    assert curve.crossing(0.5) == pytest.approx(200.0)
    assert curve.crossing(0.6) == pytest.approx(240.0)


@pytest.mark.parametrize(
    ("versions", "steps"), [((2, 1), 4), ((1, 1), 4), ((0,), 4), ((1, 4), 4), ((1, 2), 3), ((), 3)]
)
def test_evaluations_out_of_order_or_of_no_step_make_no_curve(versions: tuple[int, ...], steps: int) -> None:
    with pytest.raises(Refused, match="those of 0, "):
        success_curve(Results(part(0, 0), part(4, 8), [part(version, 2) for version in versions], rows(steps)))


def test_a_training_that_was_ended_early_has_a_curve_and_one_with_a_step_without_its_count_has_none() -> None:
    curve = success_curve(Results(part(0, 4), part(2, 16), [], rows(2)))
    assert curve == Curve((0.0, 32.0), (0.2, 0.8))
    assert curve.area(64.0) == pytest.approx(0.65)
    assert curve.crossing(0.7) is None
    (history := rows(4))[2]["metrics"] = {}
    with pytest.raises(Refused, match="found 1 steps"):
        success_curve(Results(part(0, 0), part(4, 8), [part(1, 2), part(2, 4)], history))


REQUEST = Asked(measures="the number is found", episodes=20, horizon=64)
PLAYS = [{"success": n < 5, "reward": 0.5} for n in range(20)]
RUN = Results({"policy_version": 0, "episodes": PLAYS}, {"policy_version": 3, "episodes": PLAYS})


class Given(MetricKind):
    name = "given"
    title = "what a test says"

    def __init__(self, value: Any = None, rates: bool = False, **fields: Any) -> None:
        self.value, self.fields, self.rates = value, fields, rates  # type: ignore[misc]

    def define(self, asked: Asked) -> Metric:
        if "raises" in self.fields:
            raise self.fields["raises"]
        fields = {"key": "hidden/given", "kind": "given", "meaning": "m", "episodes": asked.episodes, **self.fields}
        return Metric(**fields)

    def measure(self, metric: Metric, run: Results) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return {metric.key: self.value} if isinstance(self.value, Value) else self.value


class Untitled(MetricKind):
    name = "untitled"

    def define(self, asked: Asked) -> Metric:
        raise NotImplementedError

    def measure(self, metric: Metric, run: Results) -> dict[str, Value]:
        raise NotImplementedError


class OneText(Given):
    """Has a text where a tuple of them is wanted: each letter would be asked for."""

    name = "onetext"
    words = "hard tasks"  # type: ignore[assignment]


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    entries: list[EntryPoint] = []
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    registry.kinds.cache_clear()
    yield entries
    registry.kinds.cache_clear()


def entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, f"{__name__}:{value}", "ajet.metrics")


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (EntryPoint("lost", "nowhere:Kind", "ajet.metrics"), "ModuleNotFoundError"),
        (entry("another", "Given"), "`name`"), (entry("untitled", "Untitled"), "`title`"),
        (entry("onetext", "OneText"), "`words`"), (entry("asked", "REQUEST"), "MetricKind"),
    ],
    ids=lambda value: value.name if isinstance(value, EntryPoint) else "",
)  # fmt: skip
def test_a_kind_that_cannot_be_had_is_refused_by_its_name_and_in_nobody_elses_way(
    packages: list[EntryPoint], broken: EntryPoint, said: str
) -> None:
    packages += [broken, entry("given", "Given")]
    assert {"success", "given"} <= kinds().keys()
    assert broken.name not in kinds()
    with refused(Refused, said):
        kind_named(broken.name)


def test_a_name_that_is_taken_stays_whose_it_was_and_is_told(packages: list[EntryPoint]) -> None:
    packages += [entry("success", "Given"), entry("given", "Given"), EntryPoint("given", "shop:Given", "ajet.metrics")]
    assert "given" not in kinds()
    assert not isinstance(kind_named("success"), Given)
    assert set(registry.faults()) == {"success", "given"}
    with pytest.raises(Refused, match=r"one package .* 'given'; found .* and .*"):
        kind_named("given")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"raises": ZeroDivisionError("by zero")}, r"ZeroDivisionError: by zero.*\(test_kinds.py, line"),
        ({"worst": 1.0}, "worst and best .* found 1 and 1"), ({"worst": float("inf")}, "worst and best"),
        ({"worst": 5.0}, "higher_is_better=False"), ({"kind": "other"}, "kind=self.name"),
        ({"key": SUCCESS}, "a key of"), ({"rates": True, "best": 2.0}, "range of 0 and 1"),
    ],
)  # fmt: skip
def test_a_metric_that_cannot_be_locked_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused, match=said):
        define_metric(Given(**fields), REQUEST)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (KeyError("words"), r"hidden/given; found KeyError: 'words' \(test_kinds.py, line"),
        (Value(float("nan"), 20), "finite number"), (Value(0.5, 0), "how many episodes"),
        (Value(7.5, 20), "0 to 1; found 7.5"), ({"other": Value(0.5, 20)}, "hidden/given; found {'other'"),
        ({"hidden/given": 0.5}, "as a Value; found 0.5"), (None, "found None"),
    ],
)  # fmt: skip
def test_a_number_that_is_none_is_refused(packages: list[EntryPoint], value: Any, said: str) -> None:
    packages.append(entry("given", "Given"))
    kind = kind_named("given")
    kind.value = value  # type: ignore[attr-defined]
    with pytest.raises(Refused, match=said):
        values_of(define_metric(kind, REQUEST), RUN)


def test_success_stands_beside_what_a_package_measures_and_a_rate_is_of_ones_and_zeros(
    packages: list[EntryPoint],
) -> None:
    packages.append(entry("given", "Given"))
    kind = kind_named("given")
    kind.value = Value(0.5, 2)  # type: ignore[attr-defined]
    found = values_of(define_metric(kind, REQUEST), RUN)
    assert {key: each.value for key, each in found.items()} == {
        "hidden/given": 0.5, SUCCESS: 0.25, f"{SUCCESS}/initial": 0.25,
    }  # fmt: skip
    packages.append(entry("given", "Given"))
    kind = kind_named("given")
    kind.value, kind.rates = Value(0.5, 20), True  # type: ignore[attr-defined, misc]
    with pytest.raises(Refused, match="expected 1 or 0"):
        values_of(define_metric(kind, REQUEST), RUN)


PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
SOLVED = [{"success": n >= 10, "reward": 0.0} for n in range(20)]
HALF = Results({"policy_version": 0, "episodes": SOLVED}, {"policy_version": 3, "episodes": SOLVED})


def test_the_pages_example_leaves_a_run_measured_where_its_package_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = PAGE.read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (table,) = re.findall(r'entry-points."(ajet.metrics)"\]\nhardest = "shop_metrics:Hardest"', page)
    folder = install(tmp_path / "shop", {table: {"hardest": "shop_metrics:Hardest"}}, "shop-metrics")
    (folder / "shop_metrics.py").write_text(code)
    monkeypatch.syspath_prepend(str(folder))
    registry.kinds.cache_clear()
    try:
        metric = define_metric(kind_named("hardest"), Asked(measures="it is solved", episodes=20, horizon=100))
        found = values_of(metric, HALF)
        assert (found[metric.key], len(found) > EVERY_RUN) == ((1.0, 2), True)
    finally:
        registry.kinds.cache_clear()


def test_the_page_names_every_kind() -> None:
    page = PAGE.read_text()
    assert [name for name in registry.BUILT_IN if f"| `{name}" not in page] == []

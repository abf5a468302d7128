from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from research.scheduler.required_runs import EVERY_RUN
from studies.metrics import Asked, MetricKind, Refused, Results, Value, kind_named, kinds, registry
from studies.metrics.registry import define_metric, values_of
from studies.records.design import SUCCESS, Metric
from tests.golden import refused
from tests.outside import install

ASKED = Asked(measures="the number is found", episodes=20, horizon=64)
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
        (entry("onetext", "OneText"), "`words`"), (entry("asked", "ASKED"), "MetricKind"),
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
        ({"raises": ZeroDivisionError("by zero")}, r"ZeroDivisionError: by zero.*\(test_reading.py, line"),
        ({"worst": 1.0}, "worst and best .* found 1 and 1"), ({"worst": float("inf")}, "worst and best"),
        ({"worst": 5.0}, "higher_is_better=False"), ({"kind": "other"}, "kind=self.name"),
        ({"key": SUCCESS}, "a key of"), ({"rates": True, "best": 2.0}, "range of 0 and 1"),
    ],
)  # fmt: skip
def test_a_metric_that_cannot_be_locked_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused, match=said):
        define_metric(Given(**fields), ASKED)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (KeyError("words"), r"hidden/given; found KeyError: 'words' \(test_reading.py, line"),
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
        values_of(define_metric(kind, ASKED), RUN)


def test_success_stands_beside_what_a_package_measures_and_a_rate_is_of_ones_and_zeros(
    packages: list[EntryPoint],
) -> None:
    packages.append(entry("given", "Given"))
    kind = kind_named("given")
    kind.value = Value(0.5, 2)  # type: ignore[attr-defined]
    found = values_of(define_metric(kind, ASKED), RUN)
    assert {key: each.value for key, each in found.items()} == {
        "hidden/given": 0.5, SUCCESS: 0.25, f"{SUCCESS}/initial": 0.25,
    }  # fmt: skip
    packages.append(entry("given", "Given"))
    kind = kind_named("given")
    kind.value, kind.rates = Value(0.5, 20), True  # type: ignore[attr-defined, misc]
    with pytest.raises(Refused, match="expected 1 or 0"):
        values_of(define_metric(kind, ASKED), RUN)


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

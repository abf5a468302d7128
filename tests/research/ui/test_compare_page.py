"""Compare: findings of all studies with their intervals, contradictions named, nothing pooled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from research.design.known_findings import KnownFinding, KnownFindings
from research.ui.pages import compare
from research.ui.site import Site, View
from tests.research.design.test_prior_findings import FOUND, known
from tests.research.ui.conftest import add_gallery_study, view_of

LOWER = known(study="t", verdict="refuted", estimate=-0.1, low=-0.2, high=-0.05, environment="arith")
ODD = known(study="odd", verdict="does not follow", estimate=None, low=None, high=None, level=None, doubt="<i>changed")
OTHER = known(study="u", variable="epochs", control=1, treatment=4, metric_name="episodes to 0.6", estimate=-300.0,
              low=-400.0, high=100.0, verdict="inconclusive")  # fmt: skip


@pytest.fixture
def findings(monkeypatch: pytest.MonkeyPatch) -> list[KnownFinding]:
    found = [FOUND, LOWER, ODD, OTHER]
    monkeypatch.setattr(
        compare, "load_findings", lambda home, log: KnownFindings(tuple(found), {"broken": "corrupt at event 3"})
    )
    return found


def values(site: Site, **query: str | tuple[str, ...]) -> Any:
    shown = {name: (value,) if isinstance(value, str) else value for name, value in query.items()}
    return compare.page(site, View(view_of().who, query=shown, address="/compare")).values


@pytest.mark.usefixtures("findings")
def test_what_does_not_follow_has_neither_bar_nor_number(site: Site) -> None:
    rows = {row["finding"].study: row for row in values(site)["rows"]}
    assert rows["odd"]["bar"] is None
    assert not any(char.isdigit() for char in rows["odd"]["effect"] + rows["odd"]["interval"])
    assert rows["s"]["bar"] is not None


@pytest.mark.usefixtures("findings")
def test_contradictions_name_each_other_and_what_they_differ_in_also_where_one_is_filtered_out(site: Site) -> None:
    shown = values(site, environment="guess", field="group_size")
    (row,) = [row for row in shown["rows"] if row["finding"].study == "s"]
    ((name, differ),) = row["against"].items()
    assert (name, differ.split(":")[0]) == ("t/1/h1", "environment")
    assert shown["contradict"] == 1


@pytest.mark.usefixtures("findings")
def test_findings_on_one_field_by_one_metric_share_an_axis(site: Site) -> None:
    bars = {row["finding"].study: row["bar"] for row in values(site)["rows"] if row["bar"]}
    assert bars["s"]["zero"] == bars["t"]["zero"] != bars["u"]["zero"]
    assert bars["s"]["ticks"] == bars["t"]["ticks"]


@pytest.mark.parametrize(("name", "value", "studies"), [
    ("field", "epochs", {"u"}), ("environment", "arith", {"t"}), ("metric", "episodes to 0.6", {"u"}),
    ("model", "none", set()), ("verdict", "does not follow", {"odd"}), ("find", "epochs", {"u"}),
])  # fmt: skip
@pytest.mark.usefixtures("findings")
def test_a_filter_leaves_what_has_its_value(site: Site, name: str, value: str, studies: set[str]) -> None:
    assert {row["finding"].study for row in values(site, **{name: value})["rows"]} == studies


@pytest.mark.usefixtures("findings")
def test_pages_of_many_findings_say_how_many_are_shown(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "ROWS", 2)
    shown = values(site)
    assert (len(shown["rows"]), shown["found"], shown["total"]) == (2, 4, 4)


@pytest.mark.usefixtures("findings")
def test_an_export_of_some_studies_names_no_others(site: Site) -> None:
    shown = compare.page(site, View(view_of().who, static=True, only=frozenset({"s", "u"}))).values
    assert {row["finding"].study for row in shown["rows"]} == {"s", "u"}
    assert (shown["contradict"], shown["total"], shown["left_out"]) == (0, 2, {})


def test_ticked_claims_stand_side_by_side_with_the_curves_of_their_runs(site: Site) -> None:
    names = [f"{add_gallery_study(site.home, site.log, name)}/1/h1" for name in
             ("learning-rate-in-guess", "ppo-epochs-in-guess")]  # fmt: skip
    shown = values(site, c=(*names, "no/such/h1"))
    assert [row["finding"].name for row in shown["rows"]] == names
    lines = shown["side_by_side"]
    assert lines["finding"] == names
    assert lines["environment"] == ["guess", "guess"]
    success, _ = shown["charts"]
    arms = set(success.legend)
    assert len(arms) == 4
    assert all(arm.startswith((names[0][:8], names[1][:8])) for arm in arms)


def test_the_page_names_studies_that_are_left_out_and_escapes_words(
    findings: list[KnownFinding], signed_in: Callable[..., TestClient]
) -> None:
    client = signed_in("viewer")
    text = client.get("/compare").text
    assert "broken" in text
    assert "&lt;i&gt;changed" in text
    assert "<i>" not in text
    assert " style=" not in text
    nothing = client.get("/compare?environment=nowhere").text
    assert "?field=group_size" in nothing
    findings.clear()
    assert client.get("/compare").status_code == 200

"""The page of runs: filters, order, curves and rows of a study, and of all that trains now."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from research.runs.files import AttemptFolder, AttemptProgress
from research.ui.curves import CurveReader
from research.ui.pages import runs
from research.ui.pages.runs import FILTERS, placed_runs, select
from research.ui.site import Site, View
from studies import StudyLog, StudyState
from studies.errors import LogCorrupt
from studies.log.event import EventType
from tests.research.factories import make_study
from tests.research.ui.conftest import add_gallery_study, view_of
from tests.research.ui.test_curves import Server
from tests.studies.synthetic import STUDY, Synthetic, design


@pytest.fixture
def made(site: Site) -> Synthetic:
    """A study of two seeds: a run is collected, one invalid, one runs and one is planned."""
    study = make_study(site.home, STUDY, site.log)
    collected, invalid, running, _ = study.begin(design(seeds=2))
    study.run(collected)
    study.launch(invalid)
    study.end(invalid, status="failed", code="server_died")
    study.append(EventType.RUN_INVALIDATED, run_id=invalid.run_id, code="server_died", reason="<b>gone</b>")
    study.launch(running)
    return study


@pytest.fixture
def server(site: Site) -> Server:
    found = Server()
    site.curves = CurveReader(site.home, found)
    return found


def asks(**query: str | tuple[str, ...]) -> View:
    shown = {name: (value,) if isinstance(value, str) else value for name, value in query.items()}
    return View(view_of().who, {"study": STUDY}, shown, address=f"/s/{STUDY}/runs")


def rows(site: Site, **query: str) -> list[Any]:
    return list(runs.page(site, asks(**query)).values["rows"])


@pytest.mark.usefixtures("server")
def test_each_run_has_a_row_with_what_became_of_it(site: Site, made: Synthetic) -> None:
    found = {row["status"]: row for row in rows(site)}
    assert set(found) == {"collected", "invalid", "running", "planned"}
    assert "→" in found["collected"]["hidden"]
    assert found["invalid"]["remark"] == "server_died: <b>gone</b>"
    assert (found["planned"]["tries"], found["planned"]["seconds"]) == (0, "")


def test_a_running_row_tells_its_progress_and_what_its_server_waits_for(
    site: Site, made: Synthetic, server: Server
) -> None:
    run = next(each for each in made.state().runs.values() if each.active is not None)
    folder = AttemptFolder(site.home.attempt(STUDY, run.run_id, 1))
    progress = AttemptProgress(stage="train", step=31, steps=40, train_success=0.52, hidden_success=0.33, seconds=9)
    folder.path.mkdir(parents=True)
    folder.progress.write_text(progress.model_dump_json())
    server.step, server.waits = 3, "2 episodes"
    (row,) = rows(site, status="running")
    assert (row["step"], row["solved"], row["remark"]) == ("31 of 40", "0.520", "2 episodes")
    assert row["hidden"].startswith("0.330")
    server.step = None
    site.curves = CurveReader(site.home, server)
    (row,) = rows(site, status="running")
    assert row["step"] == "31 of 40"
    assert "no swarm server answers" in row["remark"]


@pytest.mark.parametrize("name", FILTERS)
def test_each_filter_leaves_the_runs_that_have_its_value(made: Synthetic, name: str) -> None:
    every, of = list(placed_runs(made.state())), FILTERS[name]
    for value in set(map(of, every)):
        assert select(every, FILTERS, {name: value}) == [each for each in every if of(each) == value]
    assert select(every, FILTERS, {name: "nothing"}) == []


@pytest.mark.parametrize("sort", runs.SORTS)
def test_any_order_has_the_same_runs_and_the_same_curves(
    site: Site, made: Synthetic, server: Server, sort: str
) -> None:
    server.step = 2
    plain, ordered = (runs.page(site, asks(sort=sort)).values for sort in ("", sort))
    assert {row["id"] for row in ordered["rows"]} == {row["id"] for row in plain["rows"]}
    assert ordered["charts"] == plain["charts"]


@pytest.mark.usefixtures("server")
def test_rows_come_in_pages_whose_addresses_keep_the_filters(
    site: Site, made: Synthetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "ROWS", 3)
    first = runs.page(site, asks(phase="confirm", sort="seed")).values
    assert (len(first["rows"]), first["next"], first["before"]) == (3, "?phase=confirm&sort=seed&from=3", "")
    second = runs.page(site, asks(phase="confirm", sort="seed", **{"from": "3"})).values
    assert (len(second["rows"]), second["next"]) == (1, "")
    assert runs.page(site, asks(round="")).values["next"] == "?round=&from=3"  # of all rounds, as it was asked for
    assert len(runs.page(site, asks(**{"from": "9999999999999"})).values["rows"]) == 3


@pytest.mark.usefixtures("server")
def test_several_metrics_are_drawn_at_once_and_an_unknown_one_draws_nothing(site: Site, made: Synthetic) -> None:
    shown = runs.page(site, asks(metric=("critic/rewards/mean", "no/such", "critic/rewards/mean"))).values
    assert [len(chart.lines) for chart in shown["charts"]] == [1, 0]
    assert "critic/success/mean" in shown["names"]


def test_of_a_study_of_many_rounds_the_newest_is_shown_unless_another_is_asked_for(site: Site) -> None:
    study = add_gallery_study(site.home, site.log, "lora-rank-and-what-followed")
    view = View(view_of().who, {"study": study})
    newest = runs.page(site, view).values
    assert newest["asked"]["round"] == "2"
    assert {row["round"] for row in newest["rows"]} == {2}
    whole = runs.page(site, View(view.who, view.path, {"round": ("",)})).values
    assert {row["round"] for row in whole["rows"]} == {1, 2}
    colours = {row["arm"]: row["look"].color for row in whole["rows"]}
    design = site.state(study).rounds[0].design
    assert design is not None
    assert [colours[f"{arm.name}, round 1"] for arm in design.arms] == list(range(len(design.arms)))


def test_what_trains_now_stands_together_for_all_studies(
    site: Site, made: Synthetic, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_gallery_study(site.home, site.log, "learning-rate-in-guess")
    server.step = 4
    shown = runs.page(site, View(view_of().who, address="/runs"))
    assert [(row["study"], row["status"]) for row in shown.values["rows"]] == [(STUDY, "running")]
    assert shown.study == "*"
    assert [of.running for of, _, _ in shown.values["charts"][0].lines] == [True]


def test_the_page_is_read_by_a_viewer_with_words_escaped(
    site: Site, made: Synthetic, server: Server, signed_in: Callable[..., TestClient], tmp_path: Path
) -> None:
    client = signed_in("viewer")
    text = client.get(f"/s/{STUDY}/runs").text
    assert "&lt;b&gt;gone" in text
    assert "<b>gone" not in text
    assert " style=" not in text
    run = next(iter(made.state().runs))
    ups = [re.findall('data-up href="([^"]*)"', client.get(f"/s/{STUDY}/runs{more}").text) for more in ("", f"/{run}")]
    assert ups == [[f"/s/{STUDY}"], [f"/s/{STUDY}/runs"]]
    assert client.get("/runs").status_code == 200
    assert client.get(f"/s/{STUDY}/runs?status=nothing&sort=nothing&from=x&metric=").status_code == 200


def test_a_study_whose_log_is_being_read_says_so_and_asks_to_be_loaded_again(
    site: Site, made: Synthetic, signed_in: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, read, state = signed_in("viewer"), threading.Event(), StudyLog.state

    def wait(log: StudyLog) -> StudyState:
        assert read.wait(60)
        return state(log)

    with monkeypatch.context() as slow:
        slow.setattr(StudyLog, "state", wait)
        slow.setattr("research.ui.site.FIRST_WAIT_S", 0.01)
        for _ in range(2):
            shown = client.get(f"/s/{STUDY}/runs")
            assert (shown.status_code, shown.headers["refresh"]) == (202, "1")
            assert "being read" in shown.text
        read.set()
    shown = client.get(f"/s/{STUDY}/runs")
    assert (shown.status_code, "refresh" in shown.headers) == (200, False)
    assert client.get("/s/no-such/runs").status_code == 404


def test_what_trains_now_leaves_out_a_study_that_cannot_be_read(
    site: Site, made: Synthetic, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.listing()

    def fail(study: str) -> StudyState:
        raise LogCorrupt(study, 3, "run.planned", "changed")

    monkeypatch.setattr(site, "state", fail)
    assert runs.page(site, View(view_of().who, address="/runs")).values["rows"] == []

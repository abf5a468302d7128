from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace

import pytest
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from research.installation.home import Home
from research.runs.files import STAGES, AttemptFolder, AttemptOutcome
from research.ui.access import Role
from research.ui.episodes import EpisodePlace
from research.ui.pages import run as run_page
from research.ui.pages.run import filter_episodes, page
from research.ui.site import Site, render
from studies import RunState
from tests.research.shown.records import episode
from tests.research.ui.conftest import view_of

SignIn = Callable[[Role], TestClient]


@pytest.fixture
def run(site: Site, study: str) -> RunState:
    runs = site.state(study).every_run.values()
    return next(run for run in runs if run.collected is not None and run.spec.phase == "confirm")


def test_a_run_shows_its_tries_its_files_and_how_often_it_solved_hidden_tasks(
    site: Site, study: str, run: RunState, signed_in: SignIn
) -> None:
    html = signed_in("viewer").get(f"/s/{study}/runs/{run.run_id}").text
    after = run.measurements["hidden/success"]
    assert f"after: {round(after.value * after.n)} of {after.n} solved" in html
    stored = [(run.collected or {})[kind]["sha256"] for kind in ("snapshot", "evaluation")]
    assert [sha in html for sha in stored] == [True, True]
    assert "critic/success/mean" in html
    assert "style=" not in html


def test_of_a_run_whose_file_was_changed_no_number_of_its_plays_is_shown(site: Site, study: str, run: RunState) -> None:
    file = site.folder(study) / (run.collected or {})["evaluation"]["path"]
    file.write_bytes(file.read_bytes().replace(b"true", b"1234", 1))
    view = view_of(study=study, run=run.run_id)
    html = render(page(site, view), view)
    assert "was changed" in html
    assert "solved" not in html.split('id="plays"')[1].split("</section>")[0]


def test_a_run_whose_files_lie_in_another_installation_says_where(site: Site, study: str, run: RunState) -> None:
    shutil.rmtree(site.folder(study))
    made = page(site, view_of(study=study, run=run.run_id))
    assert str(site.home.path) in made.values["plays"]["fault"]
    assert made.values["training"]["rows"] == ()
    assert made.values["training"]["said"]


def test_a_run_that_is_not_there_is_a_404(site: Site, study: str) -> None:
    with pytest.raises(HTTPException) as refused:
        page(site, view_of(study=study, run="nobody"))
    assert refused.value.status_code == 404


def test_a_run_and_its_plays_are_commented_on_where_they_stand(
    site: Site, study: str, run: RunState, signed_in: SignIn
) -> None:
    last, at = int((run.collected or {})["evaluation"]["episodes"]), f"/s/{study}/runs/{run.run_id}"
    abouts = (f"run {run.run_id}", f"play {run.run_id}/{last}")
    for about in abouts:
        site.reviews(study).append(site.state(study), "comment", by="ann", about=about, text=f"look at {about}")
    for role, forms in (("viewer", [0, 0]), ("reviewer", [1, 1])):
        html = signed_in(role).get(at).text
        assert [f"look at {about}" in html for about in abouts] == [True, True]
        assert [html.count(f'name="about" value="{about}"') for about in abouts] == forms


def test_words_of_plays_are_escaped_and_nothing_in_them_hides(site: Site, study: str, run: RunState) -> None:
    view = view_of(study=study, run=run.run_id)
    made = page(site, view)
    rows = made.values["plays"]["rows"]
    said = next(words for _, words, _ in rows if words)[0]
    hostile = said.model_copy(update={"content": "<script>alert(1)</script>\u200b"})
    plays = {**made.values["plays"], "rows": [(rows[0][0], [hostile], "")]}
    html = render(replace(made, values={**made.values, "plays": plays}), view)
    assert ("<script>alert" in html, "\u200b" in html, "&lt;script&gt;alert(1)&lt;/script&gt;\\u200b" in html) == (
        False, False, True,
    )  # fmt: skip


def test_episodes_are_offered_before_a_server_is_started_for_them_and_listed_for_who_asks(
    home: Home, site: Site, study: str, run: RunState, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = AttemptFolder(home.attempt(study, run.run_id, 1)).server
    folder.mkdir(parents=True)
    (folder / "store.sqlite3").touch()
    listed = [episode(id=f"e-{number}", reward=float(number % 3), step=number) for number in range(120)]
    asked: list[EpisodePlace] = []
    monkeypatch.setattr(site.readers, "list", lambda place: asked.append(place) or listed)
    view = view_of(study=study, run=run.run_id)
    assert ("?episodes=1" in render(page(site, view), view), asked) == (True, [])
    view = replace(view, query={"episodes": ("1",), "order": ("worst",)})
    html = render(page(site, view), view)
    assert (f'/runs/{run.run_id}/e/e-0?order=worst"' in html, html.count("/e/e-")) == (True, run_page.ROWS)
    only = replace(view, query={"step": ("7",)})
    assert [each.id for each in filter_episodes(listed, only)] == ["e-7"]


def test_the_lines_of_a_try_are_its_stages_one_after_the_other(
    home: Home, site: Site, study: str, run: RunState
) -> None:
    folder = AttemptFolder(home.attempt(study, run.run_id, 1))
    folder.path.mkdir(parents=True)
    stages = {"boot": 2.0, "final": 1.0, "train": 3.0, "odd": 1.0}
    outcome = AttemptOutcome(status="finished", code="ok", seconds=6.0, stages=stages)
    folder.outcome.write_text(outcome.model_dump_json())
    view = view_of(study=study, run=run.run_id)
    lines = page(site, view).values["lines"]
    told = [text for _, text in lines]
    assert [lines[at][0] for at in range(len(lines))] == sorted(at for at, _ in lines)
    assert [text for text in told if text in {f"try 1: {begins}" for begins in STAGES.values()}] == [
        "try 1: its server starts", "try 1: training begins", "try 1: hidden tasks are played after training",
    ]  # fmt: skip
    folder.outcome.write_text("[]")
    assert page(site, view).values["lines"]

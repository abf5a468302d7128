from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from studies import EventType, ReportError, StudyState
from studies.records.design import NoisePlan
from studies.records.procedure import Prediction
from studies.records.runs import noise_spec
from studies.report import Report, build_report, plots
from tests.golden import assert_golden
from tests.studies.report.pages import Page, missing, pages, section
from tests.studies.synthetic import EPISODES, Synthetic, base_job, design, hypothesis

Built = tuple[StudyState, Report, Page, str]


@pytest.fixture(scope="module")
def built(finished: tuple[StudyState, Path]) -> Built:
    report = build_report(*finished)
    return finished[0], report, Page(report.html.read_text()), report.markdown.read_text()


def test_the_report_of_a_finished_study_says_it_all_in_both_pages(built: Built) -> None:
    state, _, page, markdown = built
    main, _, appendix = markdown.partition("<details>")
    assert 200 < len(main.split()) < 900
    assert_golden(main)
    for title in ("The locked design", "What was checked", "Cost", "Reproduce"):
        assert_golden(section(markdown, title))
    assert missing(markdown, page) == []
    for run in state.runs.values():
        for said in (run.run_id, str(run.spec.seed), run.collected["snapshot"]["sha256"]):
            assert said in page.text
            assert said in appendix


def test_the_page_is_one_file_that_asks_nothing_of_the_network(built: Built) -> None:
    _, report, page, _ = built
    text = report.html.read_text()
    assert all(link.startswith("#") for link in page.links)
    assert not {"script", "link", "iframe", "img"} & set(page.tags)
    assert page.tags.count("svg") == 3
    assert {*re.findall(r"https?://[^\s\"']+", text)} == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "@import" not in text
    assert "prefers-color-scheme:dark" in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    used = set(re.findall(r'xlink:href="#([^"]+)"', text)) | set(re.findall(r"url\(#([^)]+)\)", text))
    assert used <= set(ids)
    assert len(ids) == len(set(ids))


def test_figures_are_valid_files_that_take_their_colours_from_the_scheme_and_show_every_seed(built: Built) -> None:
    state, report, _, markdown = built
    drawn = {path.name: path.read_text() for path in (report.folder / "figures").iterdir()}
    assert drawn.keys() == {"predictions.svg", "before-after.svg", "learning-curves.svg"}
    for name, text in drawn.items():
        assert ElementTree.fromstring(text).tag.endswith("svg")
        assert "var(--ink" in text or "var(--arm-0" in text
        assert not re.search(r"(fill|stroke): #(?!none)", text)
        assert f"figures/{name}" in markdown
    for run in state.runs.values():
        assert f"seed {run.spec.seed}, run {run.run_id}" in drawn["learning-curves.svg"]


def test_the_same_state_and_files_give_the_same_bytes(built: Built) -> None:
    state, first, _, _ = built
    before = {path: path.read_bytes() for path in (first.markdown, first.html, *(first.folder / "figures").iterdir())}
    plots.render_cached.cache_clear()
    assert build_report(state, first.html.parent) == first
    assert all(path.read_bytes() == data for path, data in before.items())
    assert first.hashes["report.html"] == hashlib.sha256(before[first.html]).hexdigest()


def collected(s: Synthetic, count: int, arm: str = "") -> None:
    for spec in [spec for spec in s.begin() if spec.arm.startswith(arm)][:count]:
        s.run(spec)


def stopped(s: Synthetic, reason: str) -> None:
    s.append(EventType.STUDY_STOPPED, reason=reason)


def all_invalid(s: Synthetic) -> None:
    for spec in s.begin():
        s.launch(spec)
        s.end(spec, 1, "failed", "CLIENT_CRASH", "exit code 1")
        s.give_up(spec, "CLIENT_CRASH", "3 attempts failed")
    s.judge()
    s.conclude()


def with_means(s: Synthetic, control: float, treatment: float, **how: float) -> None:
    s.means = {"group_size=4": control, "group_size=16": treatment}
    s.sd = how.get("sd", s.sd)
    s.whole()


STATES: dict[str, Callable[[Synthetic], object]] = {
    "nothing yet": lambda s: s.create(),
    "stopped in planning": lambda s: (
        s.create(), s.append(EventType.HYPOTHESIS_PROPOSED, **hypothesis().model_dump(mode="json")),
        stopped(s, "by the user")),
    "no runs": lambda s: (s.create(), s.lock()),
    "planned only": lambda s: s.begin(),
    "one running": lambda s: s.launch(s.begin()[0]),
    "stopped by budget": lambda s: (collected(s, 6), s.judge(), stopped(s, "the budget of 15 min was used up")),
    "all invalid": all_invalid,
    "one arm only": lambda s: (collected(s, 5, "group_size=4"), stopped(s, "by the user")),
    "one run only": lambda s: collected(s, 1),
    "constants": lambda s: with_means(s, 0.0, 1.0, sd=0.0),
    "refuted": lambda s: with_means(s, 0.7, 0.4),
    "inconclusive": lambda s: with_means(s, 0.55, 0.55),
    "peeked": lambda s: (collected(s, 8), s.judge(), s.run(s.spec("group_size=4", s.design.seeds[4]))),
}  # fmt: skip


@pytest.mark.parametrize("name", STATES)
@pytest.mark.usefixtures("undrawn")
def test_a_report_can_be_built_from_any_state(study: Synthetic, name: str) -> None:
    STATES[name](study)
    markdown, page = pages(study)
    assert_golden(f"{markdown.partition('<details>')[0]}{section(markdown, 'Every run').partition('| Run ')[0]}")
    assert missing(markdown, page) == []
    assert "None" not in page.text
    assert "nan" not in page.text.lower().split()


@pytest.mark.usefixtures("undrawn")
def test_many_arms_and_hypotheses_are_each_answered_and_the_planner_is_named(study: Synthetic) -> None:
    claims = tuple(
        hypothesis(f"h{n}", value, prediction=Prediction(low=-0.01 * n, high=0.02 * n, probability=0.1 * n))
        for n, value in enumerate((2, 8, 16, 32, 64, 128), start=1)
    )
    study.whole(design(claims, seeds=2), planner={"name": "llm", "model": "some-model-32b"})
    _, page = pages(study)
    assert "by a language model (some-model-32b)." in page.text
    assert all(f"{claim.id}: group_size {claim.treatment} against 4" in page.text for claim in claims)
    assert "6 hypotheses were" in page.text


def outside_code(markdown: str) -> str:
    return re.sub(r"(?ms)^(`{3,})$.*?^\1$", "", markdown)


@pytest.mark.parametrize(
    "topic",
    [
        "<script>alert(1)</script> & \"quotes\" 'n' `ticks` | pipes *stars* [x](y) $a_b$ {{ 7*7 }} {% x %} <!-- -->",
        "é世界 🧪 \u202eright to left\u202c \u0000 tab\tline\nbreak ```fence``` # heading",
        "why? " * 2000,
        "w" * 5000,
        "   ",
    ],
    ids=["markup", "unicode", "long", "one long word", "blank"],
)
def test_a_topic_is_shown_as_text_whatever_it_holds(study: Synthetic, topic: str) -> None:
    study.topic = topic
    claim = hypothesis(statement=(topic.strip() or "x")[:500], mechanism=topic[:1000])
    report = build_report(study.whole(design((claim,), seeds=2)), study.folder)
    page, markdown = Page(report.html.read_text()), outside_code(report.markdown.read_text())
    assert "script" not in page.tags
    assert "49" not in page.text.split("Verdicts and predictions")[0].split("Runs that count")[0].replace(topic, "")
    assert " ".join(topic.split()) in page.text
    assert "<script>" not in markdown
    assert "\n# heading" not in markdown


@pytest.mark.usefixtures("undrawn")
def test_what_refuses_the_build_leaves_what_is_there_and_a_page_that_was_edited_is_copied_once(
    study: Synthetic,
) -> None:
    state = study.whole()
    build_report(state, study.folder)
    (study.folder / "report.md").write_text("mine")
    shutil.rmtree(study.folder / "figures")
    (study.folder / "figures").write_text("a file where a folder must be")
    for _ in range(2):
        with pytest.raises(ReportError, match=r"File exists\. Free space"):
            build_report(state, study.folder)
    run_id, run = next(iter(state.runs.items()))
    with (study.folder / run.collected["snapshot"]["path"]).open("ab") as file:
        file.write(b" ")
    with pytest.raises(ReportError, match=rf"run {run_id}: .*snapshot.json .* sha256"):
        build_report(state, study.folder)
    assert (study.folder / "report.md").read_text() == "mine"
    assert [name for name in os.listdir(study.folder) if ".kept" in name] == ["report.kept-1.md"]
    assert not [name for name in os.listdir(study.folder) if name.startswith(".report")]


def test_a_study_that_ended_before_its_design_shows_what_it_did_measure_and_how_training_went(
    study: Synthetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = study._snapshot

    def logged(*arguments: Any) -> dict[str, Any]:
        value = snapshot(*arguments)
        for row in value["history"]:
            row["metrics"] |= {"actor/entropy": 1 / row["step"], "actor/grad_norm": 1.0, "response_length/mean": 6.0}
        return value

    monkeypatch.setattr(study, "_snapshot", logged)
    study.create()
    plan = NoisePlan(
        environment="guess", job=base_job(), seeds=tuple(range(8)), metric_key="hidden/success", episodes=EPISODES
    )
    study.append(EventType.NOISE_PLANNED, plan=plan.model_dump(mode="json"), hash=plan.hash())
    study.append(EventType.MODEL_PREPARED, sha256="ab" * 32, seconds=6.4, phase="noise")
    specs = [noise_spec(study.study, plan, plan.hash(), seed) for seed in plan.seeds]
    for spec in specs:
        study.put(spec)
    study.run_all(specs)
    stopped(study, "by the user")
    report = build_report(study.state(), study.folder)
    drawn, markdown = (
        {path.stem: path.read_text() for path in (report.folder / "figures").iterdir()},
        report.markdown.read_text(),
    )
    assert drawn.keys() == {"before-after", "learning-curves", "training"}
    assert "No run has" not in markdown
    assert f"{len(specs)} runs gave" in markdown
    assert all(run in drawn["before-after"] for run in study.state().runs)
    assert all(name in drawn["training"] for name in ("actor/entropy", "actor/grad_norm", "response_length/mean"))
    assert "actor/ppo_kl" not in drawn["training"]
    assert "How training went" in markdown


@pytest.mark.parametrize("words", ["<script>alert(1)</script></details>", "```\n# heading\n```", "[x](http://y) *b*"])
@pytest.mark.usefixtures("undrawn")
def test_plays_before_and_after_are_quoted_and_never_markup(
    study: Synthetic, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = study._evaluation

    def with_plays(*arguments: Any) -> dict[str, Any]:
        value = evaluation(*arguments)
        for part in ("initial", "final"):
            said = [{"role": "user", "content": "Guess."}, {"role": "assistant", "content": f"{part} {words}"}]
            value[part]["transcripts"] = [{"task_id": "t-0", "messages": said}]
        return value

    monkeypatch.setattr(study, "_evaluation", with_plays)
    report = build_report(study.whole(), study.folder)
    page, markdown = Page(report.html.read_text()), report.markdown.read_text()
    for part in ("initial", "final"):
        assert f"{part} {' '.join(words.split())}" in page.text
        assert f"{part} {words}" in markdown
    assert page.text.index("t-0, before training") < page.text.index("t-0, after training")
    assert "script" not in page.tags
    outside = outside_code(markdown)
    assert outside.count("</details>") == outside.count("<details>")
    assert "script" not in outside
    assert "\n# heading" not in outside

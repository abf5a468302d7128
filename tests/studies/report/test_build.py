from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from studies import EventType, ReportError, StudyState
from studies.records.design_parts import Prediction
from studies.records.noise_plan import NoisePlan
from studies.records.run_specs import noise_hash, noise_spec
from studies.report import Report, build_report, draw_metric
from studies.report.build import escape_markdown, fenced
from studies.report.figures import drawing
from tests.studies.synthetic import EPISODES, TOPIC, Synthetic, base_job, design, hypothesis

VOID = {"meta", "br", "hr", "img", "input", "link", "path", "use"}


class Page(HTMLParser):
    """Reads a page strictly: every element is closed in order; collects tags, links and visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).replace("\N{NO-BREAK SPACE}", " ").split())


def page(report: Report) -> Page:
    return Page(report.html.read_text())


@pytest.fixture
def study(tmp_path: Path) -> Synthetic:
    return Synthetic(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyState, Report]:
    """A finished study and its report, for tests that only read."""
    study = Synthetic(tmp_path_factory.mktemp("finished"))
    state = study.whole()
    return state, build_report(state, study.folder)


def test_the_report_of_a_finished_study_says_it_all(finished: tuple[StudyState, Report]) -> None:
    state, report = finished
    read, markdown = page(report), report.markdown.read_text()
    verdict = state.verdicts[0]
    sentence = (
        f"with group_size = 16, runs solved {verdict.mean_treatment:.3f} of the hidden tasks, against "
        f"{verdict.mean_control:.3f} with 4 (difference {verdict.estimate:+.3f}, 95 % interval {verdict.low:+.3f} to "
        f"{verdict.high:+.3f}, n = 5 + 5)."
    )
    assert TOPIC in read.text
    assert f"Supported: {sentence}" in read.text
    assert f"- **Verdict:** Supported: {escape_markdown(sentence)}" in markdown
    for said in ("Planned by the built-in rules", "10 planned runs = 10 collected + 0 invalid + 0 not finished",
                 "written before the data", f"ajet research '{TOPIC}' --budget 15m", state.head_hash,
                 f"{state.event_count} events", "The design was locked as event 4", "1 verdict computed again",
                 "20 files matched", state.design_hash or "?", "Few runs per arm", "torch"):  # fmt: skip
        assert said in read.text
        assert escape_markdown(said) in markdown or said in markdown
    for run in state.runs.values():
        assert run.collected is not None
        for text in (read.text, markdown):
            assert run.run_id in text
            assert str(run.spec.seed) in text
            assert run.collected["snapshot"]["sha256"] in text
    assert len(report.figures) == 3


def test_the_page_is_one_file_that_asks_nothing_of_the_network(finished: tuple[StudyState, Report]) -> None:
    _, report = finished
    read, text = page(report), report.html.read_text()
    assert all(link.startswith("#") for link in read.links)
    assert not {"script", "link", "iframe", "img"} & set(read.tags)
    assert read.tags.count("svg") == 6
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert "@import" not in text
    assert "prefers-color-scheme:dark" in text


def test_every_figure_is_a_valid_file_that_takes_its_colours_from_the_scheme(
    finished: tuple[StudyState, Report],
) -> None:
    _, report = finished
    assert {path.name for path in report.figures} == {"predictions.svg", "before-after.svg", "learning-curves.svg"}
    for path in report.figures:
        root = ElementTree.parse(path).getroot()
        assert root.tag.endswith("svg")
        text = path.read_text()
        assert "var(--ink" in text or "var(--arm-0" in text
        assert not re.search(r"(fill|stroke): #(?!none)", text)
        assert f"figures/{path.name}" in report.markdown.read_text()


def test_every_seed_is_visible_in_the_curves(finished: tuple[StudyState, Report]) -> None:
    state, report = finished
    curves = next(path for path in report.figures if path.stem == "learning-curves").read_text()
    for run in state.runs.values():
        assert f"seed {run.spec.seed}, run {run.run_id}" in curves


def test_references_inside_figures_are_unique_on_the_page_and_all_resolve(finished: tuple[StudyState, Report]) -> None:
    text = finished[1].html.read_text()
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'xlink:href="#([^"]+)"', text)) | set(re.findall(r"url\(#([^)]+)\)", text))
    assert used <= set(ids)


def test_the_same_state_and_files_give_the_same_bytes(study: Synthetic) -> None:
    state = study.whole()
    first = build_report(state, study.folder)
    before = {path: path.read_bytes() for path in (first.markdown, first.html, *first.figures)}
    drawing.drawn_once.cache_clear()
    second = build_report(state, study.folder)
    assert second == first
    assert all(path.read_bytes() == data for path, data in before.items())
    assert first.html_sha256 == hashlib.sha256(before[first.html]).hexdigest()


def nothing(study: Synthetic) -> None:
    study.create()


def stopped_in_planning(study: Synthetic) -> None:
    study.create()
    study.append(EventType.HYPOTHESIS_PROPOSED, **hypothesis().model_dump(mode="json"))
    study.append(EventType.STUDY_STOPPED, reason="by the user")


def no_runs(study: Synthetic) -> None:
    study.create()
    study.lock()


def planned_only(study: Synthetic) -> None:
    no_runs(study)
    study.plan()


def one_running(study: Synthetic) -> None:
    no_runs(study)
    study.launch(study.plan()[0])


def stopped_by_budget(study: Synthetic) -> None:
    no_runs(study)
    for spec in study.plan()[:6]:
        study.run(spec)
    study.judge()
    study.append(EventType.STUDY_STOPPED, reason="the budget of 15 min was used up")


def all_invalid(study: Synthetic) -> None:
    no_runs(study)
    for spec in study.plan():
        study.launch(spec)
        study.end(spec, 1, "failed", "CLIENT_CRASH", "exit code 1")
        study.append(EventType.RUN_INVALIDATED, run_id=spec.run_id, code="CLIENT_CRASH", reason="3 attempts failed")
    study.judge()
    study.conclude()


def one_arm_only(study: Synthetic) -> None:
    no_runs(study)
    for spec in study.plan():
        if spec.arm == "group_size=4":
            study.run(spec)
    study.append(EventType.STUDY_STOPPED, reason="by the user")


def one_run_only(study: Synthetic) -> None:
    no_runs(study)
    study.run(study.plan()[0])


def constants(study: Synthetic) -> None:
    study.means, study.sd = {"group_size=4": 0.0, "group_size=16": 1.0}, 0.0
    study.whole()


def refuted(study: Synthetic) -> None:
    study.means = {"group_size=4": 0.7, "group_size=16": 0.4}
    study.whole()


def inconclusive(study: Synthetic) -> None:
    study.means = {"group_size=4": 0.55, "group_size=16": 0.55}
    study.whole()


def peeked(study: Synthetic) -> None:
    no_runs(study)
    specs = study.plan()
    for spec in specs[:8]:
        study.run(spec)
    study.judge()
    study.run(specs[8])


STATES: dict[str, tuple[Callable[[Synthetic], None], tuple[str, ...]]] = {
    "nothing yet": (nothing, ("No verdict: no design is locked yet", "Partial report", "No run was planned.")),
    "stopped in planning": (stopped_in_planning, ("before a design was locked (by the user)", "group size of 16")),
    "no runs": (no_runs, ("No verdict: the study is not finished", "no run has been launched", "No run was planned.")),
    "planned only": (planned_only, ("10 planned runs = 0 collected + 0 invalid + 10 not finished", "not launched")),
    "one running": (one_running, ("still running", "They took 1 attempt;")),
    "stopped by budget": (
        stopped_by_budget,
        ("Partial report: the study is stopped (the budget of 15 min was used up)", "10 planned runs = 6 collected",
         "The study is partial: 6 of 10", "n = 3 + 3"),
    ),
    "all invalid": (
        all_invalid,
        ("Invalid: The test needs at least 2 valid runs", "0 collected + 10 invalid + 0 not finished",
         "1 failed (CLIENT", "No run has been collected."),
    ),
    "one arm only": (one_arm_only, ("0 valid runs with group_size = 16 and 5 valid runs with group_size = 4",)),
    "one run only": (one_run_only, ("1 valid run with group_size = 4",)),
    "constants": (constants, ("Invalid: No run differs from its arm", "no interval")),
    "refuted": (refuted, ("Refuted: the difference lies on the other side of zero.", "against the prediction")),
    "inconclusive": (inconclusive, ("Inconclusive: no evidence of an increase. With group_size = 16", "holds 0")),
    "peeked": (peeked, ("1 earlier verdict came before the data were complete", "No verdict")),
}  # fmt: skip


@pytest.mark.parametrize("name", STATES)
def test_a_report_can_be_built_from_any_state(study: Synthetic, name: str) -> None:
    write, expected = STATES[name]
    write(study)
    report = build_report(study.state(), study.folder)
    read, markdown = page(report), report.markdown.read_text()
    for said in expected:
        assert said in read.text or said in svg_text(report), said
        assert escape_markdown(said) in markdown.replace("**", "") or said in svg_text(report), said
    assert "None" not in read.text
    assert "nan" not in read.text.lower().split()


def svg_text(report: Report) -> str:
    return " ".join(" ".join(ElementTree.parse(path).getroot().itertext()) for path in report.figures)


def test_many_arms_and_hypotheses_are_each_answered(tmp_path: Path) -> None:
    claims = tuple(
        hypothesis(f"h{n}", value, prediction=Prediction(low=-0.01 * n, high=0.02 * n, probability=0.1 * n))
        for n, value in enumerate((2, 8, 16, 32, 64, 128), start=1)
    )
    study = Synthetic(tmp_path)
    state = study.whole(design(claims, seeds=2))
    report = build_report(state, tmp_path)
    read = page(report)
    for claim in claims:
        assert f"{claim.id}: group_size {claim.treatment} against 4" in read.text
    assert "6 hypotheses were tested without correction" in read.text


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
def test_a_topic_is_shown_as_text_whatever_it_holds(tmp_path: Path, topic: str) -> None:
    study = Synthetic(tmp_path, topic=topic)
    claim = hypothesis(statement=(topic.strip() or "x")[:500], mechanism=topic[:1000])
    report = build_report(study.whole(design((claim,), seeds=2)), tmp_path)
    read, markdown = page(report), report.markdown.read_text()
    assert "script" not in read.tags
    assert "49" not in read.text.split("Verdicts and predictions")[0].split("Runs that count")[0].replace(topic, "")
    assert " ".join(topic.split()) in read.text.replace(" \x00", " \x00")
    outside_code = re.sub(r"(?ms)^(`{3,})$.*?^\1$", "", markdown)
    assert "<script>" not in outside_code
    assert "\n# heading" not in outside_code


def test_the_planner_that_planned_is_named(tmp_path: Path) -> None:
    study = Synthetic(tmp_path)
    study.create({"name": "llm", "model": "some-model-32b"})
    assert "Planned by a language model (some-model-32b)." in page(build_report(study.state(), tmp_path)).text


def a_run(state: StudyState) -> tuple[str, str]:
    run = next(iter(state.runs.values()))
    assert run.collected is not None
    return run.run_id, run.collected["snapshot"]["path"]


def test_a_changed_snapshot_refuses_the_build_and_leaves_the_last_report_alone(study: Synthetic) -> None:
    state = study.whole()
    before = build_report(state, study.folder).html.read_bytes()
    run_id, path = a_run(state)
    with (study.folder / path).open("ab") as file:
        file.write(b" ")
    with pytest.raises(ReportError, match=rf"snapshot of run {run_id} .* is not what was collected: expected sha256"):
        build_report(state, study.folder)
    assert (study.folder / "report.html").read_bytes() == before


def test_a_folder_that_cannot_be_written_is_one_clear_line(study: Synthetic) -> None:
    state = study.whole()
    (study.folder / "figures").write_text("a file where a folder must be")
    with pytest.raises(ReportError, match=r"could not write the report into .*: File exists\. Free space"):
        build_report(state, study.folder)
    assert not [name for name in os.listdir(study.folder) if name.startswith(".report")]


def test_a_page_that_was_edited_stays_where_the_new_one_cannot_be_written_and_is_copied_once(study: Synthetic) -> None:
    state = study.whole()
    (study.folder / "report.md").write_text("mine")
    (study.folder / "figures").write_text("a file where a folder must be")
    for _ in range(2):
        with pytest.raises(ReportError):
            build_report(state, study.folder)
    assert (study.folder / "report.md").read_text() == "mine"
    assert [name for name in os.listdir(study.folder) if ".kept" in name] == ["report.kept-1.md"]


def test_a_fence_is_longer_than_any_in_its_text() -> None:
    assert fenced("a ``` b").splitlines()[0] == "````"
    assert fenced("plain") == "```\nplain\n```"


def noise_only(study: Synthetic) -> int:
    """Write a study of which eight A/A runs were collected before it was stopped; return how many."""
    study.create()
    plan = NoisePlan(environment="guess", job=base_job(), seeds=tuple(range(8)), metric_key="hidden/success",
                     episodes=EPISODES)  # fmt: skip
    study.append(EventType.NOISE_PLANNED, plan=plan.model_dump(mode="json"), hash=noise_hash(plan))
    study.append(EventType.MODEL_PREPARED, sha256="ab" * 32, seconds=6.4, phase="noise")
    specs = [noise_spec(study.study, plan, noise_hash(plan), seed) for seed in plan.seeds]
    for spec in specs:
        study.append(EventType.RUN_PLANNED, run_id=spec.run_id, spec=spec.model_dump(mode="json"))
    for spec in specs:
        study.run(spec)
    study.append(EventType.STUDY_STOPPED, reason="by the user")
    return len(specs)


def test_a_study_that_ended_before_its_design_shows_what_it_did_measure(study: Synthetic) -> None:
    runs = noise_only(study)
    report = build_report(study.state(), study.folder)
    assert {path.stem for path in report.figures} >= {"before-after", "learning-curves"}
    markdown = report.markdown.read_text()
    assert "No run has been collected" not in markdown
    assert f"{runs} runs gave" in markdown
    shown = (study.folder / "figures" / "before-after.svg").read_text()
    assert all(run in shown for run in study.state().runs)


def with_plays(study: Synthetic, words: str) -> None:
    """Have the evaluations of a study keep a play of one task."""
    evaluation = study._evaluation

    def kept(*arguments: Any) -> dict[str, Any]:
        value = evaluation(*arguments)
        for part in ("initial", "final"):
            said = [{"role": "user", "content": "Guess."}, {"role": "assistant", "content": f"{part} {words}"}]
            value[part]["transcripts"] = [{"task_id": "t-0", "messages": said}]
        return value

    study._evaluation = kept  # type: ignore[method-assign]


@pytest.mark.parametrize("words", ["<script>alert(1)</script></details>", "```\n# heading\n```", "[x](http://y) *b*"])
def test_plays_before_and_after_are_quoted_and_never_markup(study: Synthetic, words: str) -> None:
    with_plays(study, words)
    report = build_report(study.whole(), study.folder)
    read, markdown = page(report), report.markdown.read_text()
    for part in ("initial", "final"):
        assert f"{part} {' '.join(words.split())}" in read.text
        assert f"{part} {words}" in markdown
    assert read.text.index("t-0, before training") < read.text.index("t-0, after training")
    assert "script" not in read.tags
    outside_code = re.sub(r"(?ms)^(`{3,})$.*?^\1$", "", markdown)
    assert outside_code.count("</details>") == outside_code.count("<details>")
    assert "script" not in outside_code
    assert "\n# heading" not in outside_code


def test_any_logged_metric_can_be_drawn(study: Synthetic) -> None:
    state = study.whole()
    svg, png = draw_metric(state, study.folder, "critic/rewards/mean")
    assert (svg.name, png.name) == ("critic-rewards-mean.svg", "critic-rewards-mean.png")
    assert all(run in svg.read_text() for run in state.runs)
    assert png.read_bytes().startswith(b"\x89PNG")


def test_a_metric_that_nobody_logged_is_one_line_with_the_known_ones(study: Synthetic) -> None:
    with pytest.raises(ReportError) as refused:
        draw_metric(study.whole(), study.folder, "actor/entrpy")
    assert str(refused.value).count("\n") == 0
    assert "'actor/entrpy'" in str(refused.value)
    assert "critic/rewards/mean, critic/success/mean" in str(refused.value)
    assert not (study.folder / "figures").exists()


def test_what_tells_how_training_went_is_drawn_where_it_was_logged(study: Synthetic) -> None:
    snapshot = study._snapshot

    def logged(*arguments: Any) -> dict[str, Any]:
        value = snapshot(*arguments)
        for row in value["history"]:
            row["metrics"] |= {"actor/entropy": 1 / row["step"], "actor/grad_norm": 1.0, "response_length/mean": 6.0}
        return value

    study._snapshot = logged  # type: ignore[method-assign]
    report = build_report(study.whole(), study.folder)
    drawn = (study.folder / "figures" / "training.svg").read_text()
    assert all(name in drawn for name in ("actor/entropy", "actor/grad_norm", "response_length/mean"))
    assert "actor/ppo_kl" not in drawn
    assert "How training went" in page(report).text

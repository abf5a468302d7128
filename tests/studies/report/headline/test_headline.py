"""The first lines of a report: asked, tested, verdict, in practice, ask next."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from studies import EventType, StudyState
from studies.records.design import Arm, Design
from studies.records.design_parts import Promise
from studies.records.verdict import CollapseRate, Verdict
from studies.report import build_report
from studies.report.headline.headline import answer_line, headline
from studies.report.headline.practice import in_practice
from studies.report.parts.deciding_interval import deciding_interval
from studies.report.parts.wording import span
from studies.verdicts.judge import judge_hypothesis
from tests.studies.synthetic import Synthetic, coded_design, design, hypothesis


def promised(seeds: int = 5, **changes: Any) -> Design:
    return design(seeds=seeds, promise=Promise(power=0.8, effect=0.05), equivalence_margin=0.05, **changes)


def judged(study: Synthetic, chosen: Design) -> StudyState:
    """Write a study that is judged by the rule of its design, and return its state."""
    study.create()
    study.lock(chosen)
    for spec in study.plan():
        study.run(spec)
    for claim in chosen.hypotheses:
        verdict = judge_hypothesis(study.state(), claim.id, look=1)
        study.append(EventType.VERDICT_COMPUTED, **verdict.model_dump(mode="json"))
    return study.conclude()


def with_means(folder: Path, control: float, treatment: float, sd: float = 0.03) -> Synthetic:
    return Synthetic(folder, means={"group_size=4": control, "group_size=16": treatment}, sd=sd)


CASES = {
    "supported": ((0.52, 0.66, 0.03), 5, "prefer group_size = 16 to group_size = 4", "group_size 16 vs 64 on guess"),
    "refuted": ((0.66, 0.52, 0.03), 5, "prefer group_size = 4 to group_size = 16", "group_size 16 vs 4 on guess"),
    "equivalent": ((0.55, 0.55, 0.01), 8, "choose by cost", "group_size 4 vs 64 on guess"),
    "inconclusive": ((0.55, 0.57, 0.05), 5, "do not read it as no difference", "group_size 4 vs 16 on guess"),
}


@pytest.mark.parametrize("verdict", CASES)
def test_a_verdict_says_what_to_do_and_what_to_ask_next(tmp_path: Path, verdict: str) -> None:
    (control, treatment, sd), seeds, practice, topic = CASES[verdict]
    state = judged(with_means(tmp_path, control, treatment, sd), promised(seeds))
    head = headline(state)
    (answer,) = head.answers
    assert answer.verdict == verdict
    assert practice in answer.practice
    assert shlex.split(head.next.command)[:3] == ["ajet", "research", f"{topic} with 40 training steps"]
    assert "--effect 0.05" in head.next.command


@pytest.mark.parametrize("verdict", CASES)
def test_one_interval_at_one_level_stands_in_the_headline(tmp_path: Path, verdict: str) -> None:
    means, seeds, _, _ = CASES[verdict]
    state = judged(with_means(tmp_path, *means), promised(seeds))
    (answer,) = headline(state).answers
    interval = deciding_interval(promised(seeds), state.verdicts[0])
    assert interval is not None
    assert interval.level == (0.9 if verdict == "equivalent" else 0.95)
    assert f"{interval.level * 100:g} % interval {span(interval.low, interval.high)}" in answer.sentence
    assert answer.sentence.count(" % interval") == 1


def test_an_inconclusive_study_says_what_it_could_have_seen_and_asks_for_the_seeds_that_see_it(tmp_path: Path) -> None:
    head = headline(judged(with_means(tmp_path, 0.55, 0.57, 0.05), promised()))
    said = re.search(r"about (0\.\d+) or more .* one of 0\.050 takes (\d+) seeds of each arm", head.answers[0].practice)
    assert said is not None
    assert float(said[1]) > 0.05
    seeds = int(said[2])
    assert seeds > 5
    minutes = int(head.next.command.rpartition(" ")[2].removesuffix("m"))
    assert minutes == min(8 * 15, -(-15 * seeds // 5))


def test_arms_that_trained_unequally_are_named_in_the_verdict(tmp_path: Path) -> None:
    claim = hypothesis(variable="steps", control=10, treatment=40)
    arms = tuple(Arm(name=f"steps={value}", overrides={"steps": value}) for value in (10, 40))
    study = Synthetic(tmp_path, means={"steps=10": 0.5, "steps=40": 0.6})
    (answer,) = headline(judged(study, design((claim,), arms=arms, control_arm="steps=10"))).answers
    assert "The arms differ in training episodes: 1,280 with steps=10, 5,120 with steps=40." in answer.sentence
    assert "part of which may come from the unequal training" in answer.practice


def test_what_of_a_topic_is_not_tested_stands_beneath_what_is(tmp_path: Path) -> None:
    study = Synthetic(tmp_path)
    study.create()
    left = '"on a large model": models are not varied'
    study.append(
        EventType.PLANNER_ACTED, action="propose", tries=1, tokens={}, rejected=[], note="", not_tested=[left]
    )  # fmt: skip
    study.lock()
    report = build_report(study.state(), tmp_path)
    markdown = report.markdown.read_text()
    assert markdown.index("**Tested:**") < markdown.index("**Not tested:**") < markdown.index("**Verdict:**")
    assert left in headline(study.state()).question.not_tested


def test_the_five_lines_come_in_order_and_before_all_else(tmp_path: Path) -> None:
    state = judged(Synthetic(tmp_path), promised())
    markdown = build_report(state, tmp_path).markdown.read_text()
    labels = re.findall(r"^- \*\*(.+?):\*\*", markdown.partition("\n## ")[0], flags=re.MULTILINE)
    assert labels == ["Asked", "Tested", "Verdict", "In practice", "Ask next"]


def test_a_lock_that_was_edited_after_the_verdict_is_said_first(tmp_path: Path) -> None:
    study = Synthetic(tmp_path)
    state = judged(study, promised())
    error = "the lock design.lock was changed: expected the sha256 aa of the log, found bb"
    head = headline(state, error)
    assert head.warnings == (
        "The lock design.lock was changed: expected the sha256 aa of the log, found bb. No verdict below can be relied "
        "on until the file is restored.",
    )
    assert headline(state).warnings == ()


def test_runs_whose_files_were_spoilt_are_said_first(tmp_path: Path) -> None:
    study = Synthetic(tmp_path)
    study.create()
    study.lock()
    spec = study.plan()[0]
    study.run(spec)
    study.append(EventType.RUN_INVALIDATED, run_id=spec.run_id, code="evidence_changed", reason="changed")
    markdown = build_report(study.state(), tmp_path).markdown.read_text()
    warned = f"Files of 1 run were changed or lost after they were collected: {spec.run_id}."
    assert markdown.index(warned) < markdown.index("**Asked:**")


@pytest.mark.parametrize(
    ("reason", "command"),
    [
        ("by the user", "ajet study resume s-synthetic"),
        (
            "budget: 15 min are used up",
            'ajet study amend s-synthetic --budget 30m --reason "more time" && ajet study resume s-synthetic',
        ),
    ],
)
def test_a_study_that_was_stopped_says_how_it_goes_on(tmp_path: Path, reason: str, command: str) -> None:
    study = Synthetic(tmp_path)
    study.create()
    study.append(EventType.STUDY_STOPPED, reason=reason)
    assert headline(study.state()).next.command == command


def test_values_that_were_tried_are_not_asked_next(tmp_path: Path) -> None:
    claims = (hypothesis("h1", 16), hypothesis("h2", 64))
    means = {"group_size=4": 0.5, "group_size=16": 0.6, "group_size=64": 0.61}
    head = headline(judged(Synthetic(tmp_path, means=means), design(claims)))
    assert "group_size 4 vs 16 on guess" in head.next.command


def test_a_question_that_words_cannot_ask_again_is_asked_by_the_studys_own_command(tmp_path: Path) -> None:
    study = Synthetic(tmp_path, means={"reward=built-in": 0.5, "reward=dense": 0.6})
    head = headline(judged(study, coded_design()))
    assert shlex.split(head.next.command) == ["ajet", "research", study.topic, "--budget", "15m"]


def test_several_hypotheses_have_an_answer_each(tmp_path: Path) -> None:
    claims = (hypothesis("h1", 16), hypothesis("h2", 64))
    head = headline(judged(Synthetic(tmp_path), design(claims)))
    assert [answer_line(answer, many=True)[:4] for answer in head.answers] == ["h1: ", "h2: "]


def test_the_main_part_of_a_two_arm_report_has_under_900_words(tmp_path: Path) -> None:
    markdown = build_report(judged(Synthetic(tmp_path), promised()), tmp_path).markdown.read_text()
    assert 200 < len(markdown.partition("<details>")[0].split()) < 900


def test_what_is_asked_next_keeps_equal_episodes_and_the_aim_to_see_no_difference(tmp_path: Path) -> None:
    (control, treatment, sd), seeds, _, _ = CASES["inconclusive"]
    state = judged(with_means(tmp_path, control, treatment, sd), promised(seeds))
    chosen = state.design
    assert chosen is not None

    def asked_next(**changes: str) -> str:
        claims = tuple(claim.model_copy(update=changes) for claim in chosen.hypotheses)
        changed = replace(state, design=chosen.model_copy(update={"hypotheses": claims}))
        return shlex.split(headline(changed).next.command)[2]

    plain = asked_next()
    assert asked_next(matched="episodes") == f"{plain} at the same number of episodes"
    assert asked_next(sought="equivalence") == state.topic


def test_too_few_trainings_that_did_not_collapse_are_told_in_practice() -> None:
    said = "A mean is judged from 3 trainings of each arm that did not collapse; found 4 of 4 and 2 of 4."
    rates = tuple(CollapseRate(arm=name, count=n, of=4, low=0, high=1, upper=0.9) for name, n in (("a", 0), ("b", 2)))
    verdict = Verdict.model_construct(verdict="inconclusive", reason=said, low=None, collapses=rates, exploratory=False)
    told = in_practice(None, None, None, verdict)
    assert told == f"do not read it as no difference: a{said[1:]}"

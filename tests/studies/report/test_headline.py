from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from studies import EventType, StudyState
from studies.records.design import Arm, Design
from studies.records.procedure import CollapseRule, PowerTarget
from studies.records.verdict import CollapseRate, Verdict
from studies.report.claims import rules
from studies.report.next_question import in_practice, list_next_questions
from studies.report.summary import headline
from studies.report.wording import span
from studies.verdicts.wording import deciding_interval
from tests.golden import assert_golden
from tests.studies.report.pages import missing, pages, section
from tests.studies.synthetic import Synthetic, coded_design, design, hypothesis

pytestmark = pytest.mark.usefixtures("undrawn")


def promised(seeds: int = 5, **changes: Any) -> Design:
    given = {"promise": PowerTarget(power=0.8, effect=0.05), "equivalence_margin": 0.05}
    return design(seeds=seeds, **(given | changes))


def judged(study: Synthetic, chosen: Design) -> StudyState:
    return study.whole(chosen)


def with_means(folder: Path, control: float, treatment: float, sd: float = 0.03) -> Synthetic:
    return Synthetic(folder, means={"group_size=4": control, "group_size=16": treatment}, sd=sd)


CASES = {
    "supported": ((0.52, 0.66, 0.03), 5, "group_size 16 vs 64 on guess"),
    "refuted": ((0.66, 0.52, 0.03), 5, "group_size 16 vs 4 on guess"),
    "equivalent": ((0.55, 0.55, 0.01), 8, "group_size 4 vs 64 on guess"),
    "inconclusive": ((0.55, 0.57, 0.05), 5, "group_size 4 vs 16 on guess"),
}


@pytest.mark.parametrize("verdict", CASES)
def test_a_verdict_says_what_to_do_and_what_to_ask_next_with_one_interval_at_one_level(
    tmp_path: Path, verdict: str
) -> None:
    means, seeds, topic = CASES[verdict]
    state = judged(with_means(tmp_path, *means), promised(seeds))
    head = headline(state)
    (answer,) = head.answers
    assert answer.verdict == verdict
    assert_golden(f"{answer.sentence}\n{answer.practice}")
    asked = ["ajet", "research", f"{topic} with 40 training steps"]
    assert shlex.split(list_next_questions(state)[0].command)[:3] == asked
    assert "--effect 0.05" in head.next.command
    interval = deciding_interval(promised(seeds), state.verdicts[0])
    assert interval.level == (0.9 if verdict == "equivalent" else 0.95)
    assert f"{interval.level * 100:g} % interval {span(interval.low, interval.high)}" in answer.sentence
    assert answer.sentence.count(" % interval") == 1


def test_an_inconclusive_study_says_what_it_could_have_seen_and_asks_for_the_seeds_that_see_it(tmp_path: Path) -> None:
    head = headline(judged(with_means(tmp_path, 0.55, 0.57, 0.05), promised()))
    said = re.search(r"about (0\.\d+) or more .* 0\.050 takes (\d+) seeds", head.answers[0].practice)
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
    assert_golden(f"{answer.sentence}\n{answer.practice}")


def test_what_of_a_topic_is_not_tested_stands_beneath_what_is(study: Synthetic) -> None:
    study.create()
    left = '"on a large model": models are not varied'
    study.append(
        EventType.PLANNER_ACTED, action="propose", tries=1, tokens={}, rejected=[], note="", not_tested=[left]
    )  # fmt: skip
    study.lock()
    markdown, _ = pages(study)
    assert markdown.index("**Tested:**") < markdown.index("**Not tested:**") < markdown.index("**Verdict:**")
    assert left in headline(study.state()).question.not_tested
    labels = re.findall(r"^- \*\*(.+?):\*\*", markdown.partition("\n## ")[0], flags=re.MULTILINE)
    assert labels == ["Asked", "Tested", "Not tested", "Verdict", "In practice", "Ask next"]


def test_what_was_changed_after_it_was_fixed_is_said_first(study: Synthetic) -> None:
    spec = study.begin()[0]
    study.run(spec)
    assert headline(study.state()).warnings == ()
    study.give_up(spec, "evidence_changed")
    edited = headline(study.state(), "the lock was changed: expected the sha256 aa of the log, found bb")
    first, _, _ = pages(study)[0].partition("**Asked:**")
    assert edited.warnings[1] in first
    assert_golden("\n".join(edited.warnings))


@pytest.mark.parametrize("reason", ["by the user", "budget: 15 min are used up"])
def test_a_study_that_was_stopped_says_how_it_goes_on(study: Synthetic, reason: str) -> None:
    study.create()
    study.append(EventType.STUDY_STOPPED, reason=reason)
    assert_golden(headline(study.state()).next.command)


def test_of_several_hypotheses_each_has_an_answer_and_values_that_were_tried_are_not_asked_next(tmp_path: Path) -> None:
    claims = (hypothesis("h1", 16), hypothesis("h2", 64))
    means = {"group_size=4": 0.5, "group_size=16": 0.6, "group_size=64": 0.61}
    head = headline(judged(Synthetic(tmp_path, means=means), design(claims)))
    assert "group_size 4 vs 16 on guess" in head.next.command
    assert [answer.hypothesis for answer in head.answers] == ["h1", "h2"]


def test_a_question_that_words_cannot_ask_again_is_asked_by_the_studys_own_command(tmp_path: Path) -> None:
    study = Synthetic(tmp_path, means={"reward=built-in": 0.5, "reward=dense": 0.6})
    head = headline(judged(study, coded_design()))
    assert shlex.split(head.next.command) == ["ajet", "study", "plan", study.topic, "--budget", "15m"]


def test_what_is_asked_next_keeps_equal_episodes_and_the_aim_to_see_no_difference(tmp_path: Path) -> None:
    means, seeds, _ = CASES["inconclusive"]
    state = judged(with_means(tmp_path, *means), promised(seeds))

    def asked_next(**changes: str) -> str:
        claims = tuple(claim.model_copy(update=changes) for claim in state.design.hypotheses)
        changed = replace(state, design=state.design.model_copy(update={"hypotheses": claims}))
        return shlex.split(list_next_questions(changed)[0].command)[2]

    assert asked_next(matched="episodes") == f"{asked_next()} at the same number of episodes"
    assert asked_next(sought="equivalence") == state.topic


@pytest.mark.parametrize(("verdict", "said"), [("equivalent", "do not choose"), ("supported", "prefer neither")])
def test_trainings_that_collapsed_are_counted_in_what_is_advised(tmp_path: Path, verdict: str, said: str) -> None:
    state = judged(with_means(tmp_path, 0.78, 0.67), promised())
    rates = tuple(
        CollapseRate(arm=arm.name, count=n, of=5, low=0, high=1, upper=1) for n, arm in enumerate(state.design.arms)
    )
    claimed = state.verdicts[0].model_copy(update={"verdict": verdict, "estimate": 0.02, "collapses": rates})
    assert in_practice(state, state.design, state.design.hypotheses[0], claimed).startswith(said)
    commands = [lead.command for lead in list_next_questions(replace(state, verdicts=(claimed,)))]
    assert [command for command in commands if "64" in command] == [], "the treatment itself collapses"
    assert "--metric collapse" in commands[-1]


def test_an_open_question_is_answered_whichever_way_it_goes(tmp_path: Path) -> None:
    claim = hypothesis(sought="either")
    state = judged(with_means(tmp_path, 0.66, 0.52), promised(hypotheses=(claim,)))
    head = headline(state)
    assert (state.verdicts[0].verdict, head.answers[0].label) == ("refuted", "Difference shown")
    assert "other side" not in head.answers[0].sentence
    assert "changes the hidden success" in head.question.tested[0]
    assert "against the prediction" in state.verdicts[0].reason
    assert "against the prediction" not in "".join(rules(state))
    assert list_next_questions(state)[0].why == "whether 1 goes further"


def test_what_is_asked_next_is_what_was_compiled_and_no_value_beyond_one_that_a_round_tried(study: Synthetic) -> None:
    """Of an older study, which compiled nothing, it is a plan that runs nothing."""
    state = study.whole()
    first = list_next_questions(state)[0].command
    assert "16 vs 64" in first
    assert headline(state).next.command == first.replace("ajet research", "ajet study plan")
    assert headline(replace(state, asked_next={"why": "nothing", "command": ""})).next.command == ""
    known = replace(state, rounds_before=(replace(state, design=design((hypothesis("h1", 64),))),))
    assert "4 vs 16" in list_next_questions(known)[0].command


def test_too_few_trainings_that_did_not_collapse_are_told_in_practice() -> None:
    said = "A mean is judged from 3 trainings of each arm that did not collapse; found 4 of 4 and 2 of 4."
    rates = tuple(CollapseRate(arm=name, count=n, of=4, low=0, high=1, upper=0.9) for name, n in (("a", 0), ("b", 2)))
    verdict = Verdict.model_construct(verdict="inconclusive", reason=said, low=None, collapses=rates, exploratory=False)
    assert_golden(in_practice(None, None, None, verdict))


A, B = "group_size", "learning_rate"
LOW, HIGH = {A: 4, B: 0.001}, {A: 16, B: 0.003}
KINDS = {
    "an interaction": (("interaction", {}), (0.50, 0.52, 0.50, 0.72), {}),
    "no interaction that matters": (("interaction", {"sought": "equivalence"}), (0.5, 0.6, 0.55, 0.65), {}),
    "an open interaction": (("interaction", {}), (0.5, 0.6, 0.55, 0.65), {"equivalence_margin": 0.01}),
    "a trend": (("trend", {}), (0.50, 0.56, 0.64), {}),
    "fields that go together": (("together", {}), (0.50, 0.72), {}),
    "collapses of an interaction": (("interaction", {}), (0.50, 0.52, 0.50, 0.72), {"collapse": CollapseRule()}),
    "collapses of a trend": (("trend", {}), (0.50, 0.52, 0.50), {"collapse": CollapseRule()}),
}


@pytest.mark.parametrize("name", KINDS)
def test_claims_of_more_than_one_difference_are_told_with_the_means_of_every_arm(tmp_path: Path, name: str) -> None:
    (kind, changes), means, given = KINDS[name]
    whole = {"variable": "configuration", "control": LOW, "treatment": HIGH}
    fields = {"trend": {"ladder": (4, 8, 16)}, "interaction": {**whole, "moderator": B}, "together": whole}[kind]
    claim = hypothesis(statement="-", **fields, **changes)
    arms = tuple(
        Arm(name=f"arm-{n}", overrides=dict(value) if isinstance(value, dict) else {A: value})
        for n, value in enumerate(claim.settings)
    )
    study = Synthetic(tmp_path, means={f"arm-{n}": mean for n, mean in enumerate(means)}, sd=0.01)
    test = "welch" if kind == "together" else "contrast"
    study.whole(promised(hypotheses=(claim,), arms=arms, control_arm="arm-0", test=test, **given))
    markdown, page = pages(study)
    assert_golden(markdown.partition("\n## ")[0] + section(markdown, "The numbers behind each verdict"))
    assert missing(markdown, page) == []

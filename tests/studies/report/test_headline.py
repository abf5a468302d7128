from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies import EventType, ReportError, StudyState, judge_hypothesis
from studies.log.event_log import lock_error
from studies.records.base import canonical
from studies.records.design import CONFIGURATION, Arm, Design, Metric
from studies.records.procedure import CollapseRule, PowerTarget
from studies.records.statements import sentences, statement
from studies.records.verdict import REPRODUCES, CollapseRate, Reproduction, Verdict
from studies.report import wording
from studies.report.claims import rules
from studies.report.evidence import gather
from studies.report.next_question import ask_next, in_practice, list_next_questions
from studies.report.summary import headline
from studies.report.wording import span
from studies.verdicts.wording import deciding_interval, find_unequal_training, question_of
from tests.golden import assert_golden, refused
from tests.studies.measured import MeasuredStudy, measured_design, metric
from tests.studies.report.pages import missing, pages, section
from tests.studies.synthetic import Synthetic, coded_design, design, hypothesis, judged
from tests.studies.synthetic import hypothesis as claim

pytestmark = pytest.mark.usefixtures("undrawn")


def promised(seeds: int = 5, **changes: Any) -> Design:
    given = {"promise": PowerTarget(power=0.8, effect=0.05), "equivalence_margin": 0.05}
    return design(seeds=seeds, **(given | changes))


def with_means(folder: Path, control: float, treatment: float, sd: float = 0.03) -> Synthetic:
    return Synthetic(folder, means={"group_size=4": control, "group_size=16": treatment}, sd=sd)


CASES = {
    "supported": ((0.52, 0.66, 0.03), 5, ""),
    "refuted": ((0.66, 0.52, 0.03), 5, "group_size 16 vs 4 on guess"),
    "equivalent": ((0.55, 0.55, 0.01), 8, ""),
    "inconclusive": ((0.55, 0.57, 0.05), 5, "group_size 4 vs 16 on guess"),
}


@pytest.mark.parametrize("verdict", CASES)
def test_a_verdict_says_what_to_do_and_what_to_ask_next_with_one_interval_at_one_level(
    tmp_path: Path, verdict: str
) -> None:
    means, seeds, topic = CASES[verdict]
    state = with_means(tmp_path, *means).whole(promised(seeds))
    head = headline(state)
    (answer,) = head.answers
    assert answer.verdict == verdict
    assert_golden(f"{answer.sentence}\n{answer.practice}")
    asked = ["ajet", "study", "reproduce" if verdict == "supported" else "plan"]
    asked = ["ajet", "research", f"{topic} with 40 training steps"] if topic else asked
    words = shlex.split(list_next_questions(state)[0].command)
    assert words[:3] == asked
    effects = [float(value) for flag, value in pairwise(words) if flag == "--effect"]
    assert effects == ([] if not topic else [0.028 if verdict == "inconclusive" else 0.05])  # three times the seeds
    interval = deciding_interval(promised(seeds), state.verdicts[0])
    assert interval.level == (0.9 if verdict == "equivalent" else 0.95)
    assert f"{interval.level * 100:g} % interval {span(interval.low, interval.high)}" in answer.sentence
    assert answer.sentence.count(" % interval") == 1


def test_a_claim_that_a_person_gave_up_before_it_could_be_judged_is_told_as_no_defect(study: Synthetic) -> None:
    control, treatment, *_ = study.begin(promised(exclusions=("vetoed",)))
    study.run(control)
    study.launch(treatment)
    study.veto(reason="seen enough")
    study.end(treatment, status="stopped", code="vetoed")
    study.give_up(treatment, "vetoed")
    study.judge()
    state = study.state()
    (answer,) = headline(state).answers
    assert_golden(f"{answer.sentence}\n{answer.practice}\n{list_next_questions(state)[0].why}")
    unlike = state.verdicts[0].model_copy(update={"reason": "The arms differ: steps.", "violations": ("steps",)})
    (study.folder / "design.lock").write_text("{}")
    edited = judge_hypothesis(state, "h1", look=1, lock_error=lock_error(state, study.folder))
    for other in (replace(state, vetoed={}), replace(state, verdicts=(unlike,)), replace(state, verdicts=(edited,))):
        assert "what stands above has to be mended" in headline(other).answers[0].practice


def test_arms_that_trained_unequally_are_named_in_the_verdict(tmp_path: Path) -> None:
    state = with_means(tmp_path, 0.66, 0.52).whole(promised())
    unlike = ("unequal_steps: a has 10, b has 40 as its training steps", "hardware: a has x, b has y as its hardware")
    (answer,) = headline(
        replace(state, verdicts=(state.verdicts[0].model_copy(update={"violations": unlike}),))
    ).answers
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
    asked = ["Asked", "Judged by", "Tested", "Not tested", "Not tested"]
    assert labels == [*asked, "Verdict", "Topic", "In practice", "Ask next"]


def test_what_was_changed_after_it_was_fixed_is_said_first(study: Synthetic) -> None:
    spec = study.begin()[0]
    study.run(spec)
    assert headline(study.state()).warnings == ()
    study.give_up(spec, "evidence_changed")
    edited = headline(study.state(), "the lock was changed: expected the sha256 aa of the log, found bb")
    first, _, _ = pages(study)[0].partition("**Asked:**")
    assert edited.warnings[1] in first
    assert_golden("\n".join(edited.warnings))


def test_what_is_asked_next_keeps_equal_episodes_the_aim_and_the_command_where_words_cannot_ask(tmp_path: Path) -> None:
    means, seeds, _ = CASES["inconclusive"]
    state = with_means(tmp_path, *means).whole(promised(seeds))

    def asked_next(**changes: str) -> str:
        claims = tuple(claim.model_copy(update=changes) for claim in state.design.hypotheses)
        changed = replace(state, design=state.design.model_copy(update={"hypotheses": claims}))
        return shlex.split(list_next_questions(changed)[0].command)[2]

    assert asked_next(matched="episodes") == f"{asked_next()} at the same number of episodes"
    assert asked_next(sought="equivalence") == state.topic
    study = Synthetic(tmp_path / "words", means={"reward=built-in": 0.6, "reward=dense": 0.5})
    head = headline(study.whole(coded_design()))
    assert shlex.split(head.next.command) == ["ajet", "study", "plan", study.topic, "--budget", "15m"]


def test_what_holds_is_to_be_reproduced_and_what_was_is_not_asked_again(tmp_path: Path) -> None:
    state = with_means(tmp_path, 0.52, 0.66).whole(promised())
    assert list_next_questions(state)[0].command == f"ajet study reproduce {state.id} --claims h1"
    again = Reproduction(
        study="first", round=1, lock="a", head="b", design=state.design, verdicts=state.verdicts
    ).model_dump(mode="json")
    question = list_next_questions(replace(state, settings={**state.settings, REPRODUCES: again}))[0]
    assert question.why == "something else: first is replicated"


@pytest.mark.parametrize(("last", "p", "spent"), [(None, 0.2, False), ("spent", 0.2, True), ("spent", None, False)])
def test_more_time_is_offered_as_exploration_where_a_last_look_made_a_test_and_spent_the_level(
    tmp_path: Path, last: str | None, p: float | None, spent: bool
) -> None:
    means, seeds, _ = CASES["inconclusive"]
    state = with_means(tmp_path, *means).whole(promised(seeds))
    verdicts = tuple(verdict.model_copy(update={"last": last, "p": p}) for verdict in state.verdicts)
    cut = replace(state, stopped_reason="budget: 3 s are left", concluded_reason=None, verdicts=verdicts)
    assert ("exploratory" in ask_next(cut).why) == spent


def test_how_a_study_was_shown_and_approved_is_not_asked_of_the_next(tmp_path: Path) -> None:
    state = Synthetic(tmp_path, means={"reward=built-in": 0.6, "reward=dense": 0.5}).whole(coded_design())

    def asked_next(*flags: str) -> str:
        return list_next_questions(replace(state, command=["ajet", "research", "of rewards", *flags]))[0].command

    assert asked_next("--json", "--approve", "plan") == asked_next("--approve=stages") == asked_next()
    assert "--max-runs 9" in asked_next("--json", "--max-runs", "9")


@pytest.mark.parametrize(("verdict", "said"), [("equivalent", "do not choose"), ("supported", "prefer neither")])
def test_trainings_that_collapsed_are_counted_in_what_is_advised(tmp_path: Path, verdict: str, said: str) -> None:
    state = with_means(tmp_path, 0.78, 0.67).whole(promised())
    rates = tuple(
        CollapseRate(arm=arm.name, count=n, of=5, low=0, high=1, upper=1) for n, arm in enumerate(state.design.arms)
    )
    claimed = state.verdicts[0].model_copy(update={"verdict": verdict, "estimate": 0.02, "collapses": rates})
    assert in_practice(state, state.design, state.design.hypotheses[0], claimed).startswith(said)
    assert "--metric collapse" in list_next_questions(replace(state, verdicts=(claimed,)))[-1].command
    nothing_left = claimed.model_copy(update={"verdict": "inconclusive", "low": None, "high": None})
    assert "--metric collapse" in list_next_questions(replace(state, verdicts=(nothing_left,)))[0].command


def test_an_open_question_is_answered_whichever_way_it_goes(tmp_path: Path) -> None:
    claim = hypothesis(sought="either")
    state = with_means(tmp_path, 0.66, 0.52).whole(promised(hypotheses=(claim,)))
    head = headline(state)
    assert (state.verdicts[0].verdict, head.answers[0].label) == ("refuted", "Lower by the margin")
    assert "other side" not in head.answers[0].sentence
    assert "changes the hidden success" in head.question.tested[0]
    assert "against the prediction" in state.verdicts[0].reason
    assert "against the prediction" not in "".join(rules(state))
    assert list_next_questions(state)[0].why == "whether it holds again"


def test_what_is_asked_next_is_what_was_compiled(study: Synthetic) -> None:
    """Of an older study, which compiled nothing, it is a plan that runs nothing."""
    state = study.whole()
    first = list_next_questions(state)[0].command
    assert headline(state).next.command == first.replace("ajet research", "ajet study plan")
    assert headline(replace(state, asked_next={"why": "nothing", "command": ""})).next.command == ""


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
    "a contrast": (("trend", {"contrast": (-0.5, 1.0, -0.5)}), (0.50, 0.70, 0.50), {}),
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


def rewritten(state: StudyState, folder: Path, name: str, change: Callable[[dict[str, Any]], None]) -> StudyState:
    run_id, run = next(iter(state.runs.items()))
    path = folder / run.collected[name]["path"]
    value = json.loads(path.read_text())
    change(value)
    path.write_text(canonical(value))
    record = {**run.collected[name], "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    changed = replace(run, collected={**run.collected, name: record})
    return replace(state, runs={**state.runs, run_id: changed})


def one_episode_flipped(value: dict[str, Any]) -> None:
    episodes = value["final"]["episodes"]
    episodes[0]["success"] = not episodes[0]["success"]


REFUSED: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "an episode changed before hashing": ("evaluation", one_episode_flipped),
    "an episode left out": ("evaluation", lambda v: v["final"]["episodes"].pop()),
    "no final episodes": ("evaluation", lambda v: v.pop("final")),
    "another run's file": ("snapshot", lambda v: v.update(run_id="other")),
    "another design's run": ("snapshot", lambda v: v.update(design_hash="f" * 64)),
    "no history": ("snapshot", lambda v: v.pop("history")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_contradicts_the_log_is_refused(study: Synthetic, name: str) -> None:
    kind, change = REFUSED[name]
    state = rewritten(study.whole(), study.folder, kind, change)
    with refused(ReportError, next(iter(state.runs))):
        gather(state, study.folder)


def test_files_that_are_gone_or_damaged_are_named_and_of_a_run_that_was_given_up_stand_in_nobodys_way(
    study: Synthetic,
) -> None:
    state = study.whole()
    run_id, run = next(iter(state.runs.items()))
    path = study.folder / run.collected["evaluation"]["path"]
    path.unlink()
    with pytest.raises(ReportError, match=rf"run {run_id}: .*evaluation.json cannot be read: No such file"):
        gather(state, study.folder)
    path.write_text("damaged")
    with pytest.raises(ReportError, match=run_id):
        gather(state, study.folder)
    stray = replace(run, collected={**run.collected, "snapshot": {**run.collected["snapshot"], "path": "../../secret"}})
    with pytest.raises(ReportError, match="outside the study"):
        gather(replace(state, runs={run_id: stray}), study.folder)
    given_up = replace(state, runs={**state.runs, run_id: replace(run, invalid=("evaluation_unreadable", "x"))})
    assert run_id not in gather(given_up, study.folder).runs


METRIC = Metric(meaning="share of hidden tasks solved", episodes=512)


def test_numbers_keep_their_sign_and_three_decimals_and_commands_can_be_pasted() -> None:
    signed = [wording.format_signed(value) for value in (0.12, -0.0304, -0.0004, -0.0)]
    assert signed == ["+0.120", "\N{MINUS SIGN}0.030", "0.000", "0.000"]
    assert wording.number(-0.0004) == "0.000"
    assert wording.number(None) == "–"
    assert wording.p_value(1e-9) == "< 0.001"
    assert wording.percent(0.95) == "95 %"
    assert wording.true_minus("from -0.1 to co-run") == "from \N{MINUS SIGN}0.1 to co-run"
    assert [wording.plural(n, "run") for n in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]
    assert wording.command_line(["ajet", "research", "is it's so?"]) == """ajet research 'is it'"'"'s so?'"""
    assert wording.command_line("make research") == "make research"


@pytest.mark.parametrize(
    ("low", "high", "unit", "said"),
    [(-1.681, 294, "episodes", "−2 to +294"), (-0.3, 294, "episodes", "−0.3 to +294.0"), (-16, 348, "s", "−16 to +348"),
     (0.0002, 0.1, "", "+0.0002 to +0.1000"), (-0.25, 0, "", "−0.250 to 0.000"), (None, 1, "", "–")],
)  # fmt: skip
def test_the_ends_of_an_interval_have_the_digits_of_its_scale(low: Any, high: float, unit: str, said: str) -> None:
    assert wording.span(low, high, unit=unit) == said


@given(st.lists(st.integers(0, 512), min_size=2, max_size=6), st.lists(st.integers(0, 512), min_size=2, max_size=6))
def test_the_ladder_never_says_more_than_the_verdict(control: list[int], treatment: list[int]) -> None:
    claim = hypothesis()
    verdict = judged(
        claim, {f"c{i}": n / 512 for i, n in enumerate(control)}, {f"t{i}": n / 512 for i, n in enumerate(treatment)},
        alpha=0.05,
    )  # fmt: skip
    text = wording.finding(claim, verdict, METRIC, deciding_interval(design(), verdict))
    assert ("no evidence" in text) == (verdict.verdict == "inconclusive")
    assert ("other side" in text) == (verdict.verdict == "refuted")
    assert "no effect" not in text
    other = wording.finding(claim, verdict, METRIC.model_copy(update={"key": "hidden/reward"}), None)
    assert verdict.verdict == "invalid" or "hidden/reward was" in other
    if verdict.verdict in ("supported", "refuted"):
        assert f"difference {wording.format_signed(verdict.estimate)}" in text
        assert f"n = {len(treatment)} + {len(control)}" in text


def test_what_is_tested_is_said_by_code_from_the_typed_fields() -> None:
    decrease, alike = {"direction": "decrease"}, {"sought": "equivalence"}
    time = metric("episodes", 0.7)
    said = [
        *sentences([claim(), claim(**alike)], "guess", 0.1),
        *sentences([claim(variable="episodes_per_step", matched="episodes")]),
        *sentences([claim(**decrease)], "guess", 512.0, time),
        *sentences([claim(**alike)], None, 512.0, time),
        statement(CONFIGURATION, {"lr": 0.1, "steps": 2}, {"lr": 0.2, "steps": 4}, "decrease"),
    ]
    assert_golden("\n".join(said))


def test_a_study_knows_what_was_asked_and_what_is_left_out(study: Synthetic, tmp_path: Path) -> None:
    state = study.whole()
    question = question_of(state)
    assert question.asked == state.topic
    assert len(question.tested) == len(state.hypotheses)
    assert_golden("\n".join(question.not_tested))
    assert [find_unequal_training(verdict) for verdict in state.verdicts] == [()]
    study = MeasuredStudy(tmp_path / "measured")
    study.create()
    study.lock(measured_design(metric("episodes", 0.7)))
    question = question_of(study.state())
    assert question.not_tested == ()
    assert_golden("\n".join(question.tested))


@pytest.mark.parametrize("unused", [False, True])
def test_what_beat_a_control_that_nobody_uses_is_preferred_with_that_caution(tmp_path: Path, unused: bool) -> None:
    claims = (hypothesis(unused_control=unused),)
    (answer,) = headline(with_means(tmp_path, 0.52, 0.66).whole(promised(hypotheses=claims))).answers
    assert ("a control nobody uses" in answer.practice) == unused

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from studies import EventType, ReportError, StudyState
from studies.checks.conditions import find_confounders
from studies.log.event_log import LOCK_FILE
from studies.records.design import Design, RunSpec
from studies.records.procedure import (
    CollapseRule,
    EnvironmentRecord,
    InterimAnalysis,
    Noise,
    PowerTarget,
    Replication,
    Rule,
    Watchdog,
)
from studies.records.runs import replicate_spec
from studies.report import claims, tables
from studies.report.build import render_report
from studies.report.claims import deviation_table
from studies.report.elements import Table
from studies.report.evidence import Evidence, gather
from studies.report.next_question import reached_power
from studies.report.tables import warn_custom_environments, warn_sandboxes
from studies.report.validity import task_spread, warn_begun, warn_noise
from studies.report.wording import format_signed
from studies.verdicts.judge import judge_hypothesis, verdict_follows
from tests.golden import assert_golden
from tests.studies.report.pages import missing, pages, said, said_of, section
from tests.studies.synthetic import Synthetic, design, hypothesis

Finished = tuple[StudyState, Path]
pytestmark = pytest.mark.usefixtures("undrawn")


def with_job(state: StudyState, arm: str, **changes: object) -> StudyState:
    runs = {
        run_id: replace(run, spec=run.spec.model_copy(update={"job": {**run.spec.job, **changes}}))
        for run_id, run in state.runs.items()
        if run.spec.arm == arm
    }
    return replace(state, runs={**state.runs, **runs})


def test_a_confound_between_the_arms_is_named(finished: Finished) -> None:
    clean, folder = finished
    state = with_job(clean, "group_size=16", learning_rate=3e-3)
    assert find_confounders(state) == {"h1": ("learning_rate",)}
    assert_golden(said(state, gather(clean, folder)))


def test_arms_that_differ_before_they_are_trained_are_told_with_what_training_made(finished: Finished) -> None:
    clean, folder = finished
    assert list(warn_begun(clean, gather(clean, folder), clean.design)) == []
    state, key = clean, "hidden/success/initial"
    for name, run in clean.runs.items():
        value = 0.2 if run.spec.arm == "group_size=16" else 0.3
        measured = run.measurements | {key: run.measurements[key].model_copy(update={"value": value})}
        state = replace(state, runs={**state.runs, name: replace(run, measurements=measured)})
    (told,) = (remark.text for remark in warn_begun(state, gather(clean, folder), state.design))
    estimate = clean.verdicts[0].estimate
    assert estimate is not None
    assert all(part in told for part in ("0.200", "0.300", format_signed(estimate), format_signed(estimate + 0.1)))


def test_a_verdict_that_does_not_follow_from_its_runs_refuses_the_report(study: Synthetic) -> None:
    state = study.whole(design(replication=Replication(environment="arith", seeds=(71, 72))))
    assert verdict_follows(state, state.verdicts[0])
    for change in ({"estimate": 0.5}, {"verdict": "refuted"}, {"inputs_sha256": "0" * 64}, {"low": None}):
        with pytest.raises(ReportError, match="h1 does not follow"):
            render_report(replace(state, verdicts=(state.verdicts[0].model_copy(update=change),)), study.folder)
    forged = judge_hypothesis(state, "h1", look=1, phase="replicate").model_copy(update={"verdict": "supported"})
    with pytest.raises(ReportError, match="replication of h1 does not"):
        render_report(replace(state, replications=(forged,)), study.folder)


def test_a_replication_is_judged_by_its_own_runs_and_stands_beside_the_verdict_that_it_leaves_alone(
    study: Synthetic,
) -> None:
    chosen = design(seeds=4, replication=Replication(environment="arith", seeds=(71, 72, 73)))
    study.run_all(study.begin(chosen))
    study.judge()
    assert judge_hypothesis(study.state(), "h1", look=1, phase="replicate").verdict == "invalid"
    decided = {"rule": "confirmed", "action": "replicate", "reason": "supported"}
    study.append(EventType.DECISION_TAKEN, **decided, hypothesis="h1", look=1)
    for seed, arm in product((71, 72, 73), chosen.arms):
        spec = replicate_spec(study.study, chosen, chosen.hash(), arm, seed)
        study.put(spec)
        study.run(spec)
    (again,) = study.say("h1", phase="replicate")
    assert (again.verdict, again.n_control, study.conclude().verdicts[0].n_control) == ("supported", 3, 4)
    assert_golden(section(pages(study)[0], "The same comparison in another setting"))


def resumed(study: Synthetic, specs: list[RunSpec]) -> None:
    study.launch(specs[0])
    study.end(specs[0], 1, "lost", "lost", "vanished")
    study.launch(specs[0], 2, begins={"resumes": 1, "initial_sha256": "0" * 64, "why": "it was killed"})
    study.end(specs[0], 2, resumed_at=17)
    study.collect(specs[0], 2)
    study.run_all(specs[1:])


def invalid(study: Synthetic, specs: list[RunSpec]) -> None:
    for spec in specs:
        study.launch(spec)
        study.give_up(spec, "nan" if spec.arm == "group_size=16" else "lost")


def never_begun(study: Synthetic, specs: list[RunSpec]) -> None:
    for spec in specs:
        study.give_up(spec, "budget_exhausted", "the budget was used up before the run had finished")


@pytest.mark.parametrize("course", [resumed, invalid, never_begun])
def test_what_became_of_runs_is_told_among_the_threats_and_in_the_table(study: Synthetic, course: Any) -> None:
    """Of runs that never began nothing is left out; a run that went on says at which step."""
    course(study, study.begin(design(seeds=2)))
    assert_golden(said_of(study))
    assert_golden(section(pages(study)[0], "Every run").partition("Files and")[0])


def test_noise_beyond_what_was_planned_is_told_and_power_only_of_enough_runs(study: Synthetic) -> None:
    known = Noise(sd=0.01, df=20, episodes=512, basis="-")
    state = study.whole(design(seeds=5, promise=PowerTarget(power=0.8, effect=0.05), noise=known))
    (remark,) = warn_noise(state, gather(state, study.folder), state.design)
    assert_golden(remark.text)
    locked = state.design.model_copy(update={"collapse": CollapseRule()})
    few = state.verdicts[0].model_copy(update={"n_control": 2, "n_treatment": 2})
    assert reached_power(locked, locked.hypotheses[0], few) is None
    assert reached_power(locked, locked.hypotheses[0], state.verdicts[0]) is not None


@pytest.mark.parametrize(("planted", "least", "most"), [(0.3, 0.22, 0.38), (0.0, None, 0.15)])
def test_how_a_difference_varies_between_tasks_is_told_beyond_chance(
    planted: float, least: float | None, most: float
) -> None:
    """Levels of runs are no part of it, nor is what tasks have in common in both arms."""
    rng = random.Random(3)
    easy, more = ([rng.gauss(0, sd) for _ in range(96)] for sd in (0.3, planted))

    def run(treated: bool) -> dict[str, float]:
        level = rng.gauss(0, 0.05)
        return {f"t-{n}": 0.5 + level + easy[n] + treated * more[n] + rng.gauss(0, 0.3) for n in range(96)}

    arms = [[run(treated) for _ in range(5)] for treated in (False, True)]
    found = task_spread(arms)
    sd, tasks = found or (0.0, 96)
    assert (sd >= (least or 0.0), sd <= most, tasks) == (True, True, 96)
    assert task_spread([arms[0], [{**arms[1][0], "another": 1.0}, *arms[1][1:]]]) is None
    assert task_spread([arms[0], arms[1][:1]]) is None


def test_a_large_study_at_the_ceiling_says_so_and_not_that_it_is_small(study: Synthetic) -> None:
    study.means, study.sd = {"group_size=4": 0.9, "group_size=16": 0.98}, 0.005
    study.whole(design((hypothesis(),), seeds=10))
    assert_golden(said_of(study))


@pytest.mark.slow
def test_pages_at_wandb_are_linked_and_a_copy_that_is_not_whole_is_noted(study: Synthetic) -> None:
    first, second, third = list(study.whole().runs)[:3]
    assert "Weights" not in pages(study)[1].text
    url = "https://wandb.example/lab/ajet/runs/"
    for run_id, at, more in (
        (first, f"{url}{first}-a1", {"standing": "sent"}),
        (second, f"{url}{second}-a1", {"standing": "failed", "reason": "W&B shows 2 of 3 steps"}),
        (third, "javascript:alert(1)", {"standing": "sending"}),
    ):
        study.append(EventType.ATTEMPT_COPIED, run_id=run_id, attempt=1, url=at, **more)
    assert_golden("\n".join(line for line in said_of(study).split("\n") if "W&B" in line))
    markdown, page = pages(study)
    assert "not whole: W&B shows 2 of 3 steps" in markdown.replace("&amp;", "&")
    assert f"{url}{first}-a1" in page.links
    assert not any(link.startswith("javascript") for link in page.links)


IMAGE, OTHER = ("sha256:" + digits * 32 for digits in ("ab", "cd"))
DOCKER, ANOTHER, PROCESS = {"kind": "docker", "image": IMAGE}, {"kind": "docker", "image": OTHER}, {"kind": "process"}
NOTHING = Evidence({})


def with_attempts(study: Synthetic, *sandboxes: dict[str, Any], **end: Any) -> StudyState:
    for spec, sandbox in zip(study.begin(study.design), sandboxes, strict=False):
        study.launch(spec, sandbox=sandbox)
        study.end(spec, **end)
        study.collect(spec)
    return study.state()


@pytest.mark.parametrize(
    ("sandboxes", "refused", "levels"),
    [((DOCKER, DOCKER), {}, ["note"]), ((DOCKER, ANOTHER), {}, ["note", "note", "threat"]), ((PROCESS,), {}, ["note"]),
     ((DOCKER, DOCKER), {"client: a task it was not given": 2}, ["note", "note"]), ((), {}, [])],
    ids=["docker", "two images", "process", "refused", "not recorded"],
)  # fmt: skip
def test_where_attempts_ran_is_told_by_the_log_and_of_each_run_where_images_differ(
    study: Synthetic, sandboxes: tuple[dict[str, Any], ...], refused: dict[str, int], levels: list[str]
) -> None:
    state = with_attempts(study, *sandboxes, refused=refused) if sandboxes else study.whole()
    remarks = [*warn_sandboxes(state, NOTHING)]
    assert [remark.level for remark in remarks] == levels
    assert_golden("\n".join(remark.text for remark in remarks))
    markdown, page = pages(study)
    assert all(remark.text in page.text for remark in remarks)
    several = len({place.get("image") for place in sandboxes}) > 1
    assert ("| Image |" in markdown) == ("Image" in page.words) == several, "one image of all runs needs no column"


SHOP = EnvironmentRecord(
    name="shop@0123456789ab", title="a shop", reference="./shop", code="c", data="d", requirements="",
    drawn_by="records", tasks={"train": 8, "search": 2, "hidden": 8}, hidden_apart=True,
)  # fmt: skip


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize(
    "places", [(DOCKER, DOCKER), (PROCESS,), (DOCKER, PROCESS), ({},)], ids=["docker", "process", "both", "unknown"]
)
def test_what_kept_hidden_tasks_from_clients_follows_from_where_these_ran(
    study: Synthetic, places: tuple[dict[str, Any], ...], apart: bool
) -> None:
    shop = SHOP.model_copy(update={"hidden_apart": apart})
    study.design = study.design.model_copy(update={"environments": (shop,)})
    (remark,) = warn_custom_environments(with_attempts(study, *places), NOTHING)
    assert remark.level == ("note" if apart else "threat")
    assert_golden(remark.text)


LOOKED = design(test="pooled", looks=(InterimAnalysis(seeds=3, alpha=0.014), InterimAnalysis(seeds=5, alpha=0.045)))
FUTILE = "verdict == 'inconclusive' and p > 0.5"


def text(table: Table) -> str:
    return "\n".join(" | ".join(cell.text for cell in row) for row in table.rows)


def look(study: Synthetic, number: int, act: str | None = None) -> str:
    (verdict,) = study.say("h1", look=number)
    action = act or ("continue" if not verdict.final and verdict.verdict == "inconclusive" else "settle")
    decided = {"rule": "look-again", "action": action, "reason": f"look {number}"}
    study.append(EventType.DECISION_TAKEN, **decided, hypothesis="h1", look=number)
    return verdict.verdict


def begin(study: Synthetic, chosen: Design, seeds: int) -> None:
    for seed in chosen.seeds[len(study.state().runs) // 2 : seeds]:
        for spec in [study.spec(arm.name, seed) for arm in chosen.arms]:
            study.put(spec)
            study.run(spec)


def test_each_look_stands_in_the_report_with_its_level_and_what_followed(study: Synthetic) -> None:
    study.means["group_size=16"] = 0.53
    study.create()
    study.lock(LOOKED)
    begin(study, LOOKED, 3)
    assert look(study, 1, "continue") == "inconclusive"
    partial, _ = pages(study)
    assert "This is look 1" in partial
    assert "Partial report" in partial
    begin(study, LOOKED, 5)
    look(study, 2)
    state = study.conclude()
    lines = text(claims.interim_table(state)).splitlines()
    assert [line.split(" | ")[1:3] for line in lines] == [["1", "3 + 3"], ["2", "5 + 5"]]
    markdown, page = pages(study)
    assert_golden(section(markdown, "Look by look"))
    assert "look 2 of 2" in markdown
    assert missing(markdown, page) == []


def test_amendments_and_vetoes_stand_in_the_report_in_their_order(study: Synthetic) -> None:
    study.create()
    study.lock(LOOKED)
    study.amend("note", "the machine\nwas moved")
    study.veto(reason="answered elsewhere")
    study.amend("budget", "more time", value=3600.0)
    markdown, page = pages(study)
    assert_golden(section(markdown, "Deviations from the lock"))
    assert "answered elsewhere" in page.text


def test_what_was_locked_is_no_deviation_and_a_lock_file_that_was_edited_is_told(study: Synthetic) -> None:
    state = study.whole()
    assert claims.interim_table(state) is deviation_table(state) is None
    assert "was changed" not in pages(study)[0]
    path = study.folder / LOCK_FILE
    path.write_text(path.read_text().replace("group_size", "group-size"))
    assert "**Did not hold.** The lock design.lock" in pages(study)[0]


NOISE = Noise(sd=0.031, df=24, evaluation_sd=0.019, episodes=512, correlation=0.1, pairs=12, basis="three studies")


def full(**changes: Any) -> Design:
    given: dict[str, Any] = {
        "test": "pooled", "noise": NOISE, "promise": PowerTarget(power=0.8, effect=0.05), "equivalence_margin": 0.05,
        "looks": (InterimAnalysis(seeds=3, alpha=0.014), InterimAnalysis(seeds=5, alpha=0.045)),
        "multiplicity": "dunnett_bh", "counted_as_worst": ("NAN",), "exclusions": ("LOST",), "most_excluded": 0.2,
        "replication": Replication(environment="arith", seeds=(1, 2, 3)),
        "watchdog": Watchdog(kl=0.5), "decision_table": (Rule(name="futile", when=FUTILE, then="settle"),),
    }  # fmt: skip
    return design(**(given | changes))


def test_all_that_was_fixed_is_told_with_kill_conditions_first_and_an_old_design_as_it_was() -> None:
    claim = hypothesis(kill_if=FUTILE, smallest_effect=0.05, falsifier="no rise", confounds=("longer episodes",))
    locked, old = full(hypotheses=(claim,)), design()
    facts = (tables.design_facts(locked, "ab" * 32), tables.design_facts(old, None))
    looks, rules = tables.analyses_table(locked), tables.rules_table(locked)
    stakes, limits = tables.stakes_table(locked), Watchdog(kl=0.5, grad_norm=20)
    assert_golden("\n\n".join(map(text, (*facts, looks, rules, stakes, tables.limits_table(limits)))))
    assert tables.analyses_table(old) is tables.rules_table(old) is None
    assert tables.limits_table(None) is tables.stakes_table(old) is None

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest

from studies import Event, EventType, LogCorrupt, StudiesError, fold
from studies.log.study import LOOK_RULE
from studies.records.design import CONFIGURATION, Arm, Design, Hypothesis, NoisePlan, RunSpec
from studies.records.procedure import (
    InterimAnalysis,
    Pilot,
    PowerTarget,
    Prediction,
    Replication,
    Rung,
    Screen,
    ScreenField,
    Selection,
    Sizing,
)
from studies.records.runs import confirm_spec, noise_spec, replicate_spec, screen_spec
from studies.records.statements import claims
from studies.records.verdict import Verdict
from tests.golden import refused
from tests.studies.synthetic import Synthetic, design, hypothesis

PLAN = NoisePlan(environment="guess", job={"steps": 4}, seeds=(5, 6), metric_key="hidden/success", episodes=8)
SCREEN = Screen(
    knobs=(ScreenField(field="group_size", values=(4, 8, 16)), ScreenField(field="epochs", values=(1, 2))),
    sampler="grid", candidates=3, initial=1, rungs=(Rung(steps=5, keep=2), Rung(steps=10, keep=2)), seed=99,
    prediction=Prediction(low=0.0, high=0.3, probability=0.6),
)  # fmt: skip
WIDE = Arm(name="group_size=16+epochs=1", overrides={"group_size": 16, "epochs": 1})
DEEP = Arm(name="group_size=4+epochs=2", overrides={"group_size": 4, "epochs": 2})


def looked(**changes: Any) -> Design:
    looks = (InterimAnalysis(seeds=2, alpha=0.01), InterimAnalysis(seeds=5, alpha=0.04))
    setting = Replication(environment="arith", seeds=(71, 72))
    return design(looks=looks, replication=setting, **changes)


def searching() -> Design:
    plain = design()
    control = Arm(name="control", overrides={"group_size": 4, "epochs": 1})
    changes = {"arms": (control,), "control_arm": "control", "hypotheses": (), "screen": SCREEN}
    return Design(**{**plain.model_dump(), **changes, "promise": PowerTarget(power=0.8, effect=0.1)})


def begun(s: Synthetic, chosen: Design | None = None) -> Synthetic:
    s.create()
    s.lock(chosen)
    return s


def ready(s: Synthetic) -> list[RunSpec]:
    return begun(s).plan()


def plan(s: Synthetic, spec: RunSpec) -> Event:
    return s.append(EventType.RUN_PLANNED, run_id=spec.run_id, spec=spec.model_dump(mode="json"))


def noise(s: Synthetic, **changes: Any) -> Event:
    return s.append(EventType.NOISE_PLANNED, **{"plan": PLAN.model_dump(mode="json"), "hash": PLAN.hash(), **changes})


def noise_run(s: Synthetic, seed: int = 5, **changes: Any) -> Event:
    return plan(s, noise_spec(s.study, PLAN, PLAN.hash(), seed).model_copy(update=changes))


def ask(s: Synthetic, *arms: Arm, first: int = 0) -> list[Event]:
    asked = enumerate(arms, start=first)
    return [s.append(EventType.CANDIDATE_ASKED, index=at, arm=arm.model_dump(mode="json")) for at, arm in asked]


def keep(s: Synthetic, *kept: Arm, arms: list[Arm] | None = None, hypotheses: list[Hypothesis] | None = None) -> Event:
    names = tuple(arm.name for arm in kept)
    follows = list(claims(s.design, kept)) if hypotheses is None else hypotheses
    return s.append(
        EventType.SCREEN_DECIDED,
        selection=Selection(kept=names, scores=dict.fromkeys(names, 0.5), reason="the best").model_dump(mode="json"),
        arms=[arm.model_dump(mode="json") for arm in (list(kept) if arms is None else arms)],
        hypotheses=[claim.model_dump(mode="json") for claim in follows],
    )


def screened(s: Synthetic) -> Synthetic:
    begun(s, searching())
    ask(s, WIDE, DEEP)
    keep(s, DEEP, WIDE)
    return s


def verdict(name: str = "h1", look: int = 1, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "hypothesis": name, "verdict": "inconclusive", "reason": "x", "estimate": None, "low": None, "high": None,
        "level": 0.95, "p": None, "n_control": 2, "n_treatment": 2, "mean_control": None, "mean_treatment": None,
        "sd_control": None, "sd_treatment": None, "test": "welch", "inputs_sha256": "0" * 64,
        "within_prediction": None, "brier": None, "look": look, "final": False,
    }  # fmt: skip
    return Verdict(**(values | changes)).model_dump(mode="json")


def judge(s: Synthetic, **changes: Any) -> Event:
    return s.append(EventType.VERDICT_COMPUTED, **verdict(**changes))


def decide(s: Synthetic, action: str = "continue", look: int = 1, name: str = "h1", rule: str = "r") -> Event:
    return s.append(EventType.DECISION_TAKEN, rule=rule, action=action, reason="x", hypothesis=name, look=look)


def amend(s: Synthetic, **changes: Any) -> Event:
    return s.append(EventType.DESIGN_AMENDED, amendment={"kind": "note", "reason": "x", **changes})


def test_a_screen_leads_to_arms_and_claims(study: Synthetic) -> None:
    state = screened(study).state()
    assert (state.locked_design, state.design_hash) == (study.design, study.design.hash())
    assert [arm.name for arm in state.design.arms] == ["control", DEEP.name, WIDE.name]
    assert state.design.screen is None
    assert list(state.candidates) == [WIDE.name, DEEP.name]
    first = state.design.hypotheses[0]
    assert (first.id, first.variable, first.treatment) == ("s1", CONFIGURATION, DEEP.overrides)
    assert state.design.arm_with(first.variable, first.treatment) == DEEP
    assert (first.smallest_effect, first.prediction) == (0.1, SCREEN.prediction)
    assert [h.id for h in state.hypotheses] == ["s1", "s2"]


def piloted(**changes: Any) -> Design:
    setting = Replication(environment="arith", seeds=tuple(range(71, 79)))
    promise = PowerTarget(power=0.8, effect=0.1)
    return design(pilot=Pilot(seeds=3, most=8), promise=promise, seeds=8, replication=setting, **changes)


def size(s: Synthetic, *stops: int, seeds: int | None = None) -> Event:
    looks = tuple(InterimAnalysis(seeds=stop, alpha=0.03) for stop in stops)
    sized = Sizing(
        seeds=seeds or stops[-1], looks=looks, sd=0.05, df=4, runs=6, needed=6, affordable=8, power=0.8
    )  # fmt: skip
    return s.append(EventType.DESIGN_SIZED, **sized.model_dump(mode="json"))


def test_a_pilot_is_as_large_as_its_first_runs_until_they_size_it_and_its_hash_stays(study: Synthetic) -> None:
    begun(study, piloted())
    before = study.state()
    assert before.awaits_sizing
    assert before.design.looks == (InterimAnalysis(seeds=3, alpha=0.05),)
    size(study, 4, 6)
    after = study.state()
    assert (after.awaits_sizing, after.design_hash, after.locked_design) == (False, study.design.hash(), study.design)
    assert [look.seeds for look in after.design.looks] == [4, 6]
    for state, seeds in ((before, 3), (after, 6)):
        assert state.design.seeds == study.design.seeds[:seeds]
        assert state.design.replication.seeds == study.design.replication.seeds[:seeds]
        assert {len(own) for own in state.arm_seeds.values()} == {seeds}
    assert after.design.noise.sd == 0.05


def test_after_a_screen_its_arms_make_the_pilot(study: Synthetic) -> None:
    screen = {"pilot": Pilot(seeds=3, most=5), "screen": SCREEN}
    begun(study, Design(**{**searching().model_dump(), **screen}))
    ask(study, WIDE, DEEP)
    assert not study.state().awaits_sizing
    keep(study, DEEP)
    assert study.state().awaits_sizing
    size(study, 4)
    assert [len(study.state().design.arms), len(study.state().design.seeds)] == [2, 4]


def test_later_looks_replace_earlier_ones_in_the_open(study: Synthetic) -> None:
    begun(study, looked())
    judge(study)
    assert study.state().status == "running"
    decide(study)
    judge(study, look=2, final=True)
    state = study.state()
    assert [[v.look for v in found] for found in (state.interim, state.verdicts, state.superseded)] == [[1], [2], []]
    assert state.status == "judged"


@pytest.mark.parametrize("phase", ["confirm", "replicate"])
def test_an_amendment_that_accepts_has_invalid_verdicts_computed_again(study: Synthetic, phase: str) -> None:
    if phase == "replicate":
        replicated(study, verdict="invalid")
    else:
        begun(study)
        judge(study, verdict="invalid", final=True)
    amend(study, kind="accept", target="co_tenancy")
    state = study.state()
    assert [(v.phase, v.verdict) for v in state.superseded] == [(phase, "invalid")]
    assert [v.phase for v in (*state.verdicts, *state.replications)] == ["confirm"] * (phase == "replicate")


def test_a_veto_and_an_amendment_after_the_end_stand_and_change_nothing_and_the_first_of_two_vetoes_stands(
    study: Synthetic,
) -> None:
    before = study.whole()
    for reason in ("late", "later"):
        study.veto(reason=reason)
    amend(study, kind="accept", target="co_tenancy")
    after = study.state()
    assert after.verdicts == before.verdicts
    assert after.elapsed_s == before.elapsed_s
    assert after.vetoed["h1"].reason == "late"
    assert len(after.amendments) == 1


def search(s: Synthetic, *arms: Arm, first: int = 0) -> None:
    begun(s, searching())
    ask(s, *arms, first=first)


def measure(s: Synthetic, spec: RunSpec) -> Event:
    return s.append(EventType.MEASUREMENT_RECORDED, run_id=spec.run_id, key="k", value=1.0, n=1, sha256="")


def foreign(s: Synthetic, **changes: Any) -> Event:
    spec = confirm_spec(s.study, s.design, s.design.hash(), s.design.arms[0], s.design.seeds[0])
    return plan(s, spec.model_copy(update=changes))


def screening(s: Synthetic, steps: int = 5, **changes: Any) -> Event:
    return plan(s, screen_spec(s.study, s.design, s.design.hash(), WIDE, steps).model_copy(update=changes))


def replicated(s: Synthetic, **changes: Any) -> list[RunSpec]:
    """Write a study whose replication has one run and a verdict; return the specs of both arms with its first seed."""
    begun(s, looked())
    judge(s, final=True)
    decide(s, "replicate")
    specs = [replicate_spec(s.study, s.design, s.design.hash(), arm, 71) for arm in s.design.arms]
    for spec in specs:
        plan(s, spec)
    s.run(specs[0])
    judge(s, phase="replicate", final=True, **changes)
    return specs


def test_a_verdict_falls_when_a_run_of_its_seeds_is_launched_or_given_up_for_it_is_to_be_accounted_for(
    study: Synthetic,
) -> None:
    specs = study.begin(looked())
    judge(study)
    decide(study)
    study.launch(specs[4])  # the first run of the third seed, which the first look does not see
    assert [v.look for v in study.state().verdicts] == [1]
    study.launch(specs[0])
    state = study.state()
    assert (state.verdicts, len(state.superseded), dict(state.decided)) == ((), 1, {})
    judge(study)
    study.end(specs[0], status="failed", code="lost")
    assert [v.look for v in study.state().verdicts] == [1]
    study.append(EventType.RUN_INVALIDATED, run_id=specs[0].run_id, code="lost", reason="x")
    assert study.state().verdicts == ()


def test_a_run_moves_from_planned_to_collected_with_every_attempt_kept(study: Synthetic) -> None:
    spec = ready(study)[0]
    steps: list[tuple[str, Callable[[], object]]] = [
        ("planned", lambda: None), ("running", lambda: study.launch(spec)),
        ("ended", lambda: study.end(spec, 1, "lost", "LOST", "it vanished")),
        ("collected", lambda: study.run(spec, 2)),
    ]  # fmt: skip
    for status, step in steps:
        step()
        run = study.state().runs[spec.run_id]
        assert (run.status, run.active is not None) == (status, status == "running")
    assert [(a.number, a.status, a.code) for a in run.attempts] == [(1, "lost", "LOST"), (2, "finished", "")]
    assert run.seconds == pytest.approx(sum(a.seconds or 0 for a in run.attempts))


def test_an_attempt_that_a_log_calls_the_0th_goes_on_from_none(study: Synthetic) -> None:
    spec = ready(study)[0]
    study.append(EventType.ATTEMPT_LAUNCHED, run_id=spec.run_id, attempt=0, name="x")
    assert [attempt.number for attempt in study.state().runs[spec.run_id].lineage] == [0]


def test_an_invalid_run_is_kept_but_counts_for_nothing(study: Synthetic) -> None:
    victim = ready(study)[0]
    study.run(victim)
    assert victim.run_id in study.state().values(victim.arm)
    study.append(EventType.RUN_INVALIDATED, run_id=victim.run_id, code="NAN", reason="loss became NaN")
    invalid = study.state().runs[victim.run_id]
    assert (invalid.status, bool(invalid.measurements)) == ("invalid", True)
    assert victim.run_id not in study.state().values(victim.arm)


def test_a_verdict_falls_when_the_data_it_rests_on_change(study: Synthetic) -> None:
    specs = ready(study)
    study.run_all(specs[:8])
    study.judge()
    assert study.state().status == "judged"
    study.run(specs[8])
    state = study.state()
    assert state.verdicts == ()
    assert [v.n_control for v in state.superseded] == [4]
    study.judge()
    study.append(EventType.RUN_INVALIDATED, run_id=specs[9].run_id, code="LOST", reason="never ran")
    assert len(study.state().verdicts) == 1  # a run without data changes no verdict


def test_every_prefix_of_a_log_folds_but_none_and_a_state_that_somebody_holds_stays_as_it_is(study: Synthetic) -> None:
    with pytest.raises(StudiesError, match="first event"):
        fold([])
    study.whole()
    events, state, held = study.log.read(study.study), None, []
    for event in events:
        state = fold([event], state)
        held.append((state, deepcopy(state)))
    for cut, (state, before) in enumerate(held, start=1):
        assert state == before == fold(events[:cut])
        assert state.event_count == cut


def propose(s: Synthetic, name: str = "h1") -> Event:
    return s.append(EventType.HYPOTHESIS_PROPOSED, **hypothesis(name).model_dump())


def lock(s: Synthetic, **changes: Any) -> Event:
    locked = {"design": s.design.model_dump(), "hash": s.design.hash(), "file": "design.lock"}
    return s.append(EventType.DESIGN_LOCKED, **{**locked, **changes})


def copied(s: Synthetic, **wrong: Any) -> None:
    run_id = next(iter(s.whole().runs))
    s.append(EventType.ATTEMPT_COPIED, **({"run_id": run_id, "attempt": 1, "url": "-", "standing": "sent"} | wrong))


@pytest.mark.parametrize(("word", "stands"), [("same", "sent"), ("differs", "sent"), ("lacking", "failed")])
def test_a_copy_that_an_earlier_version_compared_with_its_log_stands(study: Synthetic, word: str, stands: str) -> None:
    copied(study, standing=word)
    assert next(iter(study.state().runs.values())).attempts[0].standing == stands


Step = Callable[[Synthetic], object]
UNFIT: dict[str, Step] = {
    "a second creation": lambda s: (ready(s), s.create()),
    "an event before the creation": lambda s: s.append(EventType.STUDY_STOPPED, reason="x"),
    "a hypothesis twice": lambda s: (s.create(), propose(s), propose(s)),
    "a hypothesis after the lock": lambda s: (ready(s), propose(s, "h9")),
    "a second lock": lambda s: (ready(s), lock(s)),
    "a lock that names no file": (
        lambda s: (s.create(), s.append(EventType.DESIGN_LOCKED, design=s.design.model_dump(), hash=""))),
    "a lock whose hash is another's": lambda s: (s.create(), lock(s, hash="f" * 64)),
    "a design that is none": lambda s: (s.create(), lock(s, design={"arms": []}, hash="")),
    "a run before the lock": lambda s: (s.create(), s.plan()),
    "a run under another design": lambda s: (s.create(), s.lock(), s.plan(design(seeds=6))),
    "a run whose id is another's": (
        lambda s: (s.create(), s.lock(), s.append(EventType.RUN_PLANNED, run_id="0" * 16,
            spec=s.spec("group_size=4", s.design.seeds[0]).model_dump()))),
    "a run twice": lambda s: (ready(s), s.plan()),
    "a launch of an unknown run": (
        lambda s: (ready(s), s.append(EventType.ATTEMPT_LAUNCHED, run_id="x", attempt=1, name="n"))),
    "two attempts at once": lambda s: [s.launch(spec, n) for spec in ready(s)[:1] for n in (1, 2)],
    "an attempt's number twice": lambda s: [(s.launch(x), s.end(x, 1, "lost"), s.launch(x, 1)) for x in ready(s)[:1]],
    "an attempt that goes on from none": lambda s: s.launch(ready(s)[0], 2, begins={"resumes": 1}),
    "the end of no attempt": lambda s: s.end(ready(s)[0]),
    "an unknown way to end": lambda s: [(s.launch(x), s.end(x, 1, "gone")) for x in ready(s)[:1]],
    "a launch after collection": lambda s: [(s.run(x), s.launch(x, 2)) for x in ready(s)[:1]],
    "a collection of a failed attempt": (
        lambda s: [(s.launch(x), s.end(x, 1, "failed"), s.collect(x)) for x in ready(s)[:1]]),
    "a measurement of a run not collected": lambda s: measure(s, ready(s)[0]),
    "a measurement bound to no file": lambda s: [(s.run(x), measure(s, x)) for x in ready(s)[:1]],
    "an invalidation twice": lambda s: [s.give_up(x, "c") for x in ready(s)[:1] * 2],
    "planning after the conclusion": lambda s: (ready(s), s.conclude(), s.append(EventType.VERDICT_COMPUTED)),
    "a payload without its fields": lambda s: (s.create(), s.append(EventType.DECISION_TAKEN, rule="r")),
    "a noise plan after the design": lambda s: (begun(s), noise(s)),
    "two noise plans": lambda s: (s.create(), noise(s), noise(s)),
    "a noise plan under another's hash": lambda s: (s.create(), noise(s, hash="f" * 64)),
    "a noise run without a plan": lambda s: (s.create(), noise_run(s)),
    "a noise run after the design": lambda s: (s.create(), noise(s), s.lock(), noise_run(s)),
    "a noise run with a seed of its own": lambda s: (s.create(), noise(s), noise_run(s, seed=7)),
    "a noise run of an arm": lambda s: (s.create(), noise(s), noise_run(s, arm="x")),
    "a run whose job is not its arm's": lambda s: (begun(s), foreign(s, job={"steps": 1})),
    "a run in another environment": lambda s: (begun(s), foreign(s, environment="arith")),
    "a run measured otherwise": (
        lambda s: (begun(s), foreign(s, metric=s.design.metric.model_copy(update={"episodes": 1})))),
    "a screening run without a screen": lambda s: (begun(s), foreign(s, phase="screen")),
    "a confirming run before the screen was decided": lambda s: (begun(s, searching()), foreign(s)),
    "a confirming seed in a screening run": lambda s: (search(s, WIDE), screening(s, seed=s.design.seeds[0])),
    "the screen's seed in a confirming run": lambda s: (screened(s), foreign(s, seed=SCREEN.seed)),
    "a screening run of nobody that was asked for": lambda s: (begun(s, searching()), screening(s)),
    "a screening run as long as no rung": lambda s: (search(s, WIDE), screening(s, steps=6)),
    "a candidate without a screen": lambda s: (begun(s), ask(s, WIDE)),
    "a candidate out of turn": lambda s: (search(s, WIDE, first=1)),
    "a candidate twice": lambda s: (search(s, WIDE, WIDE)),
    "a candidate off its ladder": lambda s: (search(s, Arm(name="x", overrides={"group_size": 5}))),
    "a candidate of another field": lambda s: (search(s, Arm(name="x", overrides={"steps": 4}))),
    "a candidate after the decision": lambda s: (screened(s), ask(s, DEEP, first=2)),
    "a screen decided twice": lambda s: (screened(s), keep(s, WIDE)),
    "a screen decided without one": (
        lambda s: (begun(s), s.append(EventType.SCREEN_DECIDED, selection={"kept": ["x"], "scores": {},
            "reason": ""}, arms=[], hypotheses=[]))),
    "a kept arm that was never asked for": lambda s: (search(s, WIDE), keep(s, DEEP)),
    "too many kept": lambda s: (search(s, WIDE, DEEP), keep(s, WIDE, WIDE)),
    "arms that were not kept": lambda s: (search(s, WIDE, DEEP), keep(s, WIDE, arms=[DEEP])),
    "claims that do not follow": lambda s: (search(s, WIDE), keep(s, WIDE, hypotheses=[])),
    "a verdict of a screen": lambda s: (begun(s), judge(s, phase="screen")),
    "a verdict at a look that there is not": lambda s: (begun(s), judge(s, look=2)),
    "a look twice": lambda s: (begun(s, looked()), judge(s), judge(s)),
    "a final verdict replaced": lambda s: (begun(s, looked()), judge(s, final=True), judge(s, look=2)),
    "a verdict after it was settled": lambda s: (begun(s, looked()), judge(s), decide(s, "settle"), judge(s, look=2)),
    "a size of no pilot": lambda s: (begun(s), size(s, 5)),
    "a size twice": lambda s: (begun(s, piloted()), size(s, 4), size(s, 4)),
    "a size beyond the lock's seeds": lambda s: (begun(s, piloted()), size(s, 9)),
    "a size that its looks do not reach": lambda s: (begun(s, piloted()), size(s, 3, 4, seeds=6)),
    "a run beyond the pilot": (
        lambda s: (begun(s, piloted()), plan(s, s.spec(s.design.arms[0].name, s.design.seeds[5])))),
    "a decision without a verdict": lambda s: (begun(s, looked()), decide(s)),
    "a decision twice": lambda s: (begun(s, looked()), judge(s), decide(s), decide(s)),
    "a decision that is none": lambda s: (begun(s, looked()), judge(s), decide(s, "stop")),
    "a planner's wish for a replication": (
        lambda s: (begun(s, looked()), judge(s), decide(s, "replicate", rule=LOOK_RULE))),
    "a planner's word on what is decided": (
        lambda s: (begun(s, looked()), judge(s, final=True), decide(s, "settle", rule=LOOK_RULE))),
    "a replication that nothing asked for": (
        lambda s: (begun(s, looked()), plan(s, replicate_spec(s.study, s.design, s.design.hash(), s.design.arms[0],
            71)))),
    "a replication that the lock does not have": lambda s: (begun(s), foreign(s, phase="replicate")),
    "a verdict on no replication": lambda s: (begun(s, looked()), judge(s, phase="replicate")),
    **{f"a copy of {name}": partial(copied, **wrong) for name, wrong in (
        ("no attempt", {"attempt": 2}), ("no standing", {"standing": "fine"}), ("no run", {"run_id": "nobody"}))},
    "an amendment without a lock": lambda s: (s.create(), amend(s)),
    "an amendment without a target": lambda s: (begun(s), amend(s, kind="accept")),
    "a veto of nothing": lambda s: (begun(s), s.append(EventType.HYPOTHESIS_VETOED, hypothesis="h9", reason="x")),
}  # fmt: skip


@pytest.mark.parametrize("name", UNFIT)
def test_what_cannot_follow_is_refused_and_named(study: Synthetic, name: str) -> None:
    with refused(LogCorrupt, f"of study {study.study}") as caught:
        (UNFIT[name](study), study.state())  # a step may fold as well
    assert f"event {caught.value.seq} ({caught.value.type})" in str(caught.value)

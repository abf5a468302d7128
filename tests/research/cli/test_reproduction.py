"""A study put to the test again: its lock on new seeds, what becomes of its claims, and what speaks against them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from research.cli import research
from research.controller.built_designs import build_reproduction
from research.controller.session import StudyRequest
from research.design.known_findings import load_findings
from research.errors import BadInput
from research.installation.home import Home
from research.planners.rules import RulesPlanner
from research.planners.tools import find_related
from research.shown.study import find_differences, summary
from studies import EventType, LogCorrupt, StudyState, fold
from studies.records.design import RunSpec
from studies.records.verdict import REPRODUCES, Reproduction
from tests.research.bench import Bench
from tests.research.cli.conftest import Ajet
from tests.research.designs import EPISODES, design, rate
from tests.research.factories import make_study
from tests.research.fakes import FakeSandbox
from tests.research.in_rounds import InRounds
from tests.studies.synthetic import STUDY, Synthetic, coded_design, hypothesis
from tests.studies.synthetic import design as synthetic_design


def reverse(spec: RunSpec) -> float:
    return (12 + {16: -8}.get(spec.job["group_size"], 0) + spec.seed % 4) / EPISODES


def alike(spec: RunSpec) -> float:
    return (12 + spec.seed % 13) / EPISODES


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> StudyState:
    bench = Bench(tmp_path_factory.mktemp("first"), design=design(16, 32))
    return bench.drive(bench.loop())


def again(first: StudyState, path: Path, rates: Callable[[RunSpec], float] = rate, *claims: str) -> Bench:
    reproduced = build_reproduction(first, claims or ("h1",), path)
    settings: dict[str, Any] = {REPRODUCES: reproduced.model_dump(mode="json")}
    bench = Bench(path, study="again", planner="rules", **settings)
    bench.sandbox, bench.planner = FakeSandbox(rate=rates), RulesPlanner()
    bench.sandbox.now = bench.clock
    return bench


@pytest.mark.parametrize(
    ("rates", "outcome"), [(rate, "replicated"), (reverse, "not replicated"), (alike, "inconclusive")]
)
def test_a_claim_is_judged_again_by_its_lock_on_new_seeds(
    first: StudyState, tmp_path: Path, rates: Callable[[RunSpec], float], outcome: str
) -> None:
    bench = again(first, tmp_path, rates)
    state = bench.drive(bench.loop())
    assert state.design is not None
    assert first.design is not None
    assert {*state.design.seeds}.isdisjoint(first.design.seeds)
    assert len(state.design.seeds) == len(first.design.seeds)
    assert [arm.name for arm in state.design.arms] == ["group_size=8", "group_size=16"]  # of the claim alone
    same = ("base_job", "looks", "alpha", "test", "equivalence_margin", "environment", "collapse", "noise")
    assert [name for name in same if getattr(state.design, name) != getattr(first.design, name)] == []
    (told,) = summary(state, bench.home.study("again"))["reproduces"]
    assert (told["of"], told["outcome"]) == (f"{first.id}/1/h1", outcome)
    assert told["there"].startswith("supported +0.")
    assert told["there"] != told["here"]
    assert [act.action for act in state.planner_acts] == ["conclude"]  # which the rules have no words for


def test_a_lock_that_differs_from_the_one_it_reproduces_is_refused_by_the_log(
    first: StudyState, tmp_path: Path
) -> None:
    bench = again(first, tmp_path)
    state = bench.until(lambda state: state.design is not None)
    locked, known = state.locked_design, Reproduction.model_validate(state.settings[REPRODUCES])
    assert locked is not None
    before = bench.events()[: state.locked.seq - 1 if state.locked else 0]
    for changed in ({"alpha": 0.2}, {"seeds": known.design.seeds}, {"seeds": locked.seeds[1:], "looks": ()}):
        other = locked.model_copy(update=changed)
        payload = {"design": other.model_dump(mode="json"), "hash": other.hash(), "file": "design.lock"}
        event = bench.log.compose("again", EventType.DESIGN_LOCKED, payload, after=before[-1], actor="system")
        with pytest.raises(LogCorrupt, match="lock that it reproduces"):
            fold([event], fold(before))


def test_only_claims_of_one_round_that_a_study_decided_are_put_to_the_test_again(tmp_path: Path) -> None:
    study = InRounds(tmp_path)
    with pytest.raises(BadInput, match=r"is judged, decided h1 of round 1, r2h1 of round 2; found all of these"):
        build_reproduction(study.two_rounds(), (), tmp_path)
    study.append(EventType.STUDY_STOPPED, reason="enough")
    state = study.state()
    for named in ((), ("h1", "r2h1"), ("h7",), ("h1", "h7")):
        with pytest.raises(BadInput, match="--claims"):
            build_reproduction(state, named, tmp_path)
    made = build_reproduction(state, ("r2h1",), tmp_path).design  # a study of one round with the level of its round
    assert (made.inquiry, made.alpha, made.looks) == (None, state.design and state.design.alpha, study.design.looks)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[StudyRequest]:
    """What would begin; nothing does."""
    found: list[StudyRequest] = []
    monkeypatch.setattr(research, "begin_study", lambda home, log, study, request: found.append(request))
    monkeypatch.setattr(research, "conduct", lambda *args, **more: None)
    return found


def test_a_reproduction_says_where_the_first_study_trained(ajet: Ajet, home: Path, begun: list[StudyRequest]) -> None:
    settings = {"budget_s": 900.0, "max_runs": None, "parallel": 2, "servers": ["http://gpu:1"]}
    make_study().whole(settings=settings)
    told = ajet("study", "reproduce", STUDY)
    assert (told.code, len(begun)) == (0, 1), told.err
    assert f"study {STUDY} trained on http://gpu:1; this one trains on this machine" in told.err


def test_a_budget_in_which_the_lock_has_no_room_begins_nothing(
    ajet: Ajet, home: Path, begun: list[StudyRequest]
) -> None:
    make_study().whole()
    ajet("study", "reproduce", STUDY, "--budget", "1s").refused("--budget", "or more, for its lock; found 1s")
    assert begun == []


def test_code_of_a_study_without_containers_begins_nothing(ajet: Ajet, home: Path) -> None:
    study = make_study(means={"reward=built-in": 0.5, "reward=dense": 0.6})
    study.whole(coded_design())
    ajet("study", "reproduce", STUDY, "--no-prefect").refused(f"containers to run the code of study {STUDY}")
    assert study.log.studies() == [STUDY]


OTHER = {"group_size=4": 0.66, "group_size=16": 0.52}


@pytest.fixture
def pair(home: Path) -> tuple[Synthetic, Synthetic]:
    """A study, and one that reproduces it and finds the opposite."""
    one = make_study()
    reproduced = build_reproduction(one.whole(), (), home / "models")
    other = make_study(study="again", log=one.log, means=OTHER)
    seeds = [seed + 1 for seed in reproduced.design.seeds]
    settings = {"budget_s": 900.0, "max_runs": None, "parallel": 2, REPRODUCES: reproduced.model_dump(mode="json")}
    other.whole(reproduced.lock_again(seeds, None, reproduced.design.budget), settings=settings)
    return one, other


def test_a_claim_says_wherever_it_is_cited_that_it_was_not_replicated(
    ajet: Ajet, pair: tuple[Synthetic, Synthetic]
) -> None:
    found = {entry["name"]: entry for entry in ajet("findings", "--json").data["findings"]}
    assert found[f"{STUDY}/1/h1"]["replications"] == {"again": "not replicated"}
    assert found["again/1/h1"]["reproduces"].startswith(f"{STUDY}/1/h1 ")
    assert "not replicated by 1 (again)" in ajet("findings", "replicated").out
    assert f"ask next, what goes beyond {STUDY}/1/h1; not replicated by 1 (again)" in ajet("study", "show", STUDY).out
    assert ajet("study", "show", STUDY, "--json").data["replications"] == {f"{STUDY}/1/h1": {"again": "not replicated"}}
    assert ajet("study", "show", "again", "--json").data["replications"] == {}
    assert "not replicated by 1 (again)" in ajet("study", "recipe", STUDY).err
    known = load_findings(Home.locate(), pair[0].log).findings
    (quoted,) = find_related(known, "again", "group_size", 5)  # what a planner is shown
    assert "not replicated by 1 (again)" in quoted.text
    report = pair[1].report().markdown.read_text()
    assert report.index("Reproduces") < report.index("Asked")
    assert "Not replicated" in report
    assert pair[1].drifts() == ()


def test_a_challenge_is_written_into_the_log_and_shown_with_the_claim(
    ajet: Ajet, pair: tuple[Synthetic, Synthetic]
) -> None:
    one, _ = pair
    challenge = ("study", "challenge", f"{STUDY}/1/h1", "--evidence", "again/1/h1", "--reason", "the other way round")
    assert ajet(*challenge, "--json").data["amendment"]["claim"] == "h1"
    said = 'hallenged by again/1/h1: "the other way round"'
    assert said in ajet("findings").out
    assert said in ajet("study", "show", STUDY).out
    assert said in one.report().markdown.read_text()
    assert one.drifts() == ()
    (verdict,) = ajet("study", "show", STUDY, "--json").data["verdicts"]
    assert (verdict["verdict"], [said in told for told in verdict["challenges"]]) == ("supported", [True])


def test_what_replicates_a_claim_is_no_evidence_against_it(ajet: Ajet, home: Path) -> None:
    one = make_study()
    reproduced = build_reproduction(one.whole(), (), home / "models")
    seeds = [seed + 1 for seed in reproduced.design.seeds]
    settings = {"budget_s": 900.0, "max_runs": None, "parallel": 2, REPRODUCES: reproduced.model_dump(mode="json")}
    lock = reproduced.lock_again(seeds, None, reproduced.design.budget)
    make_study(study="again", log=one.log).whole(lock, settings=settings)
    against = ("study", "challenge", f"{STUDY}/1/h1", "--reason", "why", "--evidence")
    for evidence in ("again", "again/1/h1"):
        ajet(*against, evidence).refused(f"evidence against {STUDY}/1/h1", "which replicates it")


@pytest.mark.parametrize(
    ("claim", "evidence"),
    [
        ("nothing/1/h1", "again"), (f"{STUDY}/1/h7", "again"), (STUDY, "again"),
        (f"{STUDY}/1/h1", "nothing"), (f"{STUDY}/1/h1", "again/2/h1"), (f"{STUDY}/1/h1", f"{STUDY}/1/h1"),
    ],
)  # fmt: skip
def test_a_claim_or_evidence_that_is_not_there_is_one_line(
    ajet: Ajet, pair: tuple[Synthetic, Synthetic], claim: str, evidence: str
) -> None:
    ajet("study", "challenge", claim, "--evidence", evidence, "--reason", "why").refused()


def test_a_challenge_of_an_earlier_round_stays_with_its_claim(tmp_path: Path) -> None:
    study = InRounds(tmp_path)
    study.two_rounds()
    study.amend("note", claim="h1", evidence="other", reason="no")
    earlier, present = study.state().rounds
    assert earlier.challenges("h1") == ('challenged by other: "no"',)
    assert present.challenges("r2h1") == ()
    study.amend("note", claim="h9", evidence="other", reason="no")
    with pytest.raises(LogCorrupt, match="verdict on 'h9'"):
        study.state()


def test_what_two_studies_differ_in_is_listed_and_nothing_else(tmp_path: Path) -> None:
    one, other = Synthetic(tmp_path / "one"), Synthetic(tmp_path / "other", topic="Another question?")
    first = one.whole()
    assert find_differences(first, first) == {}
    chosen = synthetic_design((hypothesis(),), seeds=4, environment="arith", alpha=0.01)
    differ = find_differences(first, other.whole(chosen))
    about = [name for name in differ if name.startswith("group_size")]
    assert differ.pop("question") == [first.topic, "Another question?"]
    assert {name: differ[name] for name in differ if name not in about} == {
        "design.alpha": [0.05, 0.01], "design.environment": ["guess", "arith"], "design.seeds of each arm": [5, 4],
    }  # fmt: skip
    assert len(about) == 2  # the verdict of each, on another question


def test_an_export_that_was_changed_is_refused_with_its_first_fault(ajet: Ajet, home: Path, tmp_path: Path) -> None:
    make_study().whole()
    ajet("study", "export", STUDY, str(tmp_path / "out"))
    assert ajet("study", "diff", STUDY, str(tmp_path / "out"), "--json").data["differ"] == {}
    events = tmp_path / "out" / "events.jsonl"
    events.write_text(events.read_text().replace('"look":1', '"look":2', 1))
    for command in (("reproduce",), ("diff", STUDY)):
        ajet("study", *command, str(tmp_path / "out")).refused("expected a study that verifies")
    assert json.loads(events.read_text().splitlines()[0])["study"] == STUDY

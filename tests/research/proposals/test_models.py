"""Models as a variable: folders by short names, arms that hold them as a job does, and what may not be beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from research.design.compiler import accept_hypotheses
from research.errors import BadModel, BadTopic, DesignRefused
from research.installation.base_job import model_folder
from research.planners.context import Digest, tunable_facts
from research.planners.rules import RulesPlanner, require_readable
from research.proposals.actions import Propose
from research.proposals.arms import NO_MODELS, ComparedModels, compare, folders_in
from research.proposals.flags import RequestedComparison, folders_varied
from studies.records.design import MODEL, Hypothesis
from swarm.job import Job, PathModel
from tests.golden import assert_golden
from tests.research.factories import make_claim
from tests.research.model_folders import model_at


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, weights in {"SmolLM2-135M": b"a", "qwen.v2": b"b", "third": b"c"}.items():
        model_at(tmp_path / "models" / name, weights)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(*folders: str) -> ComparedModels:
    return ComparedModels.found(folders, model_folder)


BOTH = ("models/SmolLM2-135M", "models/qwen.v2")


def of_models(control: str, treatment: str, models: ComparedModels) -> tuple[Hypothesis, ...]:
    return accept_hypotheses(Propose(hypotheses=(make_claim(MODEL, control, treatment),)), models)


def test_models_go_by_short_names_and_survive_settings(place: Path) -> None:
    models = found(*BOTH)
    assert tuple(models.by_name) == ("smollm2-135m", "qwen.v2")
    assert ComparedModels.of(models.settings()) == models
    assert RequestedComparison.of(RequestedComparison(models=models).settings()).models == models


def test_arms_hold_the_model_as_the_job_does(place: Path) -> None:
    models = found(*BOTH)
    accepted = of_models("smollm2-135m", "qwen.v2", models)
    assert_golden(accepted[0].statement)
    resolved = compare("arith", accepted, {})
    assert [arm.name for arm in resolved.arms] == ["model=smollm2-135m", "model=qwen.v2"]
    for arm, job in zip(resolved.arms, resolved.jobs, strict=True):
        assert isinstance(job.model, PathModel)
        assert arm.overrides[MODEL] == job.model.model_dump(mode="json")
        assert job.model.sha256


def test_a_name_that_is_no_model_is_refused_and_no_path_is_looked_at(place: Path) -> None:
    with pytest.raises(DesignRefused, match=r"one of smollm2-135m, qwen\.v2; found 'models/third'"):
        of_models("qwen.v2", "models/third", found(*BOTH))
    with pytest.raises(DesignRefused, match="expected models that") as refused:
        of_models("a", "b", NO_MODELS)
    assert "--" not in refused.value.for_planner


def test_models_are_compared_alone(place: Path) -> None:
    models = found(*BOTH)
    both = of_models("smollm2-135m", "qwen.v2", models)
    other = accept_hypotheses(Propose(hypotheses=(make_claim("lr_schedule", "constant", "cosine"),)))
    with pytest.raises(DesignRefused, match="models compared alone"):
        compare("arith", (*both, *other), {})
    with pytest.raises(BadTopic, match="models compared alone"):
        RequestedComparison.asked([f"model={','.join(BOTH)}", "group_size=4,8"], [], models=models)


def test_the_jobs_own_model_has_to_be_among_those_compared(place: Path) -> None:
    models = found(*BOTH)
    vary = [f"model={','.join(BOTH)}"]
    base = Job(model=model_folder("models/qwen.v2"))
    assert RequestedComparison.asked(vary, [], base, models).vary == {MODEL: ("smollm2-135m", "qwen.v2")}
    with pytest.raises(DesignRefused, match="expected model = third, which the"):
        RequestedComparison.asked(vary, [], Job(model=model_folder("models/third")), models)


def test_two_folders_that_cannot_be_told_apart_are_refused(place: Path) -> None:
    model_at(place / "other" / "third", b"d")
    with pytest.raises(BadTopic, match="different names"):
        found("models/third", "other/third")
    model_at(place / "models" / "copy", b"a")
    with pytest.raises(BadTopic, match="content in models/SmolLM2-135M and models/copy"):
        found("models/SmolLM2-135M", "models/copy")
    with pytest.raises(BadModel, match="no such folder"):
        found("models/qwen.v2", "models/nothing")


def test_folders_are_found_in_flags_and_in_topics(place: Path) -> None:
    assert folders_varied([f"model={','.join(BOTH)}", "group_size=4,8"]) == BOTH
    topic = f"Which learns more on arith, {BOTH[0]} or '{BOTH[1]}/'?"
    assert folders_in(topic) == BOTH
    assert folders_in("and/or models/nothing ~nobody/x \0/x") == ()


@pytest.mark.parametrize(
    "topic",
    [
        "Which of these two learns more on arith, {} or {}?", "Does {1} learn more than {0} on arith?",
        "{} vs {} on arith", "Which learns more on arith: {} or {}?",
    ],
)  # fmt: skip
def test_a_topic_that_names_two_folders_is_a_comparison_of_them(place: Path, topic: str) -> None:
    asked, models = topic.format(*BOTH), found(*BOTH)
    wanted = RequestedComparison(models=models)
    require_readable(asked, wanted)
    digest = Digest(asked, 1e6, 10.0, 2, wanted=wanted, fields=tunable_facts(models=models))
    turn = RulesPlanner().act(digest, lambda action: None)
    assert isinstance(turn.action, Propose)
    (entry,) = turn.action.hypotheses
    assert {entry.control, entry.treatment} == {"smollm2-135m", "qwen.v2"}
    assert entry.variable == MODEL
    assert "gains is compared" in turn.note


def test_a_planner_is_shown_the_models_by_their_names_alone(place: Path) -> None:
    models = found(*BOTH)
    wanted: Any = RequestedComparison(models=models)
    facts = Digest("q", 1e6, 10.0, 2, wanted=wanted, fields=tunable_facts(models=models)).facts()
    (shown,) = (entry for entry in facts["job_fields"] if entry["name"] == MODEL)
    assert shown["sensible_values"] == ["smollm2-135m", "qwen.v2"]
    assert "gain" in shown["does"]
    assert MODEL not in {entry["name"] for entry in Digest("q", 1e6, 10.0, 2).facts()["job_fields"]}

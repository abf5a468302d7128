from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.design.compiler import accept_hypotheses
from research.errors import BadTopic, DesignRefused
from research.installation.base_job import model_folder
from research.planners.context import field_specs
from research.proposals.actions import Propose
from research.proposals.arms import NO_MODELS, ComparedModels, compare, field_value, is_job, lint_arms
from research.proposals.flags import RequestedComparison
from studies.records.design import MODEL, Hypothesis
from swarm.errors import InvalidRequest
from swarm.job import Job, PathModel, TinyModel, tunables
from tests.research import designs
from tests.research.factories import make_claim
from tests.research.model_folders import model_at


def claim(variable: str, control: Any, treatment: Any, name: str = "h1") -> Hypothesis:
    return designs.claim(treatment, name, variable=variable, control=control)


def test_a_step_size_that_nobody_says_is_the_usual_one_of_the_model_and_of_what_of_it_trains() -> None:
    base, varied = Job(model=PathModel(path="m")), (claim("group_size", 4, 16),)
    assert compare("guess", varied, {}, base).base.learning_rate == 2e-5
    assert compare("guess", varied, {"lora_rank": 8}, base).base.learning_rate == 5e-4
    assert compare("guess", (claim("lora_rank", 8, 16),), {}, base).base.learning_rate == 5e-4
    assert compare("guess", varied, {}, Job(model=base.model, learning_rate=1e-4)).base.learning_rate == 1e-4
    (rate,) = (facts for facts in field_specs(base) if facts.name == "learning_rate")
    assert (rate.default, rate.ladder) == (2e-5, (6e-6, 2e-5, 6e-5))


@pytest.mark.parametrize(("field", "value", "told"), [
    ("group_size", 4.5, "integer"), ("group_size", True, "a number"), ("group_size", 10**400, "group_size"),
    ("normalize_advantage", 1, "true or false"), ("learning_rate", float("inf"), "learning_rate"),
    ("group_size", "four", "a number"), ("normalize_advantage", "true", "true or false"),
    ("algorithm", "ppo", "expected one of grpo, rloo, .*; found 'ppo'"), ("algorithm", 1, "expected one of"),
    ("seed", 3, "can be varied"), ("no_such", 3, "can be varied"),
])  # fmt: skip
def test_values_a_field_cannot_take_are_refused(field: str, value: Any, told: str) -> None:
    with pytest.raises(DesignRefused, match=told):
        field_value(field, value)


DENSE: tuple[dict[str, str], ...] = ({}, {"reward": "dense"})


@pytest.mark.parametrize(("other", "declared", "rewards", "told"), [
    (Job(group_size=16, temperature=0.7), "group_size", (), "temperature differs (1.0 and 0.7)"),
    (Job(group_size=16, seed=1), "group_size", (), "seed differs (0 and 1)"),
    (Job(group_size=16, model=TinyModel(seed=3)), "group_size", (), "model.seed differs (0 and 3)"),
    (Job(group_size=16, model=PathModel(path="m")), "group_size", (), "model.kind differs ('tiny' and 'path')"),
    (Job(group_size=16, steps=80), "group_size", (), "(5120 and 10240)"),
    (Job(), "reward", DENSE, None), (Job(), "reward", (), "reward does not"),
    (Job(temperature=0.7), "temperature", DENSE, "reward differs ('built-in' and 'dense')"),
    (Job(temperature=0.7), "reward", DENSE, "temperature differs (1.0 and 0.7)"),
])  # fmt: skip
def test_any_difference_beside_what_is_declared_is_named(
    other: Job, declared: str, rewards: tuple[dict[str, str], ...], told: str | None
) -> None:
    lines = lint_arms(Job(), other, declared, *([rewards] if rewards else []))
    assert any(told in line and declared in line for line in lines) if told else lines == []
    assert not any("tasks per step" in line for line in lines)  # that follows from the size of the group


@given(st.sampled_from(sorted(tunables())), st.sampled_from(sorted(tunables())))
def test_exactly_the_declared_field_may_differ(declared: str, other: str) -> None:
    def moved(*fields: str) -> Job:
        changes = {f: next(v for v in tunables()[f].ladder if v != Job.model_fields[f].default) for f in fields}
        return Job.model_validate(changes)

    assert lint_arms(Job(), moved(declared), declared) == []
    assert bool(lint_arms(Job(), moved(declared, other), declared)) == (declared != other)


def reward(treatment: Any = "dense", name: str = "h1", control: Any = "built-in") -> Hypothesis:
    return claim("reward", control, treatment, name)


def test_a_reward_and_a_field_share_the_control_arm() -> None:
    found = compare("guess", [reward(), claim("group_size", 4, 16, "h2"), reward("other", "h3")], {})
    assert [(arm.name, arm.slots, arm.job_overrides) for arm in found.arms] == [
        ("control", {}, {"group_size": 4}),
        ("reward=dense", {"reward": "dense"}, {}),
        ("group_size=16", {}, {"group_size": 16}),
        ("reward=other", {"reward": "other"}, {}),
    ]
    assert [job.group_size for job in found.jobs] == [4, 4, 16, 4]


def test_a_combination_is_possible_when_it_is_a_job() -> None:
    base, changes = Job(episodes_per_step=32).model_dump(mode="json"), [{"group_size": 16}, {"group_size": 5}]
    assert [is_job(base, change) for change in (*changes, {"learning_rate": -1})] == [True, False, False]


def test_what_a_base_job_fixes_is_kept_and_not_replaced() -> None:
    base = Job(group_size=4, max_tokens=64)
    assert {job.max_tokens for job in compare("guess", [claim("group_size", 4, 16)], {}, base).jobs} == {64}
    compare("guess", [claim("group_size", 16, 4)], {"max_tokens": 64}, base)
    for claims, constants in (([claim("group_size", 8, 16)], {}), ([claim("group_size", 4, 16)], {"max_tokens": 32})):
        with pytest.raises(DesignRefused, match="the study fixes"):
            compare("guess", claims, constants, base)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, weights in {"SmolLM2-135M": b"a", "qwen.v2": b"b", "third": b"c"}.items():
        model_at(tmp_path / "models" / name, weights)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(*folders: str) -> ComparedModels:
    return ComparedModels.load(folders, model_folder)


BOTH = ("models/SmolLM2-135M", "models/qwen.v2")


def of_models(control: str, treatment: str, models: ComparedModels) -> tuple[Hypothesis, ...]:
    return accept_hypotheses(Propose(hypotheses=(make_claim(MODEL, control, treatment),)), models)


def test_models_go_by_short_names_and_survive_settings(place: Path) -> None:
    models = found(*BOTH)
    assert tuple(models.by_name) == ("smollm2-135m", "qwen.v2")
    assert ComparedModels.of(models.settings()) == models
    assert RequestedComparison.of(RequestedComparison(models=models).settings()).models == models


def test_a_name_that_is_no_model_is_refused_and_no_path_is_looked_at(place: Path) -> None:
    with pytest.raises(DesignRefused, match=r"one of smollm2-135m, qwen\.v2; found 'models/third'"):
        of_models("qwen.v2", "models/third", found(*BOTH))
    with pytest.raises(DesignRefused, match="expected models that") as refused:
        of_models("a", "b", NO_MODELS)
    assert "--" not in refused.value.model_feedback


def test_models_are_compared_alone(place: Path) -> None:
    models = found(*BOTH)
    both = of_models("smollm2-135m", "qwen.v2", models)
    other = accept_hypotheses(Propose(hypotheses=(make_claim("lr_schedule", "constant", "cosine"),)))
    with pytest.raises(DesignRefused, match="models compared alone"):
        compare("arith", (*both, *other), {})
    with pytest.raises(BadTopic, match="models compared alone"):
        RequestedComparison.parse([f"model={','.join(BOTH)}", "group_size=4,8"], [], models=models)


def test_the_jobs_own_model_has_to_be_among_those_compared(place: Path) -> None:
    models = found(*BOTH)
    vary = [f"model={','.join(BOTH)}"]
    base = Job(model=model_folder("models/qwen.v2"))
    assert RequestedComparison.parse(vary, [], base, models).vary == {MODEL: ("smollm2-135m", "qwen.v2")}
    with pytest.raises(DesignRefused, match="expected model = third, which the"):
        RequestedComparison.parse(vary, [], Job(model=model_folder("models/third")), models)


def test_two_folders_that_cannot_be_told_apart_are_refused(place: Path) -> None:
    model_at(place / "other" / "third", b"d")
    with pytest.raises(BadTopic, match="different names"):
        found("models/third", "other/third")
    model_at(place / "models" / "copy", b"a")
    with pytest.raises(BadTopic, match="content in models/SmolLM2-135M and models/copy"):
        found("models/SmolLM2-135M", "models/copy")
    with pytest.raises(InvalidRequest, match="no such folder"):
        found("models/qwen.v2", "models/nothing")

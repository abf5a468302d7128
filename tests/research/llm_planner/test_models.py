"""A language model compares the models that a user names, by their names, and keeps to the job that the user gave."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.design.compiler import accept_hypotheses
from research.installation.model_folder import model_folder
from research.llm_planner.coverage import left_out
from research.llm_planner.prompts import messages
from research.planner.digest import Digest, tunable_facts
from research.proposals.actions import Propose, ProposeDesign, ProposedHypothesis
from research.proposals.flags import RequestedComparison
from research.proposals.models import ComparedModels
from research.topic import absent
from research.topic.mentions import readable
from studies.records.design import MODEL
from tests.research.model_folders import model_at


@pytest.fixture
def models(tmp_path: Path) -> ComparedModels:
    folders = [model_at(tmp_path / "qwen-0.5b"), model_at(tmp_path / "smollm2", b"v")]
    return ComparedModels.found(map(str, folders), model_folder)


def digest(models: ComparedModels, proposed: bool = False) -> Digest:
    entry = ProposedHypothesis(
        mechanism="m", variable=MODEL, control="qwen-0.5b", treatment="smollm2", direction="increase",
        predicted_low=0.0, predicted_high=0.2, probability=0.5,
    )  # fmt: skip
    topic = "Which learns more, {} or {}?".format(*(known.said for known in models.by_name.values()))
    return Digest(
        topic, 1e6, 10.0, 2, wanted=RequestedComparison(models=models), fields=tunable_facts(models=models),
        hypotheses=accept_hypotheses(Propose(hypotheses=(entry,)), models) if proposed else (),
        fixed={"max_tokens": 64},
    )  # fmt: skip


def test_folders_that_a_topic_names_are_no_models_that_are_not_here(models: ComparedModels) -> None:
    assert absent.unavailable(digest(models).topic, ["guess"]) is not None, "by its words alone it would be refused"
    assert absent.unavailable(readable(digest(models)), ["guess"]) is None


def test_the_prompt_says_that_gains_are_judged_and_what_the_user_fixed(models: ComparedModels) -> None:
    said = messages(digest(models))[1]["content"]
    assert "`variable` may be 'model'" in said
    assert "judged by what each gains" in said
    assert '"fixed_by_the_user": {"max_tokens": 64}' in said
    plain = messages(Digest("q", 1e6, 10.0, 2))[1]["content"]
    assert "fixed_by_the_user" not in plain
    assert "may be 'model'" not in plain


def test_a_design_of_the_models_leaves_nothing_of_the_topic_out(models: ComparedModels) -> None:
    assert left_out(digest(models, proposed=True), ProposeDesign(environment="guess")) is None

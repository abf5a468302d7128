"""`--job` and `--model-path`: what a plan says of them, and the one line that wrong ones end with, nothing written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swarm.job import Job
from tests.research.cli.conftest import Ajet
from tests.research.model_folders import model_at

VARY = ("--vary", "learning_rate=0.001,0.003")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    model_at(tmp_path / "mine")
    model_at(tmp_path / "theirs", b"v")
    return tmp_path


def job(**fields: Any) -> str:
    Path("job.json").write_text(json.dumps(fields))
    return "job.json"


def planned(ajet: Ajet, *arguments: str) -> dict[str, Any]:
    ended = ajet("study", "plan", *arguments, "--budget", "4h", "--json")
    assert ended.code == 0, ended.err
    found: dict[str, Any] = json.loads(ended.out)
    return found


def test_the_job_lies_under_all_arms_and_its_environment_is_played(ajet: Ajet) -> None:
    found = planned(ajet, *VARY, "--job", job(steps=7, environment="arith", max_context=128, group_size=4))
    assert found["job"] == {"steps": 7, "environment": "arith", "max_context": 128, "group_size": 4}
    base = found["design"]["base_job"]
    assert (base["environment"], base["steps"], base["max_context"]) == ("arith", 7, 128)


def test_a_topic_compares_with_what_the_job_has(ajet: Ajet) -> None:
    found = planned(ajet, "does a group size of 16 help on arith?", "--job", job(group_size=2))
    assert found["arms"] == ["group_size=2", "group_size=16"]
    found = planned(ajet, "does a larger learning rate help on arith?", "--job", job(learning_rate=0.002))
    assert found["arms"] == ["learning_rate=0.002", "learning_rate=0.003"]
    found = planned(ajet, "does a larger learning rate help on arith?", "--job", job(learning_rate=0.003))
    assert found["arms"] == ["learning_rate=0.0003", "learning_rate=0.003"]


def test_a_plan_says_which_model_is_trained_and_that_its_price_is_a_guess(ajet: Ajet) -> None:
    out = ajet("study", "plan", *VARY, "--model-path", "mine", "--env", "arith", "--budget", "4h").out
    assert "job  model = mine" in out
    assert "mine was never measured here: estimated from 6 parameters" in " ".join(out.split())


def test_models_are_compared_by_flags(ajet: Ajet) -> None:
    found = planned(ajet, "--vary", "model=mine,theirs", "--env", "arith")
    assert found["arms"] == ["model=mine", "model=theirs"]
    assert "raises the gain in hidden success" in found["tested"][0]
    assert found["noise_runs_first"] > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--job", "nothing.json"), "could not read nothing.json"),
        (("--model-path", "nothing"), "found no such folder"),
        (("--model-path", "org/some-7b"), "looks like the name of a model on a hub"),
        (("--model-path", "job.json"), "found the file"),
        (("--env", "guess"), "expected environment = arith, which the job of the study fixes"),
        (("--set", "steps=8"), "expected steps = 7, which the job of the study fixes; found steps = 8"),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_is_begun(
    ajet: Ajet, home: Path, arguments: tuple[str, ...], said: str
) -> None:
    given = ("--job", job(steps=7, environment="arith")) if "--job" not in arguments else ()
    for command in (("research", "--no-prefect"), ("study", "plan")):
        ended = ajet(*command, *VARY, *given, *arguments)
        assert ended.code == 2
        assert said in ended.line
    assert not (home / "ajet.db").exists()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"stepz": 7}, "stepz: there is no such field; did you mean steps"), ({"steps": -1}, "steps: "),
        ({"backend": "vllm"}, "expected a backend among local, fake, verl; found 'vllm'"),
        ({"evaluate_after": [2]}, "expected a job without evaluate_after"),
        ({"eval_every": 2}, "expected a job without eval_every"),
        ({"train_agents": ["solver"]}, "expected a job without train_agents"),
        ({"seed": 4}, "expected a job without seed"), ({"steps": "many"}, "steps: expected a valid integer"),
        ({"environment": "chess"}, "expected an environment: guess, arith, market"),
        ({"model": {"kind": "path", "path": "nothing"}}, "found no such folder"),
        ({"episodes_per_step": 30}, "multiple of group_size"),
    ],
)  # fmt: skip
def test_a_job_that_no_study_can_have_is_one_line_and_nothing_is_begun(
    ajet: Ajet, home: Path, fields: dict[str, Any], said: str
) -> None:
    for command in (("research", "--no-prefect"), ("study", "plan")):
        ended = ajet(*command, *VARY, "--job", job(**fields))
        assert ended.code == 2
        assert said in ended.line
    assert not (home / "ajet.db").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("which of these two models learns more", "--model-path", "mine", "--model-path", "theirs"),
            "expected --model-path once; found it 2 times, last theirs; leave one out, or compare the models with",
        ),
        ((*VARY, "--env", "arith", "--env", "guess"), "expected --env once; found it 2 times, last guess"),
        ((*VARY, "--job", "a.json", "--job=b.json"), "expected --job once; found it 2 times, last b.json"),
        (("which of these two models learns more",), "compare models by their folders, --vary model=DIR1,DIR2"),
        (("which learns more on arith, ./mine or ./nothing?",), "of a model at nothing, found no such folder"),
        (("which learns more on arith, ./mine or org/some-7b?",), "looks like the name of a model on a hub"),
        (("which learns more on arith, ./mine or ./bare?",), "holds no config.json"),
        (("which learns more on arith, ./mine or ./weightless?",), "holds no *.safetensors"),
        (("which learns more on arith, ./mine or ./speechless?",), "has no chat template"),
        (("which learns more on arith, ./mine and/or KL?",), "expected two model folders in a topic"),
        (("--vary", "model=mine"), "expected two model folders or more"),
        (("--vary", "model=mine,nothing"), "found no such folder"),
        (("--vary", "model=mine,org/some-7b"), "looks like the name of a model on a hub"),
        (("--vary", "model=mine,weightless"), "holds no *.safetensors"),
        (("--vary", "model=mine,speechless"), "has no chat template"),
        (("--vary", "model=mine,theirs", "--model-path", "third"), "leave the field out of --job or --model-path"),
    ],
)
def test_models_that_cannot_be_compared_are_one_line_and_nothing_is_begun(
    ajet: Ajet, home: Path, place: Path, arguments: tuple[str, ...], said: str
) -> None:
    model_at(place / "third", b"x")
    for name, lacking in {"weightless": "model.safetensors", "speechless": "chat_template.jinja"}.items():
        (model_at(place / name, name.encode()) / lacking).unlink()
    (place / "bare").mkdir()
    for command in (("research", "--no-prefect"), ("study", "plan")):
        ended = ajet(*command, *arguments)
        assert ended.code == 2
        assert said in ended.line
    assert not (home / "ajet.db").exists()


@pytest.mark.parametrize("topic", ["Which of my two models learns more on arith, ./mine or ./theirs?",
                                   "which of these models learns more on arith: ./mine or ./theirs"])  # fmt: skip
def test_models_are_compared_by_a_topic_that_names_their_folders(ajet: Ajet, topic: str) -> None:
    found = planned(ajet, topic)
    assert (found["arms"], found["not_tested"]) == (["model=mine", "model=theirs"], [])


def test_a_model_in_the_file_and_one_beside_it_are_both_named(ajet: Ajet, home: Path) -> None:
    given = job(model={"kind": "path", "path": "mine"})
    line = ajet("research", *VARY, "--job", given, "--model-path", "theirs", "--no-prefect").line
    assert "found mine in job.json and --model-path theirs" in line
    assert not (home / "ajet.db").exists()


def test_a_job_that_is_no_file_of_json_is_one_line_and_nothing_is_begun(ajet: Ajet, home: Path) -> None:
    Path("empty.json").touch()
    Path("text.json").write_text("steps = 7")
    Path("folder.json").mkdir()
    for name, said in {"empty": "found an empty file", "text": "expected JSON", "folder": "Is a directory"}.items():
        for command in (("research", "--no-prefect"), ("study", "plan")):
            ended = ajet(*command, *VARY, "--job", f"{name}.json")
            assert ended.code == 2
            assert said in ended.line
    assert not home.exists()


def test_what_the_job_says_at_its_default_is_held_like_anything_else(ajet: Ajet, home: Path) -> None:
    given = job(learning_rate=Job().learning_rate, environment="guess")
    for asked, said in {
        "--vary=learning_rate=0.003,0.01": "expected learning_rate = 0.001, which the job of the study fixes",
        "learning rate 3e-3 vs 1e-2": "expected learning_rate = 0.001, which the job of the study fixes",
        "group size 4 vs 8 on arith": "found the job's guess and a topic that names arith",
    }.items():
        for command in (("research", "--no-prefect"), ("study", "plan")):
            ended = ajet(*command, asked, "--job", given)
            assert ended.code == 2
            assert said in ended.line
    assert not (home / "ajet.db").exists()
    found = planned(ajet, "does a larger learning rate help?", "--job", given)
    assert found["arms"] == ["learning_rate=0.001", "learning_rate=0.003"]
    assert found["job"] == {"environment": "guess", "learning_rate": 0.001}


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        (
            "group size 8 vs 16 on arith",
            "expected group_size = 4, which the job of the study fixes; found group_size = 8",
        ),
        ("learning rate 1e-3 vs 3e-3 with group size 8", "expected group_size = 4"),
        ("group size 4 vs 8 on guess", "found the job's arith and a topic that names guess"),
    ],
)
def test_a_topic_that_contradicts_the_job_is_one_line_and_nothing_is_begun(
    ajet: Ajet, home: Path, topic: str, said: str
) -> None:
    line = ajet("research", topic, "--job", job(group_size=4, environment="arith"), "--no-prefect").line
    assert said in line
    assert not (home / "ajet.db").exists()

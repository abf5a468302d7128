"""What was measured is found again by environment and model, and what cannot be read is as if it were not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from research.environments.measured import (
    MeasuredEnvironment,
    all_measured,
    conditions_of,
    keep,
    model_key,
    unusual_conditions,
)
from research.files import write_json
from research.installation.home import Home
from swarm.job import Job, PathModel, TinyModel


def home_in(folder: Path) -> Home:
    return Home(folder, "sqlite://").prepare()


def test_a_measurement_is_found_by_its_environment_and_model(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    alone = MeasuredEnvironment(environment="shop@1", measured_at="2026-01-01", calls_per_episode=2.5)
    tiny = MeasuredEnvironment(
        environment="shop@1", model=model_key(TinyModel()), measured_at="2026-01-01", base_success=0.25
    )
    for each in (tiny, alone):
        keep(home, each)
    assert all_measured(home, "shop@1") == (alone, tiny)
    assert all_measured(home, "shop@2") == ()


def test_a_measurement_takes_the_place_of_one_under_the_same_conditions_alone(tmp_path: Path) -> None:
    home = home_in(tmp_path)

    def known(success: float, **fields: Any) -> MeasuredEnvironment:
        job = Job.model_validate(fields)
        return MeasuredEnvironment(
            environment="shop@1", model=model_key(job.model), measured_at="2026-01-01", base_success=success,
            job=conditions_of(job),
        )  # fmt: skip

    for each in (known(0.1), known(0.2, max_tokens=64), known(0.3), known(0.4, max_tokens=64, steps=3)):
        keep(home, each)
    assert {each.base_success for each in all_measured(home, "shop@1")} == {0.3, 0.4}


def test_a_file_of_an_earlier_version_is_read_and_replaced_by_what_is_measured_alike(tmp_path: Path) -> None:
    home, model = home_in(tmp_path), model_key(TinyModel())
    earlier = MeasuredEnvironment(
        environment="shop@1", model=model, measured_at="2026-01-01", base_success=0.1, job={"max_tokens": 64}
    )
    write_json(home.measured / "shop@1" / f"{model}.json", earlier.model_dump(mode="json", exclude={"runs_at_once"}))
    assert all_measured(home, "shop@1") == (earlier,)
    assert unusual_conditions(earlier) == {"max_tokens": 64}
    again = earlier.model_copy(update={"job": conditions_of(Job(max_tokens=64)), "base_success": 0.2})
    keep(home, again)
    assert all_measured(home, "shop@1") == (again,)
    other = again.model_copy(update={"job": conditions_of(Job())})
    keep(home, other)
    assert len(all_measured(home, "shop@1")) == 2


def test_a_later_release_may_say_more_and_a_broken_file_says_nothing(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    path = keep(home, MeasuredEnvironment(environment="shop@1", measured_at="2026-01-01"))
    path.write_text(path.read_text().replace("{", '{"watts": 3,', 1))
    assert len(all_measured(home, "shop@1")) == 1
    path.write_text("{")
    assert all_measured(home, "shop@1") == ()


def test_a_models_folder_is_known_by_what_it_computes_with_wherever_it_lies(tmp_path: Path) -> None:
    for name, weights in (("one", b"1"), ("same", b"1"), ("other", b"2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(weights)
    (tmp_path / "same" / "README.md").write_text("words")
    one, same, other = (model_key(PathModel(path=str(tmp_path / name))) for name in ("one", "same", "other"))
    assert one == same != other
    assert model_key(TinyModel()) != model_key(TinyModel(seed=1))

"""The noise bank: what it learns from runs, what it leaves out and says so, and that banks merge as sets do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from research.design.noise_bank import (
    LEAST_DF,
    LEAST_PAIRS,
    BankFile,
    NoiseBank,
    load_shipped_bank,
    model_key,
    read_bank,
)
from research.installation.studies import RESULTS_VERSION
from studies import EventLog, EventType
from studies.records.design import Metric, NoisePlan, RunSpec
from studies.records.procedure import Noise
from studies.records.runs import noise_spec
from swarm.job import Job
from tests.golden import assert_golden
from tests.research.banks import bank, group
from tests.studies.synthetic import append


def metric(episodes: int = 512) -> Metric:
    return Metric(meaning="m", episodes=episodes)


def find(known: NoiseBank, episodes: int = 512, environment: str = "guess", job: Job | None = None) -> Noise | None:
    noise = known.find(environment, job or Job(), metric(episodes))
    why = known.explain_missing(environment, job or Job(), metric(episodes))
    assert (noise is None) == (why is not None), "a bank without a word says why"
    return noise


def why_not(known: NoiseBank, episodes: int = 512, **about: Any) -> str:
    assert find(known, episodes, **about) is None
    return known.explain_missing("guess", about.get("job") or Job(), metric(episodes)) or ""


def test_the_spread_is_that_within_groups_pooled_by_their_degrees_of_freedom_and_not_between_them() -> None:
    apart = [entry.model_copy(update={"value": entry.value + 0.3}) for entry in group(0.02, 10, name="other")]
    noise = find(NoiseBank(frozenset([*group(0.02, 10), *apart])))
    assert (noise.sd, noise.df) == (pytest.approx(0.02), 18)
    noise = find(NoiseBank(frozenset([*group(0.02, 6), *group(0.05, 12, name="other")])))
    assert noise.sd == pytest.approx(math.sqrt((5 * 0.02**2 + 11 * 0.05**2) / 16))


@pytest.mark.parametrize(
    ("episodes", "sd"), [(512, 0.03), (2048, math.sqrt(0.03**2 - 0.02**2 + 0.01**2)), (128, 0.0458)]
)
def test_a_figure_scales_to_other_evaluations_through_its_evaluation_part(episodes: int, sd: float) -> None:
    noise = find(bank(0.03, evaluation_sd=0.02), episodes)
    assert noise.sd == pytest.approx(sd, rel=1e-3)
    assert noise.evaluation_sd == pytest.approx(0.02 * math.sqrt(512 / episodes))
    assert noise.episodes == episodes


def test_without_an_evaluation_part_a_figure_stands_for_no_smaller_evaluation() -> None:
    known = bank(0.03)
    larger = find(known, 1024)
    assert larger.sd == pytest.approx(0.03)  # cautiously, as nobody knows how much less it would be
    assert_golden(why_not(known, 256))


@pytest.mark.parametrize("known", [
    bank(runs=LEAST_DF), bank(0.0), NoiseBank(frozenset(group(0.02, 2)[:1])),
], ids=["too few degrees of freedom", "runs that do not vary", "a run that has no other to differ from"])  # fmt: skip
def test_what_says_nothing_of_a_spread_says_why(known: NoiseBank) -> None:
    assert_golden(why_not(known))


def paired(pairs: int, together: float) -> NoiseBank:
    first = [entry.model_copy(update={"pairing": "p"}) for entry in group(0.02, pairs, name="a")]
    second = [
        entry.model_copy(
            update={
                "group": "b", "run": f"b-{entry.seed}", "pairing": "p",
                "value": 0.7 + together * (entry.value - 0.5) + (1 - together) * 0.02 * (-1) ** (entry.seed // 2),
            }
        )
        for entry in first
    ]  # fmt: skip
    return NoiseBank(frozenset([*first, *second]))


def test_runs_that_share_a_seed_across_arms_give_a_correlation_where_there_are_enough_pairs() -> None:
    alike, apart, few = find(paired(20, 1.0)), find(paired(20, 0.0)), find(paired(LEAST_PAIRS - 2, 1.0))
    assert (alike.correlation, alike.pairs) == (pytest.approx(1.0), 20)
    assert apart.correlation == pytest.approx(0.0, abs=0.01)
    assert (few.correlation, few.pairs) == (None, 0)
    unpaired = find(NoiseBank(frozenset([*group(0.02, 20), *group(0.02, 20, name="other")])))
    assert unpaired.correlation is None  # runs of different comparisons


observations = st.builds(
    lambda name, seed, value: group(0.02, 2, name=name)[0].model_copy(
        update={"seed": seed, "run": f"{name}-{seed}", "value": value}
    ),
    st.sampled_from("abc"), st.integers(0, 5), st.floats(0, 1),
)  # fmt: skip
reasons = st.dictionaries(st.sampled_from(["a corrupt log", "runs of results version 7"]), st.integers(1, 3))
banks = st.builds(lambda seen, left: NoiseBank(frozenset(seen), left), st.lists(observations, max_size=6), reasons)


@given(banks, banks, banks)
def test_banks_merge_in_any_order_and_an_observation_counts_once(a: NoiseBank, b: NoiseBank, c: NoiseBank) -> None:
    merged = {
        (bank.observations, tuple(sorted(bank.left_out.items())))
        for one, two, three in permutations((a, b, c))
        for bank in (one.merge(two).merge(three), one.merge(two.merge(three)))
    }
    assert len(merged) == 1
    assert a.merge(a).observations == a.observations


def test_a_shipped_file_of_another_version_is_left_out_and_counted() -> None:
    file = BankFile(results_version=RESULTS_VERSION + 1, provenance={}, observations=tuple(group(0.02, 6)))
    known = read_bank(file.model_dump_json().encode())
    assert known.observations == frozenset()
    assert f"version {RESULTS_VERSION + 1}" in why_not(known)
    with pytest.raises(ValidationError):
        read_bank(b'{"observations": []}')


def test_the_shipped_bank_knows_the_built_in_jobs() -> None:
    for environment in ("guess", "arith"):
        noise = find(load_shipped_bank(), environment=environment)
        assert 0.005 < noise.sd < 0.08
        assert noise.evaluation_sd is not None
    assert all(entry.model == model_key(Job()) for entry in load_shipped_bank().observations)


STUDY = "s1"
FAKE = Job(backend="fake", steps=2)


def write_study(log: EventLog, study: str, values: list[float], version: str | None = None) -> None:
    plan = NoisePlan(
        environment="guess", job=FAKE.model_dump(mode="json", exclude={"seed", "tracking"}),
        seeds=tuple(range(1, len(values) + 1)), metric_key="hidden/success", episodes=512,
    )  # fmt: skip
    versions = {} if version is None else {"results": version}
    append(log, study, EventType.STUDY_CREATED, {
        "topic": "t", "planner": {"name": "rules", "model": None}, "settings": {"budget_s": 9e3, "max_runs": None},
        "command": [], "versions": versions, "machine": {},
    })  # fmt: skip
    append(log,
        study, EventType.NOISE_PLANNED,
        {"plan": plan.model_dump(mode="json"), "hash": plan.hash(), "seconds_per_run": 1.0},
    )  # fmt: skip
    for seed, value in zip(plan.seeds, values, strict=True):
        run(log, study, noise_spec(study, plan, plan.hash(), seed), value)


def run(log: EventLog, study: str, spec: RunSpec, value: float) -> None:
    file = {"path": "f.json", "sha256": "a" * 64}
    name = {"run_id": spec.run_id}
    append(log, study, EventType.RUN_PLANNED, {**name, "spec": spec.model_dump(mode="json")})
    append(log, study, EventType.ATTEMPT_LAUNCHED, {**name, "attempt": 1, "name": f"n-{spec.run_id}"})
    ended = {"attempt": 1, "status": "finished", "code": "ok", "reason": "", "seconds": 1.0}
    append(log, study, EventType.ATTEMPT_ENDED, {**name, **ended})
    append(log, study, EventType.RUN_COLLECTED, {**name, "attempt": 1, "snapshot": file, "evaluation": file})
    for key, measured in (("hidden/success/initial", 0.3), ("hidden/success", value)):
        measurement = {**name, "key": key, "value": measured, "n": 512, "sha256": "a" * 64}
        append(log, study, EventType.MEASUREMENT_RECORDED, measurement)


VALUES = [0.50, 0.52, 0.54, 0.56, 0.58]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with closing(EventLog(f"sqlite:///{tmp_path / 'ajet.db'}")) as log:
        yield log


def test_a_home_learns_from_all_its_studies(log: EventLog) -> None:
    write_study(log, "one", VALUES)
    write_study(log, "two", [value + 0.2 for value in VALUES], version=str(RESULTS_VERSION))
    noise = find(NoiseBank.of(log, shipped=NoiseBank()), job=FAKE)
    assert noise.df == 8
    assert noise.sd == pytest.approx(0.0316, abs=1e-4)
    assert_golden(noise.basis)
    home, learned = NoiseBank.of(log).observations, NoiseBank.of(log, shipped=NoiseBank()).observations
    assert home == load_shipped_bank().observations | learned  # the shipped runs too


def test_corrupt_logs_and_other_results_versions_are_left_out_and_counted(log: EventLog, tmp_path: Path) -> None:
    for study, version in (("one", None), ("two", None), ("three", "0")):
        write_study(log, study, VALUES, version)
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'ajet.db'}")
    with engine.begin() as connection:
        connection.execute(sa.text("update events set payload = '{}' where study = 'two' and seq = 3"))
    engine.dispose()
    noise = find(NoiseBank.of(log, shipped=NoiseBank()), job=FAKE)
    assert noise.df == 4
    assert "left out: 1 of a corrupt log, 5 of runs" in noise.basis

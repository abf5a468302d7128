"""The noise bank: what it learns from runs, what it leaves out and says so, and that banks merge as sets do."""

from __future__ import annotations

import math
from contextlib import closing
from itertools import permutations
from pathlib import Path
from statistics import fmean, variance

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
    Observation,
    load_shipped_bank,
    model_key,
    read_bank,
    setting_key,
)
from research.design.pricing import Estimates
from research.environments.catalog import find_all_measurements
from research.installation.base_job import fit_to_environment
from research.installation.home import Home
from research.installation.studies import FIRST_VERSION, RESULTS_VERSION, VERSION_KEY
from studies import EventLog, RunState, StudyState
from studies.records.design import Metric, RunSpec
from studies.records.procedure import Noise
from studies.records.runs import Measurement
from swarm.job import Job, PathModel
from tests.golden import assert_golden
from tests.research.banks import bank, group
from tests.research.factories import make_home
from tests.research.in_rounds import InRounds
from tests.studies.synthetic import EPISODES, base_job


def metric(episodes: int = 512) -> Metric:
    return Metric(meaning="m", episodes=episodes)


def find(known: NoiseBank, episodes: int = 512, environment: str = "guess", job: Job | None = None) -> Noise:
    noise = known.find(environment, job or Job(), metric(episodes))
    assert isinstance(noise, Noise), noise
    return noise


def why_not(known: NoiseBank, episodes: int = 512) -> str:
    why = known.find("guess", Job(), metric(episodes))
    assert isinstance(why, str)
    return why


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


def paired(pairs: int, together: float, arms: int = 2) -> NoiseBank:
    first = [entry.model_copy(update={"pairing": "p"}) for entry in group(0.02, pairs, name="a")]
    second = [
        entry.model_copy(
            update={
                "group": f"b{arm}", "run": f"b{arm}-{entry.seed}", "pairing": "p",
                "value": 0.7 + together * (entry.value - 0.5) + (1 - together) * 0.02 * (-1) ** (entry.seed // 2),
            }
        )
        for entry in first
        for arm in range(1, arms)
    ]  # fmt: skip
    return NoiseBank(frozenset([*first, *second]))


def test_the_evaluation_part_is_that_of_plays_where_they_were_counted_and_a_shared_beginning_says_nothing() -> None:
    """An evaluation of the untrained model that all runs share varies by nothing."""
    plays = bank(0.03).observations
    counted = NoiseBank(frozenset(entry.model_copy(update={"initial": 0.3, "play_variance": 0.2}) for entry in plays))
    assert find(counted).evaluation_sd == pytest.approx(math.sqrt(0.2 / 512))
    assert find(counted, 2048).sd == pytest.approx(math.sqrt(0.03**2 - 0.2 / 512 + 0.2 / 2048))
    alike = (entry.model_copy(update={"play_variance": entry.value * (1 - entry.value)}) for entry in plays)
    once = NoiseBank(frozenset(alike))
    assert find(once).evaluation_sd == pytest.approx(math.sqrt(0.6 * 0.25 / 512), rel=0.01), "tasks differ, too"
    quiet = NoiseBank(frozenset(entry.model_copy(update={"play_variance": 0.24}) for entry in bank(0.01).observations))
    assert find(quiet).sd == pytest.approx(math.sqrt(0.24 / 512)), "of less than plays alone give"
    assert (find(quiet).measured_sd, find(quiet, 2048).measured_episodes) == (pytest.approx(0.01), 512)
    wild = bank(0.08, evaluation_sd=0.05)
    assert find(wild).evaluation_sd < math.sqrt(0.25 / 512), "no share's plays vary by more"


def test_where_the_settings_of_all_arms_are_known_their_variances_are_averaged() -> None:
    control, treatment = Job(), Job(learning_rate=0.003)
    quiet, loud = (
        [entry.model_copy(update={"setting": setting_key(job)}) for entry in group(sd, 10, name=name)]
        for job, sd, name in ((control, 0.01, "quiet"), (treatment, 0.05, "loud"))
    )
    known = NoiseBank(frozenset([*quiet, *loud, *group(0.09, 40, name="others")]))
    both = known.find("guess", control.model_copy(update={"steps": 7}), metric(), [treatment])
    assert isinstance(both, Noise)
    assert both.sd == pytest.approx(math.sqrt((0.01**2 + 0.05**2) / 2))
    assert both.df == int((0.01**2 + 0.05**2) ** 2 / (0.01**4 / 9 + 0.05**4 / 9)) == 9
    assert known.find("guess", control, metric(), [Job(learning_rate=0.1)]) == find(known)


def test_what_collapses_cost_is_said_by_the_settings_that_are_compared_and_not_by_one_that_never_trains() -> None:
    def made(name: str, runs: int, collapsed: int, job: Job) -> list[Observation]:
        drawn = enumerate(group(0.02, runs, name=name))
        values = {True: {"collapsed": True, "value": 0.1}, False: {}}
        return [
            entry.model_copy(update={"setting": setting_key(job), **values[index < collapsed]})
            for index, entry in drawn
        ]  # fmt: skip

    wild, sometimes = Job(learning_rate=0.1), Job(learning_rate=0.01)
    known = NoiseBank(frozenset(made("a", 10, 0, Job()) + made("b", 6, 5, wild) + made("c", 10, 1, sometimes)))
    plain, bold, rare = (find(known, job=job) for job in (Job(), wild, sometimes))
    assert (plain.collapsed, plain.runs, plain.drop) == (1, 20, None)
    assert (bold.collapsed, bold.runs, bold.drop) == (6, 26, pytest.approx(0.4, abs=0.03))
    assert (rare.collapsed, rare.drop) == (1, pytest.approx(0.4, abs=0.03))
    shipped = find(load_shipped_bank(), environment="arith")
    assert (shipped.collapse_rate < 0.01, shipped.drop) == (True, None)


def test_fewer_plays_leave_less_of_what_runs_with_one_seed_have_in_common() -> None:
    known = NoiseBank(frozenset(e.model_copy(update={"play_variance": 0.1}) for e in paired(20, 0.9).observations))
    less, same, more = (find(known, episodes) for episodes in (128, 512, 4096))
    assert less.correlation * less.sd**2 == pytest.approx(same.correlation * same.sd**2)
    assert more.correlation == same.correlation, "that it is more is not relied on"


def test_runs_that_share_a_seed_across_arms_give_a_correlation_where_there_are_enough_pairs() -> None:
    alike, apart, few = find(paired(20, 1.0)), find(paired(20, 0.0)), find(paired(LEAST_PAIRS - 2, 1.0))
    assert (alike.correlation, alike.pairs) == (pytest.approx(1.0), 19)
    assert apart.correlation == pytest.approx(0.0, abs=0.01)
    assert (few.correlation, few.pairs) == (None, 0)
    assert find(paired(20, 1.0, arms=9)).pairs < 2 * 20, "nine arms that go together are no 36 pairs a seed"
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
        assert setting_key(Job(environment=environment)) in {
            entry.setting for entry in load_shipped_bank().observations
        }
    others = {entry.environment for entry in load_shipped_bank().observations if entry.model != model_key(Job())}
    assert others == {"words"}


def test_what_is_shipped_of_the_pretrained_model_is_of_the_job_that_a_study_of_it_has(tmp_path: Path) -> None:
    fetched = PathModel(path="m", sha256="6219fb3ce570f294fd9394ac82729d3ca458756db1bb821557480de2c51114ff")
    job = fit_to_environment(Job(model=fetched), "words")
    other = job.model_copy(update={"learning_rate": 5e-5})
    noise = load_shipped_bank().find("words", job, Metric(meaning="-", episodes=128), [other])
    assert isinstance(noise, Noise)
    assert 0.01 < noise.sd < 0.05
    known = {entry.setting for entry in load_shipped_bank().observations}
    assert {setting_key(job), setting_key(other)} <= known
    assert Estimates(find_all_measurements(make_home(tmp_path))).of(job) is not None


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make_home(tmp_path)


def measured(home: Home, study: str, version: str = str(FIRST_VERSION)) -> list[float]:
    """Write a study whose five A/A runs are over, and return what they came to."""
    made = InRounds.of(home, study)
    with closing(made.log):
        made.create(versions={"results": version})
        assert len(list(made.noise((1, 2, 3, 4, 5)))) == 5
        return [run.measurements["hidden/success"].value for run in made.state().every_run.values()]


def learned(home: Home) -> tuple[NoiseBank, NoiseBank]:
    """Return the bank of a home without and with the shipped runs."""
    with closing(EventLog(home.database)) as log:
        return NoiseBank.of(log, shipped=NoiseBank()), NoiseBank.of(log)


def test_a_home_learns_from_all_its_studies(home: Home) -> None:
    values = [measured(home, "one"), measured(home, "two", str(RESULTS_VERSION))]
    own, whole = learned(home)
    noise = find(own, EPISODES, job=Job.from_record(base_job()))
    assert noise.df == 8
    assert noise.sd == pytest.approx(math.sqrt(fmean(map(variance, values))))
    assert_golden(noise.basis)
    assert whole.observations == load_shipped_bank().observations | own.observations


def test_a_run_is_left_out_once_whatever_else_is_measured_of_it() -> None:
    beside = metric().model_copy(update={"key": "logged/beside"})
    judged = metric().model_copy(update={"beside": {"beside": beside}})
    spec = RunSpec(study="s1", design_hash="d" * 64, arm="a", seed=1, environment="guess", job={}, metric=judged,
                   code="=reward")  # fmt: skip
    told = {
        key: Measurement(run_id=spec.run_id, key=key, value=0.5, n=8, sha256="0" * 64)
        for key in (judged.key, beside.key)
    }
    run = RunState(spec.run_id, spec, collected={"snapshot": {}}, measurements=told)
    state = StudyState(versions={VERSION_KEY: str(RESULTS_VERSION)}, runs={run.run_id: run})
    assert NoiseBank.of_study(state).left_out == {"a run with code of its own": 1}


def test_corrupt_logs_and_other_results_versions_are_left_out_and_counted(home: Home) -> None:
    for study, version in (("one", str(FIRST_VERSION)), ("two", str(FIRST_VERSION)), ("three", "0")):
        measured(home, study, version)
    engine = sa.create_engine(home.database)
    with engine.begin() as connection:
        connection.execute(sa.text("update events set payload = '{}' where study = 'two' and seq = 3"))
    engine.dispose()
    noise = find(learned(home)[0], EPISODES, job=Job.from_record(base_job()))
    assert noise.df == 4
    assert "left out: 1 of a corrupt log, 5 of runs" in noise.basis

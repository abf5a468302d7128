"""Which checkpoints are kept: the newest, and the best by evaluations that are noisy and of any size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarm.store import Consumed, Evaluated, InStep, best_of
from swarm.store.tables.checkpoints import kept_steps
from swarm.wire import EvaluationSummary
from tests.swarm.store.support import ended, job, opened, played


def evaluation(step: int, solved: int, episodes: int = 8, reward: float = 0.0) -> EvaluationSummary:
    return EvaluationSummary(step=step, episodes=episodes, reward=reward, success=solved / episodes)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=20))
def test_of_evaluations_of_one_size_the_best_is_the_first_with_most_successes(solved: list[int]) -> None:
    best = best_of(evaluation(step, count) for step, count in enumerate(solved, 1))
    assert best is not None
    assert best.step == 1 + solved.index(max(solved))


def test_of_few_episodes_a_perfect_score_is_worth_less_than_a_good_one_of_many() -> None:
    assert best_of([evaluation(1, 61, 64), evaluation(2, 4, 4)]) == evaluation(1, 61, 64)
    assert best_of([evaluation(1, 20, 64), evaluation(2, 4, 4)]) == evaluation(2, 4, 4)


def test_reward_decides_where_success_is_not_known_and_what_knows_it_goes_before() -> None:
    unknown = [EvaluationSummary(step=step, episodes=4, reward=reward) for step, reward in ((1, -3.0), (2, -1.0))]
    assert best_of(unknown) == unknown[1]
    assert best_of([*unknown, evaluation(3, 0)]) == evaluation(3, 0)
    assert best_of([]) is None


@given(
    st.sets(st.integers(1, 40), min_size=1, max_size=12),
    st.integers(1, 5),
    st.dictionaries(st.integers(1, 40), st.integers(0, 8), max_size=12),
)
def test_kept_are_the_newest_and_the_best_of_those_that_are_there(
    saved: set[int], newest: int, solved: dict[int, int]
) -> None:
    kept = kept_steps(saved, newest, [evaluation(step, count) for step, count in solved.items()])
    assert set(sorted(saved)[-newest:]) <= kept <= saved
    assert len(kept) <= newest + 1
    scored = {step: count for step, count in solved.items() if step in saved}
    if scored:
        most = max(scored.values())
        assert min(step for step, count in scored.items() if count == most) in kept


async def test_the_store_keeps_the_best_beside_the_newest_and_knows_it_again(url: str) -> None:
    wanted = job(checkpoints_kept=1)
    async with opened(url, wanted) as (store, _):
        for step, solved in enumerate((2, 5, 5, 1), 1):
            await store.write(*played(f"e{step}"), ended(f"e{step}"))
            await store.write(InStep(step, (f"e{step}",)))
            await store.write(Consumed(step, f"step-{step}"))
            await store.write(Evaluated(evaluation(step, solved)))
    async with opened(url, wanted) as (_, recovered):
        assert recovered.checkpoints == [(4, "step-4"), (2, "step-2")]
        assert recovered.evaluations == [evaluation(2, 5), evaluation(4, 1)]


async def test_a_checkpoint_that_is_saved_again_keeps_its_evaluation(url: str) -> None:
    async with opened(url) as (store, _):
        await store.write(*played("e"), ended("e"))
        await store.write(InStep(1, ("e",)))
        await store.write(Consumed(1, "step-1"))
        await store.write(Evaluated(evaluation(1, 3)), Evaluated(evaluation(9, 8)))
        await store.write(Consumed(1, "again"))
    async with opened(url) as (_, recovered):
        assert (recovered.checkpoints, recovered.evaluations) == ([(1, "again")], [evaluation(1, 3)])

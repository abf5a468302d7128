"""reasoning-gym's generators as environments."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from swarm.environments import said
from swarm.environments.adapters import adapted
from tests.swarm.clients.packages import ADAPTED

pytestmark = pytest.mark.usefixtures("adapted_packages")


def worth(address: str, seed: int, answer: str) -> float:
    environment = adapted(address)
    game = environment.game(environment.generate(seed))
    game.opening()
    assert game.answer(said(answer)) == []
    return game.outcome().reward


@pytest.mark.parametrize("name", ["chain_sum", "acre", "word_ladder", "prime_factorization", "game_of_life_halting"])
def test_the_package_judges_its_own_answer_best_and_none_as_worth_nothing(name: str) -> None:
    environment = adapted(f"reasoning-gym:{name}")
    task = environment.generate(2**62 + 5)
    assert worth(f"reasoning-gym:{name}", 2**62 + 5, str(environment.oracle(task, ()))) == 1.0
    assert worth(f"reasoning-gym:{name}", 2**62 + 5, "no tags") == 0.0


def test_an_answer_that_a_judge_cannot_read_is_worth_nothing() -> None:
    assert worth("reasoning-gym:prime_factorization", 3, "<answer>foo</answer>") == 0.0


def test_generators_together_say_which_a_task_is_of_and_take_options_by_name() -> None:
    environment = adapted("reasoning-gym:chain_sum+leg_counting?chain_sum.max_terms=2")
    tasks = [environment.generate(seed) for seed in range(4)]
    assert [task.kind for task in tasks] == ["chain_sum", "leg_counting"] * 2
    assert all(str(task.data["question"]).count("+") <= 1 for task in tasks[::2])


def test_a_task_is_its_question_without_the_answer_and_any_process_makes_the_entry_again() -> None:
    task = adapted("reasoning-gym:leg_counting").generate(11)
    assert set(task.data) == {"question"}
    code = (
        "from swarm.environments.adapters import adapted\n"
        "print(adapted('reasoning-gym:leg_counting').generate(11).data['question'])"
    )
    other = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.append({str(ADAPTED.there())!r})\n{code}"],
        capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7", "PYTHONPATH": "."},
    )  # fmt: skip
    assert other.stdout.strip() == str(task.data["question"]).strip()


def test_a_generator_without_one_answer_has_no_oracle_and_no_demonstrations() -> None:
    environment = adapted("reasoning-gym:graph_color")
    assert not environment.has("oracle")
    assert not environment.has("imitate")


def test_a_demonstration_is_right_about_half_of_the_time() -> None:
    environment, rng = adapted("reasoning-gym:chain_sum"), random.Random(0)
    tasks = [environment.generate(seed) for seed in range(60)]
    right = sum(environment.imitate(task, rng)[-1] == said(str(environment.oracle(task, ()))) for task in tasks)
    assert 18 <= right <= 45

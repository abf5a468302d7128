"""tau2's customers, as inspect-evals has them: `tau2:airline`, `retail`, `telecom` or `banking`.

The policy is the agent, with the tools and the policy of the domain; a second model is the customer, at an address that
speaks OpenAI's chat completions: `user.base_url` and `user.model`, or AJET_TAU2_USER_URL and AJET_TAU2_USER_MODEL, its
key in AJET_TAU2_USER_KEY. Talk, tools and score are inspect-evals' own, played over the address of the episode.
`message_limit` is how often the two answer each other at most (100); a task is known by its id.
"""

import asyncio
import os
from collections.abc import Mapping
from functools import cache, partial
from typing import Any, ClassVar, Final

from swarm.environments.adapters import require_same, unknown_error
from swarm.environments.base import Environment, Outcome, Task
from swarm.errors import InvalidRequest

DOMAINS: Final = ("airline", "retail", "telecom", "banking")
_SECONDS: Final = 600
_MOST: Final = 1000
"""Calls at once: the server bounds them."""
_TRIES: Final = 3
"""Of a call of the customer."""


class Tau2(Environment):
    """The tasks of one domain."""

    measures: ClassVar[str] = "the data and what the customer was told are as the task wants them"
    solved_at: ClassVar[float] = 1.0

    def __init__(self, domain: str, task: Any, user: Mapping[str, str]) -> None:
        self.title = f"tau2's {domain}"  # type: ignore[misc]  # of each one its own
        self._task, self._user = task, user
        self._samples = {str(sample.id): sample for sample in task.dataset}

    def generate(self, seed: int) -> Task:
        name = [*self._samples][seed % len(self._samples)]
        return Task(name, {"scenario": self._scenario(name)})

    async def agent(self, episode: Any) -> Outcome:
        require_same(episode.task, "scenario", self._scenario(episode.task.id), "inspect-evals")
        return await asyncio.create_task(self._play(episode))  # in a context of its own, as inspect's models are

    def _scenario(self, name: str) -> str:
        return str(self._samples[name].input[0].content).partition("<scenario>")[2]

    async def _play(self, episode: Any) -> Outcome:
        from inspect_ai.log._transcript import Transcript, init_transcript
        from inspect_ai.model import GenerateConfig, ModelName, get_model
        from inspect_ai.model._model import init_active_model, init_model_roles
        from inspect_ai.scorer import Target
        from inspect_ai.solver import TaskState
        from inspect_ai.util._store import init_subtask_store

        sample, made = self._samples[episode.task.id], partial(get_model, memoize=False)
        policy = GenerateConfig(max_retries=0, timeout=_SECONDS, max_connections=_MOST)
        customer = GenerateConfig(max_retries=_TRIES, timeout=_SECONDS, max_connections=_MOST, temperature=0.0)
        place = {"base_url": self._user["base_url"], "api_key": self._user["key"]}
        async with made(
            f"openai-api/ajet/{episode.model}", base_url=episode.base_url, api_key=episode.api_key, config=policy
        ) as agent, made(f"openai-api/customer/{self._user['model']}", config=customer, **place) as user:  # fmt: skip
            answers = list[Any]()
            agent.generate_loop = partial(_watched, agent.generate_loop, answers)
            user.generate_loop = partial(_watched, user.generate_loop, [])
            init_transcript(Transcript())
            init_active_model(agent, policy)
            init_model_roles({"user": user})
            name, told = ModelName(agent), [*sample.input]
            state = TaskState(name, sample.id, 1, sample.input, told, Target(sample.target), metadata=sample.metadata)
            init_subtask_store(state.store)
            try:
                state = await self._task.solver(state, None)
            except _Ended as end:
                why: BaseException | str = end.__cause__ or "the opening does not fit the model's context"
                while isinstance(why, BaseException) and why.__cause__ is not None:
                    why = why.__cause__
                if end.__cause__ is not None or not answers:
                    raise RuntimeError(f"a model of the play failed: {' '.join(str(why).split())[:300]}") from end
            score = await self._task.scorer[0](state, state.target)
        return Outcome(float(score.value == "C"), facts={"messages": float(len(state.messages))})


class _Ended(BaseException):
    """Ends a play: inspect-evals' loop goes on after whatever is an Exception."""


async def _watched(loop: Any, answers: list[Any], *arguments: Any, **options: Any) -> Any:
    try:
        told, output = await loop(*arguments, **options)
    except Exception as error:
        raise _Ended from error
    full = output.stop_reason == "model_length"  # then the play is over, and worth what it is worth
    answers += told[: -1 if full else None]
    if full:
        raise _Ended
    return told, output


def make(name: str, options: Mapping[str, Any]) -> Tau2:
    if name not in DOMAINS:
        raise unknown_error("a domain of tau2", name, DOMAINS)
    rest = dict(options)
    user = {
        "base_url": str(rest.pop("user.base_url", os.environ.get("AJET_TAU2_USER_URL", ""))),
        "model": str(rest.pop("user.model", os.environ.get("AJET_TAU2_USER_MODEL", ""))),
        "key": os.environ.get("AJET_TAU2_USER_KEY", "none"),
    }
    if not user["base_url"] or not user["model"]:
        raise InvalidRequest(
            f"expected a second model as the customer of tau2:{name}; found none; name one that speaks OpenAI's chat "
            "completions: ?user.base_url=URL&user.model=NAME, or AJET_TAU2_USER_URL and AJET_TAU2_USER_MODEL"
        )
    try:
        from inspect_evals.tau2 import tau2, utils

        utils.uncompress_file = cache(utils.uncompress_file)  # which leaves a file behind, for each play else
        return Tau2(name, getattr(tau2, f"tau2_{name}")(shuffle=False, **rest), user)
    except (TypeError, ValueError, ImportError, OSError) as error:
        said = " ".join(str(error).split())
        raise InvalidRequest(f"expected tau2:{name} of inspect-evals 0.26 and its options; {said:.300}") from error

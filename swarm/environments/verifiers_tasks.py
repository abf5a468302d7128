"""Tasksets of verifiers 0.4: `verifiers:NAME?split=train`, where NAME is a taskset that is installed.

Options are the taskset's, or begin with a field of verifiers' environment: `agent.max_turns=4`, `id=user-sim`. Where
rewards lie is said by `reward.low` and `reward.high` (0 and 1). A task is its data, as verifiers sends it.

Its harness plays over the episode's address, in place of its messages over a game of ours: tools, users and programs
that verifiers drives come with that, and its rubric. The harness is the taskset's own, or a chat loop in this process:
the ones of verifiers start a Python for each turn of a user.
"""

import asyncio
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cached_property
from importlib.machinery import ModuleSpec
from statistics import fmean
from types import ModuleType
from typing import Any, ClassVar

from swarm.environments.base import Environment, Outcome, Task
from swarm.errors import InvalidRequest


class VerifiersTasks(Environment):
    """The tasks of one taskset."""

    measures: ClassVar[str] = "the taskset's own rubric gives the full reward"

    def __init__(self, name: str, environment: Any, policy: str, low: float, high: float) -> None:
        self.title = f"verifiers' {name}"  # type: ignore[misc]  # of each one its own
        self.reward_range, self.solved_at = (low, high), high  # type: ignore[misc]
        self._environment, self._policy, self._keys = environment, policy, dict[str, str]()
        self._serving: asyncio.Future[None] | None = None

    @cached_property
    def _data(self) -> Sequence[Mapping[str, Any]]:
        tasks = itertools.islice(self._environment.taskset, sum(self.sizes.values()))  # they may have no end
        return [one.data.model_dump(mode="json", include=_given(one.data)) for one in tasks]

    def generate(self, seed: int) -> Task:
        index = seed % len(self._data)
        return Task(str(index), self._data[index])

    async def agent(self, episode: Any) -> Outcome:
        from verifiers.v1.clients import ModelContext
        from verifiers.v1.configs.client import EvalClientConfig

        if self._serving is None:
            self._serving = asyncio.get_running_loop().create_future()
            self._held = asyncio.create_task(self._serve(self._serving))
        await asyncio.shield(self._serving)
        taskset, minted = self._environment.taskset, list[str]()
        kind = type(taskset).task_type()
        data = kind.data_type().model_validate({**episode.task.data, "idx": int(episode.task.id)})
        endpoint = EvalClientConfig(base_url=episode.base_url)
        clients = self._environment._interception.clients  # kept by the JSON of what they are for
        if (name := endpoint.model_dump_json()) not in clients:
            clients[name] = _client(endpoint, self._keys)

        def mint(trace: Any) -> None:
            minted.append(trace.id)
            self._keys[trace.id] = episode.api_key

        try:
            context = ModelContext(episode.model, endpoint)
            played = await self._environment.run_episode(kind(data, taskset.config.task), context, on_trace=mint)
        finally:
            for trace in minted:
                del self._keys[trace]
        own = [trace for trace in played.traces if len(played.traces) == 1 or trace.agent.name == self._policy]
        if not played.ok or not own:
            errors = [f"{error.type}: {error.message}" for part in (*played.traces, played) for error in part.errors]
            raise RuntimeError(f"verifiers could not end the play: {' '.join((errors or ['?'])[-1].split())[:200]}")
        scores = own[-1].metrics | {name: given and given.score for name, given in own[-1].rewards.items()}
        facts = {name: float(score) for name, score in scores.items() if score is not None}
        return Outcome(fmean(trace.reward for trace in own), facts=facts | {"turns": float(own[-1].num_turns)})

    async def _serve(self, ready: asyncio.Future[None]) -> None:
        """Hold what all plays share, from the first one until the loop ends."""
        try:
            async with self._environment.serving():
                ready.set_result(None)
                await asyncio.Event().wait()
        except Exception as error:  # noqa: BLE001  # of whatever a taskset starts; its plays fail by it
            ready.set_exception(error)


def _given(data: Any) -> set[str]:
    """Return the fields of a task that say something: what lies in them is whole, as messages need their roles."""
    fields = type(data).model_fields.items()
    return {name for name, field in fields if getattr(data, name) != field.get_default(call_default_factory=True)} - {
        "idx"
    }


def _client(endpoint: Any, keys: Mapping[str, str]) -> Any:
    """Return a client whose calls bear the key of their trace: verifiers would hold one open for each key."""
    from verifiers.v1.clients.eval import EvalClient

    class Client(EvalClient):  # type: ignore[misc]
        """Relays what harnesses ask."""

        def _headers(self, dialect: Any, incoming: Any, session_id: str | None) -> Any:
            headers = super()._headers(dialect, incoming, session_id)
            return headers.update(dialect.auth_headers(keys.get(session_id or "", ""))) or headers

    return Client(endpoint)


def _offer_chat() -> str:
    """Let verifiers find a harness that asks, calls tools and asks again, until an answer calls none; return its id."""
    from openai import AsyncOpenAI, BadRequestError
    from verifiers.v1.configs.harness import HarnessConfig
    from verifiers.v1.dialects.chat import message_to_wire
    from verifiers.v1.harness import Harness
    from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
    from verifiers.v1.runtimes import ProgramResult

    class Chat(Harness[HarnessConfig]):  # type: ignore[misc]
        """Talks within this process, as verifiers allows where all calls go by its endpoint."""

        APPENDS_SYSTEM_PROMPT = SUPPORTS_MCP = SUPPORTS_RESUME = True
        EXECUTES_CODE = NEEDS_CONTAINER = False

        async def launch(
            self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: dict[str, str], data: Any
        ) -> Any:
            system, prompt = self.resolve_prompt(data)
            messages: list[Any] = [{"role": "system", "content": system}] if system else []
            messages += (
                [{"role": "user", "content": prompt}] if isinstance(prompt, str) else map(message_to_wire, prompt)
            )
            urls = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
            async with (
                AsyncOpenAI(base_url=endpoint, api_key=secret, timeout=None) as client,
                AsyncExitStack() as stack,
            ):
                tools, places, servers = await connect_mcp({"mcpServers": urls}, stack)
                offered: Any = {"tools": tools} if tools else {}
                while messages[-1].get("tool_calls") or messages[-1]["role"] != "assistant":
                    try:
                        reply = await client.chat.completions.create(model=ctx.model, messages=messages, **offered)
                    except BadRequestError as error:
                        if error.code != "context_length_exceeded":
                            raise
                        break  # the play is over, and worth what it is worth
                    messages.append(reply.choices[0].message.model_dump(exclude_none=True))
                    for call in messages[-1].get("tool_calls") or ():
                        answer = await use(call["function"], places, servers)
                        messages.append({"role": "tool", "tool_call_id": call["id"], "content": answer})
            return ProgramResult(exit_code=0, stdout="", stderr="")

    async def use(function: Mapping[str, str], places: Mapping[str, Any], servers: Any) -> Any:
        try:
            return await call_mcp(servers, places, function["name"], dict(json.loads(function["arguments"] or "{}")))
        except (KeyError, TypeError, ValueError) as error:
            return f"error: expected a JSON object for one of {', '.join(places) or 'no tools'}; {error}"

    name = "verifiers.v1.harnesses.ajet_chat"
    sys.modules[name] = module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(Chat=Chat, __all__=["Chat"])
    return "ajet_chat"


def make(name: str, options: Mapping[str, Any]) -> VerifiersTasks:
    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.utils.loaders import default_harness_id, env_config_type, load_environment, resolve_env_config

    settings: dict[str, Any] = {"taskset": {"id": name}, "interception": {"type": "server"}}
    rest = dict(options)
    try:
        low, high = float(rest.pop("reward.low", 0)), float(rest.pop("reward.high", 1))
        kind, bundled, chat = env_config_type(name, str(rest.get("id", ""))), default_harness_id(name), _offer_chat()
        for key, value in rest.items():
            *path, last = (key if key.split(".")[0] in kind.model_fields else f"taskset.{key}").split(".")
            inside = settings
            for part in path:
                inside = inside.setdefault(part, {})
            inside[last] = value
        roles = [*agent_config_fields(kind())]
        free = [role for role in roles if "client" not in settings.get(role, {})]
        for role in roles:
            usual = {"runtime": {"type": "subprocess"}, "harness": {"id": chat if bundled == "bash" else bundled}}
            settings[role] = usual | settings.get(role, {})
            settings[role].get("client", {}).setdefault("type", "eval")
        environment = load_environment(resolve_env_config(settings))
        next(iter(environment.taskset))
        if len(free) != 1:
            raise ValueError(f"the policy plays one role, not {free}: ROLE.client.base_url=URL, ROLE.model=NAME")
    except Exception as error:  # whatever a taskset's code raises
        said = " ".join(f"{type(error).__name__}: {error}".split()).partition(" [type=")[0]
        expected = "expected a taskset of verifiers 0.4, its package installed beside it, and its options"
        raise InvalidRequest(f"{expected}; {name}: {said:.400}") from error
    return VerifiersTasks(name, environment, free[0], low, high)

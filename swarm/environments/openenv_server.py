"""Environments of OpenEnv, which are servers: `openenv:http://127.0.0.1:8000`, or `openenv:8000` on this machine.

Its own wire is spoken (`/schema`, `/reset`, a session on `/ws` for each play), so nothing of it is installed here. The
policy acts by the tool `act`, or by the tools that a server lists; where an action is one text, by what it says. A task
is what `reset` with its seed shows; with `chance=true` the seed too. Rewards of the steps are added up, and lie between
`reward.low` and `reward.high` (0 and 1); a play has `steps` of them at most (100). Other options go to `reset`.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.request import Request, urlopen

import aiohttp

from swarm.environments.adapters import require_same, seed_of
from swarm.environments.base import Environment, Game, Message, Outcome, Task, calls_of, text_of, tool_result
from swarm.errors import InvalidRequest

_SECONDS = 60


def show(answer: Mapping[str, Any]) -> str:
    """Return what an observation says: its one text, or JSON; of one that says nothing, what is said about it."""
    found = dict(answer["observation"])
    metadata, result = found.pop("metadata", None) or {}, found.get("result")
    if isinstance(result, dict) and isinstance(result.get("data"), str):
        return str(result["data"])  # of a tool that was called
    seen = {name: value for name, value in found.items() if value is not None} or metadata
    (first, *more) = seen.values() or [""]
    return first if isinstance(first, str) and not more else json.dumps(seen, ensure_ascii=False)


class OpenEnvGame(Game):
    """One session of the server."""

    def __init__(self, server: "OpenEnv", task: Task) -> None:
        self._server, self._task = server, task
        self._total, self._steps, self._done = 0.0, 0, False
        self._session: aiohttp.ClientSession | None = None

    async def opening(self) -> list[Message]:
        self._loop, self._session = asyncio.get_running_loop(), aiohttp.ClientSession()
        self._socket = await self._session.ws_connect(f"{self._server.url}/ws", max_msg_size=0)
        first = await self._ask("reset", self._server.reset | {"seed": seed_of(int(self._task.id))})
        require_same(self._task, "observation", show(first), self._server.url)
        offered = [{"name": "act", "description": "One step.", "input_schema": self._server.action}]
        if self._server.lists:
            offered = (await self._ask("step", {"type": "list_tools"}))["observation"]["tools"]
        functions = [
            {"name": each["name"], "description": each.get("description", ""), "parameters": each["input_schema"]}
            for each in offered
        ]
        self.tools = [] if self._server.field else [{"type": "function", "function": each} for each in functions]
        return [{"role": "user", "content": show(first)}]

    async def answer(self, message: Message) -> list[Message]:
        if self._server.field:
            seen = await self._step({self._server.field: text_of(message)})
            return [] if self._done else [{"role": "user", "content": seen}]
        told = []
        for call in calls_of(message):
            listed = {"type": "call_tool", "tool_name": call.name, "arguments": dict(call.arguments)}
            seen = call.error or await self._step(listed if self._server.lists else call.arguments)
            told.append(tool_result(call, seen))
        return [] if self._done else told

    async def outcome(self) -> Outcome:
        if self._session is not None:
            await self._session.close()
        return Outcome(self._total, facts={"steps": float(self._steps)})

    def __del__(self) -> None:
        if self._session is not None and not self._session.closed and not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._session.close(), self._loop)  # of a play that was given up

    async def _step(self, action: Mapping[str, Any]) -> str:
        if self._done:
            return "The play is over."
        answer = await self._ask("step", action)
        self._steps, self._total = self._steps + 1, self._total + float(answer.get("reward") or 0.0)
        self._done = bool(answer.get("done")) or self._steps >= self._server.steps
        return show(answer)

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return an observation; what a step did wrong is one."""
        await self._socket.send_json({"type": kind, "data": data})
        answer = await self._socket.receive_json(timeout=_SECONDS)
        if answer["type"] == "observation":
            return dict(answer["data"])
        error = {name: answer["data"].get(name) for name in ("code", "message", "errors")}
        if kind == "reset" or error["code"] not in ("VALIDATION_ERROR", "EXECUTION_ERROR"):
            more = ": let it serve more sessions (max_concurrent_envs)" if error["code"] == "CAPACITY_REACHED" else ""
            raise RuntimeError(f"the server at {self._server.url} refuses {kind}{more}; {error}")
        return {"observation": {"error": json.dumps(error)}}


class OpenEnv(Environment):
    """What one server plays, begun by seeds."""

    measures: ClassVar[str] = "its rewards add up to the full reward"

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self.title = f"OpenEnv at {url}"  # type: ignore[misc]  # of each one its own
        low, self.solved_at = float(options.pop("reward.low", 0)), float(options.pop("reward.high", 1))  # type: ignore[misc]
        self.reward_range = (low, self.solved_at)  # type: ignore[misc]
        self.steps, self._chance = int(options.pop("steps", 100)), options.pop("chance", False) is True
        self.url, self.reset = url, options
        self.action: dict[str, Any] = self._fetch("schema")["action"]
        self.lists = self.action.get("title") in ("Action", "CallToolAction", "ListToolsAction")
        fields = {name: each for name, each in self.action.get("properties", {}).items() if name != "metadata"}
        self.action["properties"] = fields
        self.field = next(
            (name for name, each in fields.items() if len(fields) == 1 and each.get("type") == "string"), ""
        )

    def generate(self, seed: int) -> Task:
        first = show(self._fetch("reset", self.reset | {"seed": seed_of(seed)}))
        return Task(str(seed), {"observation": first, **({"chance": seed} if self._chance else {})})

    def game(self, task: Task) -> OpenEnvGame:
        return OpenEnvGame(self, task)

    def _fetch(self, path: str, data: Mapping[str, Any] | None = None) -> Any:
        body = None if data is None else json.dumps(data).encode()
        request = Request(f"{self.url}/{path}", body, {"Content-Type": "application/json"})
        with urlopen(request, timeout=_SECONDS) as answer:
            return json.load(answer)


def make(name: str, options: Mapping[str, Any]) -> OpenEnv:
    url = f"http://127.0.0.1:{name}" if name.isdecimal() else name.rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise InvalidRequest(
            f"expected the address of a running OpenEnv server, as openenv:http://127.0.0.1:8000; found {name!r:.80}; "
            "install that environment beside openenv in a venv of its own, start it there, and name its port"
        )
    try:
        found = OpenEnv(url, dict(options))
        first, again = found.generate(0), found.generate(0)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"expected an OpenEnv server at {url} and its options; {error!s:.200}") from error
    if first != again:
        raise InvalidRequest(f"expected a server whose reset begins the same with the same seed; {url} does not")
    return found

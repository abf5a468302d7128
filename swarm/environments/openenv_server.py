"""Environments of OpenEnv, which are servers: `openenv:http://127.0.0.1:8000`, or `openenv:8000` on this machine.

Its wire is spoken here (`/schema`, `/reset`, a session on `/ws` for each play), nothing of it is installed. A task is
what `reset` shows for its seed, with `chance=true` and the seed; rewards of steps (`steps=100` at most) are summed and
lie between `reward.low` and `reward.high` (0, 1). Other options are of `reset`. An action of one text is what is said.
"""

import json
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, ClassVar
from urllib.request import Request, urlopen

import aiohttp

from swarm.environments.adapters import require_same, seed_of
from swarm.environments.base import Environment, Game, Message, Outcome, Task, ToolUse, calls_of, text_of, tool_result
from swarm.errors import InvalidRequest


def show(answer: Mapping[str, Any]) -> str:
    """Return what an observation says: its one text, or JSON; of one that says nothing, what is said about it."""
    seen = {name: value for name, value in answer["observation"].items() if value is not None}
    about, result = seen.pop("metadata", {}), seen.get("result")
    if isinstance(result, dict) and result.get("data") is not None:
        seen = {"data": result["data"]}  # of a tool that was called
    (first, *more) = (seen := seen or about).values() or [""]
    return first if isinstance(first, str) and not more else json.dumps(seen, ensure_ascii=False)


class OpenEnvGame(Game):
    """One session of the server, which ends with its connection."""

    def __init__(self, server: "OpenEnv", task: Task) -> None:
        self._server, self._task, self._reward, self._steps = server, task, 0.0, 0

    async def opening(self) -> list[Message]:
        server, session = self._server, aiohttp.ClientSession()
        self._socket = await session.ws_connect(f"{server.url}/ws", max_msg_size=0)
        session.detach()
        first = show(await self._ask("reset", server.reset | {"seed": seed_of(int(self._task.id))}))
        require_same(self._task, "observation", first, server.url)
        offered = [] if server.text else [{"name": "act", "input_schema": server.action}]
        if server.lists:
            offered = (await self._ask("step", {"type": "list_tools"}))["observation"]["tools"]
        self.tools = [{"type": "function", "function": {"parameters": t.pop("input_schema"), **t}} for t in offered]
        return [{"role": "user", "content": first}]

    async def answer(self, message: Message) -> list[Message]:
        server, following = self._server, list[Message]()
        for call in [ToolUse("", "act", {server.text: text_of(message)})] if server.text else calls_of(message):
            listed = {"type": "call_tool", "tool_name": call.name, "arguments": call.arguments}
            found: dict[str, Any] = {"observation": {"error": call.error}}
            found = found if call.error else await self._ask("step", listed if server.lists else call.arguments)
            self._reward, self._steps = self._reward + float(found.get("reward") or 0), self._steps + 1
            if found.get("done") or self._steps >= server.steps:
                return []
            following.append(tool_result(call, show(found)))
        return [{"role": "user", "content": each["content"]} for each in following] if server.text else following

    async def outcome(self) -> Outcome:
        await self._socket.close()
        return Outcome(self._reward, facts={"steps": float(self._steps)})

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return an observation; what a step did wrong is one."""
        await self._socket.send_json({"type": kind, "data": data})
        answer = await self._socket.receive_json(timeout=60)
        if answer["type"] == "observation":
            return dict(answer["data"])
        if kind == "reset" or answer["data"]["code"] not in ("VALIDATION_ERROR", "EXECUTION_ERROR"):
            raise RuntimeError(f"OpenEnv refuses {kind} (see max_concurrent_envs): {answer['data']!s:.300}")
        return {"observation": {"error": json.dumps(answer["data"])}}


class OpenEnv(Environment):
    """What one server plays, begun by seeds."""

    measures: ClassVar[str] = "its rewards add up to the full reward"

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self.title, self.url, self.reset = f"OpenEnv at {url}", url, options  # type: ignore[misc]  # each has its own
        self.solved_at = float(options.pop("reward.high", 1))  # type: ignore[misc]
        self.reward_range = (float(options.pop("reward.low", 0)), self.solved_at)  # type: ignore[misc]
        self.chance, self.steps = bool(options.pop("chance", False)), int(options.pop("steps", 100))
        self.action: dict[str, Any] = self._fetch("schema")["action"]
        self.lists = self.action.get("title") in ("Action", "CallToolAction", "ListToolsAction")
        (fields := self.action.setdefault("properties", {})).pop("metadata", None)
        self.text = next((name for name in fields if len(fields) == 1 and fields[name].get("type") == "string"), "")

    def generate(self, seed: int) -> Task:
        first = show(self._fetch("reset", **self.reset | {"seed": seed_of(seed)}))
        return Task(str(seed), {"observation": first, "chance": seed * self.chance})

    def game(self, task: Task) -> OpenEnvGame:
        return OpenEnvGame(self, task)

    def _fetch(self, path: str, /, **data: Any) -> Any:
        body = json.dumps(data).encode() if data else None
        with urlopen(Request(f"{self.url}/{path}", body, {"Content-Type": "application/json"}), timeout=60) as found:
            return json.load(found)


def make(name: str, options: Mapping[str, Any]) -> OpenEnv:
    try:
        if "@" in name:
            raise ValueError("a password does not stand in an address")
        found = OpenEnv(f"http://127.0.0.1:{name}" if name.isdecimal() else name.rstrip("/"), dict(options))
        if found.generate(0) != found.generate(0):
            raise ValueError("its reset does not begin the same with the same seed")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, HTTPException) as error:
        expected = "expected the address of a running OpenEnv server, as openenv:http://127.0.0.1:8000, and its options"
        raise InvalidRequest(f"{expected}; found {name.rpartition('@')[2]:.80}: {error!s:.200}") from error
    return found

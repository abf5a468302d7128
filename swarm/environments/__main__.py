"""The environments as processes: one that trains, one that evaluates.

    python -m swarm.environments play     --server URL --environment guess [--reward FILE.py[:NAME]] [--slot NAME=FILE]
    python -m swarm.environments evaluate --server URL --environment guess --out FILE [--split hidden] [--during]
    python -m swarm.environments player   --server URL --door URL --slot NAME=FILE.py

A --slot is code for a part of the environment's own client (`swarm.environments.user_code`); a `player` plays with its
slots what an evaluator offers at a --door (`swarm.environments.door`), whose --timeout is of all plays together. The
server's client token is read from AJET_TOKEN. `play` goes on until the job is finished, and so does `evaluate
--during`, which plays whenever training waits for evaluation episodes and writes all evaluations to FILE; each prints a
line of JSON that sums up. Exit codes: 0 done; 2 bad input; 3 the server is lost, or refuses, or the agent fails again
and again, or the disk does; 130 interrupted, by Ctrl-C or SIGTERM: open episodes are given up.
"""

import argparse
import asyncio
import json
import os
import random
import resource
import signal
import sys
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter

from swarm.client import Agent, AgentFailed, AgentMisplays, AsyncSwarmClient
from swarm.client.async_client import EPISODE_TIMEOUT_S
from swarm.client.episode import EpisodeResult
from swarm.client.transport import Transport
from swarm.environments import play as playing
from swarm.environments import processes, user_code
from swarm.environments.base import Environment, Split, Task
from swarm.environments.custom import check_tasks, read_tasks
from swarm.environments.door import RemoteAgent, serve_plays
from swarm.environments.loading import PlayableEnvironment, load_playable
from swarm.environments.measuring import MOST_BYTES, bound_resource
from swarm.environments.play import EvaluationsFile, Transcripts, agent_of, evaluate, outcomes, rounds, write_json
from swarm.environments.registry import add_folder
from swarm.environments.user_code import SLOTS, Advantage, TaskWeights, code_hash, load, report_failures
from swarm.errors import InvalidRequest, SwarmError
from swarm.plugins import seconds

BAD_INPUT = 2
LOST = 3
INTERRUPTED = 130
EPISODES = 512
"""Of an evaluation that does not say how many."""


@dataclass(frozen=True, slots=True)
class PlaySetup:
    """What a process plays: the agent, its tasks, and the environment they are of, if any."""

    agent: Agent
    tasks: tuple[Task, ...]
    environment: Environment | None
    code: str | None
    """sha256 of the user's files, None where there are none."""
    advantage: Advantage | None = None
    weights: TaskWeights | None = None


def main() -> int:
    arguments = _parse_arguments()
    processes.watch_parent()
    token = os.environ.get("AJET_TOKEN", "")
    if not token:
        return _fail(BAD_INPUT, "expected the server's client token in AJET_TOKEN, found none")
    if arguments.action == "player":
        with suppress(Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError):  # nobody is told of its end
            code = {slot: load(place, slot, takes=SLOTS[slot]) for slot, place in arguments.slot.items()}
            asyncio.run(_cancel_on_sigterm(serve_plays(arguments.door, arguments.server, token, code)))
        return LOST
    try:
        setup = _load(arguments)
    except InvalidRequest as error:
        if error.__cause__ is not None and (folder := _code_folder(arguments)) is not None:
            sys.stderr.write(processes.traceback_of(error, folder))
        return _fail(BAD_INPUT, str(error))
    work = _play if arguments.action == "play" else _evaluate
    try:
        asyncio.run(_cancel_on_sigterm(work(arguments, setup, token)))
    except AgentMisplays as error:
        return _fail(BAD_INPUT, str(error))
    except (SwarmError, AgentFailed, user_code.RewardFailed, OSError) as error:
        return _fail(LOST, str(error))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return _fail(INTERRUPTED, "interrupted; open episodes were given up")
    return 0


def _fail(code: int, message: str) -> int:
    sys.stderr.write(" ".join(message.split()) + "\n")
    return code


def _code_folder(arguments: argparse.Namespace) -> Path | None:
    places = (arguments.agent, arguments.reward, *arguments.slot.values())
    place = next((place for place in places if place and not place.startswith("=")), None)
    return Path(place.partition(":")[0]).absolute().parent if place else None


def _load(arguments: argparse.Namespace) -> PlaySetup:
    code = None if (folder := _code_folder(arguments)) is None else code_hash(folder)
    if arguments.environments:
        add_folder(arguments.environments)
    environment = load_playable(arguments.environment).with_knobs(arguments.knobs) if arguments.environment else None
    posed = isinstance(environment, PlayableEnvironment)  # its tasks were posed when it was brought
    if posed:
        bound_resource(resource.RLIMIT_AS, MOST_BYTES)
    if environment is None and not (arguments.agent and arguments.tasks):
        raise InvalidRequest("expected --environment, or an --agent with --tasks of its own; found neither")
    if arguments.agent and (arguments.reward or arguments.slot.keys() - {"advantage", "task_weights"}):
        raise InvalidRequest(
            "expected --agent or --reward, or a --slot of theirs: an agent plays and judges; found both"
        )
    slots = arguments.slot | ({"reward": arguments.reward} if arguments.reward else {})
    advantage = Advantage.load(slots["advantage"]) if "advantage" in slots else None
    if arguments.tasks or environment is None:
        tasks = read_tasks(arguments.tasks)
    else:
        tasks = tuple(environment.tasks(arguments.split))
    if arguments.agent or environment is None:
        agent = report_failures(user_code.load_agent(arguments.agent))
    else:
        reward = user_code.Reward.load(slots["reward"]) if "reward" in slots else None
        own = [load(slots[name], name, takes=SLOTS[name]) if name in slots else None for name in ("prompt", "agent")]
        agent = agent_of(environment, reward, None, *own)
        agent = report_failures(agent) if slots or posed else agent
        tasks = tasks if posed else check_tasks(tasks, environment)
    if arguments.unchanged and folder is not None and code_hash(folder) != code:
        raise InvalidRequest("expected files that stay as they are while they are loaded; found them saved meanwhile")
    weights = TaskWeights(slots["task_weights"], tasks, arguments.seed) if "task_weights" in slots else None
    return PlaySetup(agent, tasks, environment, code, advantage, weights)


async def _cancel_on_sigterm(work: Awaitable[None]) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await work


async def _play(arguments: argparse.Namespace, setup: PlaySetup, token: str) -> None:
    tasks = list(setup.tasks)
    random.Random(arguments.seed).shuffle(tasks)
    owner = os.environ.get(processes.OWNER, "play")
    client = AsyncSwarmClient(arguments.server, token, owner=owner, code=setup.code)
    try:
        async with client, asyncio.TaskGroup() as group:  # what ends the service of its training ends the play
            serving = None if setup.advantage is None else group.create_task(setup.advantage.serve(client))
            summary = await client.rollout(
                setup.agent, tasks, concurrency=arguments.concurrency, stream=arguments.stream,
                timeout_s=arguments.timeout, choose=setup.weights,
            )  # fmt: skip
            if serving is not None:
                serving.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    if arguments.out is None:
        sys.stdout.write(json.dumps(asdict(summary)) + "\n")
    else:
        write_json(arguments.out, asdict(summary))


async def _evaluate(arguments: argparse.Namespace, setup: PlaySetup, token: str) -> None:
    shown = rounds(setup.tasks, arguments.episodes or EPISODES, arguments.seed)
    hidden, most = arguments.split == "hidden", arguments.transcripts
    kinds = {task.id: task.kind for task in (shown[0][:most] if hidden else setup.tasks if most else ())}
    plays = Transcripts(kinds)

    def kept(results: Sequence[EpisodeResult]) -> list[dict[str, Any]]:
        return plays.take(None if hidden else playing.choose_plays(results, kinds, most))

    agent, name = setup.agent, setup.environment.name if setup.environment else None
    door = Transport(arguments.door or "")
    if setup.environment is not None and arguments.agent is None:
        agent = agent_of(setup.environment, on_play=plays.record)
        if arguments.door is not None:
            agent = RemoteAgent(setup.environment, door, token, arguments.timeout, plays.record)
        agent = report_failures(agent)
    knobs = {"knobs": arguments.knobs} if arguments.knobs else {}
    owner = os.environ.get(processes.OWNER, "evaluate")
    async with AsyncSwarmClient(arguments.server, token, owner=owner, code=setup.code) as client, door:
        play = partial(
            evaluate, client, agent, setup.tasks, concurrency=arguments.concurrency,
            timeout_s=arguments.timeout * (1 if arguments.door is None else 2),  # a player is out of time before
            worst=playing.worst_outcome(setup.environment),
        )  # fmt: skip
        if arguments.during:  # each time other tasks, until the job is finished
            file = EvaluationsFile(arguments.out)
            async for version, episodes in playing.pending_evaluations(client, arguments.episodes):
                results = await play(episodes=episodes, seed=arguments.seed + version)
                playing.require_version(results, version)
                if arguments.episodes in (None, episodes):  # else they are all there, and its server had forgotten some
                    write_json(arguments.out, file.add(outcomes(results, name, arguments.split, kept(results)) | knobs))
            summary: dict[str, Any] = {"evaluations": len(file)}
        else:
            played = await play(episodes=arguments.episodes or EPISODES, seed=arguments.seed)
            found = outcomes(played, name, arguments.split, kept(played)) | knobs
            write_json(arguments.out, found)
            known = [episode["success"] for episode in found["episodes"] if episode["success"] is not None]
            failed = sum(bool(result.failed) for result in played)
            summary = {
                "episodes": len(played),
                "reward_mean": sum(result.reward for result in played) / len(played),
                "success_mean": sum(known) / len(known) if known else None,
                "policy_version": found["policy_version"],
                **({"failed": failed} if failed else {}),
            }
    sys.stdout.write(json.dumps(summary) + "\n")


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m swarm.environments", description=__doc__.split("\n")[0])
    actions = parser.add_subparsers(dest="action", required=True)
    for name in ("play", "evaluate", "player"):
        action = actions.add_parser(name)
        action.add_argument("--server", required=True, help="address of the swarm server")
        if name != "play":
            action.add_argument("--door", required=name == "player", help="where plays are offered")
        if name != "evaluate":
            action.add_argument("--slot", action="append", type=_slot, default=[], help="code for a part of the client")
        if name == "player":
            continue
        action.add_argument("--environment", help="a built-in environment, or one that was brought, NAME@HASH")
        action.add_argument("--environments", type=Path, help="folder of those that were brought")
        knobs = TypeAdapter(dict[str, Any]).validate_json
        action.add_argument("--knobs", type=knobs, default={}, help="JSON object: what its knobs are set to")
        action.add_argument("--tasks", type=Path, help='JSON list of {"id", "data"}: play these only')
        action.add_argument("--agent", metavar="FILE.py[:NAME]", help="play with this agent")
        action.add_argument("--concurrency", type=_count, default=64, help="episodes at once")
        action.add_argument("--seed", type=int, default=0, help="order of the tasks")
        action.add_argument("--timeout", type=seconds, default=EPISODE_TIMEOUT_S, help="seconds a play may take")
        action.add_argument("--unchanged", action="store_true", help="refuse files that are saved while being loaded")
    play, evaluation = actions.choices["play"], actions.choices["evaluate"]
    play.add_argument("--stream", default="default", help="the stream of tasks the episodes belong to")
    play.add_argument("--reward", metavar="FILE.py[:NAME]", help="judge plays of the environment's agent with this")
    play.add_argument("--out", type=_file, help="file to write the summary to, instead of standard output")
    play.set_defaults(split="train")
    evaluation.add_argument("--split", choices=get_args(Split), default="hidden")
    evaluation.add_argument("--episodes", type=_count, help=f"{EPISODES}; with --during, as many as are waited for")
    evaluation.add_argument("--out", type=_file, required=True, help="file to write")
    evaluation.add_argument("--during", action="store_true", help="whenever training waits for it")
    evaluation.add_argument("--transcripts", type=_count, default=0, help="plays to write: of hidden tasks the first")
    evaluation.set_defaults(reward=None, slot=[])
    arguments = parser.parse_args()
    arguments.slot = dict(arguments.slot)
    return arguments


def _slot(text: str) -> tuple[str, str]:
    name, _, place = text.partition("=")
    if name not in SLOTS or not place:
        raise argparse.ArgumentTypeError(f"expected NAME=FILE.py of {', '.join(SLOTS)}, found {text!r}")
    return name, place


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, found {text!r}")
    return int(text)


def _file(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"expected a file in a folder one may write to, found {text!r}")
    return path


if __name__ == "__main__":
    sys.exit(main())

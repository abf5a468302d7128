"""The environments as processes: one that trains, one that evaluates.

    python -m swarm.environments play     --environment guess --server URL [--concurrency 64] [--seed 0]
    python -m swarm.environments evaluate --environment guess --server URL --out FILE [--split hidden]
                                          [--episodes 512] [--concurrency 64] [--seed 0]

The server's client token is read from AJET_TOKEN. `play` goes on until the job is finished and prints one line
of JSON. Exit codes: 0 done; 2 bad input; 3 the server is lost, or refuses, or the disk does;
130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from swarm.client import AgentFailed, AsyncSwarmClient
from swarm.environments.base import Split
from swarm.environments.evaluate import evaluate, write_outcomes
from swarm.environments.play import agent_of
from swarm.environments.registry import get_environment
from swarm.errors import InvalidRequest, SwarmError

BAD_INPUT = 2
LOST = 3
INTERRUPTED = 130


def main() -> int:
    """Run one of the two processes; return its exit code."""
    arguments = _parser().parse_args()
    token = os.environ.get("AJET_TOKEN", "")
    if not token:
        return _fail(BAD_INPUT, "expected the server's client token in AJET_TOKEN, found none")
    try:
        environment = get_environment(arguments.environment)
    except InvalidRequest as error:
        return _fail(BAD_INPUT, str(error))
    arguments.environment = environment
    try:
        asyncio.run(_play(arguments, token) if arguments.action == "play" else _evaluate(arguments, token))
    except (SwarmError, AgentFailed, OSError) as error:
        return _fail(LOST, str(error))
    except KeyboardInterrupt:
        return _fail(INTERRUPTED, "interrupted; open episodes were given up")
    return 0


async def _play(arguments: argparse.Namespace, token: str) -> None:
    environment = arguments.environment
    tasks = list(environment.tasks("train"))
    random.Random(arguments.seed).shuffle(tasks)
    async with AsyncSwarmClient(arguments.server, token, owner="play") as client:
        summary = await client.rollout(agent_of(environment), tasks, concurrency=arguments.concurrency)
    sys.stdout.write(json.dumps(asdict(summary)) + "\n")


async def _evaluate(arguments: argparse.Namespace, token: str) -> None:
    async with AsyncSwarmClient(arguments.server, token, owner="evaluate") as client:
        outcomes = await evaluate(
            client,
            arguments.environment,
            arguments.split,
            episodes=arguments.episodes,
            seed=arguments.seed,
            concurrency=arguments.concurrency,
        )
    write_outcomes(arguments.out, outcomes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m swarm.environments", description=__doc__.split("\n")[0])
    actions = parser.add_subparsers(dest="action", required=True)
    for name in ("play", "evaluate"):
        action = actions.add_parser(name)
        action.add_argument("--environment", required=True)
        action.add_argument("--server", required=True, type=_address, help="address of the swarm server")
        action.add_argument("--concurrency", type=_count, default=64, help="episodes at once")
        action.add_argument("--seed", type=int, default=0, help="order of the tasks")
        if name == "evaluate":
            action.add_argument("--split", choices=get_args(Split), default="hidden")
            action.add_argument("--episodes", type=_count, default=512)
            action.add_argument("--out", type=_file, required=True, help="file to write")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, found {text!r}")
    return int(text)


def _address(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"expected an address like http://127.0.0.1:8000, found {text!r}")
    return text


def _file(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"expected a file in a folder one may write to, found {text!r}")
    return path


def _fail(code: int, message: str) -> int:
    sys.stderr.write(message + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())

"""`ajet client`: agents of one's own on a swarm server, in a container wherever there is an engine."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from research.agents.files import AgentFiles
from research.agents.reloading import reload as reloaded
from research.agents.request import (
    AgentRequest,
    BadOption,
    Confinement,
    SandboxOptions,
    check_evaluated,
    check_ready,
    find_server,
    memory_of,
    stream_of,
    tasks_of,
)
from research.agents.run import AgentPlacement, AgentRun, perform
from research.agents.supervision import supervise
from research.cli.clients.client_summary import exit_code, show, tell_why
from research.cli.clients.debug import debug
from research.cli.clients.env import env
from research.cli.clients.wheel import wheel
from research.cli.output import print_json, warn
from research.durations import parse_budget
from research.environments.bring import environment_of
from research.installation.home import Home
from research.servers.option import Server
from sandboxes.gateway.destinations import Destination
from sandboxes.spec import Limits
from swarm.client.asynchronous import EPISODE_TIMEOUT_S
from swarm.environments.registry import environments, look_in

app = typer.Typer(help="Clients: agents of your own on a swarm server.", no_args_is_help=True)
app.command()(debug)
DEFAULTS = Limits()
THREADS_A_PLAY, FILES_A_PLAY = 4, 16
MOST_SECONDS, MOST_CPUS = 86_400.0, 4096.0
EVALUATED_EPISODES = 256
INTERRUPTED = 130

Agent = Annotated[
    str | None,
    typer.Argument(help="FILE.py[:NAME] or a folder with agent.py; the environment's own agent when left out."),
]
EnvironmentName = Annotated[str | None, typer.Option(help="Whose tasks are played; the job's when left out.")]
Tasks = Annotated[Path | None, typer.Option(help='Tasks of your own: JSON, [{"id": ..., "data": {...}}].')]
Evaluate = Annotated[bool, typer.Option("--eval", help="Evaluate the policy as it is; nothing is trained.")]
Evaluations = Annotated[
    bool, typer.Option("--evaluations", help="Evaluate whenever training waits for it (eval_every), beside who trains.")
]
Episodes = Annotated[int | None, typer.Option(min=1, help="Episodes of an evaluation by --eval; 256.")]
Reward = Annotated[
    str | None, typer.Option(help="FILE.py[:NAME] that judges the environment's own agent (docs/agents.md).")
]
Stream = Annotated[str, typer.Option(help="The job's stream that the episodes belong to.")]
Concurrency = Annotated[int, typer.Option(min=1, max=4096, help="Episodes at once.")]
Seed = Annotated[int, typer.Option(help="Order of the tasks.")]
Timeout = Annotated[float, typer.Option(min=0.1, max=MOST_SECONDS, help="Seconds that one play may take.")]
TimeLimit = Annotated[str, typer.Option(help="Wall clock for all of it: 30m, 2h, 1d.")]
SandboxKind = Annotated[
    str | None, typer.Option(help="docker or process; docker when an engine answers (or AJET_SANDBOX).")
]
Requirements = Annotated[Path | None, typer.Option(help="requirements.txt of the agent (docker).")]
Allow = Annotated[list[str] | None, typer.Option(help="HOST:PORT it may reach (docker); repeatable.")]
Memory = Annotated[str | None, typer.Option(help="Most memory, 512m or 2g (docker); 1g.")]
Cpus = Annotated[float | None, typer.Option(min=0.1, max=MOST_CPUS, help="Most processors (docker); 1.")]
Gpus = Annotated[list[str] | None, typer.Option(help="UUID of a GPU it may use (docker); repeatable.")]
Variables = Annotated[list[str] | None, typer.Option(help="NAME=VALUE for the agent; repeatable.")]
Restart = Annotated[bool, typer.Option("--restart", help="Start it again where it dies, after a growing pause.")]
Reload = Annotated[bool, typer.Option("--reload", help="Load its code again at each save (--sandbox process).")]
Json = Annotated[bool, typer.Option("--json", help="Result as JSON on stdout, the rest on stderr.")]


app.command()(wheel)
app.command()(env)


@app.callback()
def client() -> None:
    """Clients: agents of your own on a swarm server."""


@app.command()
def run(
    agent: Agent = None,
    server: Server = None,
    environment: EnvironmentName = None,
    tasks: Tasks = None,
    evaluate: Evaluate = False,
    evaluations: Evaluations = False,
    episodes: Episodes = None,
    reward: Reward = None,
    stream: Stream = "default",
    concurrency: Concurrency = 64,
    seed: Seed = 0,
    timeout: Timeout = EPISODE_TIMEOUT_S,
    time_limit: TimeLimit = "1d",
    sandbox: SandboxKind = None,
    requirements: Requirements = None,
    allow: Allow = None,
    memory: Memory = None,
    cpus: Cpus = None,
    gpu: Gpus = None,
    env: Variables = None,
    restart: Restart = False,
    reload: Reload = False,
    json: Json = False,
) -> None:
    """Run an agent on a swarm server until the job is finished: in a container, or as a plain process.

    The agent is a function of an episode that returns a reward: docs/agents.md. Without --server, the server of
    AJET_SERVER is used, else the one that `ajet swarm start` started here. Ctrl-C stops it cleanly.

    Exit codes: 0 done; 1 it was ended by a limit or from outside; 2 bad input, or an agent that cannot be played; 3 the
    server is lost or refuses, or the agent fails again and again; 130 stopped by Ctrl-C.

    Examples:

        ajet client run --environment guess

        ajet client run --environment guess --reward my_reward.py

        ajet client run --environment market --stream market

        ajet client run my_agent/ --tasks tasks.json --requirements my_agent/requirements.txt

        ajet client run agent.py:play --allow api.example.com:443 --memory 2g --time-limit 2h

        ajet client run agent.py --eval --episodes 100 --json

        ajet client run agent.py --evaluations

        ajet client run agent.py --restart

        ajet client run agent.py --reload --sandbox process
    """
    _check_together(agent, reward, evaluate=evaluate, evaluations=evaluations, restart=restart, reload=reload)
    _check_counted(episodes, evaluate=evaluate, evaluations=evaluations)
    only = {"--requirements": requirements, "--allow": allow, "--memory": memory, "--cpus": cpus, "--gpu": gpu}
    options = SandboxOptions(sandbox, requirements, tuple(env or ()), only_contained=only, reload=reload)
    evaluated = evaluate or evaluations
    files, judge = _user_files(agent, reward, evaluated)
    given = Confinement(_destinations(allow), _limits(memory, cpus, concurrency), tuple(gpu or ()))
    seconds, home = parse_budget(time_limit), Home.locate()
    at = find_server(server, os.environ, home)
    job = check_ready(at, train=not evaluate, stream=None if evaluated else stream_of(stream))
    if evaluations:
        check_evaluated(job)
    look_in(home.environments)
    if environment is not None and environment not in environments():
        environment = environment_of(environment, None, home.prepare(), warn).name
    whose, split, chosen = tasks_of(environment, tasks, job, own_agent=files is not None, evaluated=evaluated)
    request = AgentRequest(
        action="evaluate" if evaluated else "play", during=evaluations, agent=files, reward=judge,
        environment=whose, tasks=chosen, split=split, stream=stream_of(stream),
        episodes=episodes or EVALUATED_EPISODES, concurrency=concurrency, seed=seed, timeout_s=timeout,
        time_limit_s=seconds,
    )  # fmt: skip
    place = AgentPlacement.choose(options, given, home.prepare(), os.environ, warn, whose)
    _run(AgentRun(request, at, place, restart, reload), json)


def _check_together(
    agent: str | None, reward: str | None, *, evaluate: bool, evaluations: bool, restart: bool, reload: bool
) -> None:
    """Raise BadOption for options that mean nothing together."""
    if evaluate and evaluations:
        raise BadOption("expected --eval (once, now) or --evaluations (whenever training waits for one); found both")
    if evaluations and reload:
        raise BadOption("expected --reload for a training; found it with --evaluations")
    if evaluate and (restart or reload):
        raise BadOption("expected --restart and --reload for a training; found one of them with --eval")
    if reload and agent is None and reward is None:
        raise BadOption("expected an agent or a --reward with --reload; found no file of yours that could be saved")


def _check_counted(episodes: int | None, *, evaluate: bool, evaluations: bool) -> None:
    """Raise BadOption for a number of episodes beside what plays as many as the job says."""
    if episodes is not None and not evaluate:
        said = "--evaluations, which plays the job's `evaluation_episodes`" if evaluations else "a training"
        raise BadOption(f"expected --episodes with --eval; found it with {said}")


def _user_files(agent: str | None, reward: str | None, evaluate: bool) -> tuple[AgentFiles | None, AgentFiles | None]:
    """Return the files of the agent and of the reward that were named; raises BadAgent and BadOption."""
    files = AgentFiles.locate(agent) if agent is not None else None
    judge = AgentFiles.locate(reward, "reward") if reward is not None else None
    if judge is not None and (files is not None or evaluate):
        raise BadOption(
            "expected --reward for training with the environment's own agent; found it with another, or --eval"
        )
    return files, judge


def _destinations(allow: list[str] | None) -> tuple[Destination, ...]:
    return tuple(Destination.parse(text) for text in allow or ())


def _limits(memory: str | None, cpus: float | None, concurrency: int) -> Limits:
    return Limits(
        memory_bytes=DEFAULTS.memory_bytes if memory is None else memory_of(memory),
        cpus=DEFAULTS.cpus if cpus is None else cpus,
        processes=max(DEFAULTS.processes, THREADS_A_PLAY * concurrency),
        open_files=max(DEFAULTS.open_files, FILES_A_PLAY * concurrency),
    )


def _run(agent: AgentRun, json: bool) -> None:
    """Run an agent to its end, print its result, and leave with the exit code."""
    try:
        look_after = reloaded if agent.reload else supervise if agent.restart else perform
        ended = asyncio.run(look_after(agent))
    except (KeyboardInterrupt, asyncio.CancelledError):
        warn("stopped; what was being played is given up")
        raise typer.Exit(INTERRUPTED) from None
    if json:
        print_json(ended.to_json())
    else:
        show(ended)
    tell_why(ended)
    raise typer.Exit(exit_code(ended))

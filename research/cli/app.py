"""The command `ajet`: its subcommands, and the one place where errors become a line and an exit code.

Exit codes: 0 done; 1 the thing asked about is not well (doctor, study verify, env check); 2 bad input or an
environment that cannot do it, said in one line on stderr; 3 a study stopped by its budget; 130 stopped by a person.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Annotated, ClassVar, NoReturn

import typer

from research.cli.lazy import Lazy, LazyGroup
from research.cli.output import warn
from research.installation.own_process import begin_process


class Ajet(LazyGroup):
    """What `ajet` can be asked for."""

    lazy: ClassVar[Mapping[str, Lazy]] = {
        "research": Lazy(
            "research.cli.study.research",
            "research",
            "Turn a topic into hypotheses, training runs, verdicts and a report.",
        ),
        "up": Lazy(
            "research.cli.up",
            "up",
            "Start (or find) the local Prefect server and print its address, or stay and work on studies there.",
        ),
        "doctor": Lazy("research.cli.doctor", "doctor", "Say what is installed, what works and what to do."),
        "study": Lazy(
            "research.cli.study.app",
            "app",
            "Studies: plan, list, show, watch, approve, deny, pause, stop, resume, amend, veto, report, "
            "recipe, verify, export.",
        ),
        "findings": Lazy(
            "research.cli.study.shown.known_findings",
            "findings",
            "List what the studies of this installation found, and what they did not: every verdict, with its "
            "conditions.",
        ),
        "swarm": Lazy("research.cli.swarm.app", "app", "Swarm servers: host a trainable model for any agent."),
        "env": Lazy(
            "research.cli.environments.app",
            "app",
            "Environments: what there are, what one is, how to begin one, what it is worth.",
        ),
        "client": Lazy("research.cli.clients.client", "app", "Clients: agents of your own on a swarm server."),
        "sandbox": Lazy(
            "research.cli.sandbox",
            "app",
            "Sandboxes: where clients and evaluators run. Build the image, list, read logs, stop, prune.",
        ),
        "job": Lazy("research.cli.job", "app", "Jobs: what a swarm server trains."),
        "model": Lazy(
            "research.cli.model", "app", "Models: fetch a real one, list those that are here, check a folder."
        ),
        "metric": Lazy(
            "research.cli.metrics.app", "app", "Metrics: what a study can be judged by, and what each of it is."
        ),
        "planner": Lazy("research.cli.planner", "app", "Planners: how well they predict."),
    }


app = typer.Typer(
    name="ajet",
    cls=Ajet,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Autonomous reinforcement-learning research: a topic goes in, a report one can trust comes out.",
)


def _show_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"ajet {version('ajet')}\n")
        raise typer.Exit


@app.callback()
def ajet(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Autonomous reinforcement-learning research: a topic goes in, a report one can trust comes out."""


def run() -> NoReturn:
    """Run the command line and exit."""
    begin_process()
    try:
        _check_text(sys.argv[1:])
        app()
    except SystemExit:  # how a command ends; nothing more is imported to say so
        raise
    except KeyboardInterrupt:
        sys.exit(130)
    except _expected() as error:
        _fail(str(error))
    except OSError as error:
        from research.installation.home import cause_of

        _fail(f"could not read or write {error.filename or 'a file'}: {cause_of(error)}. Mend it, or set AJET_HOME")
    sys.exit(0)


def _expected() -> tuple[type[Exception], ...]:
    """Return what every room raises for a person to read; importing the rooms takes longer than `--help` does."""
    from research.errors import ResearchError
    from sandboxes import SandboxError
    from studies import StudiesError
    from swarm.errors import SwarmError

    return ResearchError, StudiesError, SwarmError, SandboxError


def _check_text(arguments: Sequence[str]) -> None:
    """Refuse what no file of a study can hold: Python passes bytes that are no text on as lone surrogates."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            _fail(f"expected arguments in UTF-8; found {argument[:80]!r}; type it again, or set LANG=C.UTF-8")


def _fail(message: str) -> NoReturn:
    warn(" ".join(message.split()))
    sys.exit(2)

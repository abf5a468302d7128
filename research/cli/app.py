"""The command `ajet`: its subcommands, and the one place where errors become a line and an exit code.

Exit codes: 0 done; 1 the thing asked about is not well (doctor); 2 bad input or an environment that cannot
do it, said in one line on stderr; 3 a study stopped by its budget; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer

from research.cli import client, job, planner, sandbox, study, swarm
from research.cli.doctor import doctor
from research.cli.output import warn
from research.cli.research import research
from research.cli.up import up
from research.errors import ResearchError
from research.home import cause_of
from sandboxes import SandboxError
from studies import StudiesError
from swarm.errors import SwarmError

_EXPECTED = (ResearchError, StudiesError, SwarmError, SandboxError)
app = typer.Typer(
    name="ajet",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Autonomous reinforcement-learning research: a topic goes in, a report one can trust comes out.",
)
app.command()(research)
app.add_typer(study.app, name="study")
app.add_typer(swarm.app, name="swarm")
app.add_typer(client.app, name="client")
app.add_typer(sandbox.app, name="sandbox")
app.add_typer(job.app, name="job")
app.add_typer(planner.app, name="planner")
app.command()(up)
app.command()(doctor)


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
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # spinning threads of two processes on two cores cost 10x
    try:
        _check_text(sys.argv[1:])
        app()
    except _EXPECTED as error:
        _fail(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        _fail(f"could not read or write {error.filename or 'a file'}: {cause_of(error)}. Mend it, or set AJET_HOME")
    sys.exit(0)


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

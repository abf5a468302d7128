"""W&B's own client in a process of its own: `python -m research.tracking.wandb_client COMMAND JSON`.

    viewer {}                          who is logged in, and where W&B's pages are
    send {log, entity, project, live}  send an offline log, with `live` until it is closed
    complete {log, run, after}         go on with a run that holds the steps up to `after`: log the rest
    last_step {path}                   the last step that W&B shows of the run ENTITY/PROJECT/ID
    keep {run, artifact, files}        log files as an artifact of a run

It prints its answer as one line of JSON, or ends with 1 and W&B's words on stderr. W&B's client may wait for a server
for ever, so whoever starts this ends it, and it ends itself once its stdin does: then the controller is gone, and
nobody sends one log twice at a time.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from research.results.wandb_reader import WRITTEN_NOT_FINITE, read_rows

Given = Mapping[str, Any]


def main() -> int:
    """Carry out the command given on the command line."""
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    command, given = sys.argv[1], json.loads(sys.argv[2])
    try:
        answer = _COMMANDS[command](given)
    except Exception as error:  # noqa: BLE001 - W&B's client may raise anything; whoever started this is told
        sys.stderr.write(" ".join(f"{type(error).__name__}: {error}".split()) + "\n")
        return 1
    sys.stdout.write(f"\n{json.dumps(answer)}\n")
    return 0


def _end_with_stdin() -> None:
    while os.read(0, 1024):
        pass
    if os.getpgid(0) == os.getpid():  # whatever W&B's client started stands in the same group
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _viewer(given: Given) -> Given:
    import wandb

    return {"entity": wandb.Api().default_entity, "pages": wandb.setup().settings.app_url}


def _send(given: Given) -> Given:
    live = ["--live"] if given["live"] else []
    # A log that was sent in part is sent again as a whole, whatever W&B's client noted of it.
    sys.argv = ["wandb", "beta", "sync", "--no-skip-synced", "-e", given["entity"], "-p", given["project"], *live,
                given["log"]]  # fmt: skip
    try:
        runpy.run_module("wandb", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code:
            raise RuntimeError(f"wandb beta sync ended with code {ended.code}") from ended
    return {}


def _last_step(given: Given) -> Given:
    import wandb

    try:
        return {"step": wandb.Api().run(given["path"]).lastHistoryStep}
    except (wandb.errors.CommError, ValueError) as error:
        if "Could not find" not in str(error):
            raise
        return {"step": None}


def _complete(given: Given) -> Given:
    import wandb

    run = wandb.init(mode="online", resume="must", **given["run"])
    for row in read_rows(Path(given["log"])):
        if row["_step"] > given["after"]:
            run.log({key: _number(value) for key, value in row.items() if not key.startswith("_")}, step=row["_step"])
    run.finish()
    return {}


def _number(value: Any) -> Any:
    """Return a value as it was logged: what is no finite number stands in the log as text."""
    return float(value) if value in WRITTEN_NOT_FINITE else value


def _keep(given: Given) -> Given:
    import wandb

    run = wandb.init(mode="online", **given["run"])
    artifact = wandb.Artifact(**given["artifact"])
    for path in given["files"]:
        add = artifact.add_dir if os.path.isdir(path) else artifact.add_file
        add(path, policy="immutable", skip_cache=True)  # no second copy of what may be large
    run.log_artifact(artifact).wait()
    run.finish()
    return {}


_COMMANDS: Mapping[str, Callable[[Given], Given]] = {
    "viewer": _viewer,
    "send": _send,
    "complete": _complete,
    "last_step": _last_step,
    "keep": _keep,
}

if __name__ == "__main__":
    sys.exit(main())

"""A planner's own analysis: Python in a container without a network over a read-only folder, whose result is checked.

The folder holds what looks show anyway: runs with their measurements, logged curves, plans and verdicts, and plays of
search tasks. Of hidden tasks there are means alone, no outcome of a single task, so that whoever reads an analysis may
still write code that trains. Nothing that the code does or gives is an input to a verdict.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import Field, ValidationError

from research.errors import DesignRefused, NotReady
from research.isolation.mode import Isolation, one_line, require_isolation
from research.planners.history import sanitize_line
from research.planners.tools import DATA, Answer, StudyTools, ToolError, ToolRequest, list_runs, load_collected
from research.text import describe
from sandboxes import ContainerHandle, DockerSandbox, SandboxError, SandboxSpec
from sandboxes.docker.launch import pack
from sandboxes.spec import Limits, last_lines
from studies.records.base import canonical
from studies.records.design import is_expression
from studies.records.verdict import ANALYSE, AnalysisResult, Plain, Source
from swarm.environments.play import MOST_RECORDED, try_recorded
from swarm.environments.user_code import RewardFailed

MOST_ANALYSES: Final = 3
"""Analyses before one question."""
LIMIT_S: Final = 60.0
MOST_INPUT: Final = 16 << 20
"""Bytes of the folder; curves and plays of the newest runs come first."""
MOST_RESULT: Final = 1 << 16
LIMITS: Final = Limits(memory_bytes=512 << 20, processes=64, output_bytes=1 << 16)
_RUNNER: Final = """
import json
names = {"__name__": "analysis"}
exec(compile(open("/input/analysis.py", encoding="utf-8").read(), "analysis.py", "exec"), names)
result = names["analyse"]("/input/data")
with open("/workspace/results/result.json", "w", encoding="utf-8") as file:
    json.dump(result, file, allow_nan=False)
"""
_TRIAL: Final = """
import asyncio, json, sys
from swarm.environments import play
if not hasattr(play, "try_slot"):  # an older image
    sys.exit(sys.argv[1] != "reward" and "the image of this study knows code for a reward alone; begin another study")
asyncio.run(play.try_slot(*sys.argv[1:]))
if hasattr(play, "try_recorded"):
    with open("/input/recorded.json") as recorded, open("/workspace/results/result.json", "w") as file:
        json.dump(asyncio.run(play.try_recorded(*sys.argv[1:3], json.load(recorded))), file)
"""
_GIVES: Final = {"reward": "rewards", "advantage": "advantages", "task_weights": "weights", "prompt": "messages"}


class AnalyseRequest(ToolRequest):
    """Your own Python over the study's records, run in a container without a network: up to three before a question.

    It defines `analyse(folder)`, uses the standard library, and returns within a minute {"table": [{column: cell}],
    "figure": {"kind": "lines" or "points", "x": "...", "y": "...", "series": [{"name": "...", "points":
    [[x, y]]}]} or None, "note": "..."}. In the folder: runs.json (run, round, phase, arm, seed, status,
    measurements, files), plans.json (designs), verdicts.json, curves/RUN.json ([{"step", "metrics"}]) and
    plays/RUN.json (of search tasks: {"initial", "during": [...], "final"}, each with "episodes" [{"task_id", "sample",
    "reward", "success", ...}], and "transcripts" of some [{"task_id", "messages"}]). At most 8 columns, 40 rows and 200
    characters a cell. The report shows source, table and figure as exploratory, by your code: no claim rests on them,
    and who reads them may still propose code.
    """

    why: Plain = Field(min_length=1)
    """What you want to know, in a clause."""
    source: Source
    """Python that defines `analyse(folder: str) -> dict`."""

    def answer(self, tools: StudyTools) -> Answer:
        state, round = tools.state, f"{tools.state.round + (tools.state.design is not None)}/"
        before = (look for act in state.planner_acts if act.turn.startswith(round) for look in act.tool_calls)
        if sum(look["name"] == ANALYSE for look in before) + len(tools.analysed) >= MOST_ANALYSES:
            raise ToolError(f"expected at most {MOST_ANALYSES} analyses before one question; found one more; act now")
        try:
            found = analyse(self.source, collect_inputs(tools), state.id, tools.isolation)
        except (NotReady, SandboxError, ValueError) as error:
            raise ToolError(one_line(error)) from error
        finally:
            tools.analysed.append(self.source)
        return {"notice": DATA, "quoted": found.model_dump(mode="json")}


def analyse(source: str, inputs: Mapping[str, bytes], study: str, isolation: Isolation) -> AnalysisResult:
    """Return what code makes of a folder of files, once for all; raise NotReady, SandboxError or ValueError."""
    files = {"analysis.py": source.encode(), **{f"data/{name}": data for name, data in inputs.items()}}
    handle = _run(files, ("python3", "-I", "-c", _RUNNER), study, "analysis", isolation)
    ended, left = handle.wait(), handle.results().get("result.json")
    if ended is None or ended.reason != "finished" or left is None:
        how = "no result" if ended is None or ended.reason == "finished" else ended.reason.replace("_", " ")
        raise ValueError(f"analyse(folder) ended by {how} (it has {LIMIT_S:g} s): {last_lines(handle.logs(), 4, 600)}")
    try:
        return AnalysisResult.model_validate(json.loads(left.read_bytes()))
    except ValidationError as error:
        raise ValueError(describe(error)) from error
    except RecursionError as error:
        raise ValueError("expected a result of little depth; found another") from error


def _run(
    files: Mapping[str, bytes], command: tuple[str, ...], study: str, role: str, isolation: Isolation
) -> ContainerHandle:
    """Return a container that runs a command over files, once however often it is asked for."""
    require_isolation(isolation.sandboxing, f"an {role}")
    if not isinstance(isolation.containers, DockerSandbox):
        raise SandboxError("expected an engine for the study's containers; none answers")
    key = hashlib.sha256(pack(files) + repr(command).encode()).hexdigest()[:12]
    return isolation.containers.run(SandboxSpec(
        name=f"ajet-{study}-{role}-{key}", command=command, directory=Path("/"),
        labels={"study": study, "role": role}, time_limit_s=LIMIT_S, limits=LIMITS,
        image=isolation.sandboxing.image, files=files, results={"result.json": MOST_RESULT},
    ))  # fmt: skip


def try_code(
    study: str, isolation: Isolation, collect: Callable[[str], Sequence[Mapping[str, Any]]],
    slot: str, source: str, environment: str, blind: bool = False,
) -> str:  # fmt: skip
    """Call the code of a slot as a training does, unless `blind` on recorded plays too; return what it gave, in a line,
    nothing where no container can be had now. Raise DesignRefused with what it says if it fails."""
    plays = [] if blind else collect(environment)
    try:
        if is_expression(source):
            given = asyncio.run(try_recorded(slot, source, plays))
        else:
            tried = ("python3", "-c", _TRIAL, slot, f"/input/{slot}.py", environment)
            recorded = data if len(data := json.dumps(plays).encode()) <= MOST_INPUT else b"[]"
            files = {f"{slot}.py": source.encode(), "recorded.json": recorded}
            handle = _run(files, tried, study, "example", isolation)
            ended, logs = handle.wait(), handle.logs()
            if ended is not None and ended.reason in ("error", "timeout", "out_of_memory"):  # else not the code's doing
                raise RewardFailed(f"it ended by {ended.reason}: {last_lines(logs, 2, 400)}")
            given = json.loads(handle.results()["result.json"].read_bytes())
        count, low, high = map(float, given)
        where = f"{count:g} recorded plays (of the newest {MOST_RECORDED} at most)"
        return f"{slot}: tried on {where}: {_GIVES[slot]} {low:.4g} to {high:.4g}"
    except RewardFailed as error:
        raise DesignRefused(f"code: tried in {environment}, {sanitize_line(str(error), 430)}") from error
    except (NotReady, SandboxError, LookupError, ValueError, TypeError, ArithmeticError, RecursionError):  # no numbers
        return ""


def collect_inputs(tools: StudyTools) -> dict[str, bytes]:
    state, rows, later = tools.state, list[dict[str, Any]](), dict[str, bytes]()
    for number, run in reversed(list(list_runs(state))):
        spec, files = run.spec, dict[str, Any]()
        if run.collected is not None:
            files[f"curves/{run.run_id}.json"] = load_collected(run, tools.folder, "snapshot")["history"]
            if spec.metric.split == "search":
                files[f"plays/{run.run_id}.json"] = load_collected(run, tools.folder, "evaluation")
        data = {name: canonical(value).encode() for name, value in files.items()}
        whole = sum(map(len, (*later.values(), *data.values()))) <= MOST_INPUT
        later |= data if whole else {}
        rows.append({
            "run": run.run_id, "round": number, "phase": spec.phase, "arm": spec.arm, "seed": spec.seed,
            "status": run.status, "files": sorted(data) if whole else [], "left_out": not whole,
            "measurements": {key: found.value for key, found in run.measurements.items()},
        })  # fmt: skip
    designs = [entry.design for entry in state.rounds if entry.design is not None]
    plans = [design.model_dump(mode="json", exclude={"metric": {"task_seed"}}) for design in designs]
    verdicts = [verdict.model_dump(mode="json") for entry in state.rounds for verdict in entry.verdicts]
    told = {"runs.json": rows[::-1], "plans.json": plans, "verdicts.json": verdicts}
    return {name: canonical(value).encode() for name, value in told.items()} | later

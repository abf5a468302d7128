"""What a planner remembers beyond its study: what was found here on the very question, how large effects were, papers.

Papers are texts that the user gave to read (`--read`): copied into the study's folder with their hashes among its
settings, shown to its planner as quoted passages, and exported nowhere. No verdict rests on any of it.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from research.design.known_findings import KnownFinding, list_effects
from research.errors import BadInput
from research.planners.context import PlannerContext
from research.planners.history import sanitize_line
from research.planners.lexicon import name_environments
from research.planners.tools import DATA, Answer, StudyTools, ToolError, ToolRequest, Words, describe_finding
from research.proposals.actions import Action, Propose
from studies.checks.conditions import CollectError, read_unchanged
from studies.log.study import PAPERS
from studies.records.base import JsonValue, canonical
from studies.records.statements import metric_name

_MOST_FILES: Final = 200
_MOST_BYTES: Final = 4 << 20
_SUFFIXES: Final = (".txt", ".md")
_STEP: Final = 700
"""Characters from one passage to the next, of which each has twice as many."""
_WORD: Final = re.compile(r"\w{3,}")
_MOST_PASSAGES: Final = 4
_MOST_ROWS: Final = 30


def _normalize(value: JsonValue) -> str:
    return canonical(json.loads(canonical(value), parse_int=float))  # 1 is 1.0


def find_answered(context: PlannerContext, action: Action) -> KnownFinding | None:
    """Return a finding with the values, model, metric and (if named) environment of a comparison that is proposed."""
    usual = "" if context.requested_metric is None else context.requested_metric.text
    if not isinstance(action, Propose) or action.metric.strip() not in ("", usual):
        return None
    named, metric = name_environments(context.topic), metric_name(context.metric)
    places = (context.wanted.environment,) if context.wanted.environment else named
    plain = [claim for claim in action.hypotheses if not (claim.ladder or claim.moderator or claim.code)]
    asked = {(claim.variable, *sorted(map(_normalize, claim.sides))) for claim in plain}
    alike = (
        known for known in context.known
        if (known.variable, *sorted(map(_normalize, (known.control, known.treatment)))) in asked
        and known.verdict in ("supported", "refuted", "equivalent") and known.conditions.metric_name == metric
        and (not places or known.conditions.environment in places)
    )  # fmt: skip
    return next(alike, None)


def find_repeated(context: PlannerContext, action: Action) -> str | None:
    """Return what a model is told that proposes what was answered here, unless its `why` names that finding."""
    known = find_answered(context, action)
    if known is None or not isinstance(action, Propose) or known.hypothesis in re.findall(r"\w+", action.why):
        return None
    return (
        f"{known.name} answered that here: {describe_finding(known)}; ask what it leaves open, or ask again and say in "
        f"`why`, naming {known.hypothesis}, what makes you"
    )


class PriorsRequest(ToolRequest):
    """How large effects were in this installation, by model; `sd_between_seeds` is among the facts."""

    needs_runs = False

    def answer(self, tools: StudyTools) -> Answer:
        return {"effects": list_effects(tools.known, _MOST_ROWS)}


class PapersRequest(ToolRequest):
    """Papers and notes that the user gave you to read: their names, or the passages that have most of some words."""

    needs_runs = False
    words: Words = ""
    """What you look for; empty for the names."""

    def answer(self, tools: StudyTools) -> Answer:
        given, wanted, passages = tools.state.settings[PAPERS], set(_WORD.findall(self.words.lower())), list[Any]()
        for name, sha256 in given.items() if wanted else ():
            try:
                text = read_unchanged(tools.folder / PAPERS / name, name, sha256).decode(errors="replace")
            except CollectError as error:
                raise ToolError(f"expected the papers as they were given; {error.reason}") from error
            line = sanitize_line(text, len(text))
            passages += [(name, line[at : at + 2 * _STEP]) for at in range(0, len(line), _STEP)]
        scores = [len(wanted.intersection(_WORD.findall(text.lower()))) for _, text in passages]
        nearest = sorted((at for at, score in enumerate(scores) if score), key=lambda at: -scores[at])
        quoted = [{"of": passages[at][0], "text": passages[at][1]} for at in nearest[:_MOST_PASSAGES]]
        found = {"passages": len(nearest), "quoted": quoted}
        return {"notice": DATA, **(found if wanted else {"quoted": [sanitize_line(name) for name in given]})}


def read_papers(folder: Path, note: Callable[[str], None]) -> dict[str, bytes]:
    """Return the texts in a folder by their path in it; `note` hears of files that are none. Raises BadInput."""
    try:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        plain = [path for path in files if not path.is_symlink()]  # a link shows a model what lies elsewhere
        texts = {path.relative_to(folder).as_posix(): path for path in plain if path.suffix.lower() in _SUFFIXES}
        size = sum(path.stat().st_size for path in texts.values())
        if not 0 < len(texts) <= _MOST_FILES or size > _MOST_BYTES:
            raise BadInput(
                f"expected --read FOLDER of 1 to {_MOST_FILES} .txt or .md files, {_MOST_BYTES >> 20} MiB in all; "
                f"found {len(texts)} of {size:,} bytes in {folder}; pdftotext makes texts of others"
            )
        if other := len(files) - len(texts):
            note(f"--read: {other} files are no plain .txt or .md, and are not read; pdftotext makes texts")
        return {name: path.read_bytes() for name, path in texts.items()}
    except OSError as error:
        raise BadInput(f"expected a folder of texts to --read; {folder}: {error.strerror}; name another") from error

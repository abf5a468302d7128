"""Ask: what a study of a question would be, see and cost, before it begins; and more evidence on a claim."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from research.controller.options import ResearchOptions
from research.errors import ResearchError
from research.planners.factory import planner_names
from research.shown.plan import Line, describe_plan
from research.text import format_flag
from research.ui.evidence import LACKS, Evidence, count_studies, describe_result, find_evidence
from research.ui.previews import LISTS, PLAIN, Preview, asks_model, missing_worker, read_options
from research.ui.site import Page, Site, View
from swarm.environments.registry import environments


def page(site: Site, view: View) -> Page:
    fields = {name: "\n".join(view.query[name]) for name in (*PLAIN, *LISTS) if name in view.query}
    evidence = find_evidence(site, view.get("evidence")) if view.get("evidence") else None
    lacks = view.get("lacks") if view.get("lacks") in LACKS else "seeds"
    preview, options, refused = None, None, ""
    try:
        if evidence is not None and not fields:
            fields = evidence.fields(lacks)
        if any(fields.get(name, "").strip() for name in ("topic", "vary")):
            options = read_options(fields, {} if evidence is None else evidence.fixed())
            preview = site.previews.find(options)
    except ResearchError as error:
        refused = str(error)
    values = {
        "fields": {name: fields.get(name, "") for name in (*PLAIN, *LISTS)}, "environments": list(environments()),
        "planners": planner_names(), "worker": missing_worker(site.home), "lacks": lacks, "all_lacks": LACKS,
        "command": "" if options is None else _command(options),
        "costs": options is not None and asks_model(options), "refused": refused, "asked": fields,
        **_preview_values(preview), **_evidence_values(site, evidence),
    }  # fmt: skip
    return Page(
        "ask.html.jinja", "Ask", values, study="/ask", head="" if evidence is None else evidence.study.head_hash
    )


def _preview_values(preview: Preview | None) -> dict[str, Any]:
    seen = None if preview is None else preview.seen
    understood = None if preview is None else preview.understood
    return {
        "preview": preview, "plan": [] if seen is None else list(describe_plan(seen)),
        "is_line": lambda part: isinstance(part, Line),
        "understood": "" if understood is None else _command(understood),
        "understood_at": "" if understood is None else f"/ask?{urlencode(_query(understood), doseq=True)}",
    }  # fmt: skip


def _command(options: ResearchOptions) -> str:
    return f"ajet {shlex.join(options.command())}"


def _query(options: ResearchOptions) -> Mapping[str, Any]:
    given = options.model_dump(mode="json", exclude_defaults=True)
    return {name: value for name, value in given.items() if name in (*PLAIN, *LISTS) and value is not None}


def _evidence_values(site: Site, evidence: Evidence | None) -> dict[str, Any]:
    if evidence is None:
        return {"evidence": None}
    count = 0 if evidence.finding is None else count_studies(site.home, site.log, evidence.finding)
    return {
        "evidence": evidence, "result": describe_result(evidence), "count": count, "ways": list(evidence.ways(site)),
        "larger": format_flag(2 * evidence.study.budget_s),
    }  # fmt: skip

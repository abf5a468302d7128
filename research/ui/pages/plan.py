"""Ask: what a study of a question would be, see and cost, before it begins; and more evidence on a claim."""

import shlex
from secrets import token_urlsafe
from urllib.parse import urlencode

from research.controller.options import ResearchOptions
from research.errors import ResearchError
from research.planners.factory import planner_names
from research.shown.plan import Fact, describe_plan
from research.ui.actions import find_evidence
from research.ui.previews import LISTS, PLAIN, missing_worker, read_options
from research.ui.site import Page, Site, View
from swarm.environments.registry import environments

_FIELDS = (*PLAIN, *LISTS)


def page(site: Site, view: View) -> Page:
    fields = {name: "\n".join(view.query[name]) for name in _FIELDS if name in view.query}
    evidence = find_evidence(site, view.get("evidence")) if view.get("evidence") else None
    preview, options, refused = None, None, ""
    try:
        if any(fields.get(name, "").strip() for name in ("topic", "vary")):
            options = read_options(fields)
            preview = site.previews.find(options)
    except ResearchError as error:
        refused = str(error)
    understood = None if preview is None else preview.understood
    values = {
        "fields": {name: fields.get(name, "") for name in _FIELDS}, "environments": list(environments()),
        "planners": planner_names(), "worker": missing_worker(site.home),
        "command": _command(options), "refused": refused, "asked": fields, "preview": preview,
        "plan": [] if preview is None or preview.seen is None else list(describe_plan(preview.seen)),
        "is_line": lambda part: isinstance(part, Fact), "understood": _command(understood),
        "understood_at": "" if understood is None else _address(understood), "evidence": evidence,
        "ways": [] if evidence is None else list(evidence.ways(site)),
        "count": 0 if evidence is None else evidence.count(site), "once": token_urlsafe(9),
    }  # fmt: skip
    head = "" if evidence is None else evidence.study.head_hash
    return Page("ask.html.jinja", "Ask", values, study="/ask", head=head)


def _command(options: ResearchOptions | None) -> str:
    return "" if options is None else f"ajet {shlex.join(options.command())}"


def _address(options: ResearchOptions) -> str:
    given = options.model_dump(mode="json", exclude_defaults=True, include={*_FIELDS})
    return f"/ask?{urlencode({name: value for name, value in given.items() if value is not None}, doseq=True)}"

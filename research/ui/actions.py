"""What a person does on a page, by the very functions of the commands.

Each form names the head of the study as its page showed it. Where the study went on since, what costs or ends something
is not done: the page that answers says what happened, and asks again.

Data that were seen cannot be added to: a look that no lock named has no level. So a claim gets more evidence by a word
to the planner of an inquiry that is open, by a larger budget where that stopped it, or by a study that reproduces it
with seeds and a level of its own.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, cast, get_args
from urllib.parse import quote

from starlette.exceptions import HTTPException

from research.controller import interventions
from research.controller.built_designs import build_reproduction
from research.controller.preview import price_next_round
from research.controller.progress import progress_lines
from research.controller.session import has_controller, request_reproduction
from research.design.comparison import StatisticalRequirements
from research.design.known_findings import KnownFinding, describe_evidence, load_findings
from research.errors import BadInput, ResearchError
from research.orchestration.handover import find_worker
from research.proposals.metric_choice import format_difference
from research.scheduler.required_runs import attempts_running, is_stopped_by_budget, may_continue
from research.shown.study import describe_resume
from research.text import format_seconds, strip_control_chars
from research.ui.access import Role
from research.ui.previews import read_options
from research.ui.site import Page, Site, View
from studies import StudyLog, StudyState, fold
from studies.log.event_log import Change
from studies.log.reviews import Judgement, ReviewKind
from studies.records.design import Design, Hypothesis

Form = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Action:
    """Something that a form does: who may, whether it needs the study as it was shown, and how it is asked again."""

    do: Callable[[Site, View, Form], object]
    """Does it; returns the address of what came of it, anything else for the page that it was asked on."""
    role: Role = "owner"
    asks_again: str = ""
    """What a person is told that they asked for, where the study went on; empty for what may be done at any time."""


class _Fields(dict[str, str]):
    """A form, of which a field that is not there is the browser's fault, and no other key."""

    def __missing__(self, name: str) -> str:
        raise HTTPException(400, f"expected a form with the field {name!r}; load the page again")


class StudyWentOn(Exception):
    """A study has another head than the page showed from which something was asked."""


class _SeenStudy(StudyLog):
    """A study that is changed only as it was seen: nothing comes between the look and the write."""

    def __init__(self, site: Site, form: Form) -> None:
        super().__init__(site.log, form["study"])
        self._seen = form.get("seen", "")

    def change(self, decide: Callable[[StudyState], Change | None], *, actor: str = "system") -> Any:
        def decide_as_seen(state: StudyState) -> Change | None:
            if state.head_hash != self._seen:
                raise StudyWentOn
            return decide(state)

        return super().change(decide_as_seen, actor=actor)


def act(site: Site, view: View, name: str, form: Form) -> str | Page:
    """Do what a form asks; return where to go on, or the page that says why it was not done and asks again. Raise
    HTTPException (403, 404), or what the command raises (BadInput and others, in one line)."""
    if (action := ACTIONS.get(name)) is None:
        raise HTTPException(404, f"there is no action {name[:40]!r}")
    if not view.who.may(action.role):
        raise HTTPException(403, f"expected the role {action.role}; {view.who.name} is a {view.who.role}")
    if "study" in form:
        state = site.state(form["study"])
        if action.asks_again and state.head_hash != form.get("seen"):
            return _conflict(site, name, action, form, state)
    try:
        address = action.do(site, view, _Fields(form))
        return address if isinstance(address, str) else back_of(form)
    except StudyWentOn:
        return _conflict(site, name, action, form, site.state(form["study"]))


def _conflict(site: Site, name: str, action: Action, form: Form, state: StudyState) -> Page:
    values = {
        "what": action.asks_again, "action": name, "role": action.role, "study": state.id, "head": state.head_hash,
        "fields": {**{key: form[key] for key in form if key not in ("csrf", "study", "seen")}, "back": back_of(form)},
        "happened": lines_since(site, state, form.get("seen", "")), "back": back_of(form),
    }  # fmt: skip
    return Page("conflict.html.jinja", "It went on", values, status=409)


def lines_since(site: Site, state: StudyState, seen: str) -> list[str]:
    """Return what happened in a study after the head that somebody saw, in lines; all of it where that is no head."""
    events = site.log.read(state.id)
    before = next((number for number, event in enumerate(events, 1) if event.hash == seen), 0)
    known = {key for key, _ in progress_lines(fold(events[:before]))} if before else set[str]()
    return [line for key, line in progress_lines(state) if key not in known]


def back_of(form: Form) -> str:
    """Return the page of ours that a form was on; the desk where it names none."""
    asked = form.get("back", "/")
    return asked if asked.startswith("/") and not asked.startswith(("//", "/\\")) and asked.isprintable() else "/"


def _answer(site: Site, view: View, form: Form, *, granted: bool) -> None:
    record = StudyLog(site.log, form["study"])
    interventions.answer_question(record, form["digest"], "page", form.get("note", ""), granted=granted)
    if not granted and any(attempts_running(record.state())):
        interventions.end_attempts(site.home, site.log, record)


def _pause(site: Site, view: View, form: Form) -> None:
    if not interventions.request_pause(site.log, form["study"]):
        raise BadInput(f"expected a study that goes on; {form['study']} does not; there is nothing to pause")


def _resume(site: Site, view: View, form: Form) -> None:
    """Let a study go on under the controller that has it, else hand it to the worker: none lives here."""
    study = form["study"]
    if site.state(study).stopped_reason is None and has_controller(site.home, site.log, study, local=True):
        if not interventions.request_continue(site.log, study, ["ajet", "ui"]):
            raise BadInput(f"study {study} goes on already")
        return
    find_worker(site.home)(study)


def _stop(site: Site, view: View, form: Form) -> None:
    if form.get("typed", "").strip() != form["study"]:
        raise BadInput(
            f"expected the study's name typed in full, {form['study']}; found something else: nothing is done"
        )
    interventions.request_stop(site.home, site.log, form["study"])


def _veto(site: Site, view: View, form: Form) -> None:
    interventions.veto_hypothesis(_SeenStudy(site, form), form["hypothesis"], form["text"])


def _budget(site: Site, view: View, form: Form) -> None:
    seconds = interventions.read_budget(site.home, site.state(form["study"]), form["budget"])
    interventions.change_budget(_SeenStudy(site, form), seconds, form["text"])


def _check(site: Site, view: View, form: Form) -> str:
    site.forget_checked(form["study"])
    return f"/s/{quote(form['study'])}?verify=1"


def _comment(site: Site, view: View, form: Form) -> str:
    checked = site.checked(site.state(form["study"])) if form["about"].startswith("threat ") else None
    threats = [] if checked is None else [remark.text for remark in checked.remarks]
    return _review(site, view, form, "comment", about=form["about"], text=form["text"], threats=threats)


def _follow(site: Site, view: View, form: Form, kind: ReviewKind) -> str:
    number = form["to"]
    if not (number.isdecimal() and len(number) < 10):
        raise BadInput(f"expected the number of a comment; found {number[:40]!r}")
    return _review(site, view, form, kind, to=int(number), text=form["text"] if kind == "reply" else "")


def _review(site: Site, view: View, form: Form, kind: ReviewKind, **fields: Any) -> str:
    """Write an entry about the study as its page showed it; return where it stands."""
    head, state = form.get("seen", ""), site.state(form["study"])
    entry = site.reviews(state.id).append(state, kind, by=view.who.name, head=head, **fields)
    return f"{back_of(form)}#c-{entry.to or entry.seq}"


def _sign(site: Site, view: View, form: Form) -> str:
    """Sign what was shown: only where all of it verifies as it is now, the report included."""
    state = site.state(form["study"])
    site.forget_checked(state.id)  # its files may have changed without an event
    if not (proof := site.prove(state.id)).holds:
        why = f"{proof.drifts[0]}; see: ajet study verify {state.id}"
        raise BadInput(f"expected a study that holds, to sign it: {why}")
    if proof.head != form["seen"]:
        raise StudyWentOn
    if form["decision"] not in get_args(Judgement):
        raise BadInput(f"expected a judgement, {' or '.join(get_args(Judgement))}; found {form['decision'][:40]!r}")
    decision, text = cast(Judgement, form["decision"]), form.get("text", "")
    site.reviews(state.id).append(state, "sign", by=view.who.name, decision=decision, text=text, head=form["seen"])
    return f"{back_of(form)}#judgement"


def _plan(site: Site, view: View, form: Form) -> None:
    """Ask a language model for a plan, which may cost money."""
    site.previews.find(read_options(form), ask_model=True, wait_s=0.0)


class Way(NamedTuple):
    """A way to more evidence: what it costs and sees, or why there is none."""

    kind: str
    title: str
    told: str
    refused: str = ""


@dataclass(frozen=True)
class ClaimEvidence:
    """A claim on which more is asked, in its round of a study."""

    study: StudyState
    round: StudyState
    claim: Hypothesis
    finding: KnownFinding | None
    """Its verdict, or why that does not follow; None before it is settled."""

    @property
    def about(self) -> str:
        return f"r{self.round.round}/{self.claim.id}"

    @property
    def design(self) -> Design:
        assert self.round.design is not None
        return self.round.design

    @property
    def result(self) -> str:
        """What it came to, without any number where its verdict does not follow."""
        found = self.finding
        return "it has no verdict yet" if found is None else found.doubt or describe_evidence(found)

    @property
    def power(self) -> str:
        """What the lock promises to see, and what its runs were to cost."""
        requirements, design = StatisticalRequirements.of(self.study.settings), self.design
        effect, power = self.claim.smallest_effect or requirements.min_effect(design.metric), requirements.power
        if design.promise is not None:
            effect, power = design.promise.effect, design.promise.power
        cost = f"{design.price.runs} runs, about {format_seconds(design.price.total_s)}"
        return f"{cost}; power {power:.2g} at {format_difference(design.metric, effect)}"

    def ways(self, site: Site) -> Iterator[Way]:
        """Yield the ways, each with what it costs and could see."""
        state, over = self.study, "it is concluded, and its level is spent"
        over = over if state.concluded_reason is not None else ""
        no = over or "it is stopped" if over or state.stopped_reason is not None else ""
        no = no or ("" if state.asks_planner else "it is planned by the rules, which read no notes")
        no = no or ("" if may_continue(state) else "it has no round left")
        yield Way("note", "a word to its planner, for the next round", "" if no else self._next_round(site), no)
        now = is_stopped_by_budget(state) and self.round.round == state.round
        no = over or ("" if now else "no budget stopped the round of this claim")
        collected = sum(run.status == "collected" for run in self.round.runs.values())
        told = f"{collected} runs are collected; the whole lock: {self.power}; {describe_resume(state)}"
        yield Way("budget", "a larger budget, for what its lock asks for", told, no)
        no = ""
        try:
            build_reproduction(state, [self.claim.id], site.home.models)
        except BadInput as error:
            no = str(error)
        yield Way("study", "a new study under its lock, with fresh seeds and a level of its own", self.power, no)

    def _next_round(self, site: Site) -> str:
        if self.study.open_claims:
            return f"its level is known once this round is over; this round's lock: {self.power}"
        try:
            told = price_next_round(site.home, site.log, self.study, self.claim.id)
        except ResearchError as error:
            told = {"because": str(error)}
        if not told.get("can_be_had"):
            return f"the same once more cannot be had in the next round: {told.get('because', 'no price is known')}"
        parts = (f"{name.replace('_', ' ')} {value}" for name, value in told.items() if name != "can_be_had")
        return f"the same once more: {', '.join(parts)}"

    def count(self, site: Site) -> int:
        """Return how many studies here judged these values by this metric in this environment."""
        if (own := self.finding) is None:
            return 0
        alike = (own.compared, own.conditions.environment)
        every = load_findings(site.home, site.log).findings
        return len({own.study, *(one.study for one in every if (one.compared, one.conditions.environment) == alike)})


def find_evidence(site: Site, name: str) -> ClaimEvidence:
    """Return a claim by STUDY/ROUND/CLAIM; HTTPException (404) where there is none."""
    study, number, claim = (*name.split("/", 2), "", "")[:3]
    state = site.state(study)
    for each in state.rounds:
        for known in each.design.hypotheses if each.design is not None else ():
            if (str(each.round), known.id) == (number, claim):
                every = load_findings(site.home, site.log).findings
                found = next((finding for finding in every if finding.name == name), None)
                return ClaimEvidence(state, each, known, found)
    raise HTTPException(404, f"expected a claim under a lock, as STUDY/ROUND/CLAIM; found {name[:80]}")


def _ask_evidence(site: Site, view: View, form: Form) -> str:
    """Ask for more evidence on a claim; begin the study that reproduces it, where that is chosen."""
    text, begins = strip_control_chars(form["text"]).strip(), form["way"] == "study"
    asked = find_evidence(site, f"{form['study']}/{form['claim']}")
    where, said = f"/s/{quote(form['study'])}", text
    if begins and not view.who.may("owner"):
        raise HTTPException(403, f"expected the role owner; {view.who.name} is a {view.who.role}")
    if not 1 <= len(text) <= interventions.MOST_REASON:  # here, so that nothing is done that cannot be written down
        raise BadInput(
            f"expected 1 to {interventions.MOST_REASON} characters on what is missing; found {len(text)}; "
            "they stand beside the claim"
        )
    if begins:
        if not (proof := site.prove(asked.study.id)).holds:
            raise BadInput(f"expected a study that verifies; found {proof.drifts[0]}")
        named, budget = [asked.claim.id], form.get("budget", "").strip() or None
        request = request_reproduction(site.home, asked.study, named, budget)
        command = ("study", "reproduce", asked.study.id, "--claims", *named)
        begun = site.previews.begin_request(replace(request, command=command), form.get("once", ""))
        where, said = f"/s/{quote(begun)}", f"{text} [begun: {begun}]"
    state = site.state(form["study"])
    site.reviews(state.id).append(state, "ask", by=view.who.name, about=asked.about, text=said)
    return where


ACTIONS: Final[dict[str, Action]] = {
    "plan": Action(_plan),
    "begin": Action(
        lambda site, view, form: f"/s/{quote(site.previews.begin(read_options(form), form.get('once', '')))}"
    ),
    "evidence": Action(_ask_evidence, role="reviewer", asks_again="ask for more evidence"),
    "approve": Action(partial(_answer, granted=True), asks_again="approve what it asks"),
    "deny": Action(partial(_answer, granted=False), asks_again="deny what it asks, which stops it"),
    "pause": Action(_pause),
    "resume": Action(_resume, asks_again="let it go on"),
    "stop": Action(_stop, asks_again="stop it"),
    "note": Action(lambda site, view, form: interventions.add_note(StudyLog(site.log, form["study"]), form["text"])),
    "veto": Action(_veto, asks_again="veto a hypothesis"),
    "accept": Action(
        lambda site, view, form: interventions.accept_violation(_SeenStudy(site, form), form["code"], form["text"]),
        asks_again="accept a violation",
    ),
    "budget": Action(_budget, asks_again="change its budget"),
    "build": Action(lambda site, view, form: interventions.build_report_again(site.home, site.log, form["study"])),
    "check": Action(_check, role="viewer"),
    "comment": Action(_comment, role="reviewer"),
    "reply": Action(partial(_follow, kind="reply"), role="reviewer"),
    "resolve": Action(partial(_follow, kind="resolve"), role="reviewer"),
    "reopen": Action(partial(_follow, kind="reopen"), role="reviewer"),
    "sign": Action(_sign, role="reviewer", asks_again="sign it"),
}

"""What a planner remembers: findings on the very question, sizes of effects here, and papers that it was given."""

from __future__ import annotations

import hashlib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from simlab.sim_clock import SimClock
from simlab.sim_run import Flight, FlightResult, fly_in, scratch
from simlab.suites.traps import ASK, world

from research.controller.options import ResearchOptions, make_request
from research.controller.session import StudyRequest, begin_study
from research.design.known_findings import list_effects
from research.errors import BadInput
from research.planners.endpoint import OpenAiEndpoint
from research.planners.llm import LlmPlanner
from research.planners.memory import PapersRequest, read_papers
from research.planners.tools import ToolError
from studies import EventLog, fold
from studies.proof import verify
from studies.proof.export import export
from tests.research.design.test_prior_findings import known
from tests.research.factories import make_home
from tests.research.planners.flights import KEY, MODEL, PLANTED, Landed, Script, facts_of, proposal
from tests.research.planners.scripted_endpoint import scripted_endpoint
from tests.research.planners.test_tools import landed

assert landed is not None
TEXT = "Groups of equal rewards teach nothing.\n\nEntropy falls first."


def fly_again(folder: Path, name: str, **changes: Any) -> FlightResult:
    asks = {"budget_s": 40 * 3600.0, "asks": {"rounds": 1}}
    return fly_in(Flight(name, ASK.topic, world(1, effect=0.2), **{**asks, **changes}), folder)


@pytest.mark.slow
def test_what_was_answered_here_is_told_by_rules_and_asked_again_by_a_model_with_a_reason_alone() -> None:
    again = proposal("group_size", 8, 16, "h1 was of one machine.")
    script = Script({(1, "propose"): [proposal("group_size", 8, 16), again]})
    with scratch() as folder, scripted_endpoint(script) as endpoint:
        first = fly_again(folder, "first").state
        assert first.verdicts[0].verdict == "supported"
        second = fly_again(folder, "second").state
        assert "studied here before (first/1/h1)" in second.planner_acts[0].note
        asking = LlmPlanner(MODEL, OpenAiEndpoint(KEY, endpoint.url), patience_s=0.0)
        third = fly_again(folder, "third", planner=lambda clock: asking, report=True)
    act, facts = third.state.planner_acts[0], facts_of(endpoint.requests[0])
    assert (act.tries, len(act.rejected)) == (2, 1)
    assert "second/1/h1" in act.rejected[0]
    assert again["why"] in act.note
    assert third.report is not None
    assert again["why"] in third.report
    assert all("difference +" in entry["text"] for entry in facts["findings_of_earlier_studies_quoted"])
    [effect] = facts["effects_found_here"]
    assert (effect["field"], effect["comparisons"], effect["verdicts"]) == ("group_size", 2, {"supported": 2})
    assert facts["sd_between_seeds"]["guess"] > 0


def test_effects_are_counted_by_field_environment_and_metric_the_most_known_first() -> None:
    found = [known(estimate=size) for size in (-0.3, 0.1, 0.2)]
    rows = list_effects([known(environment="arith"), *found, known(estimate=None)], 8)
    assert [(row["environment"], row["comparisons"], row["size"]) for row in rows] == [
        ("guess", 3, {"least": 0.1, "median": 0.2, "most": 0.3}),
        ("arith", 1, {"least": 0.1, "median": 0.1, "most": 0.1}),
    ]
    assert len(list_effects([known(environment="arith"), *found], 1)) == 1


def give(tmp_path: Path) -> Path:
    folder = tmp_path / "papers"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.md").write_text(TEXT)
    (folder / "deep" / "b.TXT").write_text(f"{PLANTED} {'Nothing here. ' * 200} Groups matter.")
    (folder / "c.pdf").write_bytes(b"%PDF")
    return folder


def test_papers_are_copied_hashed_quoted_verified_and_not_exported(tmp_path: Path, landed: Landed) -> None:
    notes, home = list[str](), make_home(tmp_path / "home")
    asked = ResearchOptions(topic="group size 4 vs 16 on guess", read=give(tmp_path))
    with pytest.raises(BadInput, match="--planner llm"):
        make_request(asked, notes.append)
    papers = make_request(asked.model_copy(update={"planner": "llm"}), notes.append).papers
    assert (list(papers), len(notes), "1 files" in notes[0]) == (["a.md", "deep/b.TXT"], 1, True)
    request = StudyRequest("group size 4 vs 16 on guess", "rules", None, 600.0, None, papers=papers)
    folder = home.study("s")
    with closing(EventLog(home.database, clock=SimClock())) as log:
        begin_study(home, log, "s", request)
        state, rows = fold(log.read("s")), log.read_unverified("s")
    assert state.settings["papers"] == {name: hashlib.sha256(text).hexdigest() for name, text in papers.items()}
    looks = landed.looks(state=state, folder=folder)
    assert PapersRequest().answer(looks)["quoted"] == list(papers)
    first, second, *_ = PapersRequest(words="equal GROUPS").answer(looks)["quoted"]
    assert (first["of"], first["text"], second["of"]) == ("a.md", " ".join(TEXT.split()), "deep/b.TXT")
    [planted, *_] = PapersRequest(words="ignore").answer(looks)["quoted"]
    assert "\x1b" not in planted["text"]
    assert PapersRequest(words="xylophone").answer(looks)["passages"] == 0
    assert verify("s", rows, folder).held["paper"] == 2
    assert not any("papers" in name for name in export("s", rows, folder, tmp_path / "sent"))
    assert verify("s", rows, tmp_path / "sent").drifts == ()
    (folder / "papers" / "a.md").write_text("Something else about groups.")
    assert [drift.place for drift in verify("s", rows, folder).drifts] == ["papers/a.md"]
    with pytest.raises(ToolError, match="as they were given"):
        PapersRequest(words="groups").answer(looks)


def test_a_link_among_the_papers_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a key")
    (papers := tmp_path / "papers").mkdir()
    (papers / "a.md").write_text("a text")
    (papers / "b.md").symlink_to(tmp_path / "secret")
    told: list[str] = []
    assert read_papers(papers, told.append) == {"a.md": b"a text"}
    assert "1 files are no plain" in told[0]


@pytest.mark.parametrize(
    ("files", "size"), [({}, 1), ({"c.pdf"}, 1), ({"a.txt"}, 5 << 20), ({f"{n}.md" for n in range(201)}, 1)]
)
def test_what_is_no_folder_of_few_texts_is_refused_in_one_line(tmp_path: Path, files: set[str], size: int) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"x" * size)
    with pytest.raises(BadInput) as caught:
        read_papers(tmp_path, lambda line: None)
    assert ("expected" in caught.value.message, "\n" in caught.value.message) == (True, False)

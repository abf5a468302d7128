"""What a study's artifacts say: the table of verdicts, and where the plan and the report are read."""

import json
from pathlib import Path

from research.orchestration.projection import StudyArtifact, build_artifacts
from studies import EventType, StudyState
from tests.research.in_rounds import InRounds
from tests.studies.synthetic import Synthetic, design, hypothesis


def found(state: StudyState, pages: str = "") -> dict[str, StudyArtifact]:
    shown = {each.name: each for each in build_artifacts(state, pages)}
    assert all(each.description for each in shown.values())
    return shown


def test_there_is_a_table_once_there_are_verdicts(synthetic: Synthetic) -> None:
    synthetic.append(EventType.HYPOTHESIS_PROPOSED, **hypothesis().model_dump(mode="json"))
    assert list(found(synthetic.state())) == ["progress", "links"]
    synthetic = Synthetic(synthetic.folder / "whole")
    synthetic.whole(design((hypothesis("h1", 16), hypothesis("h2", 8))))
    shown = found(synthetic.state())
    assert list(shown) == ["progress", "links", "verdicts"]
    rows = json.loads(str(shown["verdicts"].data))
    assert ([row["hypothesis"] for row in rows], rows[0]["verdict"]) == (["h1", "h2"], "supported")
    assert (rows[0]["n_control"], float(rows[0]["estimate"]) > 0) == (5, True)
    assert "round" not in rows[0]


def test_links_name_the_page_or_the_command_for_it_and_the_report_once_there_is_one(tmp_path: Path) -> None:
    synthetic = Synthetic(tmp_path)
    synthetic.whole()
    assert found(synthetic.state())["links"].data == "- Pages: `ajet ui`\n- Plan: `ajet study show s-synthetic`\n"
    written = {kind: {"path": f"report.{kind}", "sha256": "0" * 64} for kind in ("markdown", "html")}
    synthetic.append(EventType.REPORT_BUILT, **written)
    linked = str(found(synthetic.state(), "http://here/s/a")["links"].data)
    assert linked.startswith("- Pages: [http://here/s/a](http://here/s/a)\n")
    assert linked.endswith("- Report: `ajet study report s-synthetic`\n")


def test_verdicts_of_an_inquiry_hold_the_rounds_before(tmp_path: Path) -> None:
    judged = json.loads(str(found(InRounds(tmp_path).two_rounds())["verdicts"].data))
    assert [(row["round"], row["hypothesis"]) for row in judged] == [(1, "h1"), (2, "r2h1")]

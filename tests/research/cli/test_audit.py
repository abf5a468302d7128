from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from research.cli.audit import PAGE, _cells, _points
from research.runs import wandb_log
from research.runs.wandb_log import TrackedRun
from studies.verdicts.audit import Audit, AuditedClaim, AuditQuestion
from tests.research.cli.conftest import Ajet

ROWS = [("agent", "game", "final"), *(
    (agent, game, str(unit * (score + (agent == "B") * 4)))
    for game, unit in (("pong", 1), ("qbert", 1000)) for agent in "AB" for score in (1, 2, 3.5)
)]  # fmt: skip
ASKED = ("--arm", "agent", "--metric", "final")


def write(path: Path, mark: str = ",", before: str = "", end: str = "\n") -> str:
    path.write_bytes((before + "".join(mark.join(row) + end for row in ROWS)).encode())
    return str(path)


@pytest.mark.parametrize("form", [(",", "\ufeff", "\r\n"), (";",), ("\t", "\n\n"), ("|",)])
def test_a_table_is_read_whatever_its_delimiter_mark_and_ends_of_lines(
    ajet: Ajet, tmp_path: Path, form: tuple[str, ...]
) -> None:
    known = ajet("audit", write(tmp_path / "a.csv"), *ASKED, "--group", "game", "--json").data
    found = ajet("audit", write(tmp_path / "b.csv", *form), *ASKED, "--group", "game", "--json").data
    assert (found["claims"], found["in_groups"]) == (known["claims"], known["in_groups"])
    assert (known["observational"], len(known["claims"]), len(known["in_groups"])) == (True, 1, 2)


def test_what_is_printed_and_the_page_say_the_same_and_that_it_is_observational(ajet: Ajet, tmp_path: Path) -> None:
    command = ("audit", write(tmp_path / "runs.csv"), *ASKED, "--group", "game", "--target", "5", "--to")
    out = ajet(*command, str(tmp_path / "out")).out
    page = (tmp_path / "out" / PAGE).read_text()
    assert out.startswith("Observational: ")
    for part in ("Observational: ", "B over A", "supported", "100% of all runs", "the opposite in up to 0%"):
        assert (part in out, part in page) == (True, True), part
    assert (page.count("<svg"), "http" in page.replace("http://www.w3.org", "")) == (3, False)
    ajet(*command, str(tmp_path / "again"))
    assert (tmp_path / "again" / PAGE).read_text() == page


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("agent,final\n", ASKED, ("rows below a header", "found none")),
        ("", ASKED, ("a table in",)),
        ("agent,final\nA,1,2\n", ASKED, ("as wide as its header", "; Length of header or names")),
        ("agent,final\nA,1\nA,1,2\n", ASKED, ("as wide as its header", "; Expected 2 fields in line 3, saw 3")),
        ("agent,finale\nA,1\n", ASKED, ("'final' for --metric", "agent, finale", "did you mean finale?")),
        ("agent,final,final\nA,1,2\n", ASKED, ("'final' for --metric",)),
        ("agent,final\nA,1\n", ("--arm", "agent"), ("one column for --metric", "agent, final")),
        ("agent,final\nA,1\n", (*ASKED, "--group", "agent"), ("'agent' for --arm alone",)),
        ("agent,final\nA,1\n", (*ASKED, "--at", "3"), ("--run FIELD",)),
        ("agent,final\nA,1\n", (*ASKED, "--margin", "0"), ("margin", "greater than 0")),
        ("agent,final\nA,1\n", ASKED, ("two arms",)),
        ("agent,final\nA,\xe9".encode("latin-1"), ASKED, ("UTF-8",)),
    ],
)  # fmt: skip
def test_a_refusal_is_one_line(
    ajet: Ajet, tmp_path: Path, text: str | bytes, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    ajet("audit", str(path), *options).refused(*words)


def test_a_name_that_steers_a_terminal_or_a_reader_is_shown_as_escapes(ajet: Ajet, tmp_path: Path) -> None:
    rows = [f"{arm},{value}\n" for arm in ("\u202eevil\x1b[31m", "b") for value in (1, 2, 4)]
    (tmp_path / "runs.csv").write_text("arm,final\n" + "".join(rows))
    command = ("audit", str(tmp_path / "runs.csv"), "--arm", "arm", "--metric", "final", "--to", str(tmp_path / "out"))
    for told in (ajet(*command).out, (tmp_path / "out" / PAGE).read_text()):
        assert ("\\u202eevil\\x1b[31m" in told, "\u202e" in told, "\x1b" in told) == (True, False, False)


def test_a_header_may_have_a_line_break_in_quotes(ajet: Ajet, tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text('agent,"final\n score"\nA,1\nA,2\nB,3\nB,4\n')
    found = ajet("audit", str(tmp_path / "runs.csv"), "--arm", "agent", "--metric", "final score", "--json").data
    assert found["cells"] == {"": {"A": [1.0, 2.0], "B": [3.0, 4.0]}}


def test_a_level_near_one_and_what_is_equivalent_and_not_zero_are_told_as_they_are() -> None:
    claims = [AuditedClaim("b", "a", None, 4, 4, 0.1, "equivalent", "", 0.05, 0.15, 0.99997, 0.001, nonzero=True)]
    ask = AuditQuestion(arm="arm", metric="m", margin=0.5)
    told = " ".join(point.text for point in _points(Audit(ask, tuple(claims), (), {"": {"a": [1.0]}}, {}, {}, {}, ())))
    assert ("intervals of 99.997 %" in told, _cells(claims[0])[0]) == (True, "equivalent, and not zero")


def test_what_is_not_there_is_refused_with_the_way_to_it(ajet: Ajet, tmp_path: Path) -> None:
    ajet("audit", str(tmp_path / "nothing.csv"), *ASKED).refused("nothing.csv", "wandb:FOLDER")
    ajet("audit", str(tmp_path), *ASKED).refused(f"{tmp_path}, a folder")
    ajet("audit", "wandb:team/project", *ASKED).refused("no team/project", "wandb login")
    ajet("audit", f"wandb:{tmp_path}", *ASKED).refused("'final'", "found none")


RUNS = [
    (f"{agent}{seed}", {"agent": {"name": agent}, "lr": 0.1}, seed + (agent == "B") * 9)
    for agent in "AB"
    for seed in range(3)
]


def test_offline_runs_of_wandb_are_compared_by_what_they_logged_last(
    ajet: Ajet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = {
        f"run-{name}.wandb": TrackedRun(
            id=name, config=config, history={0: {"eval/final": 99.0}, 5: {"eval/final": value}}
        )
        for name, config, value in RUNS
    }
    for name in logs:
        (tmp_path / name).touch()
    logs["run-A0.wandb"].not_finite[6] = ["eval/final"]
    monkeypatch.setattr(wandb_log, "read_log", lambda path: logs[path.name])
    asked = ("audit", f"wandb:{tmp_path}", "--arm", "agent.name", "--metric", "eval/final", "--json")
    assert ajet(*asked).data["cells"] == {"": {"A": [1.0, 2.0], "B": [9.0, 10.0, 11.0]}}  # A0 ended as nan
    assert ajet(*asked, "--at", "5").data["cells"][""]["A"] == [0.0, 1.0, 2.0]


def test_runs_of_a_project_are_asked_of_wandb(ajet: Ajet, monkeypatch: pytest.MonkeyPatch) -> None:
    class Api:
        def __init__(self, timeout: int) -> None: ...

        def runs(self, place: str) -> Iterator[Any]:
            if place != "team/project":
                raise ValueError(f"could not find {place}")
            for name, config, value in RUNS:
                history = [{"_step": 0, "final": 99}, {"_step": 4, "final": value}]
                yield SimpleNamespace(
                    id=name, group=None, state="finished", config=config, scan_history=lambda keys, rows=history: rows
                )

    monkeypatch.setattr("wandb.Api", Api)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    found = ajet("audit", "wandb:team/project", "--arm", "agent.name", "--metric", "final", "--json").data
    assert found["cells"] == {"": {"A": [0.0, 1.0, 2.0], "B": [9.0, 10.0, 11.0]}}
    ajet("audit", "wandb:team/else", *ASKED).refused("team/else", "could not find", "ENTITY/PROJECT")

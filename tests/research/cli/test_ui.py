"""`ajet ui` refuses in one line what it cannot do, hands keys out and takes them back, and writes pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.research.cli.conftest import Ajet
from tests.studies.synthetic import STUDY, Synthetic


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (("--study", "x"), "--export"), (("--json",), "--export"), (("--host", "x y"), "--host"),
        (("--export", "."), "not there yet"), (("--export", "pages", "--study", "nothing"), "nothing"),
        (("key", "add", "a b"), "a name"), (("key", "add", "ann", "--role", "king"), "viewer, reviewer, owner"),
        (("key", "revoke", "ann"), "nobody"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_and_leaves_nothing(
    ajet: Ajet, study: Synthetic, home: Path, given: tuple[str, ...], named: str
) -> None:
    ajet("ui", *given).refused(named)
    assert not Path("pages").exists()
    assert not (home / "ui").exists()


def test_a_key_is_shown_once_and_taken_back(ajet: Ajet, home: Path) -> None:
    made = ajet("ui", "key", "add", "ann", "--json").data
    assert made["role"] == "reviewer"
    assert made["key"] not in (home / "ui" / "keys.json").read_text()
    assert ajet("ui", "key", "list", "--json").data == [{"name": "ann", "role": "reviewer"}]
    ajet("ui", "key", "add", "ann").refused("ann", "revoke")
    assert ajet("ui", "key", "revoke", "ann").code == 0
    assert ajet("ui", "key", "list", "--json").data == []


def test_pages_are_written_with_evidence_that_verifies(ajet: Ajet, finished: Synthetic, tmp_path: Path) -> None:
    made = ajet("ui", "--export", str(tmp_path / "pages"), "--study", STUDY, "--json").data
    assert made["left_out"] == []
    assert all((tmp_path / "pages" / name).exists() for name in (*made["pages"], *made["evidence"]))
    assert ajet("study", "verify", str(tmp_path / "pages" / "studies" / STUDY)).code == 0


def test_the_help_of_a_group_that_does_something_has_examples(ajet: Ajet) -> None:
    assert "ajet ui --export pages" in ajet("ui", "--help").out

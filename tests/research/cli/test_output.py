"""What is printed is what was said: no bracket, colon or tag of foreign text is read as markup."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from research.cli.app import console
from research.terminal import warn

CLI = Path(__file__).parents[3] / "research"
SAID = "pip install 'ajet[local]' [red]x[/] [/nothing] :smile:"


@pytest.fixture(autouse=True)
def _fresh() -> None:
    console.cache_clear()


def _table() -> Table:
    table = Table(SAID, title=SAID, caption=SAID)
    table.add_row(SAID)
    table.add_row(Text(SAID, "red"))
    return table


@pytest.mark.parametrize(("shown", "times"), [(SAID, 1), (Text(SAID), 1), (_table(), 5)])
def test_what_is_printed_is_what_was_said(shown: object, times: int, capfd: pytest.CaptureFixture[str]) -> None:
    console().print(shown)
    assert capfd.readouterr().out.count(SAID) == times
    warn(SAID)
    assert capfd.readouterr().err == f"ajet: {SAID}\n"


def test_nothing_is_printed_past_the_one_console_and_nothing_asks_for_markup() -> None:
    for file in CLI.rglob("*.py"):
        source = file.read_text()
        assert file.name == "output.py" or not re.search(r"\bConsole\(|rich import print|rich\.print", source), file
        assert not re.search(r"markup=True|from_markup|\[/\]", source), file
        assert "rich" not in source or not re.search(r"status\.update\((?!Text\()", source), file


STEERING = "a\x1b[31mred\x1b]0;title\x07 b\x9b2J\rc"


@pytest.mark.parametrize("shown", [STEERING, Text(STEERING, "red")])
def test_foreign_text_steers_no_terminal(shown: object, capfd: pytest.CaptureFixture[str]) -> None:
    console().print(shown)
    warn(STEERING)
    written = "".join(capfd.readouterr())
    assert "red" in written
    assert not [char for char in written if not char.isprintable() and char != "\n"]

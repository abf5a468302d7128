"""The entry point says what is wrong with the interpreter or an import in one line; budgets are read, and said back."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import suppress
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.errors import BadInput
from research.main import main
from research.text import MOST_SECONDS, did_you_mean, format_flag, format_seconds, parse_budget


@pytest.mark.parametrize("version", [(3, 9, 2), (3, 10, 0), (3, 13, 1)])
def test_an_unfit_python_gets_one_line_and_exit_code_2(
    version: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", version)
    with pytest.raises(SystemExit) as stopped:
        main()
    error = capsys.readouterr().err
    assert (stopped.value.code, error.count("\n"), f"found {version[0]}.{version[1]}" in error) == (2, 1, True)


def test_an_interrupt_while_the_command_line_is_imported_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def find_spec(self, name: str, *rest: object) -> None:
            if name == "research.cli.app":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "research.cli.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 130


def test_what_the_output_cannot_hold_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii", write_through=True))
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    says = SimpleNamespace(run=lambda: sys.stdout.write("\N{EN DASH}\udcff"))
    monkeypatch.setitem(sys.modules, "research.cli.app", says)
    main()
    assert written.getvalue() == rb"\u2013\udcff"
    assert os.environ["PYTHONIOENCODING"] == "ascii:backslashreplace"


AJET = """
import sys
sys.modules[sys.argv[1]] = None
sys.argv = ["ajet", "study", "list"]
from research.main import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["typer", "research.cli.listing", "sqlalchemy"])
def test_a_package_that_cannot_be_imported_is_named_in_one_line(missing: str) -> None:
    ended = subprocess.run([sys.executable, "-c", AJET, missing], capture_output=True, text=True, timeout=400)
    assert (ended.returncode, ended.stderr.count("\n"), missing in ended.stderr) == (2, 1, True)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90), ("10m", 600), ("2h", 7200), ("1h30m", 5400), ("1d", 86_400), ("1.5h", 5400),
        (" 1h 30m ", 5400), ("1D2H3M4S", 93_784),
    ],
)  # fmt: skip
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


ODD = ("", " ", "10", "m", "10x", "ten minutes", "-5m", "30m1h", "5m5m", "1e3s", "10m!", "nans", "infs", "٣m")


@pytest.mark.parametrize("text", [*ODD, "0s", "0.5s", "366d", "9" * 400 + "d"])
def test_what_is_no_duration_or_none_of_a_study_is_refused_with_examples(text: str) -> None:
    with pytest.raises(BadInput, match="such as 90s, 10m, 2h, 1h30m or 1d") as caught:
        parse_budget(text)
    assert (repr(text[:60]) in caught.value.message, "between" in caught.value.message) == (True, text not in ODD)


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(BadInput):
        assert 1 <= parse_budget(text) <= MOST_SECONDS


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 s"), (0, "0 s"), (45.4, "45 s"), (89.4, "89 s"), (89.6, "1 min 30 s"), (120, "2 min"),
        (390, "6 min 30 s"), (3569, "59 min"), (3570, "1 h"), (5400, "1 h 30 min"), (86_399, "1 d"),
        (97_200, "1 d 3 h"),
    ],
)  # fmt: skip
def test_durations_are_said_in_two_units(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@given(st.floats(min_value=0, max_value=MOST_SECONDS))
def test_a_flag_is_read_back_as_at_least_what_it_stands_for(seconds: float) -> None:
    assert seconds <= max(60.0, parse_budget(format_flag(min(seconds, MOST_SECONDS)))) < seconds + 61


def test_no_name_is_suggested_for_itself() -> None:
    known = ("temperature", "group_size")
    assert [did_you_mean(name, known) for name in ("temperature", "temprature", "Temperature")] == [
        "", *["; did you mean temperature?"] * 2
    ]  # fmt: skip

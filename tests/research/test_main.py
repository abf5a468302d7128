"""The entry point says what is wrong with the interpreter, and with what it imports, in one line."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from research.main import main


@pytest.mark.parametrize("version", [(3, 9, 2), (3, 10, 0), (3, 13, 1)])
def test_an_unfit_python_gets_one_line_and_exit_code_2(
    version: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", version)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"found {version[0]}.{version[1]}" in error


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
    """Also what is no text at all, as of a file's name, and in the processes that a command begins."""
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
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert missing in ended.stderr

"""What children print is kept in memory, within bounds, and quoted when they end."""

from __future__ import annotations

import os
import subprocess
import sys

from swarm.backends.verl.processes import output
from swarm.backends.verl.processes.output import ChildOutput


def test_what_a_child_prints_later_is_kept_too_and_its_end_is_quoted() -> None:
    """The child prints only after this process has its own output back, as vLLM's do that die in their work."""
    kept = ChildOutput()
    script = "import sys; input(); print('loaded'); sys.stderr.write('ValueError: no more\\n\\n')"
    with kept.taken():
        os.write(1, b"booting\n")
        child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE)
    child.communicate(b"\n")
    assert kept.lines(wait_s=10) == ["booting", "loaded", "ValueError: no more"]
    assert kept.quoted() == "booting | loaded | ValueError: no more"


def test_it_holds_the_beginning_and_the_end_and_no_more() -> None:
    kept = ChildOutput()
    many = output.FIRST + 3 * output.LAST
    script = f"for i in range({many}): print(i)\nprint('x' * 10**6)"
    with kept.taken():
        child = subprocess.Popen([sys.executable, "-c", script])
    child.wait()
    lines = kept.lines(wait_s=10)
    assert lines[: output.FIRST] == [str(i) for i in range(output.FIRST)]
    assert lines[output.FIRST : -1] == [str(i) for i in range(many - output.LAST + 1, many)]
    assert set(lines[-1]) == {"x"}
    assert len(lines[-1]) <= output.LONGEST
    assert len(kept.quoted()) < 4000


def test_nothing_printed_is_said_as_such() -> None:
    kept = ChildOutput()
    with kept.taken():
        pass
    assert kept.quoted() == "nothing"

from __future__ import annotations

import pytest

from sandboxes.spec import Exit
from tests.sandboxes.attacks.conftest import Attackers
from tests.sandboxes.containing import refused_results

TRICKS = {
    **dict.fromkeys(("link", "link-to-pid-1", "loop"), "a symbolic link"),
    **dict.fromkeys(("pipe", "folder"), "not a regular file"),
    "second-name": "has a second name (a hard link)",
    "huge": "too large: 5000 bytes; at most 4096",
    "sparse": "too large: 8388608 bytes; at most 4096",
    "socket": "cannot be opened: No such device or address",
    "absent": "missing",
}


def test_only_a_file_of_ones_own_of_a_name_that_was_asked_for_is_collected(attackers: Attackers) -> None:
    attack = attackers.run("results.py", "tricks", results=dict.fromkeys((*TRICKS, "good"), 4096))
    assert attack.ended() == Exit("finished", 0)
    assert refused_results(attack.handle) == TRICKS
    found = attack.handle.results()
    assert {name: path.read_text() for name, path in found.items()} == {"good": "good"}
    kept = sorted(path.name for path in (attackers.root / attack.spec.name / "results").iterdir())
    assert kept == ["good"]  # nobody asked for its evaluation.json


@pytest.mark.parametrize("target", ["/etc", "/proc/1", "/input"])
def test_a_folder_of_results_elsewhere_gives_none(attackers: Attackers, target: str) -> None:
    asked = {"passwd": 4096, "environ": 4096, "scan.py": 4096}
    attack = attackers.run("results.py", "another_folder", target, results=asked)
    assert attack.ended() == Exit("finished", 0)
    assert attack.handle.results() == {}
    assert set(refused_results(attack.handle).values()) <= {"its folder is not a folder", "a symbolic link"}


def test_a_file_changed_while_it_is_read_is_not_changed_any_more(attackers: Attackers) -> None:
    attack = attackers.run("results.py", "swapped", results={"good": 4096})
    assert attack.ended() == Exit("finished", 0)
    found = attack.handle.results().get("good")
    if found is None:
        assert refused_results(attack.handle)["good"] in ("a symbolic link", "missing")
    else:
        assert found.read_text() == "good"

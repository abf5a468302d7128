from __future__ import annotations

import tarfile

import pytest

from sandboxes.docker.archive import pack
from sandboxes.spec import SandboxError
from tests.sandboxes.attacks.conftest import Attackers
from tests.sandboxes.containing import held
from tests.sandboxes.docker.test_archive import member, tar

EVIL = (tar(member("/etc/passwd")), tar(member("a", tarfile.SYMTYPE), member("a/passwd")), b"PK" + bytes(2000))


def test_a_tricky_archive_is_refused_before_anything_is_made_of_it(attackers: Attackers) -> None:
    """Each trick is in tests/sandboxes/docker/test_archive.py."""
    for evil in EVIL:
        with pytest.raises(SandboxError, match="archive: "):
            attackers.run("scan.py", archive=evil)
    assert held(attackers.engine, attackers.sandbox) == []


def test_what_follows_the_end_of_an_archive_is_not_unpacked(attackers: Attackers) -> None:
    """Two readers differ about it: so it is packed anew from what the first one read."""
    twice = pack({"scan.py": b"print('first')"}) + pack({"scan.py": b"print('second')"})
    attack = attackers.run("scan.py", archive=twice)
    attack.ended()
    assert attack.handle.logs() == "first\n"

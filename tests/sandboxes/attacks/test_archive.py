from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Callable

import pytest

from sandboxes.docker.launch import INSTALLATION
from sandboxes.spec import SandboxError
from tests.sandboxes.attacks.conftest import Attackers


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", **fields: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    for key, value in fields.items():
        setattr(made, key, value)
    return made


def tar(*members: tarfile.TarInfo, content: bytes = b"") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as opened:
        for one in members:
            one.size = len(content) if one.isreg() and not one.size else one.size
            opened.addfile(one, io.BytesIO(content) if one.isreg() else None)
    return buffer.getvalue()


def announced(size: int) -> bytes:
    """Return a tar whose one header announces a size that does not follow."""
    header = bytearray(member("huge").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\x80" + struct.pack(">3xQ", size)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(1024)


SPARSE = member("a", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "/etc/x"})
EVIL: dict[str, Callable[[], bytes]] = {
    "an absolute path": lambda: tar(member("/etc/passwd")),
    "a path with ..": lambda: tar(member("a/../../etc/passwd")),
    "a path that ends in ..": lambda: tar(member("a/..", tarfile.DIRTYPE)),
    "a symbolic link": lambda: tar(member("a", tarfile.SYMTYPE, "/etc")),
    "a link, then a file through it": lambda: tar(member("a", tarfile.SYMTYPE, "/etc"), member("a/passwd")),
    "a hard link": lambda: tar(member("a", tarfile.LNKTYPE, "/etc/passwd")),
    "a device": lambda: tar(member("a", tarfile.BLKTYPE, devmajor=8)),
    "a named pipe": lambda: tar(member("a", tarfile.FIFOTYPE)),
    "a path twice": lambda: tar(member("a"), member("a")),
    "a file that is a folder too": lambda: tar(member("a"), member("a/b")),
    "a path by a PAX header": lambda: tar(member("a", pax_headers={"path": "../../etc/passwd"})),
    "a path by a global PAX header": lambda: tar(member("g", tarfile.XGLTYPE), member("../a")),
    "a link by a PAX header": lambda: tar(member("a", tarfile.SYMTYPE, "b", pax_headers={"linkpath": "/etc"})),
    "a sparse file by a PAX header": lambda: tar(SPARSE, content=b"1\n0\n1\n" + bytes(600)),
    "a zero byte in a path": lambda: tar(member("a", pax_headers={"path": "a\0/../b"})),
    "a line feed in a path": lambda: tar(member("a\nb")),
    "a path too long": lambda: tar(member("a/" * 2000 + "b")),
    "too many files": lambda: tar(*(member(f"f{number}") for number in range(10_001))),
    "a size that does not follow": lambda: announced(1 << 40),
    "a negative size": lambda: announced((1 << 64) - 1),
    "no tar": lambda: b"PK\x03\x04" + bytes(2000),
    "a compressed tar": lambda: b"\x1f\x8b\x08\x00" + bytes(2000),
}


@pytest.mark.parametrize("name", EVIL)
def test_a_tricky_archive_is_refused_before_anything_is_made_of_it(attackers: Attackers, name: str) -> None:
    with pytest.raises(SandboxError, match="archive: "):
        attackers.run("scan.py", archive=EVIL[name]())
    ours = {"label": [f"{INSTALLATION}={attackers.sandbox.installation}"]}
    api = attackers.engine.client.api
    assert [found["Names"] for found in api.containers(all=True, filters=ours)] == []
    assert not api.volumes(filters=ours)["Volumes"]


def test_what_follows_the_end_of_an_archive_is_not_unpacked(attackers: Attackers) -> None:
    """Two readers differ about it: so it is packed anew from what the first one read."""
    twice = tar(member("scan.py"), content=b"print('first')") + tar(member("scan.py"), content=b"print('second')")
    attack = attackers.run("scan.py", archive=twice)
    attack.ended()
    assert attack.handle.logs() == "first\n"

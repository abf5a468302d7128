from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sandboxes.docker.archive import check, pack, pack_folder
from sandboxes.spec import SandboxError

PARTS = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/"), min_size=1, max_size=20).filter(
    lambda part: part not in (".", "..") and not part.startswith("BZh")
)
FILES = st.dictionaries(st.lists(PARTS, min_size=1, max_size=4).map("/".join), st.binary(max_size=2000), max_size=6)


def member(
    name: str,
    kind: bytes = tarfile.REGTYPE,
    link: str = "",
    size: int = 0,
    pax: Mapping[str, str] = MappingProxyType({}),
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.pax_headers = kind, link, size, pax
    return info


def tar(*members: tarfile.TarInfo, form: int = tarfile.PAX_FORMAT, content: bytes = b"") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as opened:
        for one in members:
            opened.addfile(one, io.BytesIO(content) if one.isreg() else None)
    return buffer.getvalue()


def header(kind: bytes, size: int) -> bytes:
    return member("h", kind, size=size).tobuf(tarfile.GNU_FORMAT) + b"\0" * 1024


def sparse(size: int) -> bytes:
    marks = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(size)}
    return tar(member("a", size=512, pax=marks), content=b"1\n0\n0\n".ljust(512, b"\0"))


@given(FILES)
def test_what_is_packed_is_what_is_found(files: dict[str, bytes]) -> None:
    assume(not any(path.startswith(f"{other}/") for path in files for other in files))
    packed = pack(files)
    assert check(packed) == files
    assert pack(dict(reversed(files.items()))) == packed  # the same files give the same bytes


@pytest.mark.parametrize(("name", "what"), [
    ("/etc/passwd", "an absolute path"), ("../outside", r"a path with \.\."), ("inside/../../outside", r"with \.\."),
    ("a//b", "an empty part"), ("a/./b", "an empty part"), ("a\nb", "a control character"),
    ("a\x7f", "a control character"), ("n" * 300, "part too long"), ("/".join(["part"] * 200), "path too long"),
    ("BZh91", "a compressed file"), ("\udcff", "not UTF-8"),
])  # fmt: skip
def test_a_path_that_is_not_plain_is_refused_with_what_it_is(name: str, what: str) -> None:
    with pytest.raises(SandboxError, match=what):
        check(tar(member(name), form=tarfile.GNU_FORMAT))
    with pytest.raises(SandboxError, match=what):
        pack({name: b""})


@pytest.mark.parametrize(("kind", "what"), [
    (tarfile.SYMTYPE, "a symbolic link"), (tarfile.LNKTYPE, "a hard link"), (tarfile.CHRTYPE, "a device"),
    (tarfile.BLKTYPE, "a device"), (tarfile.FIFOTYPE, "a named pipe"), (tarfile.CONTTYPE, "something else"),
    (b"Z", "something else"),
])  # fmt: skip
def test_what_is_no_file_or_folder_is_refused_with_what_it_is(kind: bytes, what: str) -> None:
    with pytest.raises(SandboxError, match=f"'innocent', {what}"):
        check(tar(member("innocent", kind, "/etc/passwd")))


BOMB = pack({"bomb": b"\0" * 1_000_000})


@pytest.mark.parametrize(("evil", "what"), [
    (tar(member("../..", tarfile.DIRTYPE)), r"a path with \.\."),
    (tar(member("a/..", tarfile.DIRTYPE)), r"a path with \.\."),
    (tar(member("a"), member("./a")), "'a' twice"), (tar(member("a"), member("a/b")), "'a' to be"),
    (tar(member("a", tarfile.SYMTYPE, "/etc"), member("a/passwd")), "a symbolic link"),
    (tar(member("a", pax={"path": "../../etc/passwd"})), r"a path with \.\."),
    (tar(member("a", pax={"path": "a\0/../b"})), "archive: "),
    (tar(member("g", tarfile.XGLTYPE), member("../a")), "archive: "),
    (tar(member("a", tarfile.SYMTYPE, "b", pax={"linkpath": "/etc"})), "a symbolic link"),
    *((compress(BOMB), "plain tar") for compress in (gzip.compress, bz2.compress, lzma.compress)),
    (b"PK\x03\x04" + bytes(2000), "plain tar"),
    (sparse(2000), r"a sparse file|at most"), (sparse(999_999_999_999), r"a sparse file|at most"),
    (tar(member("folder", tarfile.DIRTYPE, size=512)), r"'folder'.*512"),
    (header(tarfile.REGTYPE, 1 << 40), "at most"),
    (header(tarfile.XHDTYPE, 0)[:512] * 3000 + b"\0" * 1024, "archive: expected"),
    (header(tarfile.GNUTYPE_LONGNAME, 1 << 80), "plain tar"),
    (tar(member("a", pax={"size": "-512"}), member("b")), r"'a'.*-512"),
])  # fmt: skip
def test_a_hostile_archive_is_refused_with_what_is_wrong(evil: bytes, what: str) -> None:
    with pytest.raises(SandboxError, match=what):
        check(evil)
    assert check(tar(member("./", tarfile.DIRTYPE), member("./a"))) == {"a": b""}


@given(st.binary(max_size=3000))
def test_noise_is_refused_or_empty(noise: bytes) -> None:
    try:
        assert check(noise) == {}
    except SandboxError:
        return


@given(st.integers(0, 511), st.binary(min_size=1, max_size=40))
def test_a_damaged_header_is_refused_or_harmless(at: int, damage: bytes) -> None:
    damaged = bytearray(pack({"folder/a": b"content"}))
    damaged[at : at + len(damage)] = damage
    try:
        found = check(bytes(damaged))
    except SandboxError:
        return
    assert all(not path.startswith("/") and ".." not in path.split("/") for path in found)


CUT_SHORT = tar(member("a", size=4000), content=b"x" * 4000)[:1024]


@pytest.mark.parametrize(("archive", "limits", "said"), [
    (pack({"a": b"123456", "b": b"123456"}), {"most_bytes": 10}, "at most 10 bytes"),
    (pack(dict.fromkeys("abc", b"")), {"most_files": 2}, "at most 2 files"),
    (b"\0" * 100_000, {"most_bytes": 10, "most_files": 2}, "bytes of tar"),
    (CUT_SHORT, {}, "archive: expected"), (CUT_SHORT, {"most_bytes": 100}, "at most 100 bytes"),
])  # fmt: skip
def test_limits_of_size_and_number_name_themselves(archive: bytes, limits: dict[str, int], said: str) -> None:
    with pytest.raises(SandboxError, match=said):
        check(archive, **limits)


def test_a_folder_is_packed_without_caches_and_hidden_files(tmp_path: Path) -> None:
    for name in ("agent.py", "lib/tool.py", ".env", ".git/config", "lib/__pycache__/tool.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert check(pack_folder(tmp_path)) == {"agent.py": b"agent.py", "lib/tool.py": b"lib/tool.py"}


def test_a_folder_with_what_is_no_plain_file_too_large_or_absent_is_refused(tmp_path: Path) -> None:
    def refused(said: str, folder: Path = tmp_path, **limits: int) -> None:
        with pytest.raises(SandboxError, match=said):
            pack_folder(folder, **limits)

    for target in ("/etc/passwd", "/etc"):
        (tmp_path / "link").symlink_to(target)
        refused(r"symbolic link: .*link")
        (tmp_path / "link").unlink()
    os.mkfifo(tmp_path / "pipe")
    refused(r"found something else: .*pipe")
    (tmp_path / "pipe").unlink()
    (tmp_path / "a").write_bytes(b"x" * 100)
    (tmp_path / "b").write_bytes(b"")
    refused("at most 99 bytes", most_bytes=99)
    refused("at most 1 files", most_files=1)
    os.truncate(tmp_path / "b", 1 << 40)
    refused("at most 1000 bytes", most_bytes=1000)
    refused("found none at", tmp_path / "absent")

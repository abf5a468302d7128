from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sandboxes.docker import launch
from sandboxes.docker.launch import pack, read_folder
from sandboxes.spec import SandboxError

PARTS = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/"), min_size=1, max_size=20).filter(
    lambda part: part not in (".", "..") and not part.startswith("BZh")
)
FILES = st.dictionaries(st.lists(PARTS, min_size=1, max_size=4).map("/".join), st.binary(max_size=2000), max_size=6)


@given(FILES)
def test_what_is_packed_is_what_is_found(files: dict[str, bytes]) -> None:
    assume(not any(path.startswith(f"{other}/") for path in files for other in files))
    packed = pack(files)
    with tarfile.open(fileobj=io.BytesIO(packed)) as opened:
        members = [(member.name, opened.extractfile(member)) for member in opened if member.isfile()]
    assert {name: content.read() for name, content in members if content is not None} == files
    assert pack(dict(reversed(files.items()))) == packed  # the same files give the same bytes


@pytest.mark.parametrize(("name", "what"), [
    ("/etc/passwd", "an absolute path"), ("../outside", r"a path with \.\."), ("inside/../../outside", r"with \.\."),
    ("a//b", "an empty part"), ("a/./b", "an empty part"), ("a\nb", "a control character"),
    ("a\x7f", "a control character"), ("n" * 300, "part too long"), ("/".join(["part"] * 200), "path too long"),
    ("BZh91", "a compressed file"), ("\udcff", "not UTF-8"),
])  # fmt: skip
def test_a_path_that_is_not_plain_is_refused_with_what_it_is(name: str, what: str) -> None:
    with pytest.raises(SandboxError, match=what):
        pack({name: b""})


def test_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "MOST_BYTES", 10)
    monkeypatch.setattr(launch, "MOST_FILES", 2)
    with pytest.raises(SandboxError, match="at most 10 bytes"):
        pack({"a": b"123456", "b": b"123456"})
    with pytest.raises(SandboxError, match="at most 2 files"):
        pack(dict.fromkeys("abc", b""))


def test_a_folder_is_read_without_caches_and_hidden_files(tmp_path: Path) -> None:
    for name in ("agent.py", "lib/tool.py", ".env", ".git/config", "lib/__pycache__/tool.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert read_folder(tmp_path) == {"agent.py": b"agent.py", "lib/tool.py": b"lib/tool.py"}


def test_a_folder_with_what_is_no_plain_file_too_large_or_absent_is_refused(tmp_path: Path) -> None:
    def refused(said: str, folder: Path = tmp_path, **limits: int) -> None:
        with pytest.raises(SandboxError, match=said):
            read_folder(folder, **limits)

    (tmp_path / "\n").write_text("")
    refused("a control character")
    (tmp_path / "\n").unlink()
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

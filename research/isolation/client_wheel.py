"""The light client as a wheel, `ajet-client`: for machines on which agents play and nothing else of ajet is.

It has the modules that lie in client containers, and needs aiohttp and pydantic. It is built of the installed sources,
so that it is of the same version as the server that it was built beside. As it brings the package `swarm` in part, it
does not belong into an environment that has ajet itself.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from research.isolation.client_image import PACKAGES, client_sources

NAME = "ajet-client"
_NEEDED = tuple(package for package in PACKAGES if "[" not in package)
_EXTRA = tuple(package for package in PACKAGES if "[" in package)
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Of every file in it, so that the same sources make the same bytes."""


def build_wheel(folder: Path) -> Path:
    """Write the wheel into a folder and return it, whole or not at all."""
    release = version("ajet")
    target = folder / f"ajet_client-{release}-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    draft = target.with_suffix(".part")
    info = f"ajet_client-{release}.dist-info"
    contents = {**client_sources(), **_about(info, release)}
    record = f"{info}/RECORD"
    contents[record] = "".join([*_recorded(contents), f"{record},,\n"]).encode()
    try:
        with ZipFile(draft, "w", ZIP_DEFLATED) as wheel:
            for name, data in contents.items():
                wheel.writestr(_entry(name), data)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return target


def _about(info: str, release: str) -> dict[str, bytes]:
    needs = [f"Requires-Dist: {package}" for package in _NEEDED]
    needs += ["Provides-Extra: openai", *(f'Requires-Dist: {package}; extra == "openai"' for package in _EXTRA)]
    about = [
        "Metadata-Version: 2.1", f"Name: {NAME}", f"Version: {release}", "License: Apache-2.0",
        "Summary: The client of an ajet swarm server: agents play, the server trains.",
        "Requires-Python: >=3.11,<3.13", *needs,
    ]  # fmt: skip
    tags = ["Wheel-Version: 1.0", "Generator: ajet", "Root-Is-Purelib: true", "Tag: py3-none-any"]
    return {f"{info}/METADATA": _lines(about), f"{info}/WHEEL": _lines(tags)}


def _lines(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode()


def _recorded(contents: Mapping[str, bytes]) -> Iterator[str]:
    """Yield the lines of RECORD (PEP 427): name, hash and size of each file."""
    for name, data in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        yield f"{name},sha256={digest},{len(data)}\n"


def _entry(name: str) -> ZipInfo:
    entry = ZipInfo(name, _EPOCH)
    entry.compress_type = ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry

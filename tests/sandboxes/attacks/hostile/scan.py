"""Looks for keys everywhere: in the environment, in all of /proc, in every file but the system's programs."""

from __future__ import annotations

import json
import os
import stat
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
LARGEST = 32 << 20


def files():
    for top in sorted(os.listdir("/")):
        if top in ("sys", "usr", "lib", "lib64", "bin", "sbin"):
            continue
        for folder, folders, names in os.walk(f"/{top}"):
            if folder.startswith("/proc/") and folder.count("/") > 2:
                folders.clear()
            yield from (f"{folder}/{name}" for name in names)


def content(path):
    if path.startswith("/proc/") and path.rpartition("/")[2] in ("kmsg", "kcore", "pagemap", "mem", "clear_refs"):
        return b""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return b""
    try:
        return os.read(fd, LARGEST) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(fd)


def main(report):
    with open(f"{HERE}/facts.json") as file:
        wanted = [word[::-1].encode() for word in json.load(file)["backwards"]]  # so as not to find them in there
    found, looked = {}, 0
    for path in files():
        said = content(path) + path.encode()
        looked += 1
        for word in wanted if b"sk-proj-" in said else ():
            if word in said:
                found.setdefault(word.decode(), []).append(path)
    os.makedirs(os.path.dirname(report), exist_ok=True)
    with open(report, "w") as out:
        json.dump({"found": found, "looked": looked, "names": sorted(os.environ)}, out)


if __name__ == "__main__":
    main(sys.argv[1])

"""Attempts to have something else collected than a file of one's own."""

from __future__ import annotations

import os
import socket
import sys

RESULTS = "/workspace/results"


def tricks():
    """Leave at each name what is no result."""
    os.makedirs(RESULTS, exist_ok=True)
    os.chdir(RESULTS)
    os.symlink("/etc/passwd", "link")
    os.symlink("/proc/1/environ", "link-to-pid-1")
    os.symlink("loop", "loop")
    os.mkfifo("pipe")
    os.mkdir("folder")
    with open("/workspace/original", "w") as file:
        file.write("x")
    os.link("/workspace/original", "second-name")
    with open("huge", "wb") as file:
        file.write(b"x" * 5000)
    with open("sparse", "wb") as file:
        file.truncate(1 << 23)
    socket.socket(socket.AF_UNIX).bind("socket")
    with open("evaluation.json", "w") as file:
        file.write("{}")
    with open("good", "w") as file:
        file.write("good")


def another_folder(target):
    """Put the whole folder elsewhere."""
    os.rmdir(RESULTS)
    os.symlink(target, RESULTS)


def swapped():
    """Leave behind a process that changes the file for a link and back for as long as it lives."""
    os.makedirs(RESULTS, exist_ok=True)
    os.chdir(RESULTS)
    os.symlink("/etc/passwd", "../bad")
    with open("../fine", "w") as file:
        file.write("good")
    os.rename("../fine", "good")
    if os.fork() == 0:
        os.setsid()
        while True:
            os.rename("good", "../fine")
            os.rename("../bad", "good")
            os.rename("good", "../bad")
            os.rename("../fine", "good")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])

"""Environments as people write them, whole or with one thing wrong."""

from __future__ import annotations

from pathlib import Path

SUMS = """
import os, random, sys
HEAD
from swarm.environments import Environment, Game, Outcome, Task, said, text_of

class SumGame(Game):
    def __init__(self, task):
        self.task, self.said = task, ""
    def opening(self):
        OPENING
        return [{"role": "user", "content": "%d plus %d" % (self.task.data["a"], self.task.data["b"])}]
    def answer(self, message):
        self.said = text_of(message)
        ANSWER
    def outcome(self):
        right = self.said == str(self.task.data["a"] + self.task.data["b"])
        OUTCOME

class Sums(Environment):
    name, title, measures = "sums", "sums", "the sum is right"
    sizes = {"train": 40, "search": 10, "hidden": 20}
    TASKS
    def game(self, task):
        return SumGame(task)
    def oracle(self, task, messages):
        return str(task.data["a"] + task.data["b"])
    def imitate(self, task, rng):
        return [*self.game(task).opening(), said(str(task.data["a"] + rng.randint(0, 9)))]
"""
GENERATE = """def generate(self, seed):
        rng = random.Random(seed)
        return Task(f"sum-{seed}", {"a": rng.randint(1, 99), "b": rng.randint(1, 99)})"""


PARTS = {
    "head": "", "opening": "", "tasks": GENERATE, "answer": "return []",
    "outcome": "return Outcome(float(right), right)",
}  # fmt: skip


def sums(folder: Path, **parts: str) -> Path:
    """Write the environment of sums with some of its PARTS otherwise; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    text = SUMS
    for name, usual in PARTS.items():
        text = text.replace(name.upper(), parts.get(name, usual))
    (folder / "environment.py").write_text(text)
    return folder


def line_of(folder: Path, what: str) -> int:
    return next(i for i, line in enumerate((folder / "environment.py").read_text().splitlines(), 1) if what in line)

"""Two small tasks for a real language model of 100 million parameters or more: one-digit sums, and last words.

Six examples stand before each question as turns of the chat: they teach the form, so that the first success comes from
what the model knows. An answer counts only if it is the answer and nothing else, so a model that does not stop fails.
"""

import random
from collections.abc import Sequence

from swarm.environments import Environment, Game, Message, Outcome, Task, said, text_of

WORDS = [
    "apple", "bridge", "candle", "desert", "engine", "forest", "garden", "hammer", "island", "jacket", "kitchen",
    "ladder", "market", "needle", "orange", "pencil", "quarry", "ribbon", "saddle", "table", "uncle", "valley",
    "window", "yellow", "zebra", "anchor", "basket", "copper", "doctor", "eagle",
]  # fmt: skip
EXAMPLES = {
    "sum": [("2 + 3", "5"), ("7 + 1", "8"), ("4 + 4", "8"), ("9 + 2", "11"), ("6 + 8", "14"), ("0 + 5", "5")],
    "last word": [
        ("red wolf song", "song"), ("ink tea lamp", "lamp"), ("cow hat sun", "sun"), ("road cup tree", "tree"),
        ("salt day owl", "owl"), ("pan ship rope", "rope"),
    ],
}  # fmt: skip
ASKED = {"sum": "{} =", "last word": "Last word of: {}"}


class Question(Game):
    """One question behind its examples, answered once."""

    def __init__(self, kind: str, question: str, answer: str) -> None:
        self.kind, self.question, self.right_answer = kind, question, answer
        self.right = False

    def opening(self) -> list[Message]:
        turns: list[Message] = []
        for question, answer in EXAMPLES[self.kind]:
            turns += [{"role": "user", "content": ASKED[self.kind].format(question)}, said(answer)]
        return [*turns, {"role": "user", "content": ASKED[self.kind].format(self.question)}]

    def answer(self, message: Message) -> list[Message]:
        self.right = text_of(message).strip() == self.right_answer
        return []

    def outcome(self) -> Outcome:
        return Outcome(float(self.right), self.right)


class SumsAndWords(Environment):
    name = "sums-and-words"
    title = "one-digit sums and last words"
    measures = "the answer is right, and nothing stands beside it"
    sizes = {"train": 240, "search": 40, "hidden": 96}

    def generate(self, seed: int) -> Task:
        rng = random.Random(seed)
        if rng.random() < 0.5:
            left, right = rng.randrange(10), rng.randrange(10)
            return Task(f"sum-{left}-{right}", {"question": f"{left} + {right}", "answer": str(left + right)}, "sum")
        words = rng.sample(WORDS, 3)
        return Task(f"last-{'-'.join(words)}", {"question": " ".join(words), "answer": words[-1]}, "last word")

    def game(self, task: Task) -> Game:
        return Question(task.kind, task.data["question"], task.data["answer"])

    def oracle(self, task: Task, messages: Sequence[Message]) -> str:
        return str(task.data["answer"])

"""An environment of your own: how many are in stock? A tool knows; to guess is seldom right.

Make it yours and see what it is worth: ajet env check FOLDER. docs/environments.md explains each part.
"""

import random

import swarm.environments as ajet

ITEMS = ("bolts", "cables", "hinges", "lamps", "nails", "screws")


class StockGame(ajet.Game):  # one play of one task
    tools = (ajet.tool("count", "How many there are.", item="string"),)

    def __init__(self, task, most):
        self.items, self.stock, self.most = task.data["items"], task.data["stock"], most
        self.total, self.calls, self.said = sum(self.stock[item] for item in self.items), 0, ""

    def opening(self):  # what the policy reads first
        return [{"role": "user", "content": " and ".join(self.items)}]

    def answer(self, message):  # what follows its answer; nothing ends the play
        calls = ajet.calls_of(message)
        self.calls += len(calls)
        if calls and self.calls <= self.most:
            return [ajet.tool_result(call, str(self.stock.get(str(call.arguments.get("item")), 0))) for call in calls]
        self.said = ajet.text_of(message).strip()
        return []

    def outcome(self):  # what the play was worth: trained on, measured, and shown
        solved = self.said == str(self.total)
        return ajet.Outcome(reward=float(solved), success=solved, facts={"calls": self.calls})


class Stock(ajet.Environment):
    name, title, measures = "stock", "counting a stock with a tool", "the number in stock is right"
    knobs = {"calls": ajet.Knob(3, (2, 3, 5), "calls of the tool in a play", (1, 9))}  # what a study may vary

    def generate(self, seed):  # the task of a seed; which are hidden follows from a secret of your installation
        rng = random.Random(seed)
        items = rng.sample(ITEMS, rng.choice((1, 2)))
        stock = {item: rng.randint(1, 12) for item in ITEMS}
        return ajet.Task(f"stock-{seed}", {"items": items, "stock": stock}, kind=f"items asked for: {len(items)}")

    def game(self, task):
        return StockGame(task, self.knob("calls"))

    def oracle(self, task, messages):  # the best answer so far: it shows that tasks can be solved
        left = task.data["items"][sum(message["role"] == "tool" for message in messages) :]
        return ajet.calling("count", item=left[0]) if left else str(self.game(task).total)

    def imitate(self, task, rng):  # a careless player, for the warm start of tiny models: it often guesses
        messages, total = (game := self.game(task)).opening(), 0
        for item in task.data["items"]:
            looks = rng.random() < 0.6
            messages += [call := ajet.calling("count", item=item), *game.answer(call)] if looks else []
            total += int(messages[-1]["content"]) if looks else rng.randint(1, 12)
        return [*messages, ajet.said(str(total))]

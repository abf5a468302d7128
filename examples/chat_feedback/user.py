"""SIMULATED users of a chat application before the front: no person is meant.

    FRONT_KEY=... python examples/chat_feedback/user.py [--asks 160] [--front http://127.0.0.1:8750]

Each asks for a number within bounds, is shown four answers, and gives a thumb up to the one it likes best: the one
nearest to the lower bound, which the model does not know. Nobody computes a reward. How much answers are liked is
measured before and after by one more user, who consents to nothing.
"""

import argparse
import asyncio
import os
import random
import re
from statistics import fmean

from openai import AsyncOpenAI

USERS = 4
TEXT_VERSION = "2026-01"  # of the text that users agreed to


class SimulatedUser:
    def __init__(self, name, front):
        self.name = f"simulated-{name}"
        self.front = front  # OpenAI's own client, with the front's address
        self.draws = random.Random(self.name)

    async def consent(self):
        body = {"given": True, "version": TEXT_VERSION}
        await self.front.post(f"/users/{self.name}/consent", body=body, cast_to=object)

    async def ask(self, answers):
        """Ask once; return the reply's id, and how much each answer is liked."""
        low = self.draws.randint(0, 9)
        high = low + self.draws.randint(10, 18)
        question = [{"role": "user", "content": f"above {low} below {high}"}]
        reply = await self.front.chat.completions.create(model="", user=self.name, n=answers, messages=question)
        return reply.id, [liked(choice.message.content or "", low, high) for choice in reply.choices]

    async def chat(self):
        """Ask once, and give a thumb to the best answer if it is better than another."""
        reply, likes = await self.ask(4)
        if max(likes) > min(likes):
            body = {"response_id": reply, "rating": "up", "choice": likes.index(max(likes))}
            await self.front.post("/feedback", body=body, cast_to=object)


def liked(text, low, high):
    """Return 1 for the number after the lower bound, 0 for the upper bound and for what is no number between."""
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    if len(numbers) != 1 or not low < numbers[0] < high:
        return 0.0
    return 1.0 - (numbers[0] - low - 1) / (high - low - 1)


async def measured(front, asks=64):
    """Return how much answers are liked on average by a user who did not consent."""
    user = SimulatedUser("probe", front)
    return fmean([likes[0] for _, likes in await asyncio.gather(*(user.ask(1) for _ in range(asks)))])


async def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--asks", type=int, default=160, help="requests of all users together (default 160)")
    parser.add_argument("--front", default="http://127.0.0.1:8750")
    options = parser.parse_args()
    async with AsyncOpenAI(base_url=f"{options.front}/v1", api_key=os.environ["FRONT_KEY"]) as front:
        users = [SimulatedUser(number, front) for number in range(USERS)]
        before = await measured(front)
        for user in users:
            await user.consent()
        for _ in range(options.asks // USERS):
            await asyncio.gather(*(user.chat() for user in users))
        print(f"simulated users like an answer {before:.2f} of 1 before, {await measured(front):.2f} after")


if __name__ == "__main__":
    asyncio.run(main())

"""A chat application before a front of passive mode, and simulated users who make it theirs by choosing.

Each request is answered with four suggestions, of which the user picks one; nobody computes a reward. The users here
are SIMULATED: a few lines that ask for a number within bounds and like those near the lower bound, which the model
does not know. With their consent, their choices alone teach it.

    ajet swarm start --job examples/passive_chat/job.json
    ajet passive start --feedback-s 5 --per-user 6000 &
    AJET_APP_KEY=$(ajet passive key chat) python examples/passive_chat/chat.py http://127.0.0.1:8750

The simulated users ask faster than people do, and so need a higher limit than 20 requests a minute. Expect that they
like answers more afterwards: 0.44 before and 0.81 after in one run; by 0.16 over the five seeds, cut shorter, of
`python benchmarks/powers.py --only passive`.
"""

import asyncio
import os
import random
import re
import sys
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from openai import AsyncOpenAI

SUGGESTIONS = 4
CONSENT_TEXT = "2026-01"
"""The version of the text that users agree to: what is stored of their chats, for how long, and how to end it."""


@dataclass(frozen=True)
class Suggestions:
    """What the application shows for a request."""

    reply: str
    texts: list[str]


class ChatApplication:
    """All that an application does differently from before: a base URL, consents, and what was picked."""

    def __init__(self, front: str, key: str) -> None:
        self._sdk = AsyncOpenAI(base_url=f"{front}/v1", api_key=key)

    async def model(self) -> str:
        return (await self._sdk.models.list()).data[0].id

    async def consent(self, user: str, given: bool) -> None:
        await self._post(f"/users/{user}/consent", {"given": given, "version": CONSENT_TEXT})

    async def ask(self, user: str, text: str, model: str, suggestions: int = SUGGESTIONS) -> Suggestions:
        found = await self._sdk.chat.completions.create(
            model=model, user=user, n=suggestions, messages=[{"role": "user", "content": text}]
        )
        return Suggestions(found.id, [choice.message.content or "" for choice in found.choices])

    async def pick(self, shown: Suggestions, place: int) -> None:
        await self._post("/feedback", {"response_id": shown.reply, "choice": place})

    async def close(self) -> None:
        await self._sdk.close()

    async def _post(self, path: str, body: dict[str, Any]) -> None:
        await self._sdk.post(path, body=body, cast_to=object)


class SimulatedUser:
    """Asks for numbers, and likes those near the lower bound. Simulated: no person is meant."""

    def __init__(self, name: str, draws: random.Random) -> None:
        self.name = f"simulated-{name}"
        self._draws = draws

    def question(self) -> tuple[str, int, int]:
        low = self._draws.randint(0, 9)
        high = low + self._draws.randint(10, 18)
        return f"above {low} below {high}", low, high

    @staticmethod
    def likes(text: str, low: int, high: int) -> float:
        """Return how much the user likes an answer: 1 for the number after the lower bound, 0 for none within."""
        numbers = [int(number) for number in re.findall(r"\d+", text)]
        if len(numbers) != 1 or not low < numbers[0] < high:
            return 0.0
        return 1.0 - (numbers[0] - low - 1) / (high - low - 1)

    async def chat(self, application: ChatApplication, model: str) -> float:
        """Ask once and pick what is liked best; return how much the suggestions are liked on average."""
        text, low, high = self.question()
        shown = await application.ask(self.name, text, model)
        liked = [self.likes(answer, low, high) for answer in shown.texts]
        if max(liked) > min(liked):
            await application.pick(shown, liked.index(max(liked)))
        return fmean(liked)


async def score(application: ChatApplication, model: str, asked: int, seed: int) -> float:
    """Return how much one answer is liked on average, by a user who consents to nothing: it trains nothing."""
    user = SimulatedUser("probe", random.Random(f"probe {seed}"))
    questions = [user.question() for _ in range(asked)]

    async def one(text: str, low: int, high: int) -> float:
        return user.likes((await application.ask(user.name, text, model, 1)).texts[0], low, high)

    return fmean(await asyncio.gather(*(one(*question) for question in questions)))


async def use(
    front: str, key: str, *, requests: int, consent: bool = True, seed: int = 0, asked: int = 64
) -> list[float]:
    """Let four simulated users chat; return how much answers are liked before and after."""
    application = ChatApplication(front, key)
    try:
        model = await application.model()
        users = [SimulatedUser(str(number), random.Random(f"{seed} {number}")) for number in range(4)]
        for user in users:
            await application.consent(user.name, consent)
        before = await score(application, model, asked, seed)
        for _ in range(requests // len(users)):
            await asyncio.gather(*(user.chat(application, model) for user in users))
        return [before, await score(application, model, asked, seed)]
    finally:
        await application.close()


if __name__ == "__main__":
    before, after = asyncio.run(
        use(sys.argv[1], os.environ["AJET_APP_KEY"], requests=int((sys.argv[2:] or ["160"])[0]))
    )
    sys.stdout.write(f"the simulated users like an answer {before:.2f} of 1 before, {after:.2f} after\n")

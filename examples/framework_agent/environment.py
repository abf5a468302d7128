"""An environment whose plays are an agent's of OpenAI's Agents SDK: it asks a tool for prices, and names their sum.

ajet research "Does a larger group size make GRPO add up prices?" --env examples/framework_agent --model-path DIR
"""

import random
from typing import Any

from agents import Agent, MaxTurnsExceeded, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled

from swarm.client import Episode
from swarm.environments import Environment, Outcome, Task

THINGS = ("pear", "plum", "fig", "date", "lime", "kiwi")


class Prices(Environment):
    """Two things and their prices, which only the tool knows."""

    name = "prices"
    title = "adding up prices"
    synonyms = ("add up prices",)
    measures = "the agent names the sum"
    solved_at = 1.0

    def generate(self, seed: int) -> Task:
        """Return two things with a price each."""
        rng = random.Random(seed)
        return Task(f"prices-{seed}", {thing: rng.randint(1, 99) for thing in rng.sample(THINGS, 2)})

    async def agent(self, episode: Episode[Any]) -> Outcome:
        """Let the framework play; the reward is 1 for the sum, and nothing else."""
        set_tracing_disabled(True)
        prices = episode.task.data

        @function_tool
        def price(thing: str) -> str:
            """Return what a thing costs."""
            return str(prices.get(thing, "not sold"))

        model = OpenAIChatCompletionsModel(episode.model, episode.openai())
        asker = Agent("buyer", instructions="Ask for each price, then say the sum alone.", tools=[price], model=model)
        try:
            done = await Runner.run(asker, f"What do {' and '.join(prices)} cost?", max_turns=4)
        except MaxTurnsExceeded:
            return Outcome(0.0)
        return Outcome(float(str(done.final_output).strip() == str(sum(prices.values()))))

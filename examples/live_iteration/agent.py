"""Adds two numbers, as a first draft does: the prompt is wordy, and the reward pays for digits instead of the sum.

    ajet swarm start --environment arith
    ajet client run examples/live_iteration/agent.py --reload --sandbox process

Then mend it while training goes on (versions/ has two edits), and see which code played what: ajet swarm episodes
"""


async def agent(episode):
    left, right = episode.task.data["left"], episode.task.data["right"]
    reply = await episode.chat([{"role": "user", "content": f"Please be so kind and add {left} and {right}"}])
    digits = sum(letter.isdigit() for letter in reply.content)
    return digits / 10, reply.content.strip() == str(left + right)

"""A reward that falls with the length of the answers, where the task was solved (Arora & Zanette, arXiv 2502.04463)."""

LONGEST = 16
"""Characters at which half of the reward is lost: of the guessing game, whose four guesses have two digits each."""


def reward(task, messages, outcome):
    written = sum(len(message.get("content") or "") for message in messages if message["role"] == "assistant")
    return outcome["reward"] - 0.5 * min(1.0, written / LONGEST) * outcome["success"]

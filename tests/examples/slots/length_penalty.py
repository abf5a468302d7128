"""A reward that falls with the length of the answers, where the task was solved (Arora & Zanette, arXiv 2502.04463)."""


def reward(task, messages, outcome):
    written = sum(len(message.get("content") or "") for message in messages if message["role"] == "assistant")
    return outcome["reward"] - min(0.5, written / 1000) if outcome["success"] else 0.0

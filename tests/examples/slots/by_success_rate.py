"""A curriculum: tasks are played the more, the nearer their success is to one half (Foster et al., 2502.12272)."""


def task_weights(history):
    weights = []
    for task in history:
        seen = len(task["rewards"]) + 2
        rate = (sum(reward > 0.5 for reward in task["rewards"]) + 1) / seen
        weights.append(rate * (1 - rate))
    return weights

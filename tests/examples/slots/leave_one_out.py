"""Each reward less the mean of its group's others (RLOO, arXiv 2402.14740)."""


def advantage(rewards, groups):
    sums, counts = {}, {}
    for reward, group in zip(rewards, groups):
        sums[group] = sums.get(group, 0.0) + reward
        counts[group] = counts.get(group, 0) + 1
    return [
        reward - (sums[group] - reward) / (counts[group] - 1) if counts[group] > 1 else 0.0
        for reward, group in zip(rewards, groups)
    ]

"""Ratings of players from who beat whom: Bradley and Terry's model (Biometrika 39, 1952) on the scale of Elo.

A player's strength is such that A beats B with probability a / (a + b); 400 points are odds of ten to one. Strengths
are the most likely ones, found by Hunter's minorisation (Annals of Statistics 32, 2004); one game more between each two
players that met is taken to be drawn, so that who won all games still has a finite rating.
"""

import math


def ratings(wins, anchor, at=1000.0):
    """Return each player's rating; `wins` counts games by (winner, loser), and `anchor` is rated `at`."""
    players = sorted({player for pair in wins for player in pair})
    met = {frozenset(pair) for pair in wins}
    games = {pair: sum(wins.get(order, 0) for order in _orders(pair)) + 1 for pair in met}
    won = {p: sum(count for (winner, _), count in wins.items() if winner == p) for p in players}
    won = {p: count + 0.5 * sum(p in pair for pair in met) for p, count in won.items()}
    strength = dict.fromkeys(players, 1.0)
    for _ in range(2000):
        new = {p: won[p] / sum(n / sum(strength[q] for q in pair) for pair, n in games.items() if p in pair)
               for p in players}  # fmt: skip
        scale = new[anchor]
        strength = {p: value / scale for p, value in new.items()}
    return {p: at + 400 * math.log10(value) for p, value in strength.items()}


def _orders(pair):
    one, other = pair
    return (one, other), (other, one)

"""How a locked screen finds the arms to confirm: who is tried next, what has to run, and who is kept. Pure functions.

Everything follows from the lock, the candidates asked so far and the scores at hand, so that a controller killed
between asking and writing asks the same again. A screen claims nothing: its scores are of one seed and short runs.

May enter: functions of the lock, the candidates and their scores. What a screen costs, and its defaults, are in
`research.design`; what may be claimed after one is in `studies/records/screen_claims.py`. To add a sampler: a function
in `SAMPLERS` (`samplers.py`) and its name in `Screen.sampler` (`studies/records/design_parts.py`).
"""

from research.screening.points import Allowed, control_values
from research.screening.rungs import Scores, Trial, cut_short, due, kept_at, next_candidate, select, steps_in_all

__all__ = [
    "Allowed",
    "Scores",
    "Trial",
    "control_values",
    "cut_short",
    "due",
    "kept_at",
    "next_candidate",
    "select",
    "steps_in_all",
]

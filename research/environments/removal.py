"""Removing an environment that was brought: all of it at once, and never from under a study that may still need it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from research.environments.drafts import take_away
from research.errors import BadEnvironment
from research.installation.home import Home
from research.spelling import did_you_mean
from studies import Event, EventLog, EventType, LogCorrupt, StudyState, fold
from swarm.environments.brought import MARK, is_brought
from swarm.environments.registry import built_in_names


def remove(name: str, home: Home, log: EventLog) -> int:
    """Remove an environment that was brought, which may be broken; return its bytes. What was measured of it is kept.

    Raises BadEnvironment for one that is not here, or that studies which are not concluded use.
    """
    folder = home.environments / name
    if not is_brought(name) or not folder.is_dir():
        raise BadEnvironment(_not_here(name, home))
    with home.beginning():
        if using := list(studies_with(name, home, log)):
            raise BadEnvironment(
                f"expected no study that still needs {name}; found {', '.join(using)}, not concluded; let "
                f"{'it' if len(using) == 1 else 'them'} conclude first (ajet study resume STUDY)"
            )
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        take_away(folder, home)
    return size


def studies_with(name: str, home: Home, log: EventLog) -> Iterator[str]:
    """Yield the studies of this installation that name an environment and are not concluded, where they can be read."""
    for study in log.studies():
        try:
            events = log.read(study)
            state = fold(events)
        except LogCorrupt:  # nobody can go on with it
            continue
        if _refused(state, events):
            continue
        begun = state.rounds_before or state.hypotheses or state.noise_plan is not None or state.design is not None
        elsewhere = begun and not home.study(study).is_dir()
        named = any(name in json.dumps(event.payload, default=str) for event in events)
        if named and state.status != "concluded" and not elsewhere:
            yield study


def _refused(state: StudyState, events: Sequence[Event]) -> bool:
    """Return whether a study came to nothing at its planning, of which no run is made: it could only be asked again."""
    ended = events[-1]
    unlocked = state.design is None and state.noise_plan is None and not state.rounds_before
    return unlocked and ended.type is EventType.STUDY_STOPPED and ended.actor == "system"


def _not_here(name: str, home: Home) -> str:
    if name in built_in_names():
        return f"expected an environment that was brought here; found {name!r}, which is built in and stays"
    here = sorted(path.name for path in home.environments.glob(f"[!.]*{MARK}*"))
    own = [each for each in here if each.partition(MARK)[0] == name]
    hint = f"; did you mean {' or '.join(own)}?" if own else did_you_mean(name, here)
    return (
        f"expected the full name of an environment that was brought here; found {name!r:.120}"
        f"{hint or '; ajet env list shows what is here'}"
    )

"""Checking an environment: it is drawn twice, played by players that learn nothing, and what they earn is weighed.

What is measured is kept for prices and planners (`research.environments.measured`); with a model it is measured again,
by that model (`research.environments.checking.with_model`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from research.environments.bring import bring, environment_of, packages_of
from research.environments.checking.findings import DEMONSTRATIONS, EMPTY, ORACLE, RANDOM, Player, faults, remarks
from research.environments.checking.playing import PlayBounds, Plays, play_alone
from research.environments.drafts import take_away
from research.environments.measured import MeasuredEnvironment, keep
from research.environments.reference import known_already, read_reference
from research.installation.home import Home
from research.installation.tiny_model import Note
from swarm.environments.base import Environment, Split, Task
from swarm.environments.bringing.drawing import SPLITS
from swarm.environments.brought import BroughtEnvironment


@dataclass(frozen=True, slots=True)
class EnvironmentCheck:
    """What a check found."""

    environment: Environment
    tasks: Mapping[Split, int]
    kinds: Mapping[str, int]
    """Tasks of training and search by their kind."""
    drawn_twice: bool | None
    """Whether a second drawing gave the same tasks; None for what was not drawn now."""
    players: Mapping[str, Player]
    faults: tuple[str, ...]
    remarks: tuple[str, ...]
    measured: MeasuredEnvironment


def check(text: str, reward: str | None, home: Home, bounds: PlayBounds, note: Note) -> EnvironmentCheck:
    """Check what a text refers to; what was measured is kept. Raises BadEnvironment for what cannot be brought."""
    environment = environment_of(text, reward, home, note, bounds.play_s)
    here = reward is None and known_already(text)
    same = None if here else _drawn_again(text, reward, environment, home, bounds.play_s)
    plays = play_alone(environment.name, home, packages_of(environment.name, home, note), bounds, note)
    found = [*plays.faults, *_drawing_fault(same)]
    if not plays.faults:
        found += faults(plays.players, environment.reward_range)
    known = _measured(environment.name, plays, found)
    if known.calls_per_episode is not None or found:
        keep(home, known)
    return EnvironmentCheck(
        environment=environment,
        tasks={split: len(environment.tasks(split)) for split in SPLITS},
        kinds=Counter(task.kind for split in ("train", "search") for task in _tasks(environment, split) if task.kind),
        drawn_twice=same,
        players=plays.players,
        faults=tuple(found),
        remarks=tuple(_remarks(environment, plays)),
        measured=known,
    )


def _tasks(environment: Environment, split: str) -> tuple[Task, ...]:
    return tuple(environment.tasks("train" if split == "train" else "search"))


def _drawn_again(text: str, reward: str | None, first: Environment, home: Home, play_s: float) -> bool:
    """Bring it once more; return whether that gave the same. What a second drawing alone gave is not kept."""
    before = {path.name for path in home.environments.iterdir()}
    again = bring(read_reference(text, reward), home, lambda _: None, play_s)  # all was said the first time
    if again.name not in before:
        take_away(again.folder, home)
    return again.name == first.name


def _drawing_fault(same: bool | None) -> Iterator[str]:
    if same is False:
        yield "drawn twice, it gave other tasks or demonstrations: use no clock, and no random without a seed"


def _remarks(environment: Environment, plays: Plays) -> Iterator[str]:
    brought = environment if isinstance(environment, BroughtEnvironment) else None
    if brought is not None and not brought.manifest.hidden_apart:
        yield (
            "its code can make its hidden tasks, or holds them, and clients hold it: move records to tasks*.json or "
            "hidden/, or give `generate` (docs/environments.md)"
        )
    if own_agent(environment):
        yield "it plays by an agent of its own, which needs a model: --tiny or --model-path"
        return
    oracle, demonstrations = has_parts(environment)
    can_have_one = brought is None or brought.manifest.source.kind in ("folder", "module")
    yield from remarks(plays.players, oracle=oracle or not can_have_one, demonstrations=demonstrations)


def own_agent(environment: Environment) -> bool:
    """Return whether an environment plays by an agent of its own."""
    if isinstance(environment, BroughtEnvironment):
        return environment.manifest.own_agent
    return environment.has("agent")


def has_parts(environment: Environment) -> tuple[bool, bool]:
    """Return whether an environment has an oracle, and demonstrations."""
    if isinstance(environment, BroughtEnvironment):
        return environment.manifest.oracle, bool(environment.manifest.demonstrations)
    return environment.has("oracle"), environment.has("imitate")


def _measured(name: str, plays: Plays, found: Sequence[str]) -> MeasuredEnvironment:
    known = (plays.players.get(each) for each in (DEMONSTRATIONS, ORACLE, RANDOM, EMPTY))
    typical = next((each for each in known if each is not None), None)
    return MeasuredEnvironment(
        environment=name,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        faults=tuple(found),
        calls_per_episode=typical.calls if typical else None,
        characters_per_episode=typical.characters if typical else None,
        environment_seconds_per_episode=typical.seconds if typical else None,
    )

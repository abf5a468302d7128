"""General words for what the user brought: `my environment` is the one that `--env` named, and nothing else.

Where an environment, a model or a job was given, words that only say whose it is mean that one, and stand in the topic
that is read as words that ask for nothing. What bears a name of its own is left as it is: it is found by its name, or
refused (`research.topic.absent`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from research.planner.digest import Digest
from research.topic import absent
from studies.records.design import MODEL
from studies.records.sentences import model_name
from swarm.environments.brought import MARK

_WHOSE = r"(?<![\w-])(?:my|our|this|these)(?: own| new| custom)*"
_UNNAMED = r"(?![\w-])(?! (?:named|called)\b| ['\"`(])"
"""Where no name follows that could be another's."""
_PLAYED = rf"(?:environment|env|tasks?|games?|data ?set|benchmark|problems?|domain|simulator){_UNNAMED}"
"""One that is played, or what it is made of; several environments are not the one that was given."""
_ENVIRONMENT = re.compile(rf"(?:{_WHOSE}|(?<![\w-])(?:the|a) custom) {_PLAYED}", re.IGNORECASE)
_THIS = "this environment"
_ADJECTIVES = r"(?: pre-?trained| small| large| real| chat| instruct| language)*"
_MODEL = re.compile(rf"{_WHOSE}{_ADJECTIVES} (?:model|llm|checkpoint){_UNNAMED}", re.IGNORECASE)
_MODELS = re.compile(
    rf"{_WHOSE}(?: two| three| four)?{_ADJECTIVES} (?:models|llms|checkpoints){_UNNAMED}", re.IGNORECASE
)
_JOB = re.compile(rf"(?:{_WHOSE}|(?<![\w-])the)(?: base)? job(?: file)?(?![\w-])|(?<![\w-])base job(?![\w-])", re.I)


def readable(digest: Digest) -> str:
    """Return the topic for whoever reads it by names: what the user brought in words that every study has."""
    topic = digest.wanted.models.readable(digest.topic)
    if digest.wanted.environment is not None or digest.wanted.brought:
        names = dict(_environment_names(digest))
        topic = _ENVIRONMENT.sub(_THIS, _of_parts(_of_names(topic, names), names))
    if MODEL in digest.fixed:
        topic = _named_model(topic, model_name(digest.fixed[MODEL]))
        topic = _MODEL.sub("this policy", topic)
    if digest.wanted.models.by_name:
        topic = _MODELS.sub("these policies", topic)
    if digest.fixed.keys() - {MODEL}:
        topic = _JOB.sub("these settings", topic)
    return topic


def _environment_names(digest: Digest) -> Iterable[tuple[str, str]]:
    """Yield all that an environment is called by, and what to say for it; that of `--env` last, as it goes first.

    Only that one is `this environment`: what the topic alone names keeps its name, or another would be studied.
    """
    given = {digest.wanted.environment, *digest.wanted.brought}
    known = [facts for facts in digest.environments if facts.name in given]
    for facts in sorted(known, key=lambda facts: facts.name == digest.wanted.environment):
        said = _THIS if facts.name == digest.wanted.environment else facts.name
        yield from ((name, said) for name in (facts.name, *facts.synonyms))


def _of_names(topic: str, names: Iterable[str]) -> str:
    """Return a topic that says names without whose they are: `my stock environment` is `stock`."""
    for name in sorted(set(names), key=len, reverse=True):
        topic = re.sub(rf"{_WHOSE} ({re.escape(name)})(?: {_PLAYED})?(?![\w-])", r"\1", topic, flags=re.IGNORECASE)
    return topic


def _of_parts(topic: str, names: Mapping[str, str]) -> str:
    """Return a topic that says environments as `names` has them, for words that only environments are called by."""
    parts = {part: said for name, said in names.items() for part in _parts(name)}
    for entry in reversed(absent.named(topic)):
        start, end = entry.at
        end += len(_VERSION.match(topic[end:])[0])  # type: ignore[index]  # it matches nothing, too
        called = "".join(_words(_WHOSE_IT_IS.sub("", topic[start:end])))
        if entry.noun == "environment" and called in parts:
            topic = f"{topic[:start]}{parts[called]}{topic[end:]}"
    return topic


def _parts(name: str) -> Iterable[str]:
    """Yield all runs of a name's words: `gymnasium-frozenlake-v1` is called `frozenlake` or `frozenlake-v1`, too."""
    words = _words(name.partition(MARK)[0])
    return ("".join(words[start:end]) for end in range(1, len(words) + 1) for start in range(end))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


_VERSION = re.compile(r"(?:-v\d+)?(?: (?:environment|env|task|game)s?\b)?", re.IGNORECASE)
_WHOSE_IT_IS = re.compile(rf"^{_WHOSE} | (?:environment|env|task|game)s?$", re.IGNORECASE)


def _named_model(topic: str, name: str) -> str:
    """Return a topic with the model's own name as a general word, if no other word could be meant by the name."""
    if [entry.text.lower() for entry in absent.named(name)] != [name.lower()]:
        return topic
    return re.sub(rf"(?:{_WHOSE} )?(?<![\w./-]){re.escape(name)}(?![\w/-]|\.\w)", "this policy", topic, flags=re.I)

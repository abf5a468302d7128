"""Models that a study compares: the folders that flags or a topic name, each by a short name of its own.

A folder is looked at once, when the study begins: from then on a proposal names a model by its name here, and no
planner can have any other folder read. A job holds the model itself, its path and the hash of its content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from research.errors import BadTopic, DesignRefused
from research.spelling import did_you_mean
from studies.records.design import MODEL
from studies.records.sentences import model_name
from swarm.job import PathModel

EXAMPLE: Final = "--vary model=DIR1,DIR2"
_MOST_CHARACTERS: Final = 40
_AROUND: Final = "\"'`,;:?!()[]{}<>"
_ALIASES: Final = ("modelone", "modeltwo", "modelthree", "modelfour")
"""What stands for the folders where a topic is read: words that mean nothing else."""
_SHORT: Final = re.compile(r"(?:[a-z]{1,3}|[\d.e-]+)(?:/(?:[a-z]{1,3}|[\d.e-]+))+", re.IGNORECASE)
FindModel = Callable[[str], PathModel]
"""Returns the model of a folder as it is written, or raises what is wrong with it."""


@dataclass(frozen=True, slots=True)
class ComparedModel:
    """A model that may be an arm's."""

    said: str
    """The folder as it was written."""
    model: PathModel

    def value(self) -> dict[str, Any]:
        """Return it as a job's field holds it, in JSON values."""
        return self.model.model_dump(mode="json")


@dataclass(frozen=True, slots=True)
class ComparedModels:
    """The models of a study by their names, in the order in which they were named."""

    by_name: Mapping[str, ComparedModel]

    @classmethod
    def found(cls, folders: Iterable[str], find: FindModel) -> Self:
        """Return the models of folders; raise what `find` raises, and BadTopic for two that cannot be told apart."""
        known: dict[str, ComparedModel] = {}
        for said in dict.fromkeys(folders):
            model = find(said)
            name = arm_text(model.model_dump(mode="json"))
            if (other := known.setdefault(name, ComparedModel(said, model))).said != said:
                raise BadTopic(
                    f"expected model folders of different names, as arms are called by them; found {other.said} and "
                    f"{said}, which are both {name}; rename one, or name a link to it"
                )
        _check(tuple(known.values()))
        return cls(known)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Return what a study's settings hold."""
        return cls({
            name: ComparedModel(str(held["said"]), PathModel.recorded(held["model"])) for name, held in settings.items()
        })  # fmt: skip

    def settings(self) -> dict[str, Any]:
        """Return it as a study's settings hold it."""
        return {name: {"said": known.said, "model": known.value()} for name, known in self.by_name.items()}

    def value(self, name: object) -> dict[str, Any]:
        """Return the model of a name as a job holds it; raise DesignRefused for a name that none has."""
        if isinstance(name, str) and name in self.by_name:
            return self.by_name[name].value()
        if not self.by_name:
            raise DesignRefused(
                f"{MODEL}: expected models that the user names; found none; name their folders, {EXAMPLE}",
                for_planner=f"{MODEL}: expected models that the user names; found none; vary another field, or decline",
            )
        near = did_you_mean(str(name), self.by_name) or ""
        raise DesignRefused(f"{MODEL}: expected one of {', '.join(self.by_name)}; found {name!r}{near}")

    def aliases(self) -> dict[str, str]:
        """Return the words that stand for the models where a topic is read, by their names."""
        return dict(zip(self.by_name, _ALIASES, strict=False))

    def readable(self, topic: str) -> str:
        """Return a topic with each folder's path replaced by the word that stands for it."""
        for name, alias in self.aliases().items():
            said = re.escape(self.by_name[name].said)
            topic = re.sub(rf"(?<![\w./~-]){said}/?(?![\w/-])", alias, topic)
        return topic


NO_MODELS: Final = ComparedModels({})


def _check(known: Sequence[ComparedModel]) -> None:
    if len(known) > len(_ALIASES):
        raise BadTopic(f"expected at most {len(_ALIASES)} models in a study; found {len(known)}; compare fewer")
    for at, one in enumerate(known):
        for other in known[:at]:
            if one.model.sha256 is not None and one.model.sha256 == other.model.sha256:
                raise BadTopic(
                    f"expected different models to compare; found the same content in {other.said} and {one.said}; "
                    "name another folder"
                )


def folders_in(topic: str) -> tuple[str, ...]:
    """Return the words of a topic that are paths of folders with a model's configuration, as they are written."""
    return tuple(word for word in _with_slashes(topic) if _holds_config(word))


def paths_in(topic: str) -> tuple[str, ...]:
    """Return the words of a topic that can only be paths, as they are written: not `and/or`, nor `4/16`."""
    return tuple(word for word in _with_slashes(topic) if not _SHORT.fullmatch(word))


def _with_slashes(topic: str) -> Iterable[str]:
    words = (word.strip(_AROUND).rstrip("./") or word for word in topic.split())
    return dict.fromkeys(word for word in words if "/" in word)


def _holds_config(word: str) -> bool:
    try:
        return (Path(word).expanduser() / "config.json").is_file()
    except (OSError, RuntimeError, ValueError):  # no path: too long, another user's home, a null
        return False


def arm_text(value: Mapping[str, Any]) -> str:
    """Return a model's name as the name of an arm may have it: lower case, short."""
    return re.sub(r"[^a-z0-9_.+-]+", "-", model_name(value).lower()).strip("-.")[:_MOST_CHARACTERS] or MODEL

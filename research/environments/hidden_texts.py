"""Do the files that clients are given hold hidden tasks, whatever the environment's code can make of them?

A copy of the records under another name, a table of answers beside the judge: the code that clients run need not know
of it for whoever wrote that code to use it. Looked for are runs of words that stand in a hidden task and in no other,
or the ids of most hidden tasks. What is packed or encrypted is not seen.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Final

from swarm.environments.base import Split, Task

_RUN: Final = 6
"""Words of a run at most: longer texts are known by any of the runs in them."""
_LETTERS: Final = 8
"""Fewest letters and digits of a run of words: what is shorter stands in any file by chance."""
_ONE_WORD: Final = 16
"""The same of one word alone."""
_MOST: Final = 0.5
"""Share of the hidden tasks whose ids alone say that they are held."""
_WORD: Final = re.compile(r"\w+")
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_Words = tuple[str, ...]


def holds_hidden(files: Mapping[str, bytes], tasks: Mapping[Split, Sequence[Task]]) -> str | None:
    """Return the path of a file that holds text of a hidden task, or names most of them; None if none does."""
    own = {run for run in _whole(_texts(tasks["hidden"])) if _tells(run)}
    own -= _found(own, (text for split in tasks if split != "hidden" for text in _texts(tasks[split])))
    ids = {_words(task.id) for task in tasks["hidden"] if len(task.id) > 1 and not task.id.isdigit()}
    for path, content in files.items():
        found = _found(own | ids, _forms(content))
        if not own.isdisjoint(found) or len(ids & found) > _MOST * len(tasks["hidden"]):
            return path
    return None


def _found(wanted: Set[_Words], texts: Iterable[str]) -> set[_Words]:
    """Return which of the runs of words, of at most `_RUN` each, stand in texts."""
    ends: dict[str, set[int]] = {}
    for run in filter(None, wanted):
        ends.setdefault(run[-1], set()).add(len(run))
    return {run for text in texts for run in _runs(text, ends) if run in wanted}


def _texts(tasks: Iterable[Task]) -> Iterator[str]:
    for task in tasks:
        yield task.id
        yield from _texts_in(task.data)


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(item)


def _forms(content: bytes) -> Iterator[str]:
    """Yield what a file says, as it stands and with the escapes of JSON and of code read."""
    text = content.decode(errors="replace")
    yield text
    if "\\" in text:
        yield _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else " ", text)


def _words(text: str) -> _Words:
    return tuple(_WORD.findall(text.casefold()))


def _whole(texts: Iterable[str]) -> Iterator[_Words]:
    """Yield the runs by which texts are known: those of `_RUN` words, or all of a text that is shorter."""
    for text in texts:
        words = _words(text)
        yield from (words[at : at + _RUN] for at in range(max(1, len(words) - _RUN + 1)))


def _runs(text: str, ends: Mapping[str, Set[int]]) -> Iterator[_Words]:
    """Yield the runs of words in a text that end with a word of `ends`, as long as it says there."""
    last: deque[str] = deque(maxlen=_RUN)
    for found in _WORD.finditer(text.casefold()):
        last.append(word := found[0])
        if word in ends:
            words = tuple(last)
            yield from (words[-length:] for length in ends[word] if length <= len(words))


def _tells(run: _Words) -> bool:
    return sum(map(len, run)) >= (_LETTERS if len(run) > 1 else _ONE_WORD)

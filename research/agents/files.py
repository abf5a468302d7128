"""The files of a user's agent, or reward: found by what the user typed, and packed for a container.

Either is a Python file with a function, in a folder whose other files it may import. The whole folder goes into a
container, so it is bounded, and what is no plain file is refused; whatever begins with a dot (keys, settings, version
control) and Python's caches stay here. Nothing of it is run or imported on this side.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from research.errors import ResearchError
from sandboxes import SandboxError
from sandboxes.docker.archive import check, pack_folder

MOST_BYTES = 16 << 20
MOST_FILES = 1000
Kind = Literal["agent", "reward"]


class BadAgent(ResearchError):
    """What was named as an agent is none."""


@dataclass(frozen=True, slots=True)
class AgentFiles:
    """An agent or a reward: `function` of `file`, a name within `folder`."""

    folder: Path
    file: str
    function: str

    @classmethod
    def locate(cls, text: str, kind: Kind = "agent") -> Self:
        """Return the agent at `FILE.py[:NAME]` or `FOLDER[:NAME]` (its agent.py), or a reward likewise.

        Raises BadAgent.
        """
        place, _, function = text.partition(":")
        path = Path(place).expanduser().absolute()
        file = path / f"{kind}.py" if path.is_dir() else path
        if file.suffix != ".py" or not file.is_file():
            found = f"a folder without {kind}.py" if path.is_dir() else "no such file of Python"
            raise BadAgent(
                f"expected the {kind} as FILE.py, FILE.py:NAME or a folder with {kind}.py; {place!r} is {found}"
            )
        if function and not function.isidentifier():
            raise BadAgent(f"expected the name of a function after the colon, as FILE.py:play; found {function[:60]!r}")
        agent = cls(file.parent, file.name, function or kind)
        agent._check_syntax()
        return agent

    def at(self, folder: str | Path) -> str:
        """Return the agent as `FILE:NAME`, its files being in `folder`."""
        return f"{folder}/{self.file}:{self.function}"

    def packed(self) -> Mapping[str, bytes]:
        """Return the files of the agent's folder by their paths in it; raises BadAgent."""
        try:
            return check(pack_folder(self.folder, most_bytes=MOST_BYTES, most_files=MOST_FILES))
        except SandboxError as error:
            raise BadAgent(
                f"the whole folder of {self.file} goes into the container: {error}; give it one of its own"
            ) from error

    def _check_syntax(self) -> None:
        """Raise BadAgent for what is no Python, before anything is started for it."""
        path = self.folder / self.file
        try:
            ast.parse(path.read_bytes(), self.file)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the latter: of what nests too deep
            line = getattr(error, "lineno", None)
            where = f", line {line}" if line else ""
            raise BadAgent(f"expected Python in {path}{where}: {getattr(error, 'msg', error)}; mend it") from error

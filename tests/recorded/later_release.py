"""A release to come, as a pytest plugin: the job has one more field, and another default, than today's.

`pytest -p tests.recorded.later_release TESTS` runs tests in it. Nothing of ajet may be imported before.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import swarm

FIELD = "a_later_field"
CHANGES = {
    # a new field, with the meaning of before as its default
    "    tracking: Tracking | None = None\n": f'    {FIELD}: float = 1.5\n    """A field of a later release."""\n'
    "    tracking: Tracking | None = None\n",
    # another default, as `swarm.job_schema` says that one is changed
    "    max_tokens: int = Field(default=16,": "    max_tokens: int = Field(default=24,",
    "    first_fields: ClassVar[frozenset[str]] = _FIRST_FIELDS\n": "    first_fields: ClassVar[frozenset[str]] = "
    '_FIRST_FIELDS\n    earlier_defaults = ({"max_tokens": 16},)\n',
    # and one of a model's
    '    """Decoder layers. Default 2."""\n': '    """Decoder layers. Default 2."""\n    tied: bool = False\n'
    '    """A field of a later release."""\n',
}


def _release() -> None:
    """Put the later release's `swarm.job` where everybody imports it from."""
    assert "swarm.job" not in sys.modules, "swarm.job was imported before the later release's could take its place"
    path = Path(swarm.__file__).parent / "job.py"
    source = path.read_text()
    for now, then in CHANGES.items():
        assert source.count(now) == 1, f"expected once in {path.name}, found {source.count(now)} times: {now!r}"
        source = source.replace(now, then)
    spec = importlib.util.spec_from_file_location("swarm.job", path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["swarm.job"] = swarm.job = module  # type: ignore[attr-defined]
    exec(compile(source, str(path), "exec"), module.__dict__)


_release()

"""What is said of a worker that ended before its work was done, and that what it leaves hides no reason."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL
from dataclasses import dataclass
from pathlib import Path

import pytest

from research.attempts.attempt import Attempt
from research.attempts.processes import ProcessGroup
from research.attempts.workers import ProcessWorkers
from research.results.attempt_files import AttemptFolder
from research.results.failure_codes import AttemptFailed
from tests.research.attempts.test_attempt import Trial, eventually

WRITING = """
import itertools, os
os.makedirs("tmp", exist_ok=True)
for n in itertools.count():
    open(f"tmp/{n % 3000}", "w").close()
    if n % 3 == 0:
        os.remove(f"tmp/{n % 3000}")
"""


@dataclass(frozen=True)
class Ended:
    failure: str

    def last_words(self) -> str:
        return "as said"


@pytest.mark.parametrize(
    ("failure", "code", "doubt"),
    [
        ("out_of_memory", 137, ""),
        ("timeout", 137, ""),
        ("killed", 1, ""),
        ("died", 1, ""),
        ("died", -9, ""),
        ("died", 143, ""),
        ("died", 7, "os._exit, or a library's exit"),
        ("died", -11, "a library's crash, or os._exit"),
        ("died", 139, "a library's crash, or os._exit"),
    ],
)
def test_the_code_of_an_environment_is_blamed_only_where_it_can_be_its_doing(
    tmp_path: Path, failure: str, code: int, doubt: str
) -> None:
    order = Trial(tmp_path).order(steps=1)
    spec = order.spec.model_copy(update={"environment": "shop@0123456789ab"})
    attempt = Attempt(AttemptFolder(tmp_path), order.model_copy(update={"spec": spec}))
    with pytest.raises(AttemptFailed) as refused:
        attempt._require_good_end("client", Ended(failure), code)  # type: ignore[arg-type]
    blamed = f" (its environment's code ended its process while it played, as it seems: {doubt})" if doubt else ""
    assert refused.value.reason == f"the client ended before its work was done{blamed}: as said"


async def test_a_process_that_goes_on_writing_hides_no_reason_why_the_attempt_ended(tmp_path: Path) -> None:
    folder = AttemptFolder(tmp_path)
    given = folder.given("client")
    given.mkdir(parents=True)
    workers = ProcessWorkers(ProcessGroup(tmp_path), folder, Trial(tmp_path).order(steps=1), "", "")
    writing = await asyncio.create_subprocess_exec(sys.executable, "-c", WRITING, cwd=given, stderr=DEVNULL)
    eventually((given / "tmp" / "2999").exists, "it writes")
    try:
        for _ in range(20):
            with pytest.raises(AttemptFailed, match="the server is gone"):
                async with workers:
                    raise AttemptFailed("server_died", "the server is gone")
            if not folder.all_given.exists():
                break
    finally:
        writing.kill()
        await writing.wait()

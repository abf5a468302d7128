"""One controller per study, whichever hosts and installations share a database; any number in an installation."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from research.controller.session import controlling, require_files, require_here
from research.errors import StudyBusy, StudyElsewhere
from research.installation.home import Home
from studies import ControllerLeaseLost, EventLog, fold
from studies.log.locks import ControllerLeases
from tests.research.bench import STUDY, Bench

CONTROLLER = """
import sys
from pathlib import Path
from research.controller.session import controlling
from research.installation.home import Home
from studies import EventLog
home = Home(Path(sys.argv[1]), sys.argv[2]).prepare()
with controlling(home, EventLog(home.database), sys.argv[3], print):
    print("drives", flush=True)
    sys.stdin.read()
"""


@contextmanager
def controller(home: Home, study: str = STUDY) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(home.path), home.database, study], stdin=-1, stdout=-1
    )
    try:
        assert process.stdout.readline() == b"drives\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def unexpected(line: str) -> None:
    raise AssertionError(f"expected nothing to be said; found {line}")


@pytest.fixture
def first(tmp_path: Path) -> Home:
    return Home(tmp_path / "first", f"sqlite:///{tmp_path / 'shared.db'}").prepare()


@pytest.fixture
def second(tmp_path: Path, first: Home) -> Home:
    return Home(tmp_path / "second", first.database).prepare()


@pytest.mark.slow
def test_a_second_installation_drives_no_study_whose_controller_lives(first: Home, second: Home) -> None:
    with closing(EventLog(first.database)) as log, controller(first) as holder:
        with (
            pytest.raises(StudyBusy, match=rf"study {STUDY}; process {holder.pid} on \S+ drives it, in {first.path}"),
            controlling(second, log, STUDY, unexpected),
        ):
            raise AssertionError("two controllers")
        with controlling(second, log, "another-study", unexpected) as lease:
            lease.check()
        holder.kill()
        holder.wait()
        with controlling(second, log, STUDY, unexpected) as lease:
            assert lease.epoch == 2


@pytest.mark.slow
def test_studies_of_one_installation_are_driven_side_by_side_each_by_one(first: Home) -> None:
    with closing(EventLog(first.database)) as log, controller(first, "another-study") as other:
        with controlling(first, log, STUDY, unexpected) as lease:
            lease.check()
        with (
            pytest.raises(StudyBusy, match=rf"process {other.pid} on \S+ drives it"),
            controlling(first, log, "another-study", unexpected),
        ):
            raise AssertionError("two controllers")


def test_it_is_free_again_after_an_error(first: Home) -> None:
    with closing(EventLog(first.database)) as log:
        for epoch in (1, 2):
            with pytest.raises(ZeroDivisionError), controlling(first, log, STUDY, unexpected) as lease:
                assert 1 / (lease.epoch - epoch), "expected another epoch"


def test_a_study_is_gone_on_with_where_its_evidence_lies(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "first")
    other = Home(tmp_path / "second", bench.home.database).prepare()
    with closing(EventLog(other.database)) as log:
        require_here(other, log, fold(log.read(STUDY)))  # nothing was begun
        with controlling(bench.home, log, STUDY, unexpected):
            bench.loop().tick()
        state = fold(log.read(STUDY))
        require_here(bench.home, log, state)
        with pytest.raises(StudyElsewhere, match=rf"in {other.path}; it is in {bench.home.path} on \S+\. "):
            require_here(other, log, state)
        with pytest.raises(StudyElsewhere, match=rf"they are in {bench.home.path} on"):
            require_files(other, log, STUDY)
        shutil.rmtree(bench.home.study(STUDY))
        require_files(bench.home, log, STUDY)  # its own files are gone, which a proof is to say


def lost() -> None:
    raise ControllerLeaseLost("another one has it")


def test_a_controller_that_lost_its_lease_writes_nothing_and_ends_no_attempt(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.loop().tick()
    before = bench.events()
    bench.check = lost
    loop = bench.loop()
    for act in (loop.tick, lambda: loop.stop("interrupted by the user"), lambda: loop.halt("refused")):
        with pytest.raises(ControllerLeaseLost):
            act()
    assert bench.events() == before
    assert all(handle.stops == 0 for handle in bench.sandbox.handles.values())


def check_failing(after: int) -> Callable[[], None]:
    left = [after]

    def check() -> None:
        left[0] -= 1
        if left[0] < 0:
            lost()

    return check


def test_a_lease_that_is_lost_within_a_tick_lets_no_further_attempt_begin(tmp_path: Path) -> None:
    for after in (0, 1, 2, 5, 9):
        bench = Bench(tmp_path / str(after))
        bench.check = check_failing(after)
        with pytest.raises(ControllerLeaseLost):
            bench.drive(bench.loop())
        steps = len(bench.events())
        bench.check = lost
        with pytest.raises(ControllerLeaseLost):
            bench.loop().tick()
        assert len(bench.events()) == steps


def test_a_lease_is_kept_in_the_log_it_is_for(first: Home) -> None:
    with closing(EventLog(first.database)) as log:
        with controlling(first, log, STUDY, unexpected):
            row = ControllerLeases(log).read(STUDY)
            assert (row.holder.pid, row.holder.home, row.given_back) == (os.getpid(), str(first.path), False)
        row = ControllerLeases(log).read(STUDY)
        assert row.given_back

"""Tests of the files that hosts share."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from research.errors import NotReady
from research.installation.home import Home
from research.installation.shared_files import FilesAway, SharedFiles
from studies import Event, EventLog, EventType, HeadMoved
from tests.studies.synthetic import Ticking

STUDY = "s1"
NAMES = ("design.lock", "report.md", "runs/0a/evaluation.json")


class Cut(BaseException):
    """Stands for kill -9: nothing may catch it."""


class CutFiles(SharedFiles):
    """Shared files whose host is killed at the `left`th content that it stores or fetches, with half of it written."""

    left: int | None = None
    puts = 0

    def _cut(self, act: Callable[[], None]) -> None:
        if self.left == 0:
            act()
            raise Cut
        self.left = None if self.left is None else self.left - 1

    def _put(self, name: str, data: bytes) -> None:
        self._cut(lambda: SharedFiles._put(self, name, data[: len(data) // 2]))
        super()._put(name, data)
        self.puts += 1

    def _get(self, name: str) -> bytes:
        self._cut(lambda: None)
        return super()._get(name)


class Host:
    """One host: its home, and what it knows of the log as the process that lives now."""

    def __init__(self, log: EventLog, url: str, home: Path) -> None:
        self.log, self.url, self.home = log, url, home
        self.start()

    def start(self) -> None:
        self.files, self.seen = CutFiles(self.url, self.home), self.log.last(STUDY)

    def held(self) -> dict[str, bytes]:
        folder = self.home / "studies" / STUDY
        return {name: (folder / name).read_bytes() for name in NAMES if (folder / name).exists()}

    def write(self, name: str, data: bytes) -> None:
        (path := self.home / "studies" / STUDY / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def append(self, *, cut: bool = False) -> Event:
        named = {name: data.decode() for name, data in self.held().items()}
        hashes = [sha256(data).hexdigest() for data in self.held().values()]
        payload = {"files": named, "hashes": hashes}
        event = self.log.compose(STUDY, EventType.STUDY_WORKED, payload, after=self.seen)
        with self.files.push(event):
            self.log.append(event)
            if cut:
                raise Cut
        self.seen = event
        return event


def named_by(log: EventLog) -> dict[str, bytes]:
    head = log.last(STUDY)
    return {} if head is None else {name: data.encode() for name, data in head.payload["files"].items()}


class Hosts(RuleBasedStateMachine):
    """Two hosts of which one drives; each is killed anywhere, and one that drove may not know that it does no more."""

    folder: Path
    kind: str

    @initialize()
    def begin(self) -> None:
        root = self.folder / uuid4().hex
        root.mkdir()
        self.log = EventLog(f"sqlite:///{root / 'ajet.db'}", clock=Ticking())
        url = f"memory://{root.name}" if self.kind == "memory" else f"file://{root}/team"
        self.hosts = [Host(self.log, url, root / name) for name in "ab"]
        self.driver, self.late = self.hosts[0], False

    def teardown(self) -> None:
        self.log.close()

    @property
    def other(self) -> Host:
        return next(host for host in self.hosts if host is not self.driver)

    def _killed(self, host: Host, left: int | None, act: Callable[[], object]) -> bool:
        host.files.left = left
        try:
            act()
        except Cut:
            host.start()
            return True
        finally:
            host.files.left = None
        return False

    @rule(name=st.sampled_from(NAMES), data=st.sampled_from([b"one", b"other", b"third"]), late=st.booleans())
    def write(self, name: str, data: bytes, late: bool) -> None:
        (self.other if late else self.driver).write(name, data)
        self.late |= late

    @rule(left=st.none() | st.integers(0, 4), cut=st.booleans())
    def append(self, left: int | None, cut: bool) -> None:
        if not self._killed(self.driver, left, lambda: self.driver.append(cut=cut)):
            assert named_by(self.log) == self.driver.held()

    @precondition(lambda self: self.other.seen != self.log.last(STUDY))
    @rule(left=st.none() | st.integers(0, 4))
    def append_late(self, left: int | None) -> None:
        """Whoever does not drive any more appends nothing, and stores what is nobody's."""
        with suppress(HeadMoved):
            self._killed(self.other, left, self.other.append)
        self.other.files.forget(STUDY)

    @rule(left=st.none() | st.integers(0, 4))
    def take_over(self, left: int | None) -> None:
        taker = self.other
        taker.files.forget(STUDY)  # it may have written, as the model's other one does at any time
        if not self._killed(taker, left, lambda: taker.files.pull(self.log, STUDY)):
            assert named_by(self.log).items() <= taker.held().items()
            self.driver, taker.seen, self.late = taker, self.log.last(STUDY), True

    @rule(which=st.integers(0, 1))
    def look(self, which: int) -> None:
        """Whoever only looks leaves what the driver has written since."""
        before = self.driver.held()
        Host(self.log, self.driver.url, self.hosts[which].home).files.pull(self.log, STUDY)
        assert self.driver.held() == before
        if self.hosts[which] is not self.driver and not self.late:
            assert named_by(self.log).items() <= self.other.held().items()


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_whoever_sees_an_event_finds_the_files_it_names_wherever_hosts_were_killed(tmp_path: Path, kind: str) -> None:
    case = type("Case", (Hosts,), {"folder": tmp_path, "kind": kind})
    most = settings.default.max_examples * 2
    run_state_machine_as_test(case, settings=settings(max_examples=most, stateful_step_count=30))  # type: ignore[no-untyped-call]


@pytest.fixture
def pair(tmp_path: Path) -> Any:
    with closing(EventLog(f"sqlite:///{tmp_path / 'ajet.db'}")) as log:
        yield Host(log, f"file://{tmp_path}/team", tmp_path / "a"), Host(log, f"{tmp_path}/team", tmp_path / "b")


def test_a_content_is_stored_once_and_attempts_stay_where_they_are(pair: tuple[Host, Host], tmp_path: Path) -> None:
    first, second = pair
    for name in ("runs/0a/evaluation.json", "attempts/0a-a1/server/checkpoints/1", "prefect.json", "report.md"):
        first.write(name, b"same")
    for _ in range(3):
        first.append()
    stored = sorted(path.relative_to(tmp_path / "team" / STUDY).parts[0] for path in (tmp_path / "team").rglob("*.*"))
    assert stored == ["manifests"]  # as nothing changed after the first event
    assert first.files.puts == 2
    first.start()
    first.files.pull(first.log, STUDY)
    first.append()
    assert first.files.puts == 0
    first.write("runs/0b/evaluation.json", b"another")
    first.append()
    assert first.files.puts == 2
    second.files.pull(second.log, STUDY)
    pulled = [path.relative_to(tmp_path / "b/studies/s1").as_posix() for path in (tmp_path / "b/studies").rglob("*.*")]
    assert sorted(pulled) == ["report.md", "runs/0a/evaluation.json", "runs/0b/evaluation.json"]


def test_a_file_that_the_log_named_later_is_not_replaced(pair: tuple[Host, Host]) -> None:
    first, _ = pair
    first.write("report.md", b"older")
    first.append()
    first.files = CutFiles("", first.home)  # somebody forgot AJET_FILES
    first.write("report.md", b"newer")
    first.append()
    first.start()
    first.files.forget(STUDY)
    first.files.pull(first.log, STUDY)
    assert first.held() == {"report.md": b"newer"}


def test_what_others_wrote_into_the_store_is_refused(pair: tuple[Host, Host], tmp_path: Path) -> None:
    first, second = pair
    first.write("report.md", b"mine")
    event = first.append()
    (content,) = (tmp_path / "team" / STUDY / "files").iterdir()
    content.write_bytes(b"another's")
    with pytest.raises(FilesAway, match=r"could not read the shared files at .*expected report\.md of study s1"):
        second.files.pull(second.log, STUDY)
    manifest = tmp_path / "team" / STUDY / "manifests" / f"{event.seq:06}-{event.hash}.json"
    for name in ("../../stolen", "/etc/passwd", "attempts/0a-a1/attempt.json"):
        manifest.write_text(f'{{"{name}": "{"0" * 64}"}}')
        with pytest.raises(FilesAway, match="expected names of files in the folder"):
            second.files.pull(second.log, STUDY)
    assert second.held() == {}


def test_a_store_that_is_away_is_said_without_its_password(tmp_path: Path, pair: tuple[Host, Host]) -> None:
    first, _ = pair
    first.write("report.md", b"mine")
    (tmp_path / "team").write_text("no folder")
    with pytest.raises(FilesAway, match="could not write the shared files at file:///"):
        first.append()
    assert first.log.last(STUDY) is None
    with pytest.raises(NotReady, match=r"expected of AJET_FILES a URL .* found nowhere://team: "):
        Home(tmp_path / "c", "sqlite://", "nowhere://user:secret@team").prepare()


def test_a_home_that_lost_its_folder_is_given_it_back(pair: tuple[Host, Host], tmp_path: Path) -> None:
    first, _ = pair
    first.write("report.md", b"mine")
    first.append()
    shutil.rmtree(tmp_path / "a")
    first.start()
    first.files.pull(first.log, STUDY)
    assert first.held() == {"report.md": b"mine"}


@pytest.mark.slow
def test_a_bucket_holds_what_a_folder_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec, server = pytest.importorskip("s3fs"), pytest.importorskip("moto.server")
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    bucket = server.ThreadedMotoServer(port=0)
    bucket.start()
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*bucket.get_host_and_port()))
        fsspec.S3FileSystem().mkdir("team")
        with closing(EventLog(f"sqlite:///{tmp_path / 'ajet.db'}")) as log:
            first, second = (Host(log, "s3://team/prefix", tmp_path / name) for name in "ab")
            for text in (b"older", b"newer"):
                first.write("report.md", text)
                first.append()
                second.files.pull(log, STUDY)
                assert second.held() == {"report.md": text}
            bucket.stop()
            first.write("report.md", b"newest")
            with pytest.raises(FilesAway, match="could not write the shared files at s3://team/prefix: "):
                first.append()
    finally:
        bucket.stop()

"""Where clients and evaluators run: the choice of a new study, and what a study that exists needs to go on."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from research.errors import BadEnvironment, BadInput, NotReady
from research.installation.home import Home
from research.isolation import mode as sandboxing
from research.isolation.mode import (
    PROCESS,
    UNISOLATED,
    EngineThread,
    Sandboxing,
    choose,
    reopen,
    require_isolation,
    supervise,
)
from sandboxes import SandboxError
from sandboxes.docker.engine import ContainerEngine, EngineNotFound
from sandboxes.images.build import Image
from tests.golden import refused

NOBODY = {"DOCKER_HOST": "unix:///nobody/listens/here.sock"}
IMAGE = Image("sha256:" + "ab" * 32, "ajet-client:ab", "python:3.11-slim")
OLD = Sandboxing(kind="docker", image="sha256:" + "cd" * 32, base="python:3.11-slim", engine="20.10")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.locate({"AJET_HOME": str(tmp_path)})


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An engine that answers, makes the client image and has the images of the list, without Docker."""
    images: list[str] = []
    fake = ContainerEngine(None, "unix://fake", version="28.0")  # type: ignore[arg-type]  # nobody asks it
    monkeypatch.setattr(sandboxing, "connect", lambda environ: fake)
    monkeypatch.setattr(sandboxing, "identity", lambda engine, image: image if image in images else None)
    monkeypatch.setattr("research.isolation.client_image.ensure_client_image", lambda engine, home, note: IMAGE)
    return images


def old(sandboxing: Sandboxing = OLD) -> dict[str, Any]:
    return {"sandbox": sandboxing.model_dump(mode="json")}


@pytest.mark.parametrize(
    ("asked", "environ", "kind"),
    [
        (None, {}, "docker"), (None, {"AJET_SANDBOX": ""}, "docker"),  # the default where an engine answers
        ("process", {}, "process"), (None, {"AJET_SANDBOX": "process"}, "process"),
        ("docker", {"AJET_SANDBOX": "process"}, "docker"), ("process", {"AJET_SANDBOX": "docker"}, "process"),
    ],
)  # fmt: skip
def test_what_is_asked_for_is_used_and_the_option_beats_the_variable(
    engine: list[str], home: Home, asked: str | None, environ: dict[str, str], kind: str
) -> None:
    found, contained = choose(asked, environ, home, print), kind == "docker"
    made = Sandboxing(kind="docker", image=IMAGE.id, base=IMAGE.base, engine="28.0")
    assert (found.sandboxing, found.containers is not None) == (made if contained else PROCESS, contained)


def test_without_an_engine_the_default_is_processes_and_one_line_says_why(home: Home) -> None:
    notes: list[str] = []
    assert choose(None, NOBODY, home, notes.append) == UNISOLATED
    (line,) = notes
    assert [part in line for part in ("\n", "isolates nothing", "/nobody/listens/here.sock")] == [False, True, True]


@pytest.mark.parametrize("asked", [None, "docker"])
def test_packages_that_the_image_cannot_have_take_no_isolation_away(
    engine: list[str], home: Home, monkeypatch: pytest.MonkeyPatch, asked: str | None
) -> None:
    def refuse(*_: object) -> Image:
        raise SandboxError("pip could not bring:\nNo matching distribution found for shop==9")

    monkeypatch.setattr("research.isolation.client_image.ensure_derived_image", refuse)
    notes: list[str] = []
    with refused(BadEnvironment, "shop==9", "--sandbox process") as error:
        choose(asked, {}, home, notes.append, "shop==9\n")
    assert "\n" not in str(error.value)
    assert notes == []
    assert choose("process", {}, home, notes.append, "shop==9\n") == UNISOLATED


@pytest.mark.parametrize(("asked", "environ"), [("docker", NOBODY), (None, {**NOBODY, "AJET_SANDBOX": "docker"})])
def test_containers_that_were_asked_for_and_cannot_be_had_are_an_error(
    home: Home, asked: str | None, environ: dict[str, str]
) -> None:
    with pytest.raises(EngineNotFound, match="install Docker"):
        choose(asked, environ, home, print)


@pytest.mark.parametrize("images", [[], [str(OLD.image)]])
def test_what_the_engine_of_today_lacks_is_known_of_a_new_study_and_of_one_that_goes_on(
    engine: list[str], home: Home, monkeypatch: pytest.MonkeyPatch, images: list[str]
) -> None:
    weak = ContainerEngine(None, "unix://fake", version="28.0", lacks=("seccomp",))  # type: ignore[arg-type]
    monkeypatch.setattr(sandboxing, "connect", lambda environ: weak)
    engine.extend(images)
    assert choose(None, {}, home, print).sandboxing.lacks == ("seccomp",)
    notes: list[str] = []
    found = reopen(old(), {}, home, notes.append).sandboxing
    assert (found.lacks, found.engine) == (("seccomp",), "28.0")
    assert found.image == (images[0] if images else IMAGE.id)
    assert ["is gone" in note for note in notes] == ([] if images else [True])  # it is given a new one, and told


def test_a_study_that_chose_processes_keeps_to_them(engine: list[str], home: Home) -> None:
    assert reopen(old(PROCESS), {}, home, print) == UNISOLATED
    assert reopen({}, {}, home, print) == UNISOLATED  # a study from before there was a choice
    with pytest.raises(BadInput, match="kind"):
        reopen({"sandbox": {"kind": "jail"}}, {}, home, print)


def test_a_study_with_containers_does_not_go_on_or_stop_without_an_engine(home: Home) -> None:
    with pytest.raises(EngineNotFound):
        reopen(old(), NOBODY, home, print)
    gone = supervise(old(), NOBODY, home)
    assert gone.containers is not None
    with pytest.raises(EngineNotFound):
        gone.containers.reap({"study": "s1"})
    assert supervise({}, NOBODY, home) == UNISOLATED


def test_generated_code_is_refused_without_containers_or_by_an_engine_that_does_not_isolate_it() -> None:
    require_isolation(OLD, "the reward dense")
    weak = OLD.model_copy(update={"lacks": ("seccomp: start it",)})
    assert (OLD.isolates, weak.isolates) == (True, False)
    with refused(NotReady, "the reward dense", "install Docker", "--sandbox docker") as error:
        require_isolation(PROCESS, "the reward dense")
    assert "\n" not in error.value.message
    with pytest.raises(NotReady, match="lacks seccomp"):
        require_isolation(weak, "the reward dense")


async def test_clearing_up_is_done_though_a_second_signal_comes_while_it_waits_for_its_turn() -> None:
    thread, done, going = EngineThread(), list[str](), threading.Event()
    first = asyncio.create_task(thread.do(going.wait))
    asked = asyncio.create_task(thread.do_shielded(done.append, "cleared up"))
    await asyncio.sleep(0)  # both wait in the thread's line now
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    going.set()
    await first
    thread.close()
    assert done == ["cleared up"]

"""Where clients and evaluators run: the choice of a new study, and what a study that exists needs to go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.errors import BadEnvironment, BadSandbox, NotIsolated
from research.installation.home import Home
from research.isolation import mode as sandboxing
from research.isolation.mode import (
    CONTAINED,
    PROCESS,
    UNISOLATED,
    Sandboxing,
    choose,
    reopen,
    require_isolation,
    supervise,
)
from sandboxes import SandboxError
from sandboxes.docker.engine import ContainerEngine, NoEngine
from sandboxes.images import Image

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
    fake = ContainerEngine(None, "unix://fake", local=True, version="28.0")  # type: ignore[arg-type]  # nobody asks it
    monkeypatch.setattr(sandboxing, "connect", lambda environ: fake)
    monkeypatch.setattr(sandboxing, "identity", lambda engine, image: image if image in images else None)
    monkeypatch.setattr("research.isolation.client_image.ensure_client_image", lambda engine, home, note: IMAGE)
    return images


def unable(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Image:
        raise SandboxError("no base image\nhere")

    monkeypatch.setattr("research.isolation.client_image.ensure_client_image", fail)


def test_containers_are_the_default_where_an_engine_answers(engine: list[str], home: Home) -> None:
    found = choose(None, {}, home, print)
    assert found.sandboxing == Sandboxing(kind="docker", image=IMAGE.id, base=IMAGE.base, engine="28.0")
    assert found.containers is not None


@pytest.mark.parametrize(("asked", "environ"), [("process", {}), (None, {"AJET_SANDBOX": "process"})])
def test_processes_are_used_where_they_are_asked_for(
    engine: list[str], home: Home, asked: str | None, environ: dict[str, str]
) -> None:
    assert choose(asked, environ, home, print) == UNISOLATED


def test_the_option_beats_the_variable(engine: list[str], home: Home) -> None:
    assert choose("docker", {"AJET_SANDBOX": "process"}, home, print).sandboxing.kind == "docker"
    assert choose("process", {"AJET_SANDBOX": "docker"}, home, print).sandboxing.kind == "process"


@pytest.mark.parametrize(("asked", "environ"), [("podman", {}), (None, {"AJET_SANDBOX": "Docker"}), ("", {})])
def test_another_word_is_refused_with_the_two_that_are_known(
    home: Home, asked: str | None, environ: dict[str, str]
) -> None:
    with pytest.raises(BadSandbox, match="docker or process"):
        choose(asked, environ, home, print)


def test_an_empty_variable_chooses_nothing(engine: list[str], home: Home) -> None:
    assert choose(None, {"AJET_SANDBOX": ""}, home, print).sandboxing.kind == "docker"


def test_without_an_engine_the_default_is_processes_and_one_line_says_why(home: Home) -> None:
    notes: list[str] = []
    assert choose(None, NOBODY, home, notes.append) == UNISOLATED
    (line,) = notes
    assert "\n" not in line
    assert "isolates nothing" in line
    assert "/nobody/listens/here.sock" in line


def test_without_an_image_the_default_is_processes_and_one_line_says_why(
    engine: list[str], home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    unable(monkeypatch)
    notes: list[str] = []
    assert choose(None, {}, home, notes.append) == UNISOLATED
    assert "no base image here" in notes[0]


@pytest.mark.parametrize("asked", [None, "docker"])
def test_packages_that_the_image_cannot_have_take_no_isolation_away(
    engine: list[str], home: Home, monkeypatch: pytest.MonkeyPatch, asked: str | None
) -> None:
    def fail(*_: object) -> Image:
        raise SandboxError("pip could not bring the packages for Python:\nNo matching distribution found for shop==9")

    monkeypatch.setattr("research.isolation.client_image.ensure_derived_image", fail)
    notes: list[str] = []
    with pytest.raises(BadEnvironment) as refused:
        choose(asked, {}, home, notes.append, "shop==9\n")
    assert "No matching distribution found for shop==9; mend its requirements, or run it as" in str(refused.value)
    assert "--sandbox process" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert notes == []
    assert choose("process", {}, home, notes.append, "shop==9\n") == UNISOLATED


@pytest.mark.parametrize(("asked", "environ"), [("docker", NOBODY), (None, {**NOBODY, "AJET_SANDBOX": "docker"})])
def test_containers_that_were_asked_for_and_cannot_be_had_are_an_error(
    home: Home, asked: str | None, environ: dict[str, str]
) -> None:
    with pytest.raises(NoEngine, match="install Docker"):
        choose(asked, environ, home, print)


def test_a_study_goes_on_with_its_own_image(engine: list[str], home: Home) -> None:
    engine.append(str(OLD.image))
    found = reopen({"sandbox": OLD.model_dump(mode="json")}, {}, home, print).sandboxing
    assert found == OLD.model_copy(update={"engine": "28.0"}), "and says on which engine"


@pytest.mark.parametrize("images", [[], [str(OLD.image)]])
def test_what_the_engine_of_today_lacks_is_known_of_a_new_study_and_of_one_that_goes_on(
    engine: list[str], home: Home, monkeypatch: pytest.MonkeyPatch, images: list[str]
) -> None:
    weak = ContainerEngine(None, "unix://fake", local=True, version="28.0", lacks=("seccomp",))  # type: ignore[arg-type]
    monkeypatch.setattr(sandboxing, "connect", lambda environ: weak)
    engine.extend(images)
    assert choose(None, {}, home, print).sandboxing.lacks == ("seccomp",)
    assert reopen({"sandbox": OLD.model_dump(mode="json")}, {}, home, print).sandboxing.lacks == ("seccomp",)


def test_a_study_whose_image_is_gone_is_given_a_new_one_and_told(engine: list[str], home: Home) -> None:
    notes: list[str] = []
    found = reopen({"sandbox": OLD.model_dump(mode="json")}, {}, home, notes.append)
    assert found.sandboxing.image == IMAGE.id
    assert "is gone" in notes[0]


def test_a_study_with_containers_does_not_go_on_without_an_engine(home: Home) -> None:
    with pytest.raises(NoEngine):
        reopen({"sandbox": OLD.model_dump(mode="json")}, NOBODY, home, print)


def test_a_study_that_chose_processes_keeps_to_them(engine: list[str], home: Home) -> None:
    assert reopen({"sandbox": PROCESS.model_dump(mode="json")}, {}, home, print) == UNISOLATED
    assert reopen({}, {}, home, print) == UNISOLATED, "a study from before there was a choice"


def test_a_setting_that_nobody_knows_is_said_in_one_line(home: Home) -> None:
    with pytest.raises(BadSandbox, match="kind"):
        reopen({"sandbox": {"kind": "jail"}}, {}, home, print)


def test_a_stop_needs_the_engine_only_for_containers(home: Home) -> None:
    assert supervise({}, NOBODY, home) == UNISOLATED
    gone = supervise({"sandbox": OLD.model_dump(mode="json")}, NOBODY, home)
    assert gone.containers is not None
    with pytest.raises(NoEngine):
        gone.containers.reap({"study": "s1"})


def test_generated_code_is_refused_without_containers_with_a_way_to_get_them() -> None:
    require_isolation(OLD, "the reward dense")
    with pytest.raises(NotIsolated) as refused:
        require_isolation(PROCESS, "the reward dense")
    assert "the reward dense" in refused.value.message
    assert "install Docker" in refused.value.message
    assert "--sandbox docker" in refused.value.message
    assert "\n" not in refused.value.message


def test_generated_code_is_refused_by_an_engine_that_does_not_isolate_it() -> None:
    weak = OLD.model_copy(update={"lacks": ("seccomp: start it with it",)})
    assert OLD.isolates
    assert not weak.isolates
    with pytest.raises(NotIsolated, match="lacks seccomp"):
        require_isolation(weak, "the reward dense")


def test_a_controller_in_a_container_uses_processes_and_refuses_what_needs_an_engine(
    engine: list[str], home: Home
) -> None:
    said: list[str] = []
    inside = {CONTAINED: "1"}
    assert choose(None, inside, home, said.append) == UNISOLATED
    assert "the study's controller is in a container itself" in said[0]
    for ask in (
        lambda: choose("docker", inside, home, print),
        lambda: reopen({"sandbox": OLD.model_dump()}, inside, home, print),
    ):
        with pytest.raises(NoEngine, match="ajet up --work"):
            ask()

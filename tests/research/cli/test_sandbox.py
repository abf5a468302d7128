from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from research.cli import catalogs
from research.installation.home import Home
from research.installation.servers import SwarmProcess, start_swarm, stop_swarm
from research.isolation import client_image
from research.models.fetch import build_job, load_check
from sandboxes import DockerSandbox, ProcessSandbox, SandboxSpec
from sandboxes.docker.engine import ContainerEngine
from sandboxes.images.build import Image, identity
from swarm.client import SwarmClient, SyncEpisode
from swarm.job import Job, PathModel
from swarm.models import folder_hash
from tests.research.cli.conftest import Ajet
from tests.research.runs.trials import eventually
from tests.sandboxes.containing import held, spec
from tests.swarm.backends.local.models import TEMPLATE, save_folder
from tests.swarm.backends.local.test_folder import base

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Task:
    id: str


def chatty(episode: SyncEpisode[Any]) -> tuple[float, bool]:
    episode.chat([{"role": "user", "content": "hi"}], max_tokens=4)
    won = int(episode.id[-1], 36) % 2 == 0
    return float(won), won


@pytest.fixture
def server(home: Path) -> Iterator[SwarmProcess]:
    found = start_swarm(home / "swarm", models=home / "models", port=0)
    yield found
    stop_swarm(found)


def test_a_model_is_exported_with_its_card(ajet: Ajet, home: Path, server: SwarmProcess, tmp_path: Path) -> None:
    model = base(tmp_path / "base")
    job = Job(
        model=PathModel(path=str(model)), device="cpu", max_context=64, max_tokens=4, steps=2, episodes_per_step=4,
        group_size=2, checkpoints_kept=1, environment="arith",
    )  # fmt: skip
    with SwarmClient(server.url, server.admin_token) as client:
        client.ensure_training(job)
        client.rollout(chatty, [Task("a"), Task("b")], concurrency=2)
        results = client.evaluate(chatty, [Task("x"), Task("y")], samples=2, concurrency=2)
        status = client.status()
    card = ajet("swarm", "export-model", str(tmp_path / "out"), "--json").data
    assert (card["step"], card["adapter"], card["job_digest"]) == (2, "none", job.digest())
    assert card["base_weights"] == status.provenance["weights"]
    assert card["sha256"] == folder_hash(tmp_path / "out")
    assert (set(card["data"]), card["trained_episodes"]) == ({"default"}, 8)
    worth = sum(result.reward for result in results) / 4
    assert card["measured"] == {"episodes": 4, "tasks": 2, "reward": worth, "success": worth}
    assert {**json.loads((tmp_path / "out" / "ajet.json").read_text()), "folder": card["folder"]} == card
    readme = (tmp_path / "out" / "README.md").read_text()
    assert (readme.startswith("---\nlibrary_name: "), f"mean reward {worth:.4g}" in readme) == (True, True)
    ajet("swarm", "export-model", str(tmp_path / "out")).refused("not there yet,")
    ajet("swarm", "export-model", str(tmp_path / "other"), "--step", "1").refused("kept (2), found '1'")
    stop_swarm(server)
    (tmp_path / "empty").mkdir()
    stopped = ajet("swarm", "export-model", str(tmp_path / "empty"), "--step", "2")
    assert (stopped.code, "wrote" in stopped.out) == (0, True), stopped.err
    assert folder_hash(tmp_path / "empty") == card["sha256"]
    ajet("swarm", "export-model", str(tmp_path / "apart"), "--lora", "apart").refused("lora_rank")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "empty", "home", "out"]


def test_a_check_says_what_a_model_is(ajet: Ajet, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_folder(tmp_path / "m")
    (folder / "chat_template.jinja").write_text(TEMPLATE + "{% if tools %}{{ raise_exception('no tools') }}{% endif %}")
    ended = ajet("model", "check", str(folder), "--max-context", "64")
    assert ended.code == 0, ended.err
    for words in ("forward    fused", "updates    trees", "tools refused", "64 episodes of 64 tokens"):
        assert words in ended.out
    assert ("fails on tools" in ended.err.splitlines()[-1], "measuring updates" in ended.err) == (True, True)
    kept = load_check(build_job(folder, max_context=64), home / "models")
    assert kept is not None
    monkeypatch.setattr(catalogs, "measure_model", lambda job, models, note: kept)
    checked = ajet("model", "check", str(folder), "--max-context", "64", "--json").data
    assert checked["template"]["tools"] == "refused"
    assert checked["fused"]


SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
DEADLINE_S = 180.0


@pytest.fixture
def here(home: Path) -> Home:
    return Home.locate().prepare()


@pytest.fixture
def containers(here: Home, engine: ContainerEngine) -> Iterator[DockerSandbox]:
    sandbox = DockerSandbox(here.containers, engine)
    yield sandbox
    sandbox.reap({})


@pytest.fixture
def process(here: Home) -> Iterator[ProcessSandbox]:
    sandbox = ProcessSandbox(here.sandboxes)
    yield sandbox
    for handle in sandbox.list():
        handle.stop(grace_s=0.1)


def sleeping(name: str) -> SandboxSpec:
    return SandboxSpec(name, (sys.executable, "-c", SLEEPER), Path("/"), trusted=True)


def test_both_kinds_are_listed_and_what_they_wrote_is_shown(
    ajet: Ajet, containers: DockerSandbox, process: ProcessSandbox, image: Image
) -> None:
    process.run(sleeping("a-process"))
    containers.run(spec(image, SLEEPER, "a-container"))
    containers.run(spec(image, "print('bye'); raise SystemExit(3)", "ended")).wait(DEADLINE_S)
    running = {row["name"]: row for row in ajet("sandbox", "ls", "--json").data["sandboxes"]}
    kinds = {name: (row["kind"], row["state"]) for name, row in running.items()}
    assert kinds == {"a-process": ("process", "running"), "a-container": ("docker", "running")}
    assert running["a-container"]["image"] == image.id
    everything = {row["name"]: row["exit"] for row in ajet("sandbox", "ls", "--json", "--all").data["sandboxes"]}
    assert everything["ended"] == {"reason": "error", "code": 3}
    table = ajet("sandbox", "ls", "--all").out
    assert ("error, code 3" in table, image.id.removeprefix("sha256:")[:12] in table) == (True, True)
    assert ajet("sandbox", "logs", "end").out == "bye\n"  # by the beginning of its name


def test_pruning_removes_what_ended_left_and_nothing_that_runs(
    ajet: Ajet, containers: DockerSandbox, image: Image, engine: ContainerEngine, here: Home
) -> None:
    containers.run(spec(image, SLEEPER, "running"))
    containers.run(spec(image, "print('last words')", "uncollected", files={"a": b"b"}))
    containers.run(spec(image, SLEEPER, "forgotten"))
    for file in (here.containers / "forgotten").iterdir():
        file.unlink()
    (here.containers / "forgotten").rmdir()
    ended = f"uncollected.{containers.installation}"
    eventually(lambda: engine.client.containers.get(ended).status == "exited", "its end")
    said = ajet("sandbox", "prune", "--json").data
    assert {(each["kind"], each["name"]) for each in said["removed"]} == {
        ("container", "uncollected"), ("container", "forgotten"),
    }  # fmt: skip
    assert held(engine, containers) == [f"/running.{containers.installation}"]
    assert (here.containers / "uncollected" / "output.log").read_text() == "last words\n"  # collected first


def test_pruning_removes_older_images_of_this_installation_only(
    ajet: Ajet, engine: ContainerEngine, image: Image, here: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = client_image.client_sources()

    def sources(text: str) -> None:
        monkeypatch.setattr(client_image, "client_sources", lambda: {**own, "swarm/mark.py": text.encode()})

    sources(f"ONE = '{tmp_path}'")
    old = ajet("sandbox", "build", "--base", image.base, "--json").data
    again = ajet("sandbox", "build", "--base", image.base)
    for part in (f"image    {old['tag']}", f"base     {image.base}", "over the base"):
        assert part in again.out
    sources(f"TWO = '{tmp_path}'")
    new = ajet("sandbox", "build", "--json").data
    try:
        assert old["tag"] != new["tag"]
        assert new["base"] == image.base  # the base of the last build
        assert 0 < new["bytes_over_base"] < 150e6
        assert f"removed image {old['tag']}" in ajet("sandbox", "prune").out
        assert identity(engine, old["tag"]) is None
        assert identity(engine, new["tag"]) == new["id"]
        assert identity(engine, image.id) == image.id  # an image that this installation never used stays
        assert ajet("sandbox", "prune").out == "nothing to remove\n"
    finally:
        for tag in (old["tag"], new["tag"]):
            if identity(engine, tag) is not None:
                engine.client.images.remove(tag)

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxes.docker.container import DockerSandbox
from sandboxes.docker.engine import connect
from sandboxes.gateway.gateway import PORTS, Gateway
from sandboxes.gateway.reverse_proxy import Upstream
from sandboxes.images.build import Image
from tests.sandboxes.attacks.conftest import Attackers

VARIABLES = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "AJET_TOKEN",
             "AJET_ADMIN_TOKEN", "GITHUB_TOKEN", "SSH_AUTH_SOCK", "PGPASSWORD", "https_proxy")  # fmt: skip
FILES = (".ssh/id_ed25519", ".netrc", ".aws/credentials", ".config/wandb/settings", ".ajet/tokens.json",
         ".cache/huggingface/token", ".git-credentials", ".ajet/runs/one/tokens.json")  # fmt: skip

ENVIRONMENT = ("PATH", "HOME", "HOSTNAME", "LANG", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED",
               "TMPDIR", "LC_CTYPE", "PWD", "PYTHON_VERSION", "PYTHON_SHA256", "GPG_KEY")  # fmt: skip
"""All that the base image, the client image and the sandbox set."""


def made_up() -> str:
    """Return what looks like a key, and is found nowhere else."""
    return f"sk-proj-{uuid.uuid4().hex}{uuid.uuid4().hex}"


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Plant keys wherever people and programs keep them; return each by its place."""
    home = tmp_path / "home"
    keys = {place: made_up() for place in (*VARIABLES, *FILES, "proxy of docker")}
    for name in VARIABLES:
        monkeypatch.setenv(name, keys[name])
    for path in FILES:
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(keys[path])
    proxy = {"proxies": {"default": {"httpProxy": f"http://user:{keys['proxy of docker']}@proxy.example:3128"}}}
    (home / ".docker").mkdir()
    (home / ".docker" / "config.json").write_text(json.dumps(proxy))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("AJET_HOME", str(home / ".ajet"))
    return keys


@pytest.fixture
def own(planted: dict[str, str], image: Image, tmp_path: Path) -> Iterator[Attackers]:
    """Return attackers started by a controller that has all those keys."""
    engine = connect({key: of for key, of in os.environ.items() if key != "https_proxy"})
    sandbox = DockerSandbox(tmp_path / "home" / ".ajet" / "sandboxes", engine)
    yield Attackers(sandbox, tmp_path, engine, image)
    sandbox.reap({})
    engine.client.close()


async def test_no_key_of_the_controller_is_in_the_container(own: Attackers, planted: dict[str, str]) -> None:
    control, token = made_up(), made_up()
    own.facts = {"backwards": [key[::-1] for key in (*planted.values(), control, token)]}
    exchange = own.root / "private" / "exchange"
    upstream = Upstream("http://127.0.0.1:9", token, lambda _: None)
    async with Gateway(exchange, upstream=upstream, log=own.root / "private" / "egress.jsonl"):
        attack = own.run(
            "scan.py", "/workspace/results/report.json", environment={"CONTROL": control, "AJET_TOKEN": "sandbox"},
            exchange=exchange, ports=dict(PORTS),
        )  # fmt: skip
        report = attack.report()
    assert set(report["found"]) == {control}  # only what was handed over on purpose, which shows that it was looked for
    assert any("environ" in path for path in report["found"][control])
    assert report["looked"] > 500
    assert set(report["names"]) <= {*ENVIRONMENT, "CONTROL", "AJET_TOKEN"}
    own.sandbox.reap({})
    folder = own.root / "home" / ".ajet" / "sandboxes"
    left = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != "results"]
    assert left
    assert not any(control.encode() in path.read_bytes() for path in left)  # not even that is written down outside

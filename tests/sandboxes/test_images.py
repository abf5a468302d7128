from __future__ import annotations

import io
import os
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from research.isolation.client_image import PACKAGES, client_sources
from sandboxes import SandboxError
from sandboxes.docker.engine import ContainerEngine
from sandboxes.docker.launch import write_tar
from sandboxes.images.build import (
    DOCKERFILE,
    WORKSPACE,
    Image,
    build,
    client_image,
    closure,
    derive_image,
    identity,
    inspect,
    parse,
    prefix_paths,
)
from tests.research.factories import make_wheel

pytestmark = pytest.mark.slow

MARKERS = {
    "implementation_name": "cpython", "implementation_version": "3.11.2", "os_name": "posix",
    "platform_machine": "x86_64", "platform_python_implementation": "CPython", "platform_system": "Linux",
    "python_full_version": "3.11.2", "python_version": "3.11", "sys_platform": "linux",
}  # fmt: skip


def never(line: str) -> None:
    raise AssertionError(f"nothing had to be made, yet: {line}")


def said(image: Image, engine: ContainerEngine, code: str) -> str:
    """Return what a program prints in a container of the image, as its own user, on a read-only root."""
    options = {"entrypoint": ["python3"], "network_mode": "none", "read_only": True, "remove": True}
    return cast(bytes, engine.client.containers.run(image.id, ["-c", code], **options)).decode()


def test_the_packages_are_those_installed_here_with_all_they_need_and_nothing_heavy() -> None:
    pins = dict(pin.split("==") for pin in closure(PACKAGES, MARKERS))
    assert {"aiohttp", "pydantic", "pydantic-core", "openai", "yarl", "typing-extensions"} <= set(pins)
    assert not {"torch", "transformers", "numpy", "fastapi", "docker", "pytest"} & set(pins)
    assert closure(["packaging"], MARKERS) == (f"packaging=={__import__('packaging').__version__}",)


def test_what_a_package_needs_is_judged_for_the_image_s_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = {"one": ["two; sys_platform == 'linux'", "three; sys_platform == 'win32'", "four; extra == 'more'"]}
    monkeypatch.setattr("importlib.metadata.requires", lambda name: needs.get(name.lower()))
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1")
    assert closure(["one"], MARKERS) == ("one==1", "two==1")
    assert closure(["one"], {**MARKERS, "sys_platform": "win32"}) == ("one==1", "three==1")
    assert closure(["One[more]"], MARKERS) == ("four==1", "one==1", "two==1")
    monkeypatch.undo()
    with pytest.raises(SandboxError, match="no-such-package"):
        closure(["no-such-package"], MARKERS)


def test_the_image_has_all_modules_of_the_client_and_no_server_backend_or_heavy_package(
    image: Image, engine: ContainerEngine
) -> None:
    parts = {path.split("/")[1].removesuffix(".py") for path in client_sources()}
    modules = {"__init__", "canonical", "errors", "job", "plugins", "snapshot", "verl_config", "wire"}
    assert parts == {"client", "environments", "job.toml", "verl_config.toml"} | modules
    sources = [path for path in client_sources() if path.endswith(".py") and not path.endswith("__main__.py")]
    names = [path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in sources]
    assert "swarm.client.transport" in names
    code = (
        "import importlib, sys, importlib.util as u\n"
        f"for name in {[*names, 'openai']!r}: importlib.import_module(name)\n"
        "from openai import DefaultAioHttpClient; DefaultAioHttpClient()\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('torch', 'transformers', 'fastapi', 'numpy')])\n"
        "heavy = ['swarm.server', 'swarm.backends', 'swarm.store', 'torch', 'fastapi', 'docker', 'research']\n"
        "print([name for name in heavy if u.find_spec(name)])"
    )
    assert said(image, engine, code) == "[]\n[]\n"


def test_the_image_runs_our_process_1_as_nobody_in_particular(image: Image, engine: ContainerEngine) -> None:
    config = engine.client.images.get(image.id).attrs["Config"]
    assert config["Entrypoint"] == ["python3", "-I", "-S", "/opt/ajet/init.py"]
    assert (config["User"], config["WorkingDir"], config["Volumes"]) == ("10001:10001", "/workspace", None)
    assert config["Labels"]["ajet.client"].startswith(image.tag.partition(":")[2])
    assert config["Labels"]["ajet.python"] == "3.11"
    assert "aiohttp==" in config["Labels"]["ajet.requirements"]
    owners = said(image, engine, "import os; print({(s := os.stat(p)).st_uid or s.st_mode & 0o22 for p in "
                                 "('/opt/ajet', '/opt/ajet/init.py', '/opt/ajet/site/swarm/wire.py')})")  # fmt: skip
    assert owners == "{0}\n"  # only root, which is nobody here, may write what is run


def test_equal_content_makes_equal_layers_whenever_it_is_built(image: Image, engine: ContainerEngine) -> None:
    tree = {"files/opt/a": b"a", **prefix_paths("files", WORKSPACE), "Dockerfile": DOCKERFILE.read_bytes()}
    context = write_tar(tree, 0o644)
    layers = []
    for _ in range(2):
        built, _log = engine.client.images.build(
            fileobj=io.BytesIO(context), custom_context=True, buildargs={"BASE_IMAGE": image.base}, nocache=True,
            rm=True, forcerm=True,
        )  # fmt: skip
        layers.append(built.attrs["RootFS"]["Layers"])
        engine.client.images.remove(built.id)
    assert layers[0] == layers[1]


def test_of_two_builds_of_one_image_at_once_both_give_that_of_the_first_to_end(
    image: Image, engine: ContainerEngine
) -> None:
    def make(number: int) -> str:
        together.wait()
        return build(engine, {"opt/a": b"a"}, image.base, "ajet-test-two:1", {"of": str(number)})

    together = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        made = set(pool.map(make, range(2)))
    assert made == {identity(engine, "ajet-test-two:1")}
    engine.client.images.remove("ajet-test-two:1")


def test_a_changed_source_is_a_new_image_on_old_packages(image: Image, engine: ContainerEngine, tmp_path: Path) -> None:
    sources, notes = {**client_sources(), "swarm/word.py": b"WORD = 'changed'"}, list[str]()
    other = client_image(engine, sources, PACKAGES, tmp_path, base=image.base, note=notes.append)
    try:
        assert notes == [f"building the client image over {image.base}"]  # no package is fetched again
        assert other.id != image.id
        assert said(other, engine, "from swarm.word import WORD; print(WORD)") == "changed\n"
    finally:
        engine.client.images.remove(other.tag)


@pytest.mark.parametrize(("changes", "found"), [
    ([], r"`python3`.*ajet-test-bare:1"), (["VOLUME /data"], r"without volumes.*ajet-test-bare:1 declares /data"),
    (None, "ajet-test-bare:1"),
], ids=["without Python", "with volumes, which nothing would bound", "that is not there"])  # fmt: skip
def test_what_is_no_base_is_one_line(
    engine: ContainerEngine, tmp_path: Path, changes: list[str] | None, found: str
) -> None:
    if changes is not None:
        data = write_tar({"etc/nothing": b""}, 0o644)
        engine.client.api.import_image_from_data(data, repository="ajet-test-bare", tag="1", changes=changes)
    try:
        with pytest.raises(SandboxError, match=found):
            inspect(engine, "ajet-test-bare:1", tmp_path)
        assert list(tmp_path.iterdir()) == []  # what failed is asked again
    finally:
        if changes is not None:
            engine.client.images.remove("ajet-test-bare:1")


GREETER = b"import idna\nWORD = 'hello ' + idna.__version__"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: Image, engine: ContainerEngine) -> Path:
    folder = tmp_path / "index"
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(name, value)
    make_wheel(folder, "greeter", "1.0", {"greeter/__init__.py": GREETER}, "idna")
    pins = dict(pin.split("==") for pin in closure(PACKAGES, inspect(engine, image.base, tmp_path).markers))
    make_wheel(folder, "idna", pins["idna"], {"idna/__init__.py": b"__version__ = 'not the client own'"})
    make_wheel(folder, "idna", "0.1", {"idna/__init__.py": b""})
    with tarfile.open(folder / "sourced-1.0.tar.gz", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("sourced-1.0/setup.py"))
    return folder


def test_a_requirements_txt_adds_its_packages_and_leaves_the_client_s_own(
    image: Image, engine: ContainerEngine, index: Path, tmp_path: Path
) -> None:
    assert derive_image(engine, image, "\n# nothing\n", tmp_path, note=never) == image
    made = derive_image(engine, image, "# an agent's\ngreeter>=1  # the newest\n\n", tmp_path, note=print)
    try:
        assert made.tag.startswith("ajet-client-extra:")
        assert "hello 3." in said(made, engine, "import greeter; print(greeter.WORD)")
        assert said(made, engine, "import os; print(sorted(os.listdir('/opt/ajet/extra')))").count("idna") == 0
        labels = engine.client.images.get(made.id).labels
        assert labels["ajet.parent"] == image.id
        assert "ajet.client" in labels
        assert derive_image(engine, image, "greeter >=1", tmp_path, note=never) == made
    finally:
        engine.client.images.remove(made.tag)


@pytest.mark.parametrize(("requirements", "complaint"), [
    ("idna==0.1", "(conflict|constraint)"), ("sourced", "sourced"), ("none-such-of-ours", "none-such-of-ours"),
])  # fmt: skip
def test_what_pip_cannot_bring_built_and_in_agreement_is_one_line(
    image: Image, engine: ContainerEngine, index: Path, tmp_path: Path, requirements: str, complaint: str
) -> None:
    with pytest.raises(SandboxError, match=f"pip could not.*{complaint}") as refused:
        derive_image(engine, image, requirements, tmp_path, note=print)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("line", [
    "-e .", "--index-url https://x", "-r other.txt", "./folder", "git+https://x/y", "a @ https://x/y.whl", "a b", "a=1",
])  # fmt: skip
def test_a_line_that_is_no_plain_requirement_is_refused_with_its_number(line: str) -> None:
    with pytest.raises(SandboxError, match="line 3"):
        parse(f"numpy>=2\n# comment\n{line}\n")

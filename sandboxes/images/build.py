"""Images: base, client and derived, by `docker build` from reproducible trees of files.

Equal trees are equal tars, byte for byte, compiled with the image's own Python and unchecked hashes, as times are not
kept and a read-only root must start without compiling.

The client image holds our process 1, the light client and its packages (at the very versions installed here), no torch
and no server; its tag names what went in. A derived image adds plain requirements of a requirements.txt. Packages come
by this machine's pip as built wheels, and none of their code runs here. Equal lines over an equal parent are the same
image even when newer versions have appeared: pin what must not vary.
"""

import hashlib
import io
import json
import posixpath
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from sandboxes.docker.engine import ContainerEngine, EngineMissing, EngineRefusal, wrap_errors
from sandboxes.docker.launch import write_tar
from sandboxes.shim import write_atomic
from sandboxes.spec import SandboxError

if TYPE_CHECKING:
    from docker.models.containers import Container

OLDEST_PYTHON = (3, 11)
ASK_TIMEOUT_S = 60.0
BUILD_LABEL = "ajet.kind=image-build"
"""On the containers that ask and compile for images, which live for seconds."""

_ASK = """
import asyncio, importlib.util, json, os, platform, sys
print(json.dumps({
    "version": list(sys.version_info[:2]),
    "libc": " ".join(platform.libc_ver()).strip(),
    "library": os.path.realpath(os.path.dirname(os.__file__)),
    "compiled": os.path.exists(importlib.util.cache_from_source(asyncio.__file__)),
    "markers": {
        "implementation_name": sys.implementation.name,
        "implementation_version": platform.python_version(),
        "os_name": os.name,
        "platform_machine": platform.machine(),
        "platform_python_implementation": platform.python_implementation(),
        "platform_system": platform.system(),
        "python_full_version": platform.python_version(),
        "python_version": ".".join(platform.python_version_tuple()[:2]),
        "sys_platform": sys.platform,
    },
}))
"""
Tree = Mapping[str, bytes]
"""Contents by relative path, with `/` between its parts."""
TIMEOUT_S = 900.0
_COMPILE = ("-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash")
_UNUSED = r"/(test|idlelib|tkinter|turtledemo|lib2to3|ensurepip|(site|dist)-packages)/"
"""Parts of a standard library that no client imports, and packages of the base's own."""
Note = Callable[[str], None]
"""Tells people what is being done, in a line, before anything slow."""

PLACE = "opt/ajet"
"""Where everything of ours lies in an image, from its root."""

INSIDE = Path(__file__).parents[1] / "inside"
DOCKERFILE = Path(__file__).with_name("client") / "Dockerfile"
WORKSPACE: Tree = {"workspace/.keep": b""}
"""The folder that commands start in: made by the copy, since one that the build makes has the time of the build."""
PACKAGES_REPOSITORY = "ajet-client-packages"
BUILD_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class BaseImage:
    """A base image and its Python."""

    name: str
    id: str
    version: Sequence[int]
    libc: str
    """As `glibc 2.36`; empty for musl."""
    library: str
    compiled: bool
    """Whether that was compiled; python's official images delete what was."""
    markers: Mapping[str, str]
    """What packages' requirements depend on, as `python_version`."""

    @property
    def python(self) -> str:
        return ".".join(str(part) for part in self.version)

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platform tags of wheels that it can load, the most exact first."""
        machine = self.markers["platform_machine"]
        glibc = re.fullmatch(r"glibc 2\.(\d+).*", self.libc)
        if glibc is None:
            return tuple(f"musllinux_1_{minor}_{machine}" for minor in range(2, -1, -1))
        exact = [f"manylinux_2_{minor}_{machine}" for minor in range(int(glibc[1]), 4, -1)]
        return (*exact, *(f"manylinux{year}_{machine}" for year in ("2014", "2010", "1")), f"linux_{machine}")


def inspect(engine: ContainerEngine, name: str, cache: Path) -> BaseImage:
    """Return what the present image `name` brings; asked once per image, and kept in the folder `cache`."""
    if (found := identity(engine, name)) is None:
        raise SandboxError(f"expected a base image {name}; the engine at {engine.host} has none of that name")
    kept = cache / f"base-{found.removeprefix('sha256:')[:32]}.json"
    if not kept.exists():
        facts = _ask(engine, name, found)
        cache.mkdir(parents=True, exist_ok=True)
        write_atomic(kept, facts)
    return BaseImage(name, found, **json.loads(kept.read_text(encoding="utf-8")))


def identity(engine: ContainerEngine, name: str) -> str | None:
    with suppress(EngineMissing), wrap_errors(engine, f"looking for image {name}"):
        return str(engine.client.images.get(name).id)
    return None


@contextmanager
def python_in(engine: ContainerEngine, image: str, *arguments: str) -> "Iterator[Container]":
    """Yield, then remove, a created container of the image's Python: for our code alone, as root, without network."""
    with wrap_errors(engine, f"running the Python of image {image[:19]}"):
        container = engine.client.containers.create(
            image, ["-S", "-B", *arguments], entrypoint=["python3"], environment={"PYTHONHASHSEED": "0"},
            network_mode="none", user="0:0", cap_drop=["ALL"], security_opt=["no-new-privileges"], pids_limit=64,
            working_dir="/", labels=dict([BUILD_LABEL.split("=")]),
        )  # fmt: skip
        try:
            yield container
        finally:
            container.remove(force=True, v=True)


def last_line(container: "Container") -> str:
    lines = container.logs(tail=20).decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "nothing"


def _ask(engine: ContainerEngine, name: str, identity: str) -> dict[str, Any]:
    with wrap_errors(engine, f"looking at image {name}"):
        volumes = (engine.client.images.get(name).attrs["Config"] or {}).get("Volumes")
    if volumes:
        raise SandboxError(
            f"expected a base image without volumes, for nothing bounds their size; {name} declares "
            f"{', '.join(volumes)}; name another"
        )
    try:
        with python_in(engine, identity, "-c", _ASK) as container:
            container.start()
            if container.wait(timeout=ASK_TIMEOUT_S)["StatusCode"] != 0:
                raise SandboxError(
                    f"expected Python in base image {name}; asked about it, it said {last_line(container)}"
                )
            said: dict[str, Any] = json.loads(container.logs(stdout=True, stderr=False))
    except EngineRefusal as error:
        raise SandboxError(
            f"expected `python3` in base image {name}; found none that starts ({error}); name another with --base, as "
            "python:3.11-slim"
        ) from error
    if tuple(said["version"]) < OLDEST_PYTHON:
        found = ".".join(map(str, said["version"]))
        raise SandboxError(f"expected Python 3.11 or newer in base image {name}; found {found}; name another")
    return said


def read_tree(folder: Path) -> dict[str, bytes]:
    """Return the files in a folder, without what an interpreter compiled from them."""
    found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    named = ((path.relative_to(folder).as_posix(), path) for path in found)
    return {name: path.read_bytes() for name, path in named if "/__pycache__/" not in f"/{name}"}


def prefix_paths(prefix: str, tree: Tree) -> dict[str, bytes]:
    return {f"{prefix}/{path}": content for path, content in tree.items()}


def digest(*parts: str | Tree) -> str:
    """Return a hash of texts and trees in which no two different lists of parts read the same."""
    whole = hashlib.sha256()
    for part in parts:
        files = {"": part.encode()} if isinstance(part, str) else part
        whole.update(f"{len(files)}\n".encode())
        for path in sorted(files):
            whole.update(f"{len(path.encode())} {path} {len(files[path])}\n".encode() + files[path])
    return whole.hexdigest()


def compile_tree(engine: ContainerEngine, base: BaseImage, tree: Tree) -> dict[str, bytes]:
    """Return the tree, by path in an image, with what the base's Python compiles of it; not all source is valid."""
    return {**tree, **_compile(engine, base, tree, "/" + posixpath.commonpath(map(posixpath.dirname, tree)), ())}


def _compile(
    engine: ContainerEngine, base: BaseImage, tree: Tree, folder: str, options: Sequence[str]
) -> dict[str, bytes]:
    with python_in(engine, base.id, *_COMPILE, *options, folder) as container:
        if tree:
            container.put_archive("/", write_tar(tree, 0o644))
        container.start()
        if container.wait(timeout=TIMEOUT_S)["StatusCode"] not in (0, 1):
            raise SandboxError(f"{base.name}: its Python could not compile for the image: {last_line(container)}")
        data = b"".join(container.get_archive(folder)[0])
    above, compiled = posixpath.dirname(folder).lstrip("/"), dict[str, bytes]()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:  # of a container of ours
        for entry in tar:
            if entry.name.endswith(".pyc") and entry.isfile() and (file := tar.extractfile(entry)) is not None:
                compiled[posixpath.join(above, entry.name)] = file.read()
    return compiled


def closure(roots: Sequence[str], markers: Mapping[str, str]) -> tuple[str, ...]:
    """Return `name==version`, sorted, of the roots and all that they need where the markers hold, as installed here."""
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    left = [Requirement(root) for root in roots]
    while left:
        wanted = left.pop()
        name, extras = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            found[name] = metadata.version(wanted.name)
        except metadata.PackageNotFoundError as error:
            raise SandboxError(
                f"expected package {wanted.name} here, as the client needs it; found none; install ajet again"
            ) from error
        for need in map(Requirement, metadata.requires(wanted.name) or []):
            environments = [{**markers, "extra": extra} for extra in {*extras, ""}]
            if need.marker is None or any(need.marker.evaluate(environment) for environment in environments):
                left.append(need)
    return tuple(f"{name}=={found[name]}" for name in sorted(found))


def install(pins: Sequence[str], base: BaseImage) -> Tree:
    """Return exactly these packages for the base, without what a running client never reads."""
    with tempfile.TemporaryDirectory(prefix="ajet-packages-") as folder:
        _pip(("--no-deps", *pins), base, Path(folder))
        tree = read_tree(Path(folder))
    useless = re.compile(r"bin/.*|.*\.(pyi|pyx|pxd|c|h)|.*\.dist-info/(RECORD|INSTALLER|REQUESTED|direct_url\.json)")
    return {path: content for path, content in tree.items() if not useless.fullmatch(path)}


def resolve(requirements: Iterable[str], constraints: Iterable[str], base: BaseImage) -> Tree:
    """Return what the requirements need on the base, at versions that agree with the constraints."""
    with tempfile.TemporaryDirectory(prefix="ajet-packages-") as folder:
        bounds, target = Path(folder) / "constraints.txt", Path(folder) / "site"
        bounds.write_text("\n".join(constraints), encoding="utf-8")
        _pip(("--constraint", str(bounds), *requirements), base, target)
        return read_tree(target)


def _pip(arguments: Sequence[str], base: BaseImage, target: Path) -> None:
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "--no-compile",
        "--only-binary=:all:", "--implementation", "cp", "--python-version", base.python,
        *(f"--platform={platform}" for platform in base.platforms), "--target", str(target), *arguments,
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise SandboxError(
            f"pip did not bring the packages in {TIMEOUT_S:.0f} s; see that its index answers"
        ) from error
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        reason = " ".join(errors[-2:]) if errors else (lines or ["it said nothing; is pip installed here?"])[-1]
        raise SandboxError(f"pip could not bring the packages for Python {base.python}: {reason}")


@dataclass(frozen=True, slots=True)
class Image:
    """An image that containers may start from: its id in the engine, the tag that names what it holds, its base."""

    id: str
    tag: str
    base: str


def client_image(
    engine: ContainerEngine, sources: Tree, roots: Sequence[str], cache: Path, *, base: str, note: Note
) -> Image:
    """Return the client image over the present image `base`, building it when the engine has none of its content: with
    modules (`sources`, by path) and requirements (`roots`) with all they need, at the versions installed here."""
    found = inspect(engine, base, cache)
    pins = closure(roots, found.markers)
    inside = {path: content for path, content in read_tree(INSIDE).items() if path != "__init__.py"}
    own = {**prefix_paths(PLACE, inside), **prefix_paths(f"{PLACE}/site", sources)}
    content = digest(found.id, "\n".join(pins), own, DOCKERFILE.read_text())
    tag = f"ajet-client:{content[:16]}"
    if (present := identity(engine, tag)) is not None:
        return Image(present, tag, base)
    below = f"{PACKAGES_REPOSITORY}:{digest(found.id, *pins, DOCKERFILE.read_text())[:16]}"
    if identity(engine, below) is None:
        note(f"fetching {len(pins)} packages of the client for Python {found.python}")
        tree = compile_tree(engine, found, prefix_paths(f"{PLACE}/site", install(pins, found)))
        if not found.compiled:
            note(f"compiling the standard library of {base}")
            library = _compile(engine, found, {}, found.library, ("-x", _UNUSED))
            tree |= {path: data for path, data in library.items() if re.search(_UNUSED, f"/{path}") is None}
        note(f"building the image of the client's packages over {base}")
        labels = {"ajet.python": found.python, "ajet.base": found.id, "ajet.requirements": " ".join(pins)}
        build(engine, tree, base, below, labels)
    note(f"building the client image over {base}")
    return Image(build(engine, compile_tree(engine, found, own), below, tag, {"ajet.client": content}), tag, base)


def build(engine: ContainerEngine, files: Tree, below: str, tag: str, labels: Mapping[str, str]) -> str:
    """Build an image that adds files, by path from its root, to the image `below`, by a copy alone; return the id that
    the tag has then: of two builds at once that of the first to end."""
    from docker.errors import BuildError

    tree = {**prefix_paths("files", {**files, **WORKSPACE}), "Dockerfile": DOCKERFILE.read_bytes()}
    context = write_tar(tree, 0o644)
    try:
        with wrap_errors(engine, f"building image {tag} over {below}"):
            image, _ = engine.client.images.build(
                fileobj=io.BytesIO(context), custom_context=True, buildargs={"BASE_IMAGE": below},
                labels=dict(labels), network_mode="none", rm=True, forcerm=True, timeout=BUILD_TIMEOUT_S,
            )  # fmt: skip
            if (first := identity(engine, tag)) is None:
                image.tag(*tag.rsplit(":", 1))
    except BuildError as error:
        raise SandboxError(f"the engine at {engine.host} could not build {tag} over {below}: {error}") from error
    return first or str(image.id)


def derive_image(engine: ContainerEngine, parent: Image, requirements: str, cache: Path, *, note: Note) -> Image:
    """Return `parent` with what the text of a requirements.txt names; the parent itself when it names nothing."""
    wanted = parse(requirements)
    if not wanted:
        return parent
    content = digest(parent.id, "\n".join(wanted))
    tag = f"ajet-client-extra:{content[:16]}"
    if (present := identity(engine, tag)) is not None:
        return Image(present, tag, parent.base)
    base = inspect(engine, parent.id, cache)
    what = f"{len(wanted)} requirement{'s'[: len(wanted) > 1]}"
    note(f"fetching what {what} need for Python {base.python}")
    pins = str(engine.client.images.get(parent.id).labels.get("ajet.requirements", "")).split()
    own: set[str] = {canonicalize_name(Requirement(pin).name) for pin in pins}
    tree, dropped = resolve(wanted, pins, base), set[str]()  # without what the client has, as its RECORDs list it
    for path, listed in tree.items():
        folder, _, file = path.partition("/")
        if file == "RECORD" and canonicalize_name(folder.removesuffix(".dist-info").rpartition("-")[0]) in own:
            dropped |= {line.split(",")[0] for line in listed.decode().splitlines()}
    extra = {path: installed for path, installed in tree.items() if path not in dropped}
    files = compile_tree(engine, base, prefix_paths(f"{PLACE}/extra", extra))
    note(f"building the image of {what} over {parent.tag}")
    made = build(engine, files, parent.tag, tag, {"ajet.derived": content, "ajet.parent": parent.id})
    return Image(made, tag, parent.base)


def parse(requirements: str) -> tuple[str, ...]:
    """Return the requirements of a requirements.txt, sorted; raise SandboxError at a line that is none."""
    found = set()
    for number, line in enumerate(requirements.splitlines(), start=1):
        text = line.split(" #")[0].strip()
        if not text or text.startswith("#"):
            continue
        try:
            wanted = Requirement(text)
            if wanted.url is not None:
                raise InvalidRequirement("an address")
        except InvalidRequirement as error:
            raise SandboxError(
                f"line {number} of the requirements: expected a name with versions, as `numpy>=2`, since only built "
                f"packages of an index are taken; found {text.partition('@')[0][:80]!r}"
            ) from error
        found.add(str(wanted))
    return tuple(sorted(found))

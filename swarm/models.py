"""Model folders without torch: the card of an exported one, what a check measured, whether one is whole, and its hash.

A card says which training the model came out of and nothing that nobody measured; a check's figures were measured on
this machine under the `conditions` beside them. A folder that cannot be a model is refused in one line. The hash is
sha256 over names and contents of the files that decide what is computed (config, weights, tokenizer, template); hashes
are remembered in a file: one is read again only when its size or time of change differs.

A tiny model of a built-in environment is kept in the user's cache folder, too, and copied from there into other
installations: by its hash, for the same code, packages and CPU. AJET_MODEL_CACHE=0 switches that off.
"""

import hashlib
import json
import logging
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from swarm.errors import InvalidRequest
from swarm.job import Job, TinyModel

_log = logging.getLogger(__name__)

CARD = "ajet.json"
"""The card's file that a program reads; a person reads `README.md`."""

Adapter = Literal["none", "merged", "apart"]


class MeasuredSuccess(BaseModel):
    """All evaluation episodes that began under the weights of one step, and ended."""

    model_config = ConfigDict(frozen=True)

    episodes: int
    tasks: int
    """Different ones among them."""
    reward: float
    """Mean over the episodes."""
    success: float | None
    """Share that succeeded, of those that said whether they did; None where none did."""


class ModelCard(BaseModel):
    """Where an exported model comes from; hashes are sha256 in hex."""

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = 1
    ajet: str
    """Version that wrote it."""
    job_digest: str
    job: Mapping[str, Any]
    environment: str
    """Of one that was brought, the name ends in the hash of its code and tasks."""
    step: int
    checkpoint: str
    dtype: str
    adapter: Adapter
    base: str
    """Folder of the model that training began with."""
    base_weights: str
    """Hash of these weights, as a server's status tells it (`provenance`)."""
    template: str
    """Hash of the chat template."""
    sha256: str
    """`swarm.models.folder_hash` of the exported folder: what a job's `model.sha256` says of it."""
    data: Mapping[str, str] = Field(default_factory=dict)
    """By stream, the digest of its task list (`swarm.wire.tasks_digest`); of streams that listed theirs."""
    trained_episodes: int
    """Episodes that these weights learned from."""
    measured: MeasuredSuccess | None
    """None: nothing was measured of these weights."""

    def readme(self) -> str:
        tags = ["reinforcement-learning", "ajet", *(["lora"] if self.adapter != "none" else [])]
        front = ["library_name: peft" if self.adapter == "apart" else "library_name: transformers"]
        front += ["pipeline_tag: text-generation", "tags:", *(f"- {tag}" for tag in tags)]
        if self.adapter == "apart":
            front.append(f"base_model: {json.dumps(self.base)}")
        measured = "nothing: no evaluation episode was played with these weights"
        if (seen := self.measured) is not None:
            success = "" if seen.success is None else f", success {seen.success:.4g}"
            plays = f"{seen.episodes} evaluation episodes of {seen.tasks} tasks"
            measured = f"mean reward {seen.reward:.4g}{success} over {plays}"
        facts = [
            ("job", f"`{self.job_digest}`"),
            ("environment", f"`{self.environment}`"),
            ("step", f"{self.step} (checkpoint `{self.checkpoint}`)"),
            ("trained on", f"{self.trained_episodes} episodes"),
            ("measured", measured),
            ("began with", f"`{self.base}`, weights `{self.base_weights}`"),
            ("chat template", f"`{self.template}`"),
            *((f"task list of stream `{name}`", f"`{digest}`") for name, digest in sorted(self.data.items())),
            ("this folder", f"{self.dtype}, `{self.sha256}`"),
            ("written by", f"ajet {self.ajet}"),
        ]
        rows = "\n".join(f"| {name} | {value} |" for name, value in facts)
        return "\n".join(
            ["---", *front, "---", "", f"# {self.environment}, step {self.step}", "", _USE[self.adapter]]
        ) + (f"\n\n| what | value |\n|---|---|\n{rows}\n\nThe job, whole, and all hashes: `{CARD}`.\n")


_USE: Mapping[Adapter, str] = {
    "none": "All weights were trained. `transformers.AutoModelForCausalLM.from_pretrained` loads this folder.",
    "merged": "A LoRA adapter was trained and is merged into the weights. "
    "`transformers.AutoModelForCausalLM.from_pretrained` loads this folder.",
    "apart": "A LoRA adapter: `peft.PeftModel.from_pretrained(base, folder)` puts it on the model named below.",
}

_DECIDE = (
    "device", "dtype", "engine", "lora_rank", "gradient_checkpointing", "merging", "micro_batch_tokens", "max_context",
    "max_concurrency", "kv_cache_bytes",
)  # fmt: skip
"""Fields of a job that speed and memory depend on, beside its model."""


def conditions(job: Job) -> dict[str, Any]:
    """Return the fields of a job by which a check of its model holds for another job."""
    return job.model_dump(mode="json", include=set(_DECIDE))


class TemplateCheck(BaseModel):
    """What a chat template does with the messages that agents send."""

    model_config = ConfigDict(frozen=True)

    answers: str
    """How answers are read, by the marks in the template: `plain`, `hermes`, `llama3`, ..."""
    tools: Literal["rendered", "ignored", "refused"]
    """What becomes of tools: they are in the prompt, they are left out without a word, or the template fails."""
    tools_refusal: str | None
    """Why the template fails on tools."""
    thinking: bool
    """Whether thought is told from words in an answer."""
    system: bool
    """Whether it takes a system message."""


class ModelCheck(BaseModel):
    """One check of one model folder; seconds are of the wall clock, with nothing else counted in."""

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = 1
    folder: str
    folder_hash: str
    """`swarm.models.folder_hash` of it."""
    conditions: dict[str, Any]
    """`conditions(job)` of the job it was checked as."""
    threads: int
    """Threads that torch computed with."""
    architecture: str
    parameters: int
    trained_parameters: int
    """As many as `parameters`, or the adapter's."""
    positions: int | None
    """Most tokens of a sequence by its configuration."""
    template: TemplateCheck
    fused: bool
    """Whether the engine's own forward serves it."""
    fused_lost: str | None
    """Why not."""
    trees: bool
    """Whether rows that share a beginning are learned as trees."""
    trees_lost: str | None
    """Why not."""
    logprob_gap: float
    """Most by which a log-prob of the engine differs from that of a plain forward by eager attention."""
    logprob_tolerance: float
    """Most that would be served."""
    load_s: float
    seconds_per_prompt_token: float
    seconds_per_generated_token: float
    """With `at_once` episodes side by side; alone each takes longer."""
    seconds_per_learned_token: float
    """Of all ids that an update feeds (`tokens/forward` of a step): a prompt that a group shares once where there are
    trees, else once for each episode."""
    fed_per_sampled_token: float
    """Ids that the measured updates fed for each sampled one they learned: 2 with trees, 5 without, for groups of 4
    with prompts of 64 tokens and answers of 16."""
    busy: float
    """Seconds of processor that the check got, as a share of what its threads could have had meanwhile. Far below 1,
    other programs held it up, and alone it is as much faster. 1 where no CPU computes."""
    at_once: int
    """Episodes that were generated side by side."""
    loaded_bytes: int
    """Memory of the process with the model loaded and its cache laid out."""
    peak_bytes: int
    """Most memory that the process had at any time; on a GPU, of the GPU."""
    cache_bytes_per_token: int
    fits_at_once: int
    """Episodes of max_context that the engine advances at once within the job's bounds and this machine's memory."""
    memory_holds: int
    """Episodes of max_context whose keys and values the free memory would hold, whatever the job's bounds."""


TEMPLATE = "chat_template.jinja"
WHAT_IS_NEEDED = "config.json, *.safetensors, tokenizer.json and a chat template"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_POINTER = b"version https://git-lfs"
_LONGEST_HEADER = 100 << 20
"""Bytes; longer ones are refused by safetensors too."""


def model_place(path: str, models: Path) -> Path:
    """Return where a model lies: a bare name is in `models`, or else in the working directory; the rest are paths."""
    kept, bare = models / path, "/" not in path and path not in ("", ".", "..")
    return kept if bare and (kept.is_dir() or not Path(path).is_dir()) else Path(path)


def require_model_folder(path: str | Path) -> None:
    """Raise InvalidRequest with the first thing that keeps `path` from being the folder of a whole chat model."""
    folder = Path(path)
    if folder.is_file():
        advice = f"give the folder it lies in, with {WHAT_IS_NEEDED}"
        if folder.suffix == ".gguf":
            advice = "quantised GGUF is not trained; give a folder of the model in safetensors"
        raise InvalidRequest(f"expected the folder of a model, found the file {folder}: {advice}")
    if not folder.is_dir() and _HUB_ID.fullmatch(str(path)) and not folder.parent.is_dir():
        raise InvalidRequest(
            f"expected the folder of a model, found {str(path)!r}, which is no folder here but looks like the name of "
            f"a model on a hub, from which nothing is loaded by itself: get a folder of it first (hf download {path} "
            f"--local-dir {folder.name}) and give that one"
        )
    if not folder.is_dir():
        raise InvalidRequest(
            f"expected the folder of a model at {folder}, found no such folder: mend the path, or see `ajet model list`"
        )
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise InvalidRequest(
            f"expected a whole model in {folder}, found an adapter alone: merge it into its model and save that one"
        )
    if not (folder / "config.json").is_file():
        below = next((config.parent for config in sorted(folder.glob("snapshots/*/config.json"))), None)
        instead = f"give {below}" if below else f"give the folder of a model, with {WHAT_IS_NEEDED}"
        raise InvalidRequest(f"{folder} holds no config.json: {instead}")
    if not isinstance(_json(folder / "config.json").get("model_type"), str):
        raise InvalidRequest(f"expected {folder / 'config.json'} to name a model_type, found none: copy it again")
    _look_at_weights(folder)
    _look_at_tokenizer(folder)


def _look_at_weights(folder: Path) -> None:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        others = sorted(each.name for kind in ("*.bin", "*.pt", "*.pth", "*.gguf") for each in folder.glob(kind))
        found = f" but {others[0]}, which is not loaded" if others else ""
        raise InvalidRequest(f"{folder} holds no *.safetensors{found}: save the model's weights as safetensors there")
    for index in folder.glob("*.safetensors.index.json"):
        named = _json(index).get("weight_map")
        missing = sorted({str(name) for name in named.values()} - {each.name for each in files}) if named else []
        if missing:
            raise InvalidRequest(
                f"{folder} lacks {len(missing)} of the files of its weights ({missing[0]}): copy the whole model"
            )
    for path in files:
        size, expected = path.stat().st_size, _expected_bytes(path)
        if size != expected:
            raise InvalidRequest(
                f"expected {expected:,} bytes in {path} by its own header, found {size:,}: it was not copied whole, "
                "copy it again"
            )


def _expected_bytes(path: Path) -> int:
    size = path.stat().st_size
    with path.open("rb") as file:
        beginning = file.read(len(_POINTER))
        if beginning == _POINTER:
            raise InvalidRequest(f"{path} is a Git LFS pointer, not the weights: fetch them (git lfs pull)")
        header = 8 + int.from_bytes(beginning[:8], "little")
        if size >= 8 and size < header < _LONGEST_HEADER:
            return header
        file.seek(8)
        try:
            named = json.loads(file.read(header - 8) if header <= size else b"")
            return header + max(int(each["data_offsets"][1]) for name, each in named.items() if name != "__metadata__")
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise InvalidRequest(f"{path} is no file of safetensors: copy it again") from error


def _look_at_tokenizer(folder: Path) -> None:
    if not (folder / "tokenizer.json").is_file():
        raise InvalidRequest(f"{folder} holds no tokenizer.json: save the model's fast tokenizer there")
    settings = folder / "tokenizer_config.json"
    if (folder / TEMPLATE).is_file() or any(folder.glob("additional_chat_templates/*.jinja")):
        return
    if not (settings.is_file() and _json(settings).get("chat_template")):
        raise InvalidRequest(
            f"the tokenizer in {folder} has no chat template: use a chat model, or put its {TEMPLATE} there"
        )


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"expected JSON in {path}, could not read it ({error}): copy it again") from error
    if not isinstance(found, dict):
        raise InvalidRequest(f"expected a JSON object in {path}, found another value: copy it again")
    return found


_TOKENIZER = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.model", "*.tiktoken",
    "*.jinja", "chat_template.*", "additional_chat_templates/*.jinja",
)  # fmt: skip
_COUNT = ("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json", *_TOKENIZER)
_MEMORY = "hashes.json"
_YOUNG_S = 2.0
"""Seconds within which a file may change again without another time of change: such a one is not remembered."""


def folder_hash(folder: Path, memory: Path | None = None) -> str:
    """Return a model folder's hash in hex; files' hashes are kept in `memory` if possible. OSError if unreadable."""
    entries = _read(memory)
    fresh: dict[str, Any] = {}
    total = hashlib.sha256()
    for path in _files(folder, _COUNT):
        total.update(f"{path.relative_to(folder).as_posix()}\n{_file_hash(path, entries, fresh)}\n".encode())
    if memory is not None and fresh:
        draft = memory / f".{_MEMORY}.{os.getpid()}"
        try:
            memory.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps({**_read(memory), **fresh}))
            draft.replace(memory / _MEMORY)
        except OSError:  # a disk that is full or read-only: the next caller reads the files again
            draft.unlink(missing_ok=True)
    return total.hexdigest()


def tokenizer_files(folder: Path) -> list[Path]:
    return _files(folder, _TOKENIZER)


def _files(folder: Path, patterns: Iterable[str]) -> list[Path]:
    return sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})


def _file_hash(path: Path, known: dict[str, Any], fresh: dict[str, Any]) -> str:
    name, state = str(path.absolute()), path.stat()
    now = [state.st_size, state.st_mtime_ns]
    remembered = known.get(name)
    if isinstance(remembered, list) and len(remembered) == 3 and remembered[:2] == now:
        return str(remembered[2])
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if time.time() - state.st_mtime > _YOUNG_S:
        fresh[name] = [*now, digest]
    return digest


def _read(memory: Path | None) -> dict[str, Any]:
    if memory is None:
        return {}
    try:
        found = json.loads((memory / _MEMORY).read_bytes())
    except (OSError, ValueError):  # it is only remembered, and read again
        return {}
    return found if isinstance(found, dict) else {}


def fill_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Return `folder`, filled by `make`, all or nothing, or by somebody who was faster. OSError, and what it raises."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        make(scratch)
        scratch.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


TINY_VERSION = 4
"""Raise it when a change of code (player, tokenizer, recipe) gives other weights for the same spec, not for another
template alone. A folder of one of `_EARLIER` goes on being used: later runs of a study begin as its first ones did."""
_EARLIER = (3,)


def tiny_hash(spec: TinyModel, environment: str, version: int = TINY_VERSION) -> str:
    """Return the name of a tiny model's folder: 16 hex digits of a hash over spec, environment and code version."""
    parts = {"version": version, "environment": environment, "spec": spec.value()}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def tiny_folder(spec: TinyModel, environment: str, models: Path) -> Path:
    """Return where the model is under `models`, made by whichever version, else where it is to be made."""
    folders = [models / tiny_hash(spec, environment, version) for version in (*_EARLIER, TINY_VERSION)]
    return next(filter(Path.is_dir, folders), folders[-1])


_SUM, _CACHED_BYTES = "sha256", 32 << 20
"""The file among a tiny model's that has its hash; the size of the largest that is cached."""


def find_tiny(spec: TinyModel, environment: str, models: Path) -> Path | None:
    """Return the model's folder under `models`, copied out of the user's cache if need be; None if it is to be made."""
    folder, cached = tiny_folder(spec, environment, models), _cached_folder(spec, environment)
    if folder.is_dir() or cached is None or not os.path.isdir(cached):  # Path's own raises where it may not look
        return folder if folder.is_dir() else None

    def copy(scratch: Path) -> None:
        shutil.copytree(cached, scratch, dirs_exist_ok=True)
        kept = scratch / _SUM
        if not kept.is_file() or folder_hash(scratch).encode() != kept.read_bytes():
            raise ValueError(f"expected the model in {cached} as it was kept, found it changed: it is made again")

    try:
        return fill_once(folder, copy)
    except (OSError, ValueError) as error:
        _log.warning("event=model_not_copied reason=%r", str(error))
        if isinstance(error, ValueError):
            shutil.rmtree(cached, ignore_errors=True)  # so that the next one made takes its place
        return None


def keep_tiny(folder: Path, spec: TinyModel, environment: str) -> Path:
    """Copy a model that was made into the user's cache, if possible, and return its folder."""
    cached = _cached_folder(spec, environment)
    if cached and not os.path.isdir(cached) and sum(path.stat().st_size for path in folder.iterdir()) <= _CACHED_BYTES:
        try:
            (folder / _SUM).write_text(folder_hash(folder))
            fill_once(cached, lambda scratch: shutil.copytree(folder, scratch, dirs_exist_ok=True))
        except OSError as error:
            _log.info("event=model_not_cached reason=%r", str(error))
    return folder


def _cached_folder(spec: TinyModel, environment: str) -> Path | None:
    """Return where the user's cache has what is made of `spec` here, or None: weights differ in their last bits where
    code, packages or CPU do. One of an environment that was brought is not cached."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    if os.environ.get("AJET_MODEL_CACHE") == "0" or "@" in environment or not root.is_absolute():
        return None
    packages = [each.version for name in ("torch", "transformers", "tokenizers") for each in distributions(name=name)]
    cpu = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else platform.processor()
    features = sorted(set(re.findall(r"^(?:model name|flags|CPU part|Features).*", cpu, re.MULTILINE))) or [cpu]
    files = (Path(__file__).with_name("backends") / "tiny_model.py", *Path(__file__).parent.glob("environments/*.py"))
    made_by = (tiny_hash(spec, environment), packages, features, [path.read_bytes() for path in sorted(files)])
    return root / "ajet" / "models" / hashlib.sha256(repr(made_by).encode()).hexdigest()[:16]

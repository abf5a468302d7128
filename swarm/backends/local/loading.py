"""Loading: from a model folder and a job to the policy, in its type, with its adapter.

Every problem is one BackendError, and all but missing or damaged weights are found before any weight is read. Engine
and learner rely on each token seeing all before it and depending on those alone: windows, and rotary frequencies that
follow a batch's longest sequence, limit `max_context`. Of memory only what is certain is counted (weights, gradients,
optimiser, reference, key-value cache), so that what is refused could not have run. A person's OMP_NUM_THREADS stands;
one that `ajet` set (AJET_RUNS_AT_ONCE is beside it) is shared among runs.
"""

import hashlib
import inspect
import json
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import psutil
import torch
from torch import Tensor, nn

from swarm.backends.local.kv_cache import CacheShape, measure_cache_shape, slot_bytes
from swarm.backends.local.policy import Policy, add_adapter, trainable_parameters
from swarm.errors import InvalidRequest
from swarm.job import Job
from swarm.models import CARD, folder_hash, require_model_folder
from swarm.rendering.messages import BackendError, load_error

Attention = Literal["sdpa", "eager"]

_WINDOWS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
"""Kinds of layers that see so many tokens only, and where a configuration says how many."""
_MOVING = frozenset({"dynamic", "longrope"})
"""Rotary embeddings whose frequencies are chosen by the longest position in a batch (transformers 5.10,
`modeling_rope_utils.dynamic_rope_update`): beyond so many positions, which stay as they were up to there."""


def require_servable(folder: Path, skeleton: Any, max_context: int) -> None:
    """Raise BackendError where the model of `skeleton`'s shapes cannot be served and trained at `max_context`."""
    config = skeleton.config.get_text_config(decoder=True)
    if getattr(skeleton.config, "is_encoder_decoder", False):
        raise BackendError(
            f"expected a decoder alone in {folder}, found {config.model_type}, which is an encoder-decoder: choose "
            f"another model"
        )
    missing = {"position_ids", "past_key_values"} - set(inspect.signature(skeleton.forward).parameters)
    if missing:
        raise BackendError(
            f"expected a model that can be told each token's position and past, found that {config.model_type} in "
            f"{folder} takes no {' and no '.join(sorted(missing))}: choose another model"
        )
    for words, limit in _limits(folder, config):
        if max_context > limit:
            raise BackendError(
                f"the job's max_context is {max_context}; {words}: set max_context to {limit} at most, or choose "
                f"another model"
            )


@contextmanager
def wrap_errors(found: str, advice: str) -> Iterator[None]:
    try:
        yield
    except BackendError:
        raise
    except Exception as error:
        raise BackendError(f"{found} ({type(error).__name__}: {error}): {advice}") from error


def choose_attention(skeleton: Any) -> Attention:
    """Return the attention that computes all of the model; BackendError where there is none that can be checked."""
    switches = skeleton._can_set_attn_implementation()
    if not skeleton._supports_sdpa and not switches:
        raise BackendError(
            f"expected a model whose attention can be chosen, found that {skeleton.config.model_type} has its own "
            f"alone: choose another model"
        )
    return "sdpa" if skeleton._supports_sdpa and switches and not _has_soft_caps(skeleton.config) else "eager"


def _has_soft_caps(config: Any) -> bool:
    return bool(getattr(config.get_text_config(decoder=True), "attn_logit_softcapping", None))


def _limits(folder: Path, config: Any) -> Iterator[tuple[str, int]]:
    kinds = getattr(config, "layer_types", None)
    if kinds is None and getattr(config, "sliding_window", None):
        kinds = ["sliding_attention"]
    for kind in sorted(set(kinds or ()) - {"full_attention"}):
        window = getattr(config, _WINDOWS.get(kind, ""), None)
        if not window:
            raise BackendError(
                f"expected attention to all tokens before in every layer, found {kind} in {config.model_type} in "
                f"{folder}: choose another model"
            )
        yield f"a token of the model in {folder} sees the last {window} only in layers of {kind}", int(window)
    # some configurations have one rotary embedding and others one for each kind of layer
    parameters = getattr(config, "rope_parameters", None) or {}
    for rope in (parameters, *parameters.values()):
        if isinstance(rope, Mapping) and rope.get("rope_type") in _MOVING:
            first = rope.get("original_max_position_embeddings") if rope["rope_type"] == "longrope" else None
            limit = int(first or config.max_position_embeddings)
            words = f"beyond {limit} positions the rotary embedding ({rope['rope_type']}) of the model in {folder}"
            yield f"{words} depends on the longest sequence of a batch", limit


_OF_A_COPY = frozenset({"_name_or_path", "transformers_version", "dtype", "torch_dtype", "auto_map", "use_cache"})
"""What a configuration says of a copy of a model, and not of the model."""
_NAMED = 3


def require_compatible_start(start: Path, own: Path) -> None:
    """Raise BackendError unless training of the model in `own` can begin with the weights in the folder `start`."""
    try:
        require_model_folder(start)
    except InvalidRequest as error:
        raise BackendError(f"start_from: {error}") from error
    try:
        exported = json.loads((start / CARD).read_bytes())["sha256"]
    except FileNotFoundError:
        exported = None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BackendError(
            f"start_from: {start / CARD} is no card of an export ({error}): copy the folder again"
        ) from error
    if exported is not None and (present := folder_hash(start)) != exported:
        raise BackendError(
            f"start_from: expected {start} as it was exported (sha256 {str(exported)[:12]}), found other files "
            f"({present[:12]}): copy it again, or take {CARD} away if it was changed on purpose"
        )
    mine, theirs = _architecture(own), _architecture(start)
    differing = sorted(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name))
    if differing:
        found = ", ".join(f"{name} {theirs.get(name)!r}, not {mine.get(name)!r}" for name in differing[:_NAMED])
        raise BackendError(
            f"start_from: expected the architecture of the job's model, found {found} in {start}: name the job's "
            "model as it was when these weights were trained"
        )
    if (own / "tokenizer.json").read_bytes() != (start / "tokenizer.json").read_bytes():
        raise BackendError(
            f"start_from: expected the tokenizer of the job's model, found another in {start}: its weights were "
            "trained on other ids (a tiny model's are those of its environment)"
        )


def _architecture(folder: Path) -> dict[str, Any]:
    from transformers import AutoConfig

    try:
        whole = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False).to_dict()
    except (OSError, ValueError, KeyError) as error:
        raise load_error(f"the model in {folder}", error) from error
    return {name: value for name, value in whole.items() if name not in _OF_A_COPY}


_MASTER = 4
"""Bytes of an fp32 number: gradients are summed, moments kept and steps made in it."""
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def require_room(folder: Path, skeleton: Any, job: Job, device: torch.device) -> None:
    """Raise BackendError, with all figures, without room on `device` for what training takes at least."""
    needed, free = dict(device_needs(skeleton, job)), free_bytes(device)
    if device.type == "cpu" and job.epochs * job.minibatches > 1:
        needed["copy to undo an update"] = (
            3 * _MASTER * sum(weight.numel() for weight in trainable_parameters(skeleton).values())
        )
    if (total := sum(needed.values())) <= free:
        return
    large = {name: size / 2**20 for name, size in needed.items() if size}
    parts = ", ".join(f"{of} {f'{n / 1024:.2f} GiB' if n >= 1024 else f'{n:.2f} MiB'}" for of, n in large.items())
    ways = [
        "take a smaller model",
        *(["dtype bfloat16"] if job.dtype == "float32" else []),
        *([] if job.lora_rank else ["a lora_rank"]),
        "a smaller kv_cache_bytes",
    ]
    raise BackendError(
        f"the model in {folder} needs {total:,} bytes on {device.type} ({parts}) and {free:,} are free: "
        f"{', '.join(ways)}"
    )


def device_needs(skeleton: Any, job: Job) -> Mapping[str, int]:
    trained = trainable_parameters(skeleton).values()
    numbers, served = sum(weight.numel() for weight in trained), sum(weight.nbytes for weight in trained)
    lower = job.dtype != "float32"
    try:
        shape = measure_cache_shape(skeleton)
    except BackendError:  # positions are computed from numbers, not shapes
        config = skeleton.config.get_text_config(decoder=True)
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = CacheShape(config.num_hidden_layers, heads, width, width)
    one = slot_bytes(shape, getattr(torch, job.dtype), job.max_context)
    return {
        "weights": sum(weight.nbytes for weight in skeleton.parameters()),
        "gradients": numbers * _MASTER + (served if lower else 0),
        "optimiser": 2 * numbers * _MASTER,
        "fp32 copy of the weights": numbers * _MASTER if lower else 0,
        "reference": served if job.kl_coef > 0 and not job.lora_rank else 0,
        "key-value cache": min(job.max_concurrency, max(1, job.kv_cache_bytes // one)) * one,
    }


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    available = int(psutil.virtual_memory().available)
    limit = _CGROUP_LIMIT.read_text().strip() if _CGROUP_LIMIT.is_file() else "max"
    return min(available, int(limit) - int(psutil.Process().memory_info().rss)) if limit.isdigit() else available


_log = logging.getLogger(__name__)

RUNS_AT_ONCE = "AJET_RUNS_AT_ONCE"
SET_BY_HAND = "OMP_NUM_THREADS"
A_THREAD = 5_000_000
"""Parameters that keep one thread busy: with fewer, threads cost more than they give."""


def choose_threads(parameters: int) -> None:
    """Let torch compute with as many threads as such a model can use here; the last bits may depend on it."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        cores = os.cpu_count() or 1
    chosen = count_threads(parameters, os.environ, cores)
    if chosen is not None:
        torch.set_num_threads(chosen)
    _log.info(
        "event=threads threads=%d reason=%r parameters=%d cores=%d runs_at_once=%s", torch.get_num_threads(),
        f"{SET_BY_HAND} is set" if chosen is None else "chosen by the model's size and the runs at once", parameters,
        cores, os.environ.get(RUNS_AT_ONCE, "1"),
    )  # fmt: skip


def count_threads(parameters: int, environment: Mapping[str, str], cores: int) -> int | None:
    """Return the number of threads for a model of so many parameters; None where a person has set it."""
    if SET_BY_HAND in environment and RUNS_AT_ONCE not in environment:
        return None
    runs = int(environment.get(RUNS_AT_ONCE, "1"))
    return max(1, min(cores // runs, parameters // A_THREAD))


def load_policy(folder: Path, job: Job, *, ids: int = 0, text: Sequence[int] = ()) -> Policy:
    """Load the causal LM in `folder`, which must know `ids` ids, as the job says; BackendError with what is missing.
    `text` is ids of ordinary text, which checks feed. From here on torch has as many threads as the model can use."""
    device = choose_device(job)
    if job.merging == "tree" and device.type != "cpu":
        raise BackendError(
            f"expected merging auto, linear or none on {device.type}, where rows are computed faster than trees, found "
            "tree: change merging, or set device to cpu"
        )
    skeleton = _skeleton(folder, job)
    rows = skeleton.get_input_embeddings().num_embeddings
    if ids > rows:
        raise BackendError(
            f"the tokenizer in {folder} makes ids up to {ids - 1}, the model has embeddings for {rows} ids, up to "
            f"{rows - 1}: give the model as many rows (resize_token_embeddings({ids})), or take the added tokens away"
        )
    limit = getattr(skeleton.config, "max_position_embeddings", None) or job.max_context
    if job.max_context > limit:
        raise BackendError(
            f"expected a max_context of at most {limit}, as many as the model in {folder} has positions, found "
            f"{job.max_context}: set max_context to {limit} or less, or choose another model"
        )
    require_servable(folder, skeleton, job.max_context)
    attends = choose_attention(skeleton)
    require_room(folder, skeleton, job, device)
    model = read_model(folder, getattr(torch, job.dtype), attends)
    if job.lora_rank:
        add_adapter(model, rank=job.lora_rank, alpha=job.lora_alpha, seed=job.seed)
    choose_threads(sum(parameter.numel() for parameter in model.parameters()))
    kind, no_adapter = skeleton.config.model_type, "set lora_rank to 0, or " if job.lora_rank else ""
    found = f"expected a forward over ids alone, found that {kind} in {folder} fails"
    with wrap_errors(found, f"{no_adapter}choose another model"):
        return Policy(model, device, text)


def choose_device(job: Job) -> torch.device:
    """Return the job's device, the best there is for `auto`; BackendError where this machine has no such one."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if job.device == "auto":
        return torch.device(next(name for name, found in there.items() if found))
    if not there[job.device]:
        raise BackendError(
            f"the job's device is {job.device} and torch {torch.__version__} finds none on this machine: "
            f"set device to auto or cpu"
        )
    return torch.device(job.device)


_LOADING = threading.Lock()
"""transformers replaces methods of all models while it loads one: two that overlap leave `tie_weights` empty."""


def _skeleton(folder: Path, job: Job) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        with _LOADING, torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, job.dtype), trust_remote_code=False)
            if job.lora_rank:
                add_adapter(model, rank=job.lora_rank, alpha=job.lora_alpha, seed=job.seed)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise load_error(f"the model in {folder}", error) from error
    return model


def read_model(folder: Path, dtype: torch.dtype, attends: Attention) -> nn.Module:
    """Return the causal LM in `folder`, on the CPU; BackendError where it does not load, or lacks weights."""
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    load: Any = AutoModelForCausalLM.from_pretrained
    try:
        with _LOADING:
            model, found = load(
                folder, dtype=dtype, attn_implementation=attends, local_files_only=True, trust_remote_code=False,
                use_safetensors=True, output_loading_info=True,
            )  # fmt: skip
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise load_error(f"the model in {folder}", error) from error
    if missing := sorted(found["missing_keys"]):
        raise BackendError(
            f"the model in {folder} lacks {len(missing)} of its weights ({', '.join(missing[:3])}"
            f"{', ...' if missing[3:] else ''}): copy the whole model"
        )
    loaded: nn.Module = model
    return loaded


ADAPTER = "lora_"
"""In the names of an adapter's weights."""


def provenance(model: nn.Module, template: str) -> Mapping[str, str]:
    """Return the hashes of weights and template, and the kind of device that they are on."""
    device = next(model.parameters()).device
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"weights": weights_hash(model), "template": hashlib.sha256(template.encode()).hexdigest(), "device": kind}


def weights_hash(model: nn.Module) -> str:
    """Return the sha256 over names, types, shapes and bytes of all weights but an adapter's."""
    own = {
        name.removeprefix("base_model.model.").replace(".base_layer.", "."): weight
        for name, weight in model.state_dict().items()
        if ADAPTER not in name
    }
    return hash_stream(sorted(own.items()))


def serving_hash(model: nn.Module) -> str:
    """Return the same over all weights, an adapter's too; 0 and -0 are one: a step of size 0 changes the sign."""
    return hash_stream(sorted(model.state_dict().items()), zero=0)


def hash_stream(weights: Iterable[tuple[str, Tensor]], zero: int | None = None) -> str:
    """Return the sha256 over names, types, shapes and bytes in order; with a `zero` of 0 no 0 is told from a -0."""
    found = hashlib.sha256()
    for name, weight in weights:
        found.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        plain = weight.detach() if zero is None else weight.detach() + zero
        found.update(plain.cpu().flatten().contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()

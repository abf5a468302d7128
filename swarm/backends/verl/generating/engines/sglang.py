"""All that is private to SGLang, or differs between its versions: 0.5.12.

Promises: SGLang is imported by what is called here, not by importing this module; it looks nothing up in a network, and
serves nobody but this process, over sockets in files. Its forwards are its own; tokens are drawn by this project's
sampler (`drawing.py`), since SGLang's log-probs know nothing of a top_p or a top_k, and its seeds are of a GPU alone.

What of its inner workings is used, and breaks first if they change: `Engine` and `ServerArgs` are public,
`GenerateReqInput` and the methods of `TokenizerManager` nearly so; `Engine.run_scheduler_process_func`, where the
sampler is registered in its process, and that of its detokenizer; `custom_weight_loader`; `rid_to_state`, which forgets
no request that was ended while it waited; `_subprocess_watchdog`, whose processes tell whether it lives; SIGQUIT, which
its processes send to this one as they fail.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import itertools
import math
import multiprocessing
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Literal

from packaging.version import Version

from swarm.backends.protocols import BackendError, Sampling
from swarm.backends.verl.generating.engines.booting import told
from swarm.backends.verl.generating.engines.loading import COMMAND, answered, asked
from swarm.backends.verl.generating.engines.model_folder import (
    read_config,
    require_positions,
    token_bytes,
    vocabulary_of,
)
from swarm.backends.verl.generating.engines.served import QUIET, STILL_S, Piece
from swarm.backends.verl.generating.engines.spec import ReplicaDied, ReplicaSpec

FIRST: Final = Version("0.5.12")
BEYOND: Final = Version("0.5.13")
SPARE: Final = 8
"""Tokens of its context that SGLang answers no request with."""
_WORD: Final = 40
"""Bits of a seed for what nobody seeded."""
_LOOK_S: Final = 1.0
"""Seconds between two looks whether SGLang's processes live, while something is waited for."""
_DIES_WITH_PARENT: Final = 1
"""`PR_SET_PDEATHSIG` of prctl."""


def check() -> str:
    """Return a line that names the SGLang that is installed; raise BackendError for none, or one never tried."""
    try:
        found = version("sglang")
    except PackageNotFoundError:
        raise BackendError(
            f"expected SGLang {FIRST}, as verl.inference_engine has it, found none: install it as docs/cluster.md "
            "says, or leave inference_engine out, which is vLLM"
        ) from None
    if not FIRST <= Version(found) < BEYOND:
        raise BackendError(
            f"expected SGLang {FIRST}, whose inner workings are known here, found {found}: install that one"
        )
    return f"SGLang {found}"


def surround(spec: ReplicaSpec) -> None:
    """Set this process's environment for SGLang, before it is imported."""
    os.environ.update(QUIET)
    os.environ["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"  # of `SPARE`, at which no token ever is
    if spec.device == "cpu":
        os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    if spec.tensor_parallel > 1:
        os.environ["SYNC_TOKEN_IDS_ACROSS_TP"] = "1"  # each draws, and rounds, for itself


def require_architecture(folder: Path) -> str:
    """Return the architecture of a model folder; raise BackendError unless SGLang has it. Imports SGLang."""
    found = read_config(folder).get("architectures") or ["none"]
    if not set(found) & set(_served()):
        raise BackendError(
            f"expected a model of an architecture that {check()} serves, found {found[0]} in {folder}: choose another "
            "model, or backend `local`"
        )
    return str(found[0])


def _served() -> Iterable[str]:
    """Return the architectures that SGLang has models of; raise BackendError where its packages do not load."""
    import torch

    if not torch.cuda.is_available():  # what it must be told before it is imported
        os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    try:
        import sglang.srt.models.llama  # noqa: F401 - the registry leaves out, with a warning, what does not load
        from sglang.srt.models.registry import ModelRegistry
    except ImportError as error:
        raise BackendError(
            f"expected {check()} with all that it is made of, found that it does not load ({error}): install it as "
            "docs/cluster.md says"
        ) from None
    known: Iterable[str] = ModelRegistry.get_supported_archs()
    return known


def require_device(device: str) -> None:
    """Raise BackendError where torch finds no such device, on which SGLang would go on with the CPU."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise BackendError(
            "expected a GPU that torch finds, as the job's `device` has it, found none: install torch's build for "
            "CUDA, or change `device`"
        )


def require_heads(size: int, whose: str, device: str) -> None:
    """Raise nothing: SGLang's attention on a CPU is torch's own, which takes heads of any size."""


def require_servable(spec: ReplicaSpec) -> None:
    """Raise BackendError where SGLang could not serve a spec, as far as that is seen before. Imports SGLang."""
    folder = Path(spec.folder)
    require_device(spec.device)
    require_positions(folder, spec.max_context)
    needed = (spec.max_context + SPARE) * token_bytes(folder, spec.dtype)
    if spec.device == "cpu" and spec.kv_cache_bytes < needed:
        raise BackendError(
            f"expected kv_cache_bytes of at least {needed}, as one sequence of max_context {spec.max_context} takes, "
            f"found {spec.kv_cache_bytes}: raise it, or lower max_context"
        )
    require_architecture(folder)  # the last, as it takes a while


def cached_tokens(spec: ReplicaSpec) -> int:
    """Return the tokens of the cache on a CPU: what `max_concurrency` whole contexts take, within `kv_cache_bytes`."""
    whole = spec.max_concurrency * (spec.max_context + SPARE)
    return min(whole, spec.kv_cache_bytes // token_bytes(Path(spec.folder), spec.dtype))


def _arguments(spec: ReplicaSpec) -> dict[str, Any]:
    on_cpu: dict[str, Any] = {
        "attention_backend": "torch_native",
        "max_total_tokens": cached_tokens(spec),
    }
    on_gpu: dict[str, Any] = {  # never run here
        "mem_fraction_static": spec.gpu_memory,
        "enable_memory_saver": spec.colocated,
    }
    return {
        "model_path": spec.folder,
        "device": spec.device,
        "skip_tokenizer_init": True,
        "dtype": spec.dtype,
        "context_length": spec.max_context + SPARE,
        "tp_size": spec.tensor_parallel,
        "max_running_requests": spec.max_concurrency,
        "random_seed": spec.seed,
        "enable_custom_logit_processor": True,  # only with one does a request's rule come as far as the sampler
        "disable_overlap_schedule": True,  # a draw is made of numbers of the host, which a step waits for anyhow
        "sleep_on_idle": True,  # else it takes a core though nothing is asked, and though it rests
        "custom_weight_loader": [COMMAND],
        "log_level": "warning",
        **(on_cpu if spec.device == "cpu" else on_gpu),
    }


def run_scheduler(*arguments: Any, **named: Any) -> None:
    """Be the process of SGLang that holds the model, with this project's sampler in it."""
    _end_with_parent()
    from sglang.srt.managers.scheduler import run_scheduler_process

    from swarm.backends.verl.generating.engines.drawing import register

    register()
    run_scheduler_process(*arguments, **named)


def run_detokenizer(*arguments: Any, **named: Any) -> None:
    """Be the process of SGLang that would make text of ids, and passes them on."""
    _end_with_parent()
    from sglang.srt.managers.detokenizer_manager import run_detokenizer_process

    run_detokenizer_process(*arguments, **named)


def _end_with_parent() -> None:
    """End this process with the one that started it, or now, where that is gone; SGLang asks for it seconds later."""
    ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:
        os._exit(1)


def start(spec: ReplicaSpec) -> SglangStream:
    """Load a model, and return it served."""
    return SglangStream(spec)


class SglangStream:
    """A `ServedModel` over SGLang's engine, which runs in processes of its own."""

    def __init__(self, spec: ReplicaSpec) -> None:
        from sglang.srt.entrypoints.engine import Engine
        from sglang.srt.server_args import ServerArgs

        from swarm.backends.verl.generating.engines.drawing import BACKEND, processor

        class OwnDraws(Engine):
            run_scheduler_process_func = staticmethod(run_scheduler)
            run_detokenizer_process_func = staticmethod(run_detokenizer)

        # What fails in its processes would end this one, before it could say why.
        faulthandler.register(signal.SIGQUIT, file=sys.stderr, all_threads=False)
        self._parallel, self._numbers = spec.tensor_parallel, itertools.count()
        self._vocabulary, self._processor = vocabulary_of(Path(spec.folder)), processor()
        arguments: Any = ServerArgs(**_arguments(spec))
        arguments.sampling_backend = BACKEND  # only now: on a CPU it would be put back to SGLang's own
        engine = OwnDraws(server_args=arguments)
        self._manager: Any = engine.tokenizer_manager
        room = engine._scheduler_init_result.scheduler_infos[0]["max_total_num_tokens"]
        if room < spec.max_context + SPARE:
            raise BackendError(
                f"SGLang has too little memory for one sequence of max_context {spec.max_context}, its cache holds "
                f"{room} tokens: raise gpu_memory, or lower max_context"
            )

    @property
    def dead(self) -> bool:
        """Its processes are gone."""
        return any(not process.is_alive() for process in self._manager._subprocess_watchdog._processes)

    async def stream(self, name: str, ids: Sequence[int], sampling: Sampling, salt: str) -> AsyncIterator[Piece]:
        """Yield what follows `ids`; log-probs are those of what is drawn from, at temperature 0 the model's own.

        SGLang ends at an end of the model's, too: where that is none of the request's it is asked to go on. What is
        left early is ended there.
        """
        seed = secrets.randbits(_WORD) if sampling.seed is None else sampling.seed
        given, room = list(ids), sampling.max_tokens
        try:
            while room > 0:
                request = self._request(name, given, sampling, salt, seed, room)
                reason: Mapping[str, Any] = {}
                taken = 0
                async for said in self._manager.generate_request(request):
                    piece, reason = _piece(said["meta_info"], taken), said["meta_info"]["finish_reason"] or {}
                    taken += len(piece.ids)
                    if piece.ids:
                        yield piece
                    given += piece.ids
                room -= taken
                if reason.get("status_code"):  # of its own; whoever ends a request has none
                    raise BackendError(f"SGLang refused it: {reason.get('message')}")
                if reason.get("type") != "stop" or reason.get("matched") in sampling.stop_ids:
                    return
        finally:
            self._manager.abort_request(name)

    def _request(self, name: str, ids: Sequence[int], sampling: Sampling, salt: str, seed: int, room: int) -> Any:
        from sglang.srt.managers.io_struct import GenerateReqInput

        rule = {
            "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k, "seed": seed,
            "top_logprobs": min(sampling.top_logprobs, self._vocabulary),
        }  # fmt: skip
        return GenerateReqInput(
            input_ids=list(ids),
            sampling_params={
                "max_new_tokens": room, "stop_token_ids": list(sampling.stop_ids), "custom_params": rule,
            },
            return_logprob=True,
            top_logprobs_num=rule["top_logprobs"],
            custom_logit_processor=self._processor,
            stream=True,
            rid=name,
            extra_key=salt,
        )  # fmt: skip

    async def abort(self, names: Sequence[str]) -> None:
        """End these streams early; what they generated comes first."""
        for name in names:
            self._manager.abort_request(name)

    async def score(self, name: str, ids: Sequence[int]) -> list[float]:
        """Return the log-prob of each of `ids` but the first at temperature 1, by a forward that reads no cache."""
        own = f"{name}-{next(self._numbers)}"  # one that nobody waits for any more may still be there
        request = self._request(own, ids, Sampling(max_tokens=1, temperature=0), "scored", 0, 1)
        request.stream, request.logprob_start_len = False, 0
        said = await anext(self._manager.generate_request(request))
        return [value for value, _, _ in said["meta_info"]["input_token_logprobs"][1:]]

    async def begin_weights(self) -> None:
        """Make ready for weights."""
        await self._idle()
        states = self._manager.rid_to_state
        for name in [name for name, state in states.items() if state.finished]:
            del states[name]
        await self._load("begin")

    async def load_bucket(self, path: str) -> None:
        """Load what `torch.save` wrote to a file: names, as in a checkpoint's folder, and tensors."""
        await self._load("load", path)

    async def finish_weights(self) -> Sequence[str]:
        """Return the names of weights that did not come, as SGLang's model has them."""
        return await self._load("finish")

    async def _load(self, what: str, path: str = "") -> list[str]:
        from sglang.srt.managers.io_struct import UpdateWeightsFromTensorReqInput
        from sglang.srt.utils import MultiprocessingSerializer

        with tempfile.TemporaryDirectory(prefix="ajet-loaded-") as answers:
            ordered = asked(what, Path(answers), path)
            for_each = [MultiprocessingSerializer.serialize(ordered) for _ in range(self._parallel)]
            order = UpdateWeightsFromTensorReqInput(
                serialized_named_tensors=for_each, load_format=COMMAND, flush_cache=False
            )
            done, said = await self._watched(self._manager.update_weights_from_tensor(order, None))
            if not done:
                raise ReplicaDied(f"SGLang did not load the weights, some of which may be in place: {said}")
            return answered(Path(answers), self._parallel)

    async def sleep(self) -> None:
        """Give the memory of weights and cache back, with what is in it; on a CPU SGLang gives nothing back."""
        from sglang.srt.managers.io_struct import ReleaseMemoryOccupationReqInput

        await self._idle()
        order = ReleaseMemoryOccupationReqInput(tags=["kv_cache", "weights"])
        await self._watched(self._manager.release_memory_occupation(order))

    async def wake(self, what: Literal["weights", "kv_cache"]) -> None:
        """Take memory again, in which there is nothing: weights must be loaded before anything is generated."""
        from sglang.srt.managers.io_struct import ResumeMemoryOccupationReqInput

        order = ResumeMemoryOccupationReqInput(tags=[what])
        await self._watched(self._manager.resume_memory_occupation(order))

    async def forget_prefixes(self) -> None:
        """Empty the prefix cache."""
        await self._idle()

    async def _idle(self) -> None:
        """Wait until nothing is computed, and empty the prefix cache; a stream that was ended may have a step to go.

        SGLang's process would end itself over one, where it is to give memory back.
        """
        found = await self._watched(self._manager.flush_cache(timeout_s=STILL_S))
        if not found.success:
            raise ReplicaDied(f"SGLang was not idle within {STILL_S:.0f} s of the last stream's end: {found.message}")

    async def _watched(self, call: Awaitable[Any]) -> Any:
        """Return what a call comes to; raise ReplicaDied where SGLang's processes end before it answers."""
        answer = asyncio.ensure_future(call)
        while not (await asyncio.wait([answer], timeout=_LOOK_S))[0]:
            if self.dead:
                answer.cancel()
                raise ReplicaDied("SGLang's process ended before it answered")
        return answer.result()


def _piece(about: Mapping[str, Any], taken: int) -> Piece:
    """Return what of an answer is beyond `taken` tokens; SGLang says (log-prob, id, text) of each from the first on.

    Beside these it says the last id once more where a request is ended while it waits. What the cuts left out is not
    told. Raise BackendError where the model's logits were no numbers.
    """
    places = (about.get("output_token_logprobs") or ())[taken:]
    if any(math.isnan(value) for value, _, _ in places):
        raise BackendError("the model's logits are no finite numbers")
    likeliest = (about.get("output_top_logprobs") or ())[taken:]
    top = tuple(tuple((token, value) for value, token, _ in place) for place in likeliest)
    return Piece(tuple(token for _, token, _ in places), tuple(min(0.0, value) for value, _, _ in places), top)


def boot_error(error: BaseException, log: Iterable[str], spec: ReplicaSpec) -> BackendError:
    """Return what a boot that failed is to be called, by the error here and by what SGLang's processes wrote."""
    return told("SGLang", error, log, spec, ("died during initialization",))

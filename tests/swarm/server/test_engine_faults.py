"""A real server over the real local engine: one bad request, one damaged row of weights, and what others feel of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from swarm.backends.local import LocalBackend
from swarm.job import Job, PathModel
from tests.swarm.backends.local.models import make_model, make_tokenizer
from tests.swarm.server.support import MODEL, job, serving

POISON = "Z"


class _Named(LocalBackend):
    """Served under the name that the tests' calls ask for."""

    model_name = MODEL


def _job(folder: Path) -> Job:
    tokenizer = make_tokenizer()
    rows = len(tokenizer) + 1  # transformers gives a tokenizer of this family one token more
    make_model("qwen2", vocabulary=rows).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return job(backend="local", model=PathModel(path=str(folder)), max_tokens=8, max_context=128, device="cpu")


@pytest.mark.parametrize("engine", ["slots", "transformers"])
async def test_one_bad_request_ends_alone_and_the_server_goes_on(engine: str, tmp_path: Path) -> None:
    wanted = _job(tmp_path / "m").model_copy(update={"engine": engine})
    async with serving(tmp_path, wanted, backend=lambda loaded: _Named(loaded, tmp_path)) as served:
        lease = await served.begin()
        backend: Any = served.server.training.backend
        policy, renderer = backend.policy, backend.renderer
        [poison] = renderer.encode(POISON)
        with policy.rewriting(), torch.no_grad():
            policy.model.get_input_embeddings().weight[poison] = torch.nan
        said = ["hi", f"a {POISON} b", "ho", "hey", POISON]
        answers = await asyncio.gather(*(served.chat(lease, text, seed=1) for text in said))
        assert [answer.status for answer in answers] == [200, 503, 200, 200, 503]
        assert {answer.code for answer in answers if answer.status == 503} == {"engine_unavailable"}
        beyond = await _asked_beyond(served, lease, renderer, policy.vocab_size)
        assert (beyond.status, beyond.code) == (400, "invalid_request")
        assert f"found {policy.vocab_size}" in beyond.message
        assert (await served.chat(lease, "hi")).status == 200
        assert (await served.status())["state"] == "ROLLING"


async def _asked_beyond(served: Any, lease: dict[str, Any], renderer: Any, first: int) -> Any:
    """Ask with an id that the model has no row for, as a tokenizer would make one that grew after it was loaded."""
    plain = renderer.encode
    renderer.encode = lambda text: [*plain(text), first]
    try:
        return await served.chat(lease, "beyond")
    finally:
        renderer.encode = plain

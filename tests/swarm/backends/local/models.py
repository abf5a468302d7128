"""Small random models, their generations, and the slow, plain computations the backend is compared with."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from torch import Tensor

from swarm.algorithms.losses import token_weights
from swarm.algorithms.objective import UpdateSums
from swarm.algorithms.rows import Row, flatten_tokens, train_rows
from swarm.backends.local import LocalBackend
from swarm.backends.local.batcher import Generation
from swarm.backends.local.policy import Policy
from swarm.backends.protocols import Batch, Sampling, TrainEpisode
from swarm.job import Job
from swarm.timelines import Drift, Node, linear_rows, unmerged_rows
from swarm.timelines.node import TrainRow
from tests.swarm.algorithms.factories import loss_of
from tests.swarm.backends.conformance.kinds import Oracle

VOCABULARY = 48
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'forbidden' %}{{ raise_exception('no such role') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.25, "bos_token_id": None,
    "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"tie_word_embeddings": True}),
    "qwen2": ("qwen2", {"tie_word_embeddings": False}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "wide": ("llama", {"tie_word_embeddings": True, "hidden_size": 128}),
    "wide3": ("qwen3", {"tie_word_embeddings": False, "head_dim": 32}),
}
KINDS = ("llama", "qwen2", "qwen3")


def make_model(kind: str = "llama", vocabulary: int = VOCABULARY, seed: int = 0) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        family, fields = _KINDS[kind]
        config = transformers.CONFIG_MAPPING[family](vocab_size=vocabulary, **{**_SIZES, **fields})
        return transformers.AutoModelForCausalLM.from_config(config).eval()


SPECIAL = 16
"""Ids of `make_real_vocabulary` on which bfloat16 goes astray."""
WORDS = tuple(range(20, 60))
"""Ids of it on which it does not."""


def make_real_vocabulary(dtype: torch.dtype) -> Any:
    """Return a model whose attention between its first ids has scores in the hundreds, which bfloat16 rounds astray."""
    model = make_model(vocabulary=96)
    with torch.no_grad():
        embeddings = model.get_input_embeddings().weight
        astray = torch.zeros_like(embeddings[0])
        astray[0] = 1.0
        embeddings[:, 0] = 0.0
        embeddings[:SPECIAL] += 5 * astray
        model.base_model.norm.weight[0] = 0.0
        for layer in model.base_model.layers:
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                slow = projection.weight.unflatten(0, (-1, 8))[:, [3, 7], 0]  # what rotary embedding hardly turns
                projection.weight[:, 0] = 0.0
                projection.weight.unflatten(0, (-1, 8))[:, [3, 7], 0] = torch.full_like(slow, 16.0)
            for projection in (layer.self_attn.o_proj, layer.mlp.down_proj):
                projection.weight[0] = 0.0
    return model.to(dtype)


def make_policy(kind: str = "llama", seed: int = 0) -> Policy:
    torch.set_num_threads(1)
    return Policy(make_model(kind, seed=seed))


def save_folder(folder: Path, kind: str = "llama") -> Path:
    tokenizer = make_tokenizer()
    make_model(kind, vocabulary=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_tokenizer() -> Any:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, eos_token="<|im_end|>", pad_token="<|pad|>"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@asynccontextmanager
async def running(job: Job, models: Path) -> AsyncIterator[LocalBackend]:
    backend = LocalBackend(job, models)
    await backend.start()
    try:
        yield backend
    finally:
        await backend.stop()


def forced_logprobs(
    policy: Policy, prompt: Sequence[int], answer: Sequence[int], temperature: float = 1.0
) -> list[float]:
    return Oracle(lambda: policy.model).logprobs(prompt, answer, temperature)


def make_prompts(count: int, longest: int = 30, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCABULARY) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def generate(
    batcher: Any, prompts: Sequence[Sequence[int]], sampling: Sampling | int, steps: int = 1_000_000
) -> list[Generation]:
    """Generate side by side, as `sampling` says or so many tokens each, until all is done or for a number of steps."""
    rule = Sampling(max_tokens=sampling) if isinstance(sampling, int) else sampling
    generations = [Generation([*prompt], rule) for prompt in prompts]
    for generation in generations:
        batcher.add(generation)
    while batcher.busy and steps:
        batcher.step()
        steps -= 1
    return generations


def answer_of(generation: Generation) -> list[int]:
    return [token.id for token in generation.fresh]


def assert_forced(policy: Policy, generation: Generation, tolerance: float = 1e-5) -> None:
    given = generation.prompt_length
    expected = forced_logprobs(policy, generation.ids[:given], generation.ids[given:])
    assert [token.logprob for token in generation.fresh] == pytest.approx(expected, abs=tolerance)
    assert answer_of(generation) == generation.ids[given:]


def row_of(generation: Generation) -> TrainRow:
    given, fresh = generation.prompt_length, generation.fresh
    return TrainRow(
        tuple(generation.ids),
        (0,) * given + (1,) * len(fresh),
        (0.0,) * given + tuple(token.logprob for token in fresh),
        (-1,) * given + tuple(token.version for token in fresh),
    )


def weights_of(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in policy.model.named_parameters()}


def same_weights(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, right[name]) for name, value in left.items())


def gradient_of(policy: Policy) -> torch.Tensor:
    return torch.cat([value.grad.flatten() for value in policy.model.parameters() if value.grad is not None])


def make_row(policy: Policy, rng: random.Random, turns: int, temperature: float = 1.0, drift: float = 0.0) -> TrainRow:
    """One conversation as one row; `drift` moves its log-probs away from the policy's, as an older policy would."""
    ids: list[int] = []
    sampled: list[int] = []
    logprobs: list[float] = []
    for _ in range(turns):
        prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 6))]
        answer = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 4))]
        ids += prompt
        found = forced_logprobs(policy, ids, answer, temperature)
        ids += answer
        sampled += [0] * len(prompt) + [1] * len(answer)
        logprobs += [0.0] * len(prompt) + [value + rng.uniform(-drift, drift) for value in found]
    versions = [policy.version if flag else -1 for flag in sampled]
    return TrainRow(tuple(ids), tuple(sampled), tuple(logprobs), tuple(versions))


def make_batch(policy: Policy, episodes: int = 8, seed: int = 0, temperature: float = 1.0, drift: float = 0.0) -> Batch:
    """Episodes of uneven length in groups of four, some with several rows."""
    rng = random.Random(seed)
    made = [
        TrainEpisode(
            f"e{i}",
            f"g{i // 4}",
            float(rng.randrange(3)),
            tuple(make_row(policy, rng, rng.randint(1, 3), temperature, drift) for _ in range(1 + i % 2)),
        )
        for i in range(episodes)
    ]
    return Batch(0, tuple(made))


def plain_loss(policy: Policy, reference: Policy, batch: Batch, advantages: Sequence[float], job: Job) -> Tensor:
    own = train_rows(batch.episodes)
    rows = [row for rows in own for row in rows]
    weights = token_weights(
        job, [sum(len(row.targets) for row in rows) for rows in own], [e.weight for e in batch.episodes]
    )
    tokens = flatten_tokens(rows, advantages, weights, torch.device("cpu"))
    with torch.no_grad():
        known = _places(reference, rows, job.temperature).gather(-1, tokens.targets[:, None])[:, 0]
    every = _places(policy, rows, job.temperature)
    return loss_of(job, every, tokens, known if job.kl_coef else None, UpdateSums(0, job.correction_cap))


def _places(policy: Policy, rows: Sequence[Row], temperature: float) -> Tensor:
    ids = [row.ids[None, : place + 1] for row in rows for place in row.places.tolist()]
    logits = [policy.model(input_ids=each, use_cache=False).logits[0, -1] for each in ids]
    return (torch.stack(logits) / temperature).log_softmax(-1)


def row(ids: Sequence[int], trained: Sequence[int] = ()) -> Row:
    """A row that predicts a sampled id at each of the places `trained`, at all of them where none are given."""
    places = torch.tensor(trained or range(len(ids)))
    return Row(0, torch.tensor(ids), places, places % 2, -1.0 - places, torch.zeros(len(places), dtype=torch.long))


def grow(rng: random.Random, prompt: Sequence[int], calls: int, vocabulary: int) -> list[Node]:
    """An episode: calls go on from any earlier one, repeat a part of what was served, or begin anew."""
    nodes: list[Node] = []
    for index in range(calls):
        fresh = tuple(rng.randrange(vocabulary) for _ in range(rng.randint(0, 5)))
        parent = rng.choice(nodes) if nodes and rng.random() < 0.6 else None
        if parent is not None:
            context = fresh
        elif nodes and rng.random() < 0.7:  # thinking is left out: a part of the history, then other ids
            served = rng.choice(nodes).path_ids()
            context = (*served[: rng.randint(1, len(served))], *fresh)
        else:
            context = (*prompt, *fresh)
        sampled = tuple(rng.randrange(vocabulary) for _ in range(rng.randint(1, 4)))
        logprobs = tuple(rng.uniform(-5.0, -3.0) for _ in sampled)
        nodes.append(Node(index, parent, context, sampled, logprobs, (0,) * len(sampled), "", Drift.START))
    return nodes


def grow_groups(seed: int, vocabulary: int, groups: int = 3, members: int = 3) -> list[tuple[str, list[Node]]]:
    """Episodes by group; members of a group begin with its prompt, and all groups with the same words."""
    rng = random.Random(seed)
    system = [rng.randrange(vocabulary) for _ in range(3)]
    grown = []
    for group in range(groups):
        prompt = [*system, *(rng.randrange(vocabulary) for _ in range(rng.randint(1, 6)))]
        grown += [(f"g{group}", grow(rng, prompt, rng.randint(1, 4), vocabulary)) for _ in range(members)]
    return grown


def batch_of(grown: Sequence[tuple[str, list[Node]]], *, merged: bool = True, step: int = 0) -> Batch:
    rows = linear_rows if merged else unmerged_rows
    return Batch(
        step,
        tuple(
            TrainEpisode(f"e{n}", group, float(n * 7 % 5), rows(nodes), (1.0, 0.5, 2.0)[n % 3])
            for n, (group, nodes) in enumerate(grown)
        ),
    )


WINDOW = 40
"""Window of the families that have one."""
POSITIONS = 64
"""Most positions of every family."""

_NO_IDS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
_PLAIN: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": POSITIONS, **_NO_IDS,
}  # fmt: skip
_WIDER: dict[str, Any] = {**_PLAIN, "intermediate_size": 48, "num_key_value_heads": 2}
_HEADS: dict[str, Any] = {**_WIDER, "head_dim": 8}
_WINDOWED: dict[str, Any] = {**_WIDER, "sliding_window": WINDOW}
_EXPERTS: dict[str, Any] = {**_HEADS, "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}
_LATENT: dict[str, Any] = {
    **_WIDER, "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8, "v_head_dim": 4, "n_routed_experts": 4, "n_shared_experts": 1, "moe_intermediate_size": 16,
    "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip
_CAPPED: dict[str, Any] = {
    **_HEADS, "sliding_window": WINDOW, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0,
}  # fmt: skip
_OLD: dict[str, Any] = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": POSITIONS}
_DYNAMIC_ROPE: dict[str, Any] = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}
_LONG_ROPE: dict[str, Any] = {
    "rope_type": "longrope", "rope_theta": 10_000.0, "short_factor": [1.0, 1.5, 2.0, 2.5],
    "long_factor": [4.0, 8.0, 16.0, 32.0], "factor": POSITIONS / WINDOW,
}  # fmt: skip

SERVED: dict[str, tuple[str, dict[str, Any]]] = {
    "cohere2": ("cohere2", _WINDOWED),
    "deepseek_v2": ("deepseek_v2", {**_LATENT, "q_lora_rank": None}),
    "deepseek_v3": ("deepseek_v3", _LATENT),
    "falcon": ("falcon", {**_PLAIN, "multi_query": True}),
    "falcon-grouped": ("falcon", {**_PLAIN, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "gemma": ("gemma", _HEADS),
    "gemma2": ("gemma2", _CAPPED),
    "gemma3": ("gemma3_text", {**_HEADS, "sliding_window": WINDOW}),
    "gpt2": ("gpt2", _OLD),
    "gpt_bigcode": ("gpt_bigcode", _OLD),
    "gpt_neox": ("gpt_neox", {**_PLAIN, "intermediate_size": 48}),
    "gpt_oss": ("gpt_oss", {**_EXPERTS, "sliding_window": WINDOW}),
    "granite": ("granite", {**_WIDER, "logits_scaling": 4.0}),
    "llama": ("llama", _WIDER),
    "llama-dynamic": ("llama", {**_WIDER, "rope_parameters": _DYNAMIC_ROPE}),
    "mistral": ("mistral", _WINDOWED),
    "mixtral": ("mixtral", _EXPERTS),
    "nemotron": ("nemotron", _WIDER),
    "olmo3": ("olmo3", _WINDOWED),
    "opt": ("opt", {**_PLAIN, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "phi3": ("phi3", _WIDER),
    "phi3-longrope": (
        "phi3", {**_WIDER, "rope_parameters": _LONG_ROPE, "original_max_position_embeddings": WINDOW}
    ),
    "qwen2": ("qwen2", _WIDER),
    "qwen2-windows": ("qwen2", {**_WINDOWED, "use_sliding_window": True, "max_window_layers": 1}),
    "qwen3": ("qwen3", _HEADS),
    "qwen3_moe": ("qwen3_moe", {**_EXPERTS, "moe_intermediate_size": 16}),
}  # fmt: skip
"""What the slot engine must serve as the model itself computes it, at a `max_context` of WINDOW."""

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "bart": (
        "bart",
        {"vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 1, "decoder_layers": 2,
         "encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": POSITIONS},
        "takes no position_ids",
    ),
    "bloom": ("bloom", {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4}, "no position_ids"),
    "falcon-alibi": ("falcon", {**_PLAIN, "alibi": True}, "falcon to run .*found that it fails"),
    "gptj": ("gptj", {**_OLD, "rotary_dim": 4}, "gptj has its own alone"),
    "jamba": ("jamba", _WIDER, "mamba in jamba"),
    "lfm2": ("lfm2", {**_WIDER, "layer_types": ["conv", "full_attention"]}, "conv in lfm2"),
    "mamba": ("mamba", {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}, "no past_key_values"),
}  # fmt: skip
"""What is refused when it is loaded, and by which words."""


def save_family(kind: str, fields: dict[str, Any], folder: Path) -> Path:
    """Save a model whose every matrix is random and large enough to be heard."""
    config = transformers.CONFIG_MAPPING[kind](**fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight.normal_(std=0.25)
    model.save_pretrained(folder)
    return folder

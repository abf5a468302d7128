"""Tiny Llama models made from a seed, with tokenizer and warm start, cached by hash.

The folder is in Hugging Face's format, whole or absent; on one machine the weights come out the same bit for bit.
Whole numbers up to `LARGEST_NUMBER` and the environment's words are one token each, all else falls back to UTF-8 bytes.
Embeddings of numbers start as sines and cosines (Fourier features, arXiv 2406.03445), so that small models generalise
sums. The warm start imitates the environment's mediocre scripted player on the train split alone. A change of code
(player, tokenizer, recipe) that gives other weights for the same spec raises `swarm.models.TINY_VERSION`.
"""

import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from filelock import FileLock
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.utils.rnn import pad_sequence

from swarm.environments import Demonstration, Environment, get_environment
from swarm.job import TINY_CONTEXT, TinyModel
from swarm.models import fill_once, find_tiny, keep_tiny, tiny_folder
from swarm.rendering.messages import BackendError
from swarm.timelines import normalise

Progress = Callable[[int, int], None]
"""Told the steps done and the steps in all."""


def build_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Return `folder`, filled by `make`, by one process at a time, where it is not there yet; raise as `fill_once`."""
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f"{folder.name}.lock"):
        return folder if folder.is_dir() else fill_once(folder, make)


_PERIODS = (2.0, *(4.0 * 100.0 ** (step / 6) for step in range(7)))
"""From parity to a circle of 400, twice the largest number."""
_NOISE = 0.1
"""Share of a code that is random, so that no two numbers are bound together."""


def number_codes(numbers: int, width: int) -> torch.Tensor:
    """Return one code per number from 0, (numbers, width), by torch's present random numbers. Each is a random
    projection of (cos, sin)(2 pi n / period) over the periods, with root mean square of about 0.2."""
    values_N1 = torch.arange(numbers, dtype=torch.float32)[:, None]
    angles_NP = 2.0 * math.pi * values_N1 / torch.tensor(_PERIODS)
    circles_NF = torch.cat([angles_NP.cos(), angles_NP.sin()], dim=1)
    projection_FD = torch.randn(circles_NF.shape[1], width) / math.sqrt(len(_PERIODS))
    return 0.2 * (circles_NF @ projection_FD + _NOISE * torch.randn(numbers, width))


LARGEST_NUMBER = 199
START, END, PAD = "<|im_start|>", "<|im_end|>", "<|pad|>"
ASSISTANT = "assistantĊ"
"""The token after `START` that opens an answer (`Ċ` is how byte-level vocabularies write a newline)."""

_ROLES = ("system\n", "user\n", "assistant\n", "tool\n")
CALL_MARKS = (
    '<tool_call>\n{"name": "', '", "arguments": {"', '"}}\n</tool_call>', "}}\n</tool_call>", '": "', '": ', '", "',
)  # fmt: skip
"""What the template writes around the names and values of a call, each of them one token; longer ones come first."""
_PIECE = r"\p{N}{1,3}| ?\p{L}+[ \n]?|[^\p{N}\p{L}]"
CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% if messages and messages[0]['role'] == 'system' %}"
    "{{ messages[0]['content'] or '' }}\n{% endif %}<tools>\n"
    "{% for tool in tools %}{{ tool['function'] | tojson }}\n{% endfor %}</tools>\n"
    'Call: <tool_call>\n{"name": NAME, "arguments": OBJECT}\n</tool_call><|im_end|>{% endif %}'
    "{% for message in messages %}{% if not (tools and loop.first and message['role'] == 'system') %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}{% if message['content'] or not loop.first %}{{ '\n' }}{% endif %}"
    "<tool_call>\n{\"name\": {{ call['function']['name'] | tojson }}, \"arguments\": "
    "{% if call['function']['arguments'] is string %}{{ call['function']['arguments'] }}"
    "{% else %}{{ call['function']['arguments'] | tojson }}{% endif %}}\n</tool_call>{% endfor %}"
    "<|im_end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML without the newline between messages: what follows a served answer begins at a special token. Tools and calls
are written as Hermes does, in the fewest words, for these are bytes to the model."""


def build_tokenizer(
    texts: Iterable[str], max_length: int, marks: Sequence[str] = ()
) -> transformers.PreTrainedTokenizerFast:
    """Return one to which words of `texts`, and `marks` anywhere, are one token; the model takes `max_length`."""
    splitter = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("|".join([*map(re.escape, marks), _PIECE])), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet, words = sorted(pre_tokenizers.ByteLevel.alphabet()), list[str]()
    for own in (_ROLES, marks, texts):
        words += sorted({piece for text in own for piece, _ in splitter.pre_tokenize_str(text)})
    numbers = [str(number) for number in range(LARGEST_NUMBER + 1)]
    vocabulary: dict[str, int] = {}
    for piece in (PAD, START, END, *numbers, *alphabet, *words):
        vocabulary.setdefault(piece, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in (PAD, START, END)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


class _Muon:
    """Muon with Nesterov momentum (github.com/KellerJordan/Muon) in fp32, for all matrices of a shape at once."""

    def __init__(self, matrices: Sequence[torch.nn.Parameter]) -> None:
        self._shapes: dict[tuple[int, int], list[torch.nn.Parameter]] = {}
        for matrix in matrices:
            self._shapes.setdefault((matrix.shape[0], matrix.shape[1]), []).append(matrix)
        self._moments = {shape: torch.zeros(len(same), *shape) for shape, same in self._shapes.items()}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for (rows, columns), same in self._shapes.items():
            gradient_NRC = torch.stack([matrix.grad for matrix in same if matrix.grad is not None])
            moment_NRC = self._moments[rows, columns].lerp_(gradient_NRC, 1.0 - _MOMENTUM)
            changes_NRC = _orthogonalise(gradient_NRC.lerp(moment_NRC, _MOMENTUM))
            for matrix, change in zip(same, changes_NRC, strict=True):
                matrix.sub_(change, alpha=rate * math.sqrt(max(1.0, rows / columns)))


def _orthogonalise(matrices_NRC: torch.Tensor) -> torch.Tensor:
    """Return about U V^T of each matrix U S V^T, by five Newton-Schulz steps of the fifth degree."""
    wide = matrices_NRC if matrices_NRC.shape[1] <= matrices_NRC.shape[2] else matrices_NRC.mT
    x = wide / wide.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    orthogonal_NRC: torch.Tensor = x if wide is matrices_NRC else x.mT
    return orthogonal_NRC


_MOMENTUM = 0.95
_TOKENS_PER_STEP = 1024
_MUON_RATE, _ADAM_RATE = 0.02, 5e-3
_WARM_UP = 20


def warm_start(
    model: transformers.PreTrainedModel,
    tokenizer: transformers.PreTrainedTokenizerFast,
    environment: Environment,
    *,
    steps: int,
    seed: int,
    progress: Progress | None = None,
) -> None:
    """Train `model` in place on `steps` batches of fresh plays by `environment.imitate`; none leave it as it is."""
    if not steps:
        return
    rng = random.Random(f"warm start {seed}")
    inside = [p for name, p in model.named_parameters() if p.dim() == 2 and ".layers." in name]
    outside = [p for name, p in model.named_parameters() if not (p.dim() == 2 and ".layers." in name)]
    muon = _Muon(inside)
    adam = torch.optim.AdamW(outside, lr=_ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    model.train()
    with one_thread():
        for step in range(steps):
            ids_BT, said_BT = _batch(tokenizer, environment, rng)
            hidden_BTD = model.get_decoder()(input_ids=ids_BT, use_cache=False).last_hidden_state
            asked = said_BT[:, 1:]  # logits only where they count: the vocabulary is wider than the model
            logits_NV = model.get_output_embeddings()(hidden_BTD[:, :-1][asked])
            loss = torch.nn.functional.cross_entropy(logits_NV, ids_BT[:, 1:][asked])
            model.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            share = min(1.0, (step + 1) / _WARM_UP) * (1.0 - step / steps)
            muon.step(share * _MUON_RATE)
            for group in adam.param_groups:
                group["lr"] = share * _ADAM_RATE
            adam.step()
            if progress is not None:
                progress(step + 1, steps)
    model.eval()


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread inside: sums in another order would give other weights."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _batch(
    tokenizer: transformers.PreTrainedTokenizerFast, environment: Environment, rng: random.Random
) -> tuple[torch.Tensor, torch.Tensor]:
    tasks = environment.tasks("train")
    rows: list[list[int]] = []
    while sum(map(len, rows)) < _TOKENS_PER_STEP:  # so that a step costs the same in any environment
        plays = [environment.demonstrate(rng.choice(tasks), rng) for _ in range(8 if rows else 16)]
        rows += encode_plays(tokenizer, plays)
    said = pad_sequence([torch.tensor(said_by_assistant(tokenizer, row)) for row in rows], batch_first=True)
    return pad_sequence(list(map(torch.tensor, rows)), batch_first=True, padding_value=tokenizer.pad_token_id), said


def encode_plays(tokenizer: transformers.PreTrainedTokenizerFast, plays: Sequence[Demonstration]) -> list[list[int]]:
    """Return the ids of each play as a server shows and samples them: the chat template's text, with its tools."""
    texts = [render_play(tokenizer, play) for play in plays]
    encode = tokenizer.backend_tokenizer.encode_batch_fast  # ids alone, at a third of the cost
    return [row.ids for row in encode(texts, add_special_tokens=False)]


def render_play(tokenizer: transformers.PreTrainedTokenizerFast, play: Demonstration) -> str:
    messages = [normalise(message) for message in play.messages]
    tools: list[Any] = list(play.tools)
    return str(tokenizer.apply_chat_template(messages, tools=tools or None, tokenize=False))


def said_by_assistant(tokenizer: transformers.PreTrainedTokenizerFast, ids: list[int]) -> list[bool]:
    start, end, role = (tokenizer.convert_tokens_to_ids(token) for token in (START, END, ASSISTANT))
    said, speaking = [], False
    for position, token in enumerate(ids):
        said.append(speaking)
        if token == end:
            speaking = False
        elif position > 0 and token == role and ids[position - 1] == start:
            speaking = True
    return said


_VOCABULARY_PLAYS = 200
_BETWEEN_MARKS = re.compile("|".join(map(re.escape, (START, END))))


def require_context(max_context: int) -> None:
    if max_context > TINY_CONTEXT:
        raise BackendError(
            f"expected a max_context of at most {TINY_CONTEXT}, as many as a tiny model has positions, found "
            f"{max_context}: set max_context to {TINY_CONTEXT} or less, or name a model with more"
        )


def ensure_tiny(spec: TinyModel, environment: str, models: Path, progress: Progress | None = None) -> Path:
    """Return the folder of the model under `models`, made with `progress` if it is not there yet.
    Raises InvalidRequest for an unknown environment, and OSError when `models` cannot be written."""
    if (found := find_tiny(spec, environment, models)) is not None:  # nobody needs its environment any more
        return found
    world, folder = get_environment(environment), tiny_folder(spec, environment, models)
    build_once(folder, lambda scratch: _make_model(spec, world, scratch, progress))
    return keep_tiny(folder, spec, environment)


def _make_model(spec: TinyModel, environment: Environment, folder: Path, progress: Progress | None) -> None:
    tokenizer = _tokenizer(environment)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=spec.hidden_size, intermediate_size=2 * spec.hidden_size,
        num_hidden_layers=spec.layers, num_attention_heads=max(1, spec.hidden_size // spec.head_size),
        num_key_value_heads=max(1, spec.hidden_size // spec.head_size), head_dim=spec.head_size,
        max_position_embeddings=TINY_CONTEXT, tie_word_embeddings=False, initializer_range=0.05, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]), one_thread():
        torch.manual_seed(spec.seed)
        model = transformers.LlamaForCausalLM(config)
        ids = [tokenizer.convert_tokens_to_ids(str(number)) for number in range(LARGEST_NUMBER + 1)]
        with torch.no_grad():
            for table in (model.model.embed_tokens.weight, model.lm_head.weight):
                table[ids] = number_codes(len(ids), table.shape[1])
    warm_start(model, tokenizer, environment, steps=spec.warm_start_steps, seed=spec.seed, progress=progress)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer(environment: Environment) -> transformers.PreTrainedTokenizerFast:
    rng = random.Random(0)
    tasks = environment.tasks("train")
    plays = [environment.demonstrate(rng.choice(tasks), rng) for _ in range(_VOCABULARY_PLAYS)]
    if not any(play.tools for play in plays):
        return build_tokenizer((str(message["content"]) for play in plays for message in play.messages), TINY_CONTEXT)
    bytes_alone = build_tokenizer((), TINY_CONTEXT)
    texts = [text for play in plays for text in _BETWEEN_MARKS.split(render_play(bytes_alone, play))]
    return build_tokenizer(texts, TINY_CONTEXT, CALL_MARKS)

"""Tiny models: made once, the same every time, better than chance after imitation; their template and tools."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Template

from swarm.backends import tiny_model as tiny
from swarm.backends.local.warm_start import main
from swarm.environments import get_environment
from swarm.job import Job, TinyModel
from swarm.models import tiny_hash
from swarm.rendering.messages import ToolCall, assemble_answer
from swarm.rendering.renderer import HFRenderer
from swarm.server.__main__ import load_tokenizer
from swarm.timelines import CallTree, Drift

pytestmark = pytest.mark.slow

SPEC = TinyModel(hidden_size=16, layers=1, warm_start_steps=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.ensure_tiny(SPEC, "guess", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def tokenizer() -> transformers.PreTrainedTokenizerFast:
    return tiny.build_tokenizer(["above 4 below 15", "pass"], 2048)


@pytest.fixture(scope="module")
def renderer(tokenizer: transformers.PreTrainedTokenizerFast) -> HFRenderer:
    return HFRenderer(tokenizer)


TWO = """
import os, sys
from swarm.backends.local import warm_start as model

for file in sys.argv[1:3]:  # forked, so that torch is imported once; it was not used yet
    if not os.fork():
        os.dup2(os.open(file, os.O_CREAT | os.O_WRONLY), 1)
        code = model.main(sys.argv[3:])
        sys.stdout.flush()
        os._exit(code)
sys.exit(max(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2)))
"""
"""Runs the command with the arguments from the third on in two processes at once; what each prints is in a file."""


def test_the_same_spec_gives_the_same_weights_whatever_the_number_of_threads(folder: Path, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        again = tiny.ensure_tiny(SPEC, "guess", tmp_path)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert again.name == folder.name
    for name in ("model.safetensors", "tokenizer.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()


def test_a_model_that_breaks_while_it_is_made_leaves_no_folder(tmp_path: Path) -> None:
    def breaks(done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiny.ensure_tiny(SPEC, "guess", tmp_path, breaks)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
    assert (tiny.ensure_tiny(SPEC, "guess", tmp_path) / "model.safetensors").is_file()


def test_two_processes_at_once_make_it_once(tmp_path: Path) -> None:
    models, files = tmp_path / "models", [tmp_path / "first", tmp_path / "second"]
    spec = {"kind": "tiny", "hidden_size": 16, "layers": 1, "warm_start_steps": 5}
    given = ("--models", str(models), "--job", json.dumps({"environment": "arith", "model": spec}))
    command = [sys.executable, "-c", TWO, *map(str, files), *given]
    ended = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=400, capture_output=True)
    assert ended.returncode == 0, ended.stderr.decode()
    outputs = [file.read_text() for file in files]
    paths = {out.splitlines()[-1] for out in outputs}
    assert len(paths) == 1
    assert (Path(paths.pop()) / "model.safetensors").is_file()
    assert sum("warm start 5/5" in out for out in outputs) == 1
    assert len([path for path in models.iterdir() if path.is_dir()]) == 1


@pytest.mark.parametrize(
    ("job", "said"),
    [({"environment": "chess"}, "arith, guess, market, words"), ({"model": {"kind": "tiny", "layers": 0}}, "layers")],
)
def test_bad_input_is_one_line_and_exit_code_2(
    job: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--job", json.dumps(job), "--models", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("environment", "name", "vocabulary", "batch"),
    [
        ("guess", "1dd29f0d3fb4daad", "3bbf932b81af78c4", "c0a0da504b5d79c3"),
        ("arith", "7fd63935f35169eb", "04d29ee73cacd514", "fe4534c2a7db946e"),
    ],
)
def test_a_change_of_vocabulary_or_batches_is_a_change_of_version(
    environment: str, name: str, vocabulary: str, batch: str
) -> None:
    """Name, vocabulary and first batch; the vocabulary as recorded before tools were shown to tiny models."""
    tokenizer, world = tiny._tokenizer(get_environment(environment)), get_environment(environment)
    ids, said = tiny._batch(tokenizer, world, random.Random("warm start 0"))
    labels = ids.masked_fill(~said, -100)
    found = [tokenizer.backend_tokenizer.to_str(), json.dumps([ids.tolist(), labels.tolist()])]
    hashes = [hashlib.sha256(text.encode()).hexdigest()[:16] for text in found]
    assert [tiny_hash(TinyModel(), environment), *hashes] == [name, vocabulary, batch]


def test_a_folder_that_an_earlier_version_made_goes_on_being_used_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def summarize(count: int) -> Any:
        return SimpleNamespace(job=Job(environment="guess"))

    monkeypatch.setattr("swarm.rendering.renderer.load_renderer", lambda folder: folder)
    archive: Any = SimpleNamespace(summarize=summarize)
    (folder := tmp_path / "d9d3c8e042bc64a7").mkdir()
    assert tiny.ensure_tiny(TinyModel(), "guess", tmp_path) == folder
    assert load_tokenizer(archive, tmp_path) == folder


def test_its_optimiser_steps_as_torch_s_muon_does() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((64, 64), (128, 64), (64, 128), (64, 64))
    ours, theirs = ([torch.nn.Parameter(torch.zeros(shape)) for shape in shapes] for _ in range(2))
    own, muon = tiny._Muon(ours), torch.optim.Muon(theirs, lr=1.0, weight_decay=0.0)
    for _ in range(3):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = other.grad = torch.randn(mine.shape, generator=generator)
        own.step(1.0)
        muon.step()
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine - other).abs().max() < 0.05 * other.abs().max()  # torch rounds to bfloat16


def test_a_number_is_one_token_and_codes_of_numbers_hold_their_order(
    tokenizer: transformers.PreTrainedTokenizerFast,
) -> None:
    assert {len(tokenizer.encode(str(n), add_special_tokens=False)) for n in range(tiny.LARGEST_NUMBER + 1)} == {1}

    def codes(seed: int = 0) -> torch.Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return tiny.number_codes(200, 64)

    distances = torch.cdist(codes(), codes())
    near = torch.stack([distances[n, n + 2] for n in range(198)])
    far = torch.stack([distances[n, (n + 100) % 200] for n in range(198)])
    assert near.max() < far.min()
    assert (distances + 10.0 * torch.eye(200)).min() > 0.1
    assert torch.equal(codes(), codes())
    assert not torch.equal(codes(), codes(seed=1))


@given(first=st.text(), second=st.text())
def test_an_answer_and_what_follows_are_encoded_apart(
    tokenizer: transformers.PreTrainedTokenizerFast, first: str, second: str
) -> None:
    """A prompt may be built from served ids and the rendering of new messages alone."""
    messages = [{"role": "assistant", "content": first}, {"role": "user", "content": second}]
    whole, left, right = (
        tokenizer.encode(tokenizer.apply_chat_template(part, tokenize=False), add_special_tokens=False)
        for part in (messages, messages[:1], messages[1:])
    )
    assert whole == left + right


ADD: dict[str, Any] = {
    "type": "function",
    "function": {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {"a": {}}}},
}
FIRST = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] or '' }}<|im_end|>"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The template of version 0.1.0, which knew no tools."""
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": st.text()}),
    min_size=1,
    max_size=4,
)


@given(messages=MESSAGES, opened=st.booleans())
def test_without_tools_it_says_as_ever(renderer: HFRenderer, messages: list[dict[str, str]], opened: bool) -> None:
    before = Template(FIRST).render(messages=messages, add_generation_prompt=opened)
    assert renderer.render(messages, generation_prompt=opened) == before


@pytest.mark.parametrize("arguments", ['{"a": 1}', '{"a": "é\\"<x>\\n"}', "{}"])
@pytest.mark.parametrize("words", ["", "let me see"])
def test_a_conversation_with_calls_comes_back_as_served(renderer: HFRenderer, arguments: str, words: str) -> None:
    tree, reader = CallTree(renderer), renderer.answers.reader("", [ADD])
    history: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
    for _ in range(3):
        prompt = tree.prompt(history, [ADD])
        call = f'<tool_call>\n{{"name": "add", "arguments": {arguments}}}\n</tool_call>'
        text = f"{words}\n{call}" if words else call
        reader = renderer.answers.reader(prompt.prompt_text, [ADD])
        read = assemble_answer([*reader.feed(text), *reader.finish()])
        assert (read.content, read.tool_calls) == (words, (ToolCall("add", arguments),))
        sampled = [*renderer.encode(text), renderer.eos_id]
        function = {"name": "add", "arguments": arguments}
        calls = [{"id": "c", "type": "function", "function": function}]
        said = {"role": "assistant", "content": words, "tool_calls": calls}
        tree.keep(prompt, tree.make_node(prompt, sampled, [0.0] * len(sampled), [0] * len(sampled), text=text), said)
        history += [said, {"role": "tool", "tool_call_id": "c", "content": "5"}]
    assert [node.drift for node in tree.nodes] == [Drift.START, Drift.CLEAN, Drift.CLEAN]
    assert len(tree.nodes[-1].path()) == 3

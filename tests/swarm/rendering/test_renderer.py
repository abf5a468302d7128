"""The renderer: the template's text, the tokenizer's ids, and errors a person can read."""

from __future__ import annotations

import json
import re
import threading
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from swarm.rendering import renderer as encoding
from swarm.rendering.messages import BackendError
from swarm.rendering.renderer import HFRenderer, load_renderer
from tests.swarm.backends.local.models import make_tokenizer
from tests.swarm.timelines.families import FAMILIES, make_renderer, train
from tests.swarm.timelines.families import make_tokenizer as make_tokenizer_of


@cache
def train_of(name: str, spaced: bool) -> Any:
    return train(FAMILIES[name].specials, spaced=spaced)


def test_what_ends_an_assistant_message_is_read_from_the_template() -> None:
    tokenizer = make_tokenizer()
    tokenizer.eos_token = "<|pad|>"
    renderer = HFRenderer(tokenizer)
    assert renderer.decode([renderer.eos_id], special=True) == "<|im_end|>"
    assert renderer.encode("<|im_end|>") == [renderer.eos_id]


def test_a_tokenizer_without_a_template_is_refused(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(BackendError, match=f"{tmp_path}.*no chat template"):
        load_renderer(tmp_path)


def test_a_template_that_loops_is_refused_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make_tokenizer()
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    tokenizer.chat_template = endless + tokenizer.chat_template
    tokenizer.save_pretrained(tmp_path)
    monkeypatch.setattr("swarm.rendering.renderer.RENDER_S", 0.1)
    with pytest.raises(BackendError, match="may loop"):
        load_renderer(tmp_path)
    for thread in threading.enumerate():
        if thread.name == "template":
            thread.join()


def test_code_of_a_tokenizer_is_not_run_and_not_to_be_trusted(tmp_path: Path) -> None:
    make_tokenizer().save_pretrained(tmp_path)
    own = {"auto_map": {"AutoTokenizer": ["own.Own", None]}, "tokenizer_class": "Own"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(own))
    (tmp_path / "own.py").write_text("raise SystemExit('it ran')\n")
    with pytest.raises(BackendError, match="never run") as refused:
        load_renderer(tmp_path)
    assert "trust" not in str(refused.value)


def test_a_template_without_an_end_is_refused() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    with pytest.raises(BackendError, match="special token"):
        HFRenderer(tokenizer)


@pytest.mark.parametrize(
    ("name", "closing", "stops", "answers"),
    [
        ("qwen2.5", "<|im_end|>", ["<|im_end|>"], "hermes"),
        ("qwen3", "<|im_end|>", ["<|im_end|>"], "hermes"),
        ("llama3", "<|eot_id|>", ["<|eot_id|>", "<|eom_id|>"], "llama3"),
        ("mistral", "</s>", ["</s>"], "mistral"),
        ("gemma", "<end_of_turn>", ["<end_of_turn>", "<eos>"], "plain"),
        ("glm4", "<|user|>", ["<|user|>", "<|observation|>", "<|endoftext|>"], "glm"),
        ("gpt-oss", "<|end|>", ["<|return|>", "<|call|>"], "harmony"),
    ],
)
def test_how_a_family_ends_answers_is_in_its_template(name: str, closing: str, stops: list[str], answers: str) -> None:
    renderer = make_renderer(name)
    assert renderer.decode([renderer.eos_id], special=True) == closing
    assert [renderer.decode([token], special=True) for token in renderer.stop_ids] == stops
    assert renderer.answers.name == answers


def test_the_ends_that_a_generation_config_names_stop_too(tmp_path: Path) -> None:
    tokenizer = make_tokenizer_of(FAMILIES["qwen3"])
    tokenizer.save_pretrained(tmp_path)
    extra = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    for named in (extra, [extra]):
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
        assert load_renderer(tmp_path).stop_ids == (tokenizer.convert_tokens_to_ids("<|im_end|>"), extra)
    (tmp_path / "generation_config.json").write_text("{}")
    assert len(load_renderer(tmp_path).stop_ids) == 1


def test_a_prompt_is_whole_and_not_padded_whatever_a_trainer_left_in_the_tokenizers_file(tmp_path: Path) -> None:
    tokenizer = make_tokenizer_of(FAMILIES["qwen3"])
    plain = HFRenderer(tokenizer).encode("a word " * 40)
    tokenizer.backend_tokenizer.enable_truncation(8)
    tokenizer.backend_tokenizer.enable_padding(length=300)
    tokenizer.save_pretrained(tmp_path)
    kept = json.loads((tmp_path / "tokenizer.json").read_text())
    assert kept["truncation"]
    assert kept["padding"]
    assert load_renderer(tmp_path).encode("a word " * 40) == plain


def asked(call_id: str | None, result_id: str | None) -> str:
    """Render a call and its result with Mistral's template, which takes ids of nine characters only."""
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": {}}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "ok", **({"tool_call_id": result_id} if result_id else {})},
    ]
    return make_renderer("mistral").render(messages, generation_prompt=True)


@pytest.mark.parametrize("call_id", ["call_0123456789abcdef", "a", "naïve1234", "abcdefghi", None])
@pytest.mark.parametrize("named", [True, False])
def test_tool_call_ids_are_shortened_where_a_template_takes_only_short_ones(call_id: str | None, named: bool) -> None:
    text = asked(call_id, call_id if named else None)
    call, result = re.findall(r'"(?:id|call_id)": "([^"]*)"', text)
    assert call == result
    assert re.fullmatch("[A-Za-z0-9]{9}", call)
    assert call_id != "abcdefghi" or call == call_id


def test_a_template_that_breaks_on_strange_messages_refuses_them() -> None:
    odd: list[dict[str, Any]] = [
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
        {"role": "assistant", "content": None, "tool_calls": 7},
        {"role": "assistant", "content": 5},
    ]
    for message in odd:
        with pytest.raises(BackendError, match=r"chat template refuses .*: .+"):
            make_renderer("glm4").render([{"role": "user", "content": "hi"}, message], generation_prompt=True)


@given(
    st.sampled_from(["qwen3", "llama3", "mistral", "gemma", "gpt-oss"]),
    st.booleans(),
    st.lists(st.sampled_from(["The answer", " is", "\n", "  ", "é", "MARK", "x", "42"]), max_size=12),
)
def test_encoding_in_parts_gives_the_ids_of_the_whole(name: str, spaced: bool, parts: list[str]) -> None:
    renderer = make_renderer(name, spaced=spaced)
    text = "".join(parts).replace("MARK", renderer.decode([renderer.eos_id], special=True))
    whole = train_of(name, spaced).encode(text, add_special_tokens=False).ids
    assert renderer.encode(text) == whole
    assert renderer.encode(text) == whole


def test_what_was_encoded_is_forgotten_when_there_is_too_much_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "_MOST_CHARACTERS", 50)
    inner = train_of("qwen3", False)
    remembered = encoding.Encoding(inner, ["<|im_end|>"])
    for number in range(30):
        text = f"number {number}<|im_end|>\n{number}"
        assert remembered.ids(text) == inner.encode(text, add_special_tokens=False).ids
        assert sum(map(len, remembered._cache)) <= 50 + 2 * len(text)


def test_text_is_not_cut_before_a_token_that_takes_the_space_before_it() -> None:
    family = FAMILIES["qwen3"]
    inner = train([mark for mark in family.specials if mark != "<|im_end|>"])
    inner.add_special_tokens([AddedToken("<|im_end|>", special=True, normalized=False, lstrip=True)])
    renderer = HFRenderer(transformers.PreTrainedTokenizerFast(tokenizer_object=inner, chat_template=family.template))
    text = "a <|im_end|> b <|im_end|> c "
    assert renderer.encode(text) == inner.encode(text, add_special_tokens=False).ids
    assert renderer.encode("a <|im_end|>") == renderer.encode("a<|im_end|>")

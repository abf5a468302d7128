"""The renderer: the template's text, the tokenizer's ids, and errors a person can read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.local.renderer import HFRenderer, load_renderer
from swarm.backends.protocols import BackendError
from tests.swarm.backends.local.models import make_tokenizer

_RENDERER = HFRenderer(make_tokenizer())
_MESSAGES = [{"role": "user", "content": "7 or 8?"}, {"role": "assistant", "content": "8"}]


def test_messages_are_rendered_by_the_template() -> None:
    text = "<|im_start|>user\n7 or 8?<|im_end|>\n<|im_start|>assistant\n8<|im_end|>\n"
    assert _RENDERER.render(_MESSAGES, generation_prompt=False) == text
    assert _RENDERER.render(_MESSAGES[:1], generation_prompt=True).endswith("<|im_start|>assistant\n")


def test_what_ends_an_assistant_message_is_read_from_the_template() -> None:
    tokenizer = make_tokenizer()
    tokenizer.eos_token = "<|pad|>"
    renderer = HFRenderer(tokenizer)
    assert renderer.eos_text == "<|im_end|>"
    assert renderer.encode("<|im_end|>") == [renderer.eos_id]


def test_special_tokens_are_recognised_and_left_out_of_decoded_text() -> None:
    ids = _RENDERER.encode(_RENDERER.render(_MESSAGES, generation_prompt=False))
    assert ids.count(_RENDERER.eos_id) == 2
    assert _RENDERER.decode(ids) == "user\n7 or 8?\nassistant\n8\n"


@given(st.text(max_size=40).filter(lambda text: "<|" not in text))
def test_text_survives_encoding(text: str) -> None:
    assert _RENDERER.decode(_RENDERER.encode(text)) == text


def test_messages_the_template_refuses_raise_with_its_reason() -> None:
    with pytest.raises(BackendError, match="no such role"):
        _RENDERER.render([{"role": "forbidden", "content": ""}], generation_prompt=True)


def test_a_tokenizer_without_a_template_is_refused(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(BackendError, match=f"{tmp_path}.*no chat template"):
        load_renderer(tmp_path)


def test_a_template_without_an_end_is_refused() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    with pytest.raises(BackendError, match="special token"):
        HFRenderer(tokenizer)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    make_tokenizer().save_pretrained(tmp_path / "t")
    (tmp_path / "t" / "tokenizer.json").unlink()
    with pytest.raises(BackendError, match=r"tokenizer\.json"):
        load_renderer(tmp_path / "t")
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(BackendError, match=r"tokenizer\.json"):
        load_renderer(tmp_path / "t")

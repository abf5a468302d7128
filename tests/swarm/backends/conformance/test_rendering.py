"""Rendering: text and ids are each other's inverse, and a history goes on where its prompt ended."""

from __future__ import annotations

from swarm.backends.protocols import Backend
from tests.swarm.backends.conformance.kinds import Kind

_ASKED = [{"role": "user", "content": "how much is 2 + 3?"}]


async def test_ids_and_text_are_each_other_s_inverse(kind: Kind, backend: Backend) -> None:
    renderer = backend.renderer
    text = renderer.render(_ASKED, generation_prompt=True)
    ids = renderer.encode(text)
    assert renderer.decode(ids, special=True) == text
    assert renderer.encode(renderer.decode(ids, special=True)) == ids


async def test_an_answered_history_goes_on_from_its_prompt(kind: Kind, backend: Backend) -> None:
    renderer = backend.renderer
    prompt = renderer.render(_ASKED, generation_prompt=True)
    answered = renderer.render([*_ASKED, {"role": "assistant", "content": "5"}], generation_prompt=False)
    assert answered.startswith(prompt + "5" + renderer.decode([renderer.eos_id], special=True))


async def test_the_end_of_an_answer_stops_generation_and_is_no_text(kind: Kind, backend: Backend) -> None:
    renderer = backend.renderer
    assert renderer.eos_id in renderer.stop_ids
    assert renderer.encode(renderer.decode([renderer.eos_id], special=True)) == [renderer.eos_id]
    assert renderer.decode([*renderer.encode("5"), renderer.eos_id]) == "5"


async def test_a_backend_has_a_name(kind: Kind, backend: Backend) -> None:
    assert backend.model_name

"""Demonstrations as training rows: the ids that a server would show, and those that the model would sample in answer.

A demonstration is told to a call tree as though the model had said it, so that prompts, their continuation over turns
and the mask are a server's own. Of an answer the chat template says how it is written; it must be one that the server
reads back with the same calls. Knows nothing of weights.
"""

from __future__ import annotations

from collections.abc import Sequence

from swarm.answers import gathered
from swarm.backends.protocols import BackendError, Message, TrainRow
from swarm.backends.rendering.renderer import HFRenderer
from swarm.environments import Demonstration
from swarm.timelines import CallTree, Prompt, linear_rows, normalise


def rows_of(renderer: HFRenderer, play: Demonstration) -> tuple[TrainRow, ...]:
    """Return the rows of a demonstration, `sampled` in each what is to be imitated.

    Raises BackendError for one that the chat template cannot write.
    """
    tree = CallTree(renderer)
    for number, message in enumerate(play.messages):
        if message["role"] == "assistant":
            _tell(tree, renderer, play, number)
    return linear_rows(tree.nodes)


def _tell(tree: CallTree, renderer: HFRenderer, play: Demonstration, number: int) -> None:
    history, answer = play.messages[:number], play.messages[number]
    prompt = tree.prompt(history, play.tools)
    ids = _answer_ids(renderer, play, number)
    text = renderer.decode(ids[:-1], special=True)
    _require_read_back(renderer, play, prompt, answer, text)
    none = [0] * len(ids)
    tree.add(prompt, ids, [0.0] * len(ids), none, text=text, answer=answer)


def _answer_ids(renderer: HFRenderer, play: Demonstration, number: int) -> list[int]:
    """Return the ids of an answer through the one that ends it."""
    plain = [normalise(message) for message in play.messages[: number + 1]]
    asked = renderer.render(plain[:-1], tools=play.tools, generation_prompt=True)
    told = renderer.render(plain, tools=play.tools, generation_prompt=False)
    if not told.startswith(asked):
        raise BackendError(
            f"expected a chat template that writes an answer behind its prompt; found {told[-60:]!r} behind "
            f"{asked[-60:]!r}; mend the template, or train without warm_start_steps"
        )
    ids = renderer.encode(told[len(asked) :])
    end = next((place for place, token in enumerate(ids) if token in renderer.stop_ids), None)
    return [*ids, renderer.eos_id] if end is None else ids[: end + 1]


def _require_read_back(renderer: HFRenderer, play: Demonstration, prompt: Prompt, answer: Message, text: str) -> None:
    wanted = _called(answer)
    reader = renderer.answers.reader(prompt.prompt_text, list(play.tools))
    found = [call.name for call in gathered([*reader.feed(text), *reader.finish()]).tool_calls]
    unseen = [name for name in _named(play) if prompt.parent is None and name not in prompt.prompt_text]
    if unseen or found != wanted:
        what = f"no word of the tool {unseen[0]}" if unseen else f"{text!r:.80} for a call of {', '.join(wanted)}"
        raise BackendError(
            f"expected a chat template that writes tools and their calls, as the demonstrations have them; found "
            f"{what}; choose a model whose template knows tools, or train without warm_start_steps"
        )


def _called(answer: Message) -> list[str]:
    return [call["function"]["name"] for call in answer.get("tool_calls") or ()]


def _named(play: Demonstration) -> Sequence[str]:
    return [tool["function"]["name"] for tool in play.tools]

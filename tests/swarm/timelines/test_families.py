"""What the chat templates of six families do to a history, and what of it is continued, realigned or forked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from swarm.timelines import Drift, linear_rows, tree_tokens, unmerged_rows
from tests.swarm.timelines.checks import check_packed, check_rows
from tests.swarm.timelines.desk import WEATHER, Desk, system, user
from tests.swarm.timelines.families import FAMILIES, Call, make_renderer, make_tokenizer

START, CLEAN, REALIGN, FORK = Drift.START, Drift.CLEAN, Drift.REALIGN, Drift.FORK
ALL = list(FAMILIES)
CALLING = [name for name in ALL if not name.startswith("gemma")]
THINKING = [name for name in ALL if FAMILIES[name].thinks]
HM = "hm, let me see"
PARIS: Call = ("weather", {"city": "Paris", "days": 3})


def desk(name: str, *tools: dict[str, Any], spaced: bool = False) -> Desk:
    return Desk(FAMILIES[name], make_renderer(name, spaced=spaced), tools)


def settled(at: Desk) -> int:
    rows = linear_rows(at.tree.nodes)
    check_rows(rows, at.calls)
    check_rows(unmerged_rows(at.tree.nodes), at.calls)
    check_packed([at.calls])
    return len(rows)


def chat(at: Desk, turns: int = 3, reasoning: str = "", *, dropped: bool = False) -> None:
    history = [user("What is the weather in Paris?")]
    for turn in range(turns):
        message = dict(at.serve(history, f"The answer is {turn}.", reasoning).message)
        if dropped:
            message.pop("reasoning_content", None)
        history = [*history, message, user(f"and {turn}?")]


def tool_run(at: Desk, *calls: Call, reasoning: str = "") -> None:
    history = [system("You call tools."), user("What is the weather in Paris?")]
    for _ in range(3):
        served = at.serve(history, "", reasoning, calls)
        assert len(served.results) == len(calls)
        history = [*history, served.message, *served.results]
    history.append(at.serve(history, "It is sunny.", reasoning).message)
    at.serve([*history, user("Thanks.")], "Good.", reasoning)


@pytest.mark.parametrize(("name", "spaced"), [*((name, False) for name in ALL), ("llama3", True), ("mistral", True)])
def test_a_plain_conversation_is_one_row(name: str, spaced: bool) -> None:
    at = desk(name, spaced=spaced)
    chat(at)
    kept = REALIGN if name == "gpt-oss" else CLEAN  # a final answer is closed otherwise in a history
    assert at.drift == [START, kept, kept]
    assert settled(at) == 1


@pytest.mark.parametrize("name", CALLING)
def test_a_run_of_tool_calls_is_one_row(name: str) -> None:
    at = desk(name, WEATHER)
    tool_run(at, PARIS)
    # Mistral's template writes the agent's call ids, not the sampled ones, and moves the tools to the last question.
    expected = {"mistral": [START, REALIGN, REALIGN, REALIGN, FORK], "gpt-oss": [START, CLEAN, CLEAN, CLEAN, REALIGN]}
    assert at.drift == expected.get(name, [START, CLEAN, CLEAN, CLEAN, CLEAN])
    assert settled(at) == (2 if name == "mistral" else 1)


@pytest.mark.parametrize("name", THINKING)
def test_thinking_is_kept_while_tools_are_called_and_dropped_at_the_next_question(name: str) -> None:
    at = desk(name, WEATHER)
    tool_run(at, PARIS, reasoning=HM)
    assert at.drift == [START, CLEAN, CLEAN, CLEAN, FORK]
    assert settled(at) == 2
    last = at.renderer.decode(at.calls[-1].prompt)
    assert HM in at.renderer.decode(at.calls[-2].prompt)
    assert HM not in last


@pytest.mark.parametrize("name", THINKING)
@pytest.mark.parametrize("dropped", [False, True])
def test_thinking_dropped_from_a_chat_by_template_or_client_forks_each_turn(name: str, dropped: bool) -> None:
    at = desk(name)
    chat(at, reasoning=HM, dropped=dropped)
    assert at.drift == [START, FORK, FORK]
    assert settled(at) == 3
    # What all turns share is still computed once: a packed tree is smaller than the rows.
    assert tree_tokens([at.tree.nodes]) < sum(len(row.ids) for row in linear_rows(at.tree.nodes))


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", "llama3", "glm4", "gpt-oss"])
def test_arguments_that_come_back_in_other_json_are_the_same_call(name: str) -> None:
    at = desk(name, WEATHER)
    first = at.serve([user("a")], calls=[PARIS])
    (call,) = first.message["tool_calls"]
    reordered = {"days": 3, "city": "Paris"}
    forms = ('{"city":"Paris","days":3}', '{"days": 3, "city": "Paris"}', dict(PARIS[1]), reordered, dict(PARIS[1]))
    for arguments in forms:
        sent = {**first.message, "tool_calls": [{**call, "function": {"name": "weather", "arguments": arguments}}]}
        plan = at.tree.prompt([user("a"), sent, *first.results], at.tools)
        assert plan.parent is first.node
        assert plan.drift is (REALIGN if "days" in str(arguments)[:6] else CLEAN)


def test_empty_thinking_that_the_template_leaves_out_is_realigned() -> None:
    at = desk("qwen3")
    plan = at.tree.prompt([user("a")])
    first = at.answer(plan, at.renderer.encode("<think>\n\n</think>\n\nYes.<|im_end|>"))
    assert first.message == {"role": "assistant", "content": "Yes."}
    at.serve([user("a"), first.message, user("b")], "No.")
    assert at.drift == [START, REALIGN]
    assert settled(at) == 1


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("kept", [1, 3])
def test_an_answer_cut_short_is_closed_and_continued(name: str, kept: int) -> None:
    at = desk(name)
    written = at.renderer.encode(at.family.write("one two three four five", "", ()))
    opening = len(written) - len(at.renderer.encode("one two three four five")) - 1
    first = at.serve([user("Count.")], "one two three four five", keep=max(opening, 0) + kept)
    assert first.node.sampled[-1] not in at.renderer.stop_ids
    assert first.message["content"]
    at.serve([user("Count."), first.message, user("Go on.")], "six")
    assert at.drift[1] is not FORK
    assert settled(at) == 1
    assert at.calls[1].node.context[0] == at.renderer.eos_id


@pytest.mark.parametrize("name", ALL)
def test_special_tokens_in_what_is_said_change_no_served_id(name: str) -> None:
    at = desk(name)
    mark = at.renderer.decode([at.renderer.eos_id], special=True)
    history = [user(f"What does {mark} mean?")]
    first = at.serve(history, f"It ends {mark} a message.")
    history += [first.message, user(f"{mark}{mark} really?")]
    second = at.serve(history, "Yes.")
    at.serve([*history, second.message, user("Thanks.")], "Good.")
    settled(at)
    assert second.node.drift in (CLEAN, REALIGN, FORK)
    for call in at.calls:
        asked = at.renderer.decode(call.prompt, special=True)
        assert f"What does {mark} mean?" in asked


@pytest.mark.parametrize("name", [name for name in ALL if name != "gemma2"])
@pytest.mark.parametrize("change", [
    lambda history: [history[0], user("So far it was sunny. b"), history[-1]],
    lambda history: [system("Be short."), *history[1:]],
    lambda history: [*history[:2], {**history[2], "content": "Something else."}, *history[3:]],
], ids=["summarised", "other system prompt", "rewritten"])  # fmt: skip
def test_a_changed_history_forks_and_both_sides_are_trained(name: str, change: Callable[..., Any]) -> None:
    at = desk(name)
    history = [system("Be kind."), user("a")]
    history.append(at.serve(history, "one").message)
    history.append(user("b"))
    history.append(at.serve(history, "two").message)
    before = len(linear_rows(at.tree.nodes))
    at.serve([*change(history), user("c")], "three")
    assert at.drift[-1] is FORK
    assert at.calls[-1].node.parent is None
    assert settled(at) == before + 1


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("spaced", [False, True])
def test_ids_that_no_text_is_encoded_to_are_realigned_and_trained_as_sampled(name: str, spaced: bool) -> None:
    at = desk(name, spaced=spaced)
    plan = at.tree.prompt([user("a")])
    written = at.renderer.encode(plan.prompt_text + at.family.write("The answer is sunny today.", "", ()))
    whole = written[len(plan.prompt_ids) :]
    letters = [f"<0x{ord(letter):02X}>" if spaced else letter for letter in "now"]
    tokenizer: Any = make_tokenizer(at.family, spaced=spaced)
    ids = [*whole[:-1], *tokenizer.convert_tokens_to_ids(letters), whole[-1]]
    said = at.renderer.decode(ids, special=True)
    assert said.count("today.now") == 1
    assert at.renderer.encode(plan.prompt_text + said) != [*plan.prompt_ids, *ids]
    first = at.answer(plan, ids)
    at.serve([user("a"), first.message, user("b")], "Good.")
    at.serve([user("a"), first.message, user("b"), at.calls[-1].message, user("c")], "Good.")
    assert at.drift == [START, REALIGN, REALIGN]
    assert at.calls[1].prompt[: len(first.prompt) + len(ids)] == (*first.prompt, *ids)
    assert settled(at) == 1


def test_glm_that_opened_another_role_than_the_one_that_follows_forks() -> None:
    at = desk("glm4", WEATHER)
    first = at.serve([user("a")], calls=[PARIS])
    at.serve([user("a"), first.message, user("never mind")], "Good.")
    assert at.drift == [START, FORK]
    assert "<|observation|>" not in at.renderer.decode(at.calls[1].prompt, special=True)
    assert settled(at) == 2

"""Tests of the judges that have names."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from sandboxes import DockerSandbox, SandboxSpec
from sandboxes.images.build import Image
from swarm.environments import Outcome, Task, judges
from swarm.environments.judges import Judge, complete
from swarm.environments.loading import RewardTasks
from swarm.environments.play import judge_outcome
from swarm.environments.user_code import RewardFailed
from swarm.errors import InvalidRequest


def judge(name: str, text: str, options: str = "", **data: Any) -> Any:
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]
    return Judge(name, options)({"id": "q", "data": data}, messages)


@pytest.mark.parametrize(("text", "answer", "worth"), [
    (" 5\n", "5", True), ("five", "5", False), ("72", "48/2=24, so\n#### 72", True), ("b", ["a", "b"], True),
    ("5", 5, True),
])  # fmt: skip
def test_an_exact_answer_is_the_tasks_own(text: str, answer: Any, worth: bool) -> None:
    assert judge("exact", text, answer=answer) is worth


@pytest.mark.parametrize(("text", "answer", "worth"), [
    ("The Eiffel Tower!", "eiffel tower", 1.0), ("1,000.50", "1000.5", 1.0), ("+3", "3.0", 1.0), ("10", "1", 0.0),
    ("It is red", "red", 0.5), ("", "red", 0.0), ("!", "?", 1.0), ("north", ["south", "north"], 1.0),
])  # fmt: skip
def test_a_fuzzy_answer_is_worth_f1_of_its_words_and_numbers(text: str, answer: Any, worth: float) -> None:
    assert judge("fuzzy", text, answer=answer) == pytest.approx(worth)


@pytest.mark.slow
def test_math_is_compared_by_math_verify_in_a_process_that_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("math_verify")
    asked = Judge("math", "")

    def same(text: str, answer: Any) -> Any:
        return asked({"id": "q", "data": {"answer": answer}}, [{"role": "assistant", "content": text}])

    assert same("It is $\\frac{1}{2}$.", "0.5") is True
    assert same("so x is \\boxed{2\\sqrt{2}}", "so\n#### $\\sqrt{8}$") is True
    assert same("41", "42") is False
    assert same("no number at all", ["42", "43"]) is False
    first = asked._process
    monkeypatch.setattr(judges, "_MATH_S", 0.0)
    with pytest.raises(RewardFailed, match=r"found \['42'\]"):
        same("42", "42")
    monkeypatch.undo()
    assert same("42", "42") is True
    assert asked._process.pid != first.pid


@pytest.fixture
def contained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cmdline").write_bytes(b"python3\0-I\0-S\0/opt/ajet/init.py\0{}\0")
    monkeypatch.setattr(judges, "_FIRST", tmp_path / "cmdline")


def block(code: str) -> str:
    return f"Here:\n```python\n{code}\n```\nDone."


@pytest.mark.usefixtures("contained")
@pytest.mark.parametrize(("code", "worth"), [
    ("def add(a, b):\n    return a + b", True), ("def add(a, b):\n    return a - b", False), ("def add(", False),
    ("import os\nos._exit(0)", False), ("raise SystemExit(0)", False),
    ("print('x' * 100000)\ndef add(a, b): return a + b", True),
    ("x = bytearray(3 << 30)\ndef add(a, b): return a+b", False),
    ("import os\nassert set(os.environ) <= {'HOME', 'LC_CTYPE'}\ndef add(a, b): return a + b", True),
])  # fmt: skip
def test_code_is_worth_whether_it_passes_the_tasks_tests(code: str, worth: bool) -> None:
    assert judge("tests", block(code), tests=["assert add(2, 3) == 5", "assert add(0, 0) == 0"]) is worth
    humaneval = "def check(candidate):\n    assert candidate(2, 3) == 5"
    assert judge("tests", block(code), tests=humaneval, entry_point="add") is worth


@pytest.mark.usefixtures("contained")
def test_code_without_end_is_killed_with_all_that_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judges, "_TESTS_S", 0.5)
    assert judge("tests", block("import os\nos.fork()\nwhile True: pass"), tests="pass") is False


def test_no_code_of_a_model_runs_outside_a_container(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    with pytest.raises(RewardFailed, match="no code of a model outside a container"):
        judge("tests", block(f"open({str(mark)!r}, 'w')"), tests="pass")
    assert not mark.exists()
    assert judge("tests", "no code", tests="pass") is False


@pytest.mark.slow
def test_in_a_container_of_ours_code_is_judged(docker_sandbox: DockerSandbox, image: Image) -> None:
    play = f"[{{'role': 'assistant', 'content': {block('def add(a, b): return a + b')!r}}}]"
    worth = f"Judge('tests', '')({{'data': {{'tests': 'assert add(2, 3) == %d'}}}}, {play})"
    code = f"from swarm.environments.judges import Judge; print({worth % 5}, {worth % 6})"
    handle = docker_sandbox.run(SandboxSpec("one", ("python3", "-c", code), Path("/"), image=image.id))
    handle.wait(180.0)
    assert handle.logs() == "True False\n"


class Endpoint:
    """Speaks OpenAI's chat completions: says `reply`, and keeps what it was asked."""

    def __init__(self) -> None:
        self.reply, self.asked = "Well.\nSCORE: 7.5", list[dict[str, Any]]()
        own = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                own.asked.append(asked | {"key": self.headers["authorization"]})
                message = {"role": "assistant", "content": own.reply}
                choice = {"index": 0, "finish_reason": "stop", "message": message}
                body = json.dumps(
                    {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
                )
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Endpoint]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("AJET_JUDGE_KEY", "secret")
    made = Endpoint()
    threading.Thread(target=made.server.serve_forever, daemon=True).start()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_a_model_scores_by_a_rubric_and_is_not_asked_the_same_again(endpoint: Endpoint, tmp_path: Path) -> None:
    rubric = tmp_path / "rubric.md"
    rubric.write_text("Is it kind?")
    options = complete("model", f"base_url={endpoint.url}&model=m&rubric={rubric}&solved=7")
    rubric.unlink()  # its text is in the options
    assert judge("model", "yes", options) == Outcome(0.75, True, {"judge_calls": 1.0})
    assert judge("model", "yes", options) == Outcome(0.75, True, {"judge_calls": 0.0})
    (asked,) = endpoint.asked
    assert (asked["model"], asked["temperature"], asked["key"]) == ("m", 0.0, "Bearer secret")
    assert asked["messages"][0]["content"].endswith("Is it kind?")
    assert json.loads(asked["messages"][1]["content"])["answer"] == "yes"
    judge("model", "no", options)
    assert len(endpoint.asked) == 2
    for kept in (tmp_path / "cache/ajet/judges").iterdir():
        kept.write_bytes(b"SCORE: 9 \xe2\x82")  # cut off by a full disk
    assert judge("model", "yes", options).facts == {"judge_calls": 1.0}


@pytest.mark.parametrize(
    "reply", ["It is fine.", "SCORE: 11", "", "SCORE: 10/100", "SCORE: 7\nSCORE: -3", "SCORE: 1e-3"]
)
def test_an_answer_without_a_score_is_a_fault_and_no_zero(reply: str, endpoint: Endpoint) -> None:
    endpoint.reply, options = reply, urlencode({"base_url": endpoint.url, "model": "m", "rubric": "Be kind."})
    with pytest.raises(RewardFailed, match="expected a line SCORE: N, 0 to 10, of m"):
        judge("model", "yes", options)
    endpoint.reply = "SCORE: 10"
    assert judge("model", "yes", options) == Outcome(1.0, True, {"judge_calls": 1.0})


@pytest.mark.parametrize(("name", "query", "expected"), [
    ("model", "model=m&rubric=Be kind.", "base_url=URL"),
    ("model", "base_url=u&model=m&rubric=none.md", "no file 'none.md'"),
    ("model", "base_url=u&model=m&rubric=Be kind.&temperature=1", "temperature"),
    ("model", "base_url=http://u:p@h&model=m&rubric=Be kind.", "no password"),
    ("model", "base_url=u&model=m&rubric=Be kind.&solved=abc", "solved=N"), ("math", "x=1", "--reward math alone"),
])  # fmt: skip
def test_options_that_are_none_or_missing_are_refused(name: str, query: str, expected: str) -> None:
    with pytest.raises(InvalidRequest, match=expected):
        complete(name, query)


def test_variables_say_what_options_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_JUDGE_BASE_URL", "http://there/v1")
    monkeypatch.setenv("AJET_JUDGE_MODEL", "m")
    assert complete("model", "rubric=Be kind.") == "base_url=http%3A%2F%2Fthere%2Fv1&model=m&rubric=Be+kind."
    assert complete("exact", "") == ""


async def test_a_game_is_judged_by_a_named_judge() -> None:
    environment = RewardTasks(Path("code/fuzzy"))
    game = environment.game(Task("q", {"messages": [{"role": "user", "content": "Colour?"}], "answer": "red"}))
    game.answer({"role": "assistant", "content": "It is red"})
    found: Any = game.outcome()
    assert judge_outcome(environment, await found) == Outcome(0.5, False)

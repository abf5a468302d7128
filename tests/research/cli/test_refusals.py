from __future__ import annotations

import json
import shlex
import threading
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from errno import ENOSPC
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import psutil
import pytest

from research.controller.session import Session
from research.environments.install import load_environment
from research.installation.home import Home
from research.installation.servers import SwarmProcess
from swarm.environments import registry
from swarm.job import Job
from swarm.wire import ServerState, Status
from tests.golden import assert_golden
from tests.research.cli.conftest import Ajet
from tests.research.model_folders import model_at

WORLD = """
from swarm.environments import Environment, Game, Outcome, Task
class Echo(Game):
    def opening(self): return [{"role": "user", "content": "?"}]
    def outcome(self): return Outcome(0.0, False)
class Mine(Environment):
    name, title, measures = "mine", "mine", "it is said"
    def tasks(self, split): return [Task(f"{split}{n}", {"n": f"{split} {n}"}) for n in range(8)]
    def game(self, task): return Echo()
"""
TOPIC = "does a larger group size help in {}?"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(registry, "_CATALOGUE", registry._Catalogue())  # other tests know nothing of it
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "environment.py").write_text(WORLD)
    return str(folder)


@pytest.mark.slow
def test_one_without_demonstrations_cannot_be_learned_by_a_tiny_model(ajet: Ajet, home: Path, mine: str) -> None:
    ended = ajet("research", "--vary", "group_size=4,16", "--env", mine, "--no-prefect")
    assert (ended.code, "model imitates before" in ended.err, list(home.glob("models/*"))) == (2, True, [])


@pytest.fixture
def brought(home: Path, mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Two environments of the same short name, by their full ones, and a model that needs no demonstrations."""
    model_at(tmp_path / "model")
    first = load_environment(mine, None, Home.locate().prepare(), lambda note: None).name
    (Path(mine) / "environment.py").write_text(WORLD.replace("it is said", "it was said"))
    second = load_environment(mine, None, Home.locate(), lambda note: None).name
    monkeypatch.setattr(registry, "_CATALOGUE", registry._Catalogue())  # as if another process had brought them
    return first, second


@pytest.mark.slow
def test_a_topic_names_a_brought_environment(ajet: Ajet, home: Path, brought: tuple[str, str], tmp_path: Path) -> None:
    first, second = brought
    given = ("--model-path", str(tmp_path / "model"), "--budget", "100h", "--json")
    for words, name in {first: first, second: second, "mine": first, "my mine environment": first}.items():
        if words == "mine":
            ajet("study", "plan", TOPIC.format("mine")).refused("called mine", ", ".join(sorted(brought)))
            (home / "environments" / second).rename(tmp_path / second)
        found = ajet("study", "plan", TOPIC.format(words), *given).data
        assert (found["environment"], found["not_tested"]) == (name, []), words


@pytest.mark.slow
def test_an_unknown_full_name_is_one_line(ajet: Ajet, home: Path, brought: tuple[str, str]) -> None:
    both = " and ".join(sorted(brought))
    for name, there in {"mine@0123456789ab": both, "mine@abc": both, "shop@abcdefabcdef": "ajet env list"}.items():
        for command in (("research", "--no-prefect"), ("study", "plan", "--env", brought[0])):
            ajet(*command, TOPIC.format(name)).refused(f"found no {name}; ", there)
    assert not (home / "ajet.db").exists()


SERVING = Status(state=ServerState.ROLLING, group_size=2, steps=3).model_dump(mode="json")
NEWER_JOB = {**Job(environment="arith").value(), "schema": 10_000, "later": {"a": 1}}
COMMANDS: dict[str, tuple[str, ...]] = {
    "status": ("swarm", "status"),
    "top": ("swarm", "top", "--once"),
    "shares": ("swarm", "shares"),
    "run": ("client", "run", "--environment", "arith"),
    "debug": ("client", "debug", "--environment", "arith"),
}


class _Stranger(BaseHTTPRequestHandler):
    """Answers each path as it is told to, and all others with one thing."""

    content: ClassVar[bytes] = b"<html><body>It works!</body></html>"
    kind: ClassVar[str] = "text/html"
    answers: ClassVar[dict[str, Any]] = {}

    def do_GET(self) -> None:
        known = self.answers.get(self.path.partition("?")[0])
        sent = self.content if known is None else json.dumps(known).encode()
        self.send_response(200)
        self.send_header("Content-Type", self.kind if known is None else "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    do_POST = do_GET

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    role = urlsafe_b64encode(b'{"role": "client"}').decode()
    monkeypatch.setenv("AJET_TOKEN", f"t.{role}.{'t' * 40}")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Stranger) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("command", COMMANDS.values(), ids=list(COMMANDS))
@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"<html><body>It works!</body></html>", "text/html"), (b'{"hello": "world"}', "application/json"),
        (b"[]", "application/json"), (b"null", "application/json"), (b"[" * 200_000, "application/json"),
        (b"\xff\xfe\x00", "application/octet-stream"),
    ],
    ids=["pages", "another", "list", "null", "deep", "bytes"],
)  # fmt: skip
def test_something_else_answers(
    ajet: Ajet, stranger: str, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], content: bytes, kind: str
) -> None:
    monkeypatch.setattr(_Stranger, "content", content)
    monkeypatch.setattr(_Stranger, "kind", kind)
    ended = ajet(*command, "--server", stranger)
    assert (ended.refused(stranger) != "", ended.out) == (True, "")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_server_of_another_version(ajet: Ajet, stranger: str, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    answers = {"/status": SERVING, "/job": NEWER_JOB, "/streams": {"streams": []}, "/snapshot": {"at": "noon"}}
    monkeypatch.setattr(_Stranger, "answers", answers)
    names = ("GET /snapshot",) if command in ("status", "top") else ("GET /job", "another version")
    ajet(*COMMANDS[command], "--server", stranger).refused(*names)


def test_one_of_this_installation(
    ajet: Ajet, home: Path, stranger: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(_Stranger, "answers", {"/status": {"state": "SINGING"}, "/job": NEWER_JOB})
    found = SwarmProcess(stranger, psutil.Process().pid, "a" * 40, home / "swarm", "c" * 40)
    (home / "swarm").mkdir(parents=True)
    monkeypatch.setattr("research.installation.servers.find_swarm", lambda _: found)
    assert "busy" not in ajet("swarm", "status").refused("state: expected 'OFFLINE'")
    (row,) = ajet("swarm", "list", "--json").data
    assert row["state"] == "not understood"
    ajet("swarm", "export-model", str(tmp_path / "out")).refused("GET /job")
    assert not (tmp_path / "out").exists()


TOPIC_REFUSALS = "Does a larger group size help on arith?"
RATE = "--vary learning_rate=0.001,0.003"
GUESS = f"{RATE} --env guess --metric"
JOBS = {
    "held": {"steps": 7, "environment": "arith"}, "grouped": {"group_size": 4, "environment": "arith"},
    "default": {"learning_rate": Job().learning_rate, "environment": "guess"}, "stepz": {"stepz": 7},
    "vllm": {"backend": "vllm"}, "evaluate_after": {"evaluate_after": [2]}, "chess": {"environment": "chess"},
    "odd": {"episodes_per_step": 30},
    "no_model": {"model": {"kind": "path", "path": "nothing"}}, "of_mine": {"model": {"kind": "path", "path": "mine"}},
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("mine", "theirs", "third", "weightless", "speechless")):
        model_at(tmp_path / name, str(number).encode())
    (tmp_path / "weightless" / "model.safetensors").unlink()
    (tmp_path / "speechless" / "chat_template.jinja").unlink()
    monkeypatch.setenv("DOCKER_HOST", "unix:///nobody/listens/here.sock")
    (tmp_path / "agent.py").write_text("async def agent(episode):\n    return 0.5\n")
    (tmp_path / "mine.py").write_text("x = 1\ndef agent(episode:\n")
    for name, job in JOBS.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(job))
    for name in ("bare", "folder.json"):
        (tmp_path / name).mkdir()
    return tmp_path


WRITTEN = {"ajet.db", "start.lock", "hashes.json"}
ASKED = (
    "", "'   '", "'group size 4 vs 8' --vary group_size=4,16", "--vary group_size", "--vary group_size=4",
    "--vary group_size=4,4", "--vary group_size=4,many", "--vary 'group_size=4,[16]'", "--vary grup_size=4,16",
    "--vary group_size=4,16 --vary group_size=4,8", "--vary group_size=4,16 --set group_size=8", "--set steps=80",
    "--vary group_size=4,16 --set steps=many", "--vary group_size=4,16 --env gues", f"{RATE} --env ''",
    f"{RATE} --env gone@0123456789ab", f"{RATE} --reward judge.py", f"{RATE} --env guess --reward judge.py",
    f"{RATE} --env tasks.jsonl",
    "--vary group_size=4,16 --planner llm", "'group size 4 vs 16 on guess' --env arith",
    "'grop_size 4 vs 8'", "'lerning rate 0.001 vs 0.003 on guess'", "'the meaning of life'",
    "'group size 4 vs 16 with Qwen2.5-0.5B'", "'group size 4 vs 8' --planner rule",
    "'group size 4 vs 8' --planner oracle", "'group size 4 vs 8' --planner llm --planner-model m",
    "'group size 4 vs 8' --planner-model m", "'group size 4 vs 8' --budget soon",
    "'group size 4 vs 8' --effect 0", "'group size 4 vs 8' --effect 1", "'group size 4 vs 8' --effect nan",
    "'group size 4 vs 8' --power 0", "'group size 4 vs 8' --power 2", "'group size 4 vs 8' --looks 0",
    "'group size 4 vs 8' --looks 9", "'group size 4 vs 8' --episodes 1",
    "'How many seeds do I need to compare lr 1e-3 and 3e-3?'", "'how many runs for larger groups'",
    # what it is judged by
    f"{GUESS} episodes:0.7 --effect=-512", f"{GUESS} tokens:70%", f"{GUESS} success --metric area",
    # the job under all arms
    f"{RATE} --job nothing.json", f"{RATE} --job stepz.json", f"{RATE} --job vllm.json",
    f"{RATE} --job evaluate_after.json", f"{RATE} --job chess.json", f"{RATE} --job odd.json",
    f"{RATE} --job no_model.json", f"{RATE} --job folder.json",
    f"{RATE} --job of_mine.json --model-path theirs",
    f"{RATE} --job held.json --env guess", f"{RATE} --job held.json --set steps=8",
    "--vary learning_rate=0.003,0.01 --job default.json", "'learning rate 3e-3 vs 1e-2' --job default.json",
    "'group size 4 vs 8 on arith' --job default.json", "'group size 8 vs 16 on arith' --job grouped.json",
    "'learning rate 1e-3 vs 3e-3 with group size 8' --job grouped.json",
    "'group size 4 vs 8 on guess' --job grouped.json",
    # models
    f"{RATE} --model-path nothing", f"{RATE} --model-path org/some-7b", f"{RATE} --model-path held.json",
    "'which of these two models learns more'",
    "'which learns more on arith, ./mine or ./bare?'", "--vary model=mine", "--vary model=mine,bare",
    "--vary model=mine,nothing", "--vary model=mine,org/some-7b", "--vary model=mine,weightless",
    "--vary model=mine,speechless", "--vary model=mine,theirs --model-path third",
    # where it runs, and how long a planner may take
    "'group size 4 vs 8' --planner-timeout 5", "'group size 4 vs 8' --detach --no-prefect",
    "'group size 4 vs 8' --approve sometimes",
)  # fmt: skip


PLANNED = (
    "", "--vary group_size", "'group size 4 vs 8' --budget soon", "'group size 4 vs 8' --planner-timeout 5",
    "--vary group_size=2,4,8,16,32", "'group size 8 vs 8 on guess'",
    f"{GUESS} episodes:0.7 --effect 6000", f"{GUESS} episodes:0.7 --effect 0.1", f"{GUESS} episodes:0.7 --set steps=2",
    "--vary group_size=4,8 --env guess --metric episodes:0.7 --set episodes_per_step=8 --set steps=12",
    "--vary steps=20,80 --env guess --metric episodes:0.7",
)  # fmt: skip
ADDRESSES = ("http://", "http://127.0.0.1:99999", "http://127.0.0.1:0", "ftp://trainer", "'http://a/?b'",
             "'http://[1'", "a:b", "''", "http://me:hunter2@127.0.0.1:9")  # fmt: skip
MODELS = ("Qwen/Qwen3-0.6B", "nothing", "bare", "held.json")
OTHERS = (
    "study show", "study report", "job explain gruop_size", "model fetch smolm2-135m",
    "study recipe nothing",
    *(f"{verb} {model}" for verb in ("model check", "swarm start --model", "env check guess --model-path")
      for model in MODELS),
    "swarm start --job none.json", "swarm start --job odd.json", "swarm start --job stepz.json",
    "swarm start --host 0.0.0.0 --port 0", "swarm status", "swarm stop", "swarm token", "swarm shares",
    "swarm episodes", "swarm inspect e", "swarm export --all --to x", "swarm export-model out", "swarm top",
    *(f"AJET_TOKEN=t swarm stop --server {address}" for address in ADDRESSES),
    "swarm status --server http://127.0.0.1:9",
    "client run", "client run missing.py", "client run .", "client run --allow example.com", "client run --memory 1",
    "client run --time-limit soon", "client run --reward missing.py", "client run --server 127.0.0.1:80",
    "client run --server http://127.0.0.1:9",
    "AJET_TOKEN='ab\nhunter2' client run --server http://127.0.0.1:9",
    "client run mine.py", "client run --eval --evaluations",
    "client run --episodes 5", "client run --evaluations --episodes 5", "client run --reload",
    "client run agent.py --eval --reload", "client run agent.py --eval --restart",
    "PREFECT_API_URL=nonsense up", "sandbox build", "DOCKER_HOST=ssh://you:hunter2@lab sandbox build", "sandbox prune",
    "sandbox build --requirements none.txt",
    "env check .", "env check chess-gym:mate-in-two", "env show shop@123456789abc",
    "env check guess --set max_tokens=9", "env check guess --tiny --model-path .", "env check guess --tiny --job .",
    "env check guess --job none.json", "env check guess --tiny --set max_tocens=9",
    "env check guess --tiny --set max_tokens=none", "env check none.jsonl", "env init held.json/folder",
    "env init '\x1b[31mred'",
    "env remove guess", "env remove shop@123456789abc", "env remove ../home",
)  # fmt: skip


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("asked", ASKED)
def test_what_no_study_can_be_about_is_refused_and_nothing_is_begun(ajet: Ajet, home: Path, asked: str) -> None:
    assert_golden(ajet("research", *shlex.split(asked), *(() if "--detach" in asked else ("--no-prefect",))).refused())
    assert {path.name for path in home.rglob("*") if path.is_file()} <= {"hashes.json"}


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("asked", PLANNED)
def test_what_no_plan_can_be_about_is_refused_without_a_plan(ajet: Ajet, asked: str) -> None:
    for more in ((), ("--json",)):
        ended = ajet("study", "plan", *shlex.split(asked), *more)
        assert ended.out == ""
    assert_golden(ended.refused())


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("asked", OTHERS)
def test_what_no_other_command_can_do_is_refused(
    ajet: Ajet, home: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    words = shlex.split(asked)
    while words[0].isupper() or "=" in words[0]:
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    line = ajet(*words).refused()
    assert "hunter2" not in line
    assert_golden(line.replace(str(home), "<home>"))
    assert {path.name.partition("-")[0] for path in home.rglob("*") if path.is_file()} <= WRITTEN


def test_arguments_that_are_no_text(ajet: Ajet, home: Path) -> None:
    for arguments in ((TOPIC_REFUSALS + "\udcff",), (TOPIC_REFUSALS, "--planner-model", "\udcff")):
        ajet("research", *arguments).refused("UTF-8")
    assert not home.exists()


def test_a_home_that_cannot_be_made(ajet: Ajet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_HOME", "/sys/ajet")
    for command in (("research", TOPIC_REFUSALS), ("study", "list"), ("up",)):
        ajet(*command).refused("AJET_HOME")


def test_a_budget_too_small_is_refused_with_one_that_does_and_the_study_stopped(ajet: Ajet) -> None:
    ajet("research", TOPIC_REFUSALS, "--budget", "20s", "--no-prefect").refused("use --budget")
    (study,) = ajet("study", "list", "--json").data
    assert (study["status"], "use --budget" in study["reason"]) == ("stopped", True)


def test_containers_without_an_engine_or_of_no_kind_make_no_study(ajet: Ajet, place: Path) -> None:
    for kind, word in {"docker": "install Docker", "podman": "'podman'"}.items():
        ajet("research", TOPIC_REFUSALS, "--sandbox", kind).refused(word)
    assert ajet("study", "list", "--json").data == []


def test_a_damaged_planners_turn_is_named_and_left_as_it_is(ajet: Ajet, home: Path) -> None:
    ajet("research", TOPIC_REFUSALS, "--budget", "20s", "--no-prefect").refused()
    (study,) = home.glob("studies/*")
    turn = study / "planning" / "propose.json"
    turn.parent.mkdir(exist_ok=True)
    for damage in ("", "{}", '{"acted": 1, "action": {"action": "propose"}, "secret": "zz"}'):
        turn.write_text(damage)
        ajet("study", "resume", "--no-prefect").refused(str(turn))
        assert turn.read_text() == damage


def test_leaving_at_once_says_how_to_go_on(ajet: Ajet, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(session: Session) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "plan", interrupt)
    ajet("research", TOPIC_REFUSALS, "--no-prefect").refused("ajet study resume", code=130)


@pytest.mark.parametrize(("inside", "last"), [(True, "Mend it, or set AJET_HOME"), (False, "Mend it")])
def test_a_full_disk_names_the_file_and_the_home_where_it_lies_there(
    ajet: Ajet, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool, last: str
) -> None:
    path = (home if inside else tmp_path / "elsewhere") / "file"
    monkeypatch.setattr("research.cli.app.app", Mock(side_effect=OSError(ENOSPC, "no room", str(path))))
    ended = ajet("anything")
    assert (ended.code, str(path) in ended.err, ended.err.strip().endswith(last)) == (2, True, True)

"""Clients as they come, in processes and folders of their own, play training episodes that need nothing of them.

What each plays is two turns: a call of a tool that it really runs, then its last words.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Mapping
from inspect import iscoroutinefunction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from research.cli.client import PRESETS
from tests.swarm.clients.packages import COMMAND_LINES, HERE, SWE_AGENT
from tests.swarm.conformance.support import assert_trained_once, calls, roomy, saying, spoken
from tests.swarm.server.support import MODEL, Served, serving

pytestmark = pytest.mark.slow

_SECONDS = 300.0
MAKES = "echo made > made.txt"
SUBMITS = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


@contextlib.asynccontextmanager
async def playing(folder: Path, *answers: str) -> AsyncIterator[tuple[Served, dict[str, Any]]]:
    """Serve a job that leaves everything at its default but room and patience, and begin a training episode."""
    async with serving(folder / "server", roomy(), script=saying(*answers)) as served:
        yield served, await served.begin()


async def run(folder: Path, *command: str | Path, **variables: str) -> str:
    """Run a client in a home and a working folder of its own that reaches nothing but loopback; return what it said."""
    work, home = folder / "work", folder / "home"
    work.mkdir()
    home.mkdir()
    nowhere = dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY"), "http://127.0.0.1:9")
    own = {"PATH": os.environ["PATH"], "HOME": str(home), "NO_PROXY": "127.0.0.1", "DO_NOT_TRACK": "1"}
    process = await asyncio.create_subprocess_exec(
        *map(str, command), cwd=work, env={**nowhere, **own, **variables}, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        said, _ = await asyncio.wait_for(process.communicate(), _SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, said.decode()
    return said.decode()


def python(packages: Path) -> Mapping[str, str]:
    return {"PYTHONPATH": str(packages), "LITELLM_LOCAL_MODEL_COST_MAP": "True", "MSWEA_SILENT_STARTUP": "1"}


@pytest.mark.parametrize(
    ("kind", "config", "turns"),
    [
        ("litellm", "mini.yaml", ["look\n" + calls("bash", command=MAKES), "done\n" + calls("bash", command=SUBMITS)]),
        (
            "litellm_textbased",
            "default.yaml",
            [f"look\n\n```mswea_bash_command\n{command}\n```" for command in (MAKES, SUBMITS)],
        ),
    ],
    ids=["calls", "text"],
)
async def test_mini_swe_agent_goes_past_two_calls(tmp_path: Path, kind: str, config: str, turns: list[str]) -> None:
    packages = SWE_AGENT.there()
    async with playing(tmp_path, *turns) as (served, lease):
        agent = (sys.executable, "-S", HERE / "swe_agent.py")
        said = await run(tmp_path, *agent, lease["base_url"], lease["api_key"], kind, config, **python(packages))
        assert "Submitted" in said
        assert (tmp_path / "work" / "made.txt").read_text() == "made\n"
        await assert_trained_once(served, lease, turns, start=1, clean=1)


async def test_the_codex_command_line_plays_without_the_tools_it_cannot_be_given(tmp_path: Path) -> None:
    codex = COMMAND_LINES.there() / "node_modules" / ".bin" / "codex"
    turns = ["look\n" + calls("exec_command", cmd=MAKES), "all done"]
    async with playing(tmp_path, *turns) as (served, lease):
        provider = {"name": "swarm", "base_url": lease["base_url"], "env_key": "KEY", "wire_api": "responses"}
        settings = {f"model_providers.swarm.{name}": value for name, value in provider.items()}
        told = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        said = await run(
            tmp_path, codex, "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access",
            "-c", "model_provider=swarm", *told, "-m", MODEL, "make a file", KEY=lease["api_key"],
        )  # fmt: skip
        assert "all done" in said
        assert (tmp_path / "work" / "made.txt").read_text() == "made\n"
        counts = served.server.training.rollout.counts
        assert counts["left_out_namespace"] == counts["left_out_web_search"] == 2
        await assert_trained_once(served, lease, turns, start=1, clean=1)


async def test_the_claude_code_command_line_plays_whatever_effort_it_asks_for(tmp_path: Path) -> None:
    claude = COMMAND_LINES.there() / "node_modules" / ".bin" / "claude"
    turns = ["look\n" + calls("Bash", command=MAKES, description="makes it"), "all done"]
    async with playing(tmp_path, *turns) as (served, lease):
        said = await run(
            tmp_path, claude, "-p", "make a file", "--model", MODEL, "--allowedTools", "Bash",
            ANTHROPIC_BASE_URL=lease["base_url"].removesuffix("/v1"), ANTHROPIC_API_KEY=lease["api_key"],
            ANTHROPIC_SMALL_FAST_MODEL=MODEL, CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", DISABLE_AUTOUPDATER="1",
        )  # fmt: skip
        assert "all done" in said
        assert (tmp_path / "work" / "made.txt").read_text() == "made\n"
        assert served.server.training.rollout.counts["left_out_output_config.effort"] == 2
        await assert_trained_once(served, lease, turns, start=1, clean=1)


def played(name: str, lease: Mapping[str, Any], asked: str) -> tuple[Any, Any]:
    """Return the function of a preset that was loaded as a file, and an episode of it."""
    printed: dict[str, Any] = {"__name__": "agent"}
    exec(compile((PRESETS / f"{name}.txt").read_text(), "agent.py", "exec"), printed)
    task = SimpleNamespace(data={"question": asked, "answer": "7", "facts": {"pear": "it costs 7"}})
    return printed["agent"], SimpleNamespace(task=task, **{key: lease[key] for key in ("base_url", "api_key", "model")})


@pytest.mark.parametrize(
    ("name", "agents"), [("claude", {""}), ("codex", {""}), ("opencode", {"side", "main"}), ("qwen-code", {""})]
)
async def test_the_preset_of_a_command_line_plays_with_no_setting_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, agents: set[str]
) -> None:
    monkeypatch.setenv("PATH", f"{COMMAND_LINES.there() / 'node_modules' / '.bin'}{os.pathsep}{os.environ['PATH']}")
    async with playing(tmp_path, "so it is\n7") as (served, lease):
        agent, episode = played(name, lease, "say 7")
        assert await asyncio.to_thread(agent, episode) == (1.0, True)
        (leased,) = served.rollout.leases
        assert {node.agent for node in leased.tree.nodes} == agents


LOOKS = "let me see\n" + calls("look_up", name="pear")
FINAL = {"smolagents": calls("final_answer", answer="7")}
PACKAGES = {
    "agentscope": "agentscope", "anthropic": "anthropic", "autogen": "autogen_agentchat", "crewai": "crewai",
    "google-adk": "google.adk", "langgraph": "langgraph", "litellm": "litellm", "openai": "openai",
    "openai-agents": "agents", "pydantic-ai": "pydantic_ai", "smolagents": "smolagents",
}  # fmt: skip


@pytest.mark.parametrize("name", PACKAGES)
async def test_two_plays_at_once_of_a_preset_use_its_tool_and_do_not_meet(tmp_path: Path, name: str) -> None:
    pytest.importorskip(PACKAGES[name])
    turns = [LOOKS, FINAL.get(name, "7")]
    async with playing(tmp_path, *turns) as (served, lease):
        leases = [lease, await served.begin()]
        plays = [played(name, each, f"what is the price for number {number}?") for number, each in enumerate(leases)]
        assert (
            await asyncio.gather(
                *(agent(of) if iscoroutinefunction(agent) else asyncio.to_thread(agent, of) for agent, of in plays)
            )
            == [(1.0, True)] * 2
        )
        for number, found in enumerate(served.rollout.leases):
            texts = [bytes(token for token in node.path_ids() if token < 256).decode() for node in found.tree.nodes]
            assert spoken(found.tree) == turns
            assert all(f"for number {number}?" in text for text in texts)
            assert "it costs 7" in texts[-1]

"""Files of agents that are command lines: how each is run on an episode, and what its job needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class CommandLine(StrEnum):
    """An agent that is a command line."""

    CLAUDE = "claude"
    CODEX = "codex"
    OPENCODE = "opencode"
    QWEN = "qwen-code"
    AIDER = "aider"


@dataclass(frozen=True, slots=True)
class Preset:
    """How a command line is run, as Python of an `episode` and its `question`; `needs` is what its job has to have."""

    command: str
    variables: str
    needs: str


PRESETS: Final[Mapping[CommandLine, Preset]] = {
    CommandLine.CLAUDE: Preset(
        """["claude", "-p", question, "--model", episode.model, "--allowedTools", "Bash,Edit,Write"]""",
        """{
        "ANTHROPIC_BASE_URL": episode.base_url, "ANTHROPIC_API_KEY": episode.api_key,
        "ANTHROPIC_SMALL_FAST_MODEL": episode.model, "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }""",
        "a max_context of 100,000",
    ),
    CommandLine.CODEX: Preset(
        """[
        "codex", "exec", "--skip-git-repo-check", "--sandbox", "workspace-write", "-m", episode.model,
        "-c", "model_provider=swarm", "-c", "model_providers.swarm.name=swarm",
        "-c", "model_providers.swarm.env_key=KEY", "-c", f"model_providers.swarm.base_url={episode.base_url}",
        "-c", "model_providers.swarm.wire_api=responses", question,
    ]""",
        """{"KEY": episode.api_key}""",
        "a max_context of 40,000",
    ),
    CommandLine.OPENCODE: Preset(
        """["opencode", "run", question]""",
        """{"OPENCODE_CONFIG_CONTENT": json.dumps({
        "model": f"main/{episode.model}", "small_model": f"side/{episode.model}",  # the latter writes titles
        "provider": {
            name: {
                "npm": "@ai-sdk/openai-compatible", "models": {episode.model: {}},
                "options": {"baseURL": episode.base_url, "apiKey": f"{episode.api_key}/{name}"},
            }
            for name in ("main", "side")
        },
    })}""",
        'a max_context of 40,000, and "train_agents": ["main"], or its titles are trained too',
    ),
    CommandLine.QWEN: Preset(
        """["qwen", "-p", question, "--auth-type", "openai", "-m", episode.model, "--yolo"]""",
        """{"OPENAI_BASE_URL": episode.base_url, "OPENAI_API_KEY": episode.api_key}""",
        "a max_context of 80,000",
    ),
    CommandLine.AIDER: Preset(
        """[
        "aider", "--model", f"openai/{episode.model}", "--message", question, "--yes-always", "--no-git",
        "--no-check-update", "--no-show-model-warnings", "--analytics-disable",
    ]""",
        """{"OPENAI_API_BASE": episode.base_url, "OPENAI_API_KEY": episode.api_key}""",
        'a max_context of 4,096, and "foreign_sampling": "neutralise", as it asks for a temperature of 0; it prints '
        "more after its answer",
    ),
}
_FILE: Final = '''"""{name} plays, and what it calls the model for is trained. Its job needs {needs}."""

import json
import os
import subprocess
import tempfile


def agent(episode):
    question = episode.task.data["question"]
    command = {command}
    variables = {variables}
    with tempfile.TemporaryDirectory() as folder:  # plays at once must not meet
        ended = subprocess.run(
            command, env={{**os.environ, **variables, "HOME": folder}}, cwd=folder, stdin=subprocess.DEVNULL,
            capture_output=True, text=True,
        )
    if ended.returncode:
        raise RuntimeError(f"{{command[0]}} ended with {{ended.returncode}}: {{(ended.stderr or ended.stdout)[-500:]}}")
    solved = ended.stdout.strip().endswith(str(episode.task.data["answer"]))  # or whatever the play is to be worth
    return float(solved), solved
'''


def agent_file(name: CommandLine) -> str:
    preset = PRESETS[name]
    return _FILE.format(name=name.value, needs=preset.needs, command=preset.command, variables=preset.variables)

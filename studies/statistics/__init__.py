"""Pure functions of numbers.

Libraries of numbers are imported when they are first used: they take a second, which a command that judges and plans
nothing should not wait for.
"""

from importlib import import_module
from typing import Any, Final


class _Lazy:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)


np: Final[Any] = _Lazy("numpy")
pd: Final[Any] = _Lazy("pandas")
optimize: Final[Any] = _Lazy("scipy.optimize")
special: Final[Any] = _Lazy("scipy.special")
stats: Final[Any] = _Lazy("scipy.stats")
multitest: Final[Any] = _Lazy("statsmodels.stats.multitest")
proportion: Final[Any] = _Lazy("statsmodels.stats.proportion")

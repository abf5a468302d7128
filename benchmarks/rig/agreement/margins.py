"""What `verl_agreement.py` holds for equal, written down before any training was made for it.

Success is a share, 0 to 1. Training alone moves it by 0.2 to 0.4 in these jobs (`learning_curves.py`): a margin of 0.1
is well below what is learned, and about twice what 216 plays and five seeds can tell apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ALPHA: Final = 0.05
"""Level of each of the two one-sided tests. All claims must hold for the backends to agree, so none is corrected for
the others: an intersection-union test (Berger 1982) keeps this level as a whole."""
MARGINS: Final[Mapping[str, float]] = {"end": 0.1, "curve": 0.1}
"""Largest difference that counts as none: `end` is success on held-out tasks after the last step, `curve` the mean of
training success over all steps."""

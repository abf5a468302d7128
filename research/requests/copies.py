"""Whether copies of a study's logs go to W&B from here."""

from __future__ import annotations

import os
from collections.abc import Callable

from research.installation.home import Home
from research.tracking.login import online_logging_of, wandb_login
from research.tracking.mirror import WandbMirror
from studies import StudyState


def mirror_of(
    home: Home, begun: StudyState, say: Callable[[str], None], warn: Callable[[str], None]
) -> WandbMirror | None:
    """Return what sends copies of a study's logs to W&B; None where it began without, or nobody is logged in now."""
    online, login = online_logging_of(begun.settings), wandb_login(os.environ)
    if online is None:
        if os.environ.get("WANDB_MODE") == "online":
            warn(f"nothing is sent to W&B: {'the study began without' if login.online else login.why}")
        return None
    if login.online is None or login.online.base_url != online.base_url:
        why = login.why if login.online is None else f"W&B's server is {login.online.server} now"
        warn(f"the study sends its logs to W&B at {online.server}; {why}. They are kept here, and sent once it goes on "
             "logged in there")  # fmt: skip
        return None
    return WandbMirror(home, begun.id, online, say, warn)

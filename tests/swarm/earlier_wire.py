"""Answers as clients of the first release parse them, field by field: they refuse each one that they do not know."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, create_model

STATES = Literal["open", "prepared", "ended", "in_step", "consumed", "aborted", "fenced", "dropped"]


def _earlier(**fields: Any) -> type[BaseModel]:
    """Return a model of these fields and no others; a pair is a type with its default."""
    known = {name: field if isinstance(field, tuple) else (field, ...) for name, field in fields.items()}
    return create_model("Earlier", __config__=ConfigDict(frozen=True, extra="forbid"), **known)


_CHECKPOINT = _earlier(name=str, step=int, size_bytes=int)
EarlierCheckpoints: Any = _earlier(job_digest=str | None, checkpoints=tuple[_CHECKPOINT, ...])
_SUMMARY: dict[str, Any] = {
    "id": str, "task_id": str, "stream": str, "kind": Literal["train", "eval"], "owner": str, "state": STATES,
    "reason": (str | None, None), "group": (str | None, None), "step": (int | None, None),
    "reward": (float | None, None), "success": (bool | None, None), "calls": int, "tokens": int,
}  # fmt: skip
EarlierEpisodes: Any = _earlier(episodes=tuple[_earlier(**_SUMMARY), ...])
_SPAN = _earlier(
    ids=tuple[int, ...], texts=tuple[str, ...], logprobs=(tuple[float, ...], ()), versions=(tuple[int, ...], ()),
    special=(tuple[int, ...], ()),
)  # fmt: skip
_CALL = _earlier(
    index=int, parent=int | None, drift=str, context=_SPAN, sampled=_SPAN, trained=(bool, True),
    truncated=(bool | None, None),
)  # fmt: skip
EarlierEpisode: Any = _earlier(**_SUMMARY, record=tuple[_CALL, ...])

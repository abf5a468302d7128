"""The way to the Internet: an allow-list."""

from __future__ import annotations

from sandboxes.destinations import Destination

__all__ = ["Destination"]

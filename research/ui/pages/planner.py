"""Planner."""

from __future__ import annotations

from research.ui.site import Page, Site, View


def page(site: Site, view: View) -> Page:
    raise NotImplementedError

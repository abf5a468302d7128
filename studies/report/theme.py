"""One set of colours for page and figures, in light and dark.

Figures are drawn in placeholder colours; `themed` turns these into CSS variables with a light fallback, so that one
SVG is legible on a light page, on a dark one and on paper. Output is deterministic: no dates, fixed ids.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from threading import RLock
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

LIGHT: Final[Mapping[str, str]] = {
    "ink": "#1d2329", "muted": "#646c75", "rule": "#e3e0d8", "band": "#d5dae2", "page": "#fbfaf7",
    "arm-0": "#0067a8", "arm-1": "#c4500c", "arm-2": "#007a5a", "arm-3": "#93458a", "arm-4": "#836800",
    "arm-5": "#35707f",
}  # fmt: skip
DARK: Final[Mapping[str, str]] = {
    "ink": "#e7e9ec", "muted": "#9ca5af", "rule": "#2b3138", "band": "#3b4552", "page": "#14171b",
    "arm-0": "#5cb3ec", "arm-1": "#f3944f", "arm-2": "#43c99d", "arm-3": "#dc90cc", "arm-4": "#dabb3e",
    "arm-5": "#80c6d6",
}  # fmt: skip
"""Arm colours keep apart under the common colour blindnesses (after Okabe and Ito); markers differ as well."""

ARMS: Final = 6
MARKERS: Final = ("o", "s", "^", "D", "v", "P")
_PLACEHOLDERS: Final = {name: f"#0a0b{index + 16:02x}" for index, name in enumerate(LIGHT)}

_STYLE: Final[Mapping[str, Any]] = {
    "svg.fonttype": "none", "text.parse_math": False, "font.family": "sans-serif", "font.size": 12.5,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "axes.axisbelow": True,
    "axes.unicode_minus": True, "xtick.major.size": 0, "ytick.major.size": 0, "lines.solid_capstyle": "round",
}  # fmt: skip
_DRAWING: Final = RLock()
_PALETTE: ContextVar[Mapping[str, str]] = ContextVar("palette", default=_PLACEHOLDERS)


@contextmanager
def use_palette(palette: Mapping[str, str]) -> Iterator[None]:
    """Draw in the colours of a palette while inside, for a picture that knows no CSS."""
    token = _PALETTE.set(palette)
    try:
        yield
    finally:
        _PALETTE.reset(token)


def paint(name: str) -> str:
    """Return the placeholder colour that becomes the CSS variable `name`, or the colour itself while `painted`."""
    return _PALETTE.get()[name]


def arm_paint(index: int) -> str:
    """Return the colour (see `paint`) of the arm at this place in the design; colours repeat after six."""
    return paint(f"arm-{index % ARMS}")


def marker(index: int) -> str:
    return MARKERS[index % len(MARKERS)]


@contextmanager
def style(salt: str) -> Iterator[None]:
    """Draw a figure while inside, one thread at a time, as parameters are the process's; `salt` keeps ids apart."""
    from matplotlib.style import context  # takes most of a second; who only wants the colours should not wait for it

    colors = {
        "text.color": paint("ink"), "axes.labelcolor": paint("muted"), "xtick.color": paint("muted"),
        "ytick.color": paint("muted"), "axes.edgecolor": paint("rule"), "grid.color": paint("rule"),
        "axes.facecolor": "none", "figure.facecolor": "none",
    }  # fmt: skip
    with _DRAWING, context(["default", {**_STYLE, **colors, "svg.hashsalt": salt}]):
        yield


def canvas(width: float, height: float) -> Canvas:
    from matplotlib.figure import Figure as Canvas  # see style

    return Canvas(figsize=(width / 72, height / 72))


def render_svg(figure: Canvas, label: str, tips: Mapping[str, str]) -> str:
    """Return the figure as an inline SVG element; `tips` gives artists (by gid) a text shown on hover.

    Ids that nothing refers to are dropped: matplotlib's plain counters would meet again in the next figure.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r"font-family: [^;\"]*", "font-family: inherit", text)
    titles = {gid: f"<title>{html.escape(tip)}</title>" for gid, tip in tips.items()}
    text = re.sub(r'<g id="([^"]*)">', lambda match: f"<g>{titles.get(match[1], '')}", text)
    used = set(re.findall(r'href="#([^"]+)"', text)) | set(re.findall(r"url\(#([^)]+)\)", text))
    text = re.sub(r' id="([^"]+)"', lambda match: match[0] if match[1] in used else "", text)
    for name, placeholder in _PLACEHOLDERS.items():
        text = text.replace(placeholder, f"var(--{name}, {LIGHT[name]})")
    width, height = (float(length) * 72 for length in figure.get_size_inches())
    opening = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" '
        f'aria-label="{html.escape(label)}">'
    )
    return re.sub(r"<svg[^>]*>", lambda _: opening, text, count=1).strip()


def standalone(svg: str) -> str:
    """Return an inline SVG as a file of its own that follows the reader's light or dark scheme."""
    sheet = (
        "<style>svg{font-family:system-ui,sans-serif;" + variables(LIGHT) + "}"
        "@media (prefers-color-scheme:dark){svg{background:" + DARK["page"] + ";" + variables(DARK) + "}}</style>"
    )
    head = '<?xml version="1.0" encoding="utf-8"?>\n'
    return head + re.sub(r"(<svg[^>]*>)", lambda match: match[0] + sheet, svg, count=1) + "\n"


def variables(palette: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in palette.items())

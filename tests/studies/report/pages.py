"""A report as a reader has it: its page read strictly, its text without what only Markdown needs."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

from studies import StudyState
from studies.report.build import render_report
from studies.report.evidence import Evidence, gather
from studies.report.validity import remarks
from tests.studies.synthetic import Synthetic

VOID = {"meta", "br", "hr", "img", "input", "link", "path", "use"}


class Page(HTMLParser):
    """Reads a page strictly: every element is closed in order; collects tags, links and visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def bare(text: str) -> str:
    """Return the letters and signs of a text of either page, without spaces and marks of Markdown."""
    return re.sub(r"[\s\\*`]", "", html.unescape(text)).casefold()


def missing(markdown: str, page: Page) -> list[str]:
    """Return the points of the Markdown, without their labels, that the page does not have in the same words."""
    points = [
        line.partition(":** ")[2] or line.partition(".** ")[2] for line in markdown.split("\n") if line[:4] == "- **"
    ]
    return [point for point in points if bare(point) not in bare(page.text)]


def pages(study: Synthetic) -> tuple[str, Page]:
    """Return the report of a study as it is so far: as Markdown without backslashes, and as the page that is read."""
    found = render_report(study.state(), study.folder)
    return found["report.md"].replace("\\", ""), Page(found["report.html"])


def section(markdown: str, title: str) -> str:
    begin = markdown.index(f"## {title}")
    end = markdown.find("\n## ", begin)
    return markdown[begin:] if end < 0 else markdown[begin:end]


def said(state: StudyState, evidence: Evidence) -> str:
    return "\n".join(f"{remark.level}: {remark.text}" for remark in remarks(state, evidence))


def said_of(study: Synthetic) -> str:
    return said(study.state(), gather(study.state(), study.folder))

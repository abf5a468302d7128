"""What README and docs say is there: links, commands, figures, rooms and names. Each page says whom it is for."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from source.packages import index

from tests.research.cli.conftest import every_command

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "examples/README.md", *DOCS]
README = (ROOT / "README.md").read_text()


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", DOCS, ids=named)
def test_a_page_says_in_its_first_lines_who_should_read_on(page: Path) -> None:
    assert re.search(r"^\*For \S", "\n".join(page.read_text().splitlines()[:5]), re.MULTILINE)


LONGER = {"docs/architecture.md": 250, "docs/attacks.md": 200, "docs/modules.md": 500}
"""The account of the code, and tables that code writes or tests hold line by line."""


@pytest.mark.parametrize("page", DOCS, ids=named)
def test_a_page_is_read_in_one_sitting(page: Path) -> None:
    assert len(page.read_text().splitlines()) <= LONGER.get(named(page), 150)


def test_the_readme_is_two_screens_and_every_page_is_reached_from_it() -> None:
    assert len(README.splitlines()) <= 90
    assert [named(page) for page in DOCS if f"]({named(page)})" not in README] == []


def test_every_example_is_listed_with_its_command_and_what_to_expect() -> None:
    page = (ROOT / "examples/README.md").read_text()
    listed = re.findall(r"^\| \[(\w+)\]\(\1\) \|.+\|.+\|.+\|$", page, re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in (ROOT / "examples").iterdir() if path.is_dir())


def section(text: str, title: str) -> str:
    """Return what stands below a heading of the second level."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_each_measured_figure_of_the_readme_is_on_the_page_that_is_rendered() -> None:
    rendered = one_line((ROOT / "docs" / "performance.md").read_text())
    cells = re.findall(r"^\| .+ \| (.+) \|$", section(README, "Measured"), re.MULTILINE)
    figures = [figure for cell in cells for figure in cell.split("; ")]
    assert len(figures) > 8
    missing = [each for each in figures if not re.search(rf"(?<![\w.,]){re.escape(each)}(?![\w,]|\.\d)", rendered)]
    assert missing == []


def test_each_figure_of_the_studies_that_the_readme_shows_is_in_their_reports() -> None:
    shown = section(README, "What comes out")
    reports = "".join((ROOT / path).read_text() for path in re.findall(r"\((studies/\S+/report\.md)\)", shown))
    figures = re.findall(r"[+−]?\d+\.\d+", re.sub(r"!?\[[^\]]*\]\([^)]*\)", "", shown))
    assert len(figures) > 5
    assert [figure for figure in figures if figure not in reports] == []


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the relative links of a page: path (empty for the page itself) and anchor (may be empty)."""
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield path, anchor


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", without_code(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_what_a_page_links_to_is_there(page: Path) -> None:
    missing = []
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(f"{path}#{anchor}")
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_each_path_of_the_project_that_a_page_names_is_there(page: Path) -> None:
    paths = re.findall(r"`((?:research|swarm|sandboxes|studies|benchmarks|tests|docs)/[\w./-]*)`", page.read_text())
    of_a_home = re.compile(r"^\w+/(ID|NAME)/")
    assert [path for path in paths if not of_a_home.match(path) and not (ROOT / path).exists()] == []


def shown_commands(page: Path) -> Iterator[str]:
    """Yield each command `ajet ...` of a page, from its shell blocks and its lines."""
    text = page.read_text()
    for block in re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield from re.findall(r"^(?:\w+=\S+ )*(ajet .*)$", block, re.MULTILINE)
    for words in re.findall(r"`(ajet [a-z-][^`]*)`", without_code(text)):
        if "…" not in words and "..." not in words.split()[1]:
            yield one_line(words)


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "examples/README.md", *DOCS], ids=named)
def test_every_command_that_a_page_shows_is_one_with_these_options(page: Path) -> None:
    wrong = [problem for line in shown_commands(page) for problem in problems(shlex.split(line, comments=True))]
    assert wrong == []


COMMANDS = every_command()


def problems(words: Sequence[str]) -> Iterator[str]:
    """Yield what the command line does not know of a command: its name, or an option."""
    path = max((" ".join(words[:count]) for count in range(1, len(words) + 1) if " ".join(words[:count]) in COMMANDS),
               key=len)  # fmt: skip
    rest, command = words[len(path.split()) :], COMMANDS[path]
    if rest and hasattr(command, "list_commands") and not rest[0].startswith("-"):
        yield f"{path} has no command {rest[0]}"
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in rest:
        if word.startswith("--") and word.split("=")[0] not in known | {"--help"}:
            yield f"{path} has no option {word}"


def test_a_command_or_an_option_that_is_not_there_is_seen() -> None:
    assert list(problems(["ajet", "study", "shwo", "x"])) == ["ajet study has no command shwo"]
    assert list(problems(["ajet", "research", "x", "--buget=1h"])) == ["ajet research has no option --buget=1h"]
    assert list(problems(["ajet", "research", "x", "--budget", "1h"])) == []


@pytest.mark.parametrize("page", [ROOT / "README.md", *DOCS], ids=named)
def test_every_block_of_python_and_json_is_whole(page: Path) -> None:
    for language, block in re.findall(r"^```(python|json)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        ast.parse(block) if language == "python" else json.loads(block)


def test_the_index_of_modules_is_what_their_docstrings_say() -> None:
    assert (ROOT / "docs/modules.md").read_text() == "\n".join(index(ROOT))


def glossary() -> list[tuple[str, tuple[str, ...], str]]:
    """Return each noun with the names in the code that define it and their file; no name for a noun that is a file."""
    page = (ROOT / "docs/glossary.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| (?:(`.+`) in )?`(\S+)` \|$", page, re.MULTILINE)
    return [(noun, tuple(re.findall(r"`(\w+)`", names)), path) for noun, names, path in rows]


def test_the_glossary_is_a_page_and_each_noun_stands_there_once() -> None:
    lines = (ROOT / "docs/glossary.md").read_text().splitlines()
    nouns = [noun for nouns, _, _ in glossary() for noun in nouns.split("; ")]
    assert len(lines) <= 80
    assert len(nouns) == len(set(nouns))
    assert len(glossary()) == sum(line.startswith("| ") for line in lines) - 1, "each line can be read"


@pytest.mark.parametrize(("noun", "names", "path"), glossary())
def test_a_noun_of_the_glossary_is_defined_where_it_says(noun: str, names: tuple[str, ...], path: str) -> None:
    defined: set[str] = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            defined.add(node.name)
    assert set(names) <= defined, noun
    assert len(names) in (0, len(noun.split("; "))), "a name for each noun of the line"

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from research.environments.catalog import (
    MeasuredEnvironment,
    Reference,
    conditions_of,
    find_entry_points,
    find_measurements,
    model_key,
    read_reference,
    save_measurement,
)
from research.environments.install import CodeFiles, read_code
from research.errors import BadEnvironment
from research.installation.home import Home
from swarm.job import Job


def test_a_measurement_takes_the_place_of_one_under_the_same_conditions_alone(home: Home) -> None:
    def known(success: float, **fields: Any) -> MeasuredEnvironment:
        job = Job.model_validate(fields)
        return MeasuredEnvironment(
            environment="shop@1", measured_at="2026-01-01", model=model_key(job.model), base_success=success,
            job=conditions_of(job),
        )  # fmt: skip

    for each in (known(0.1), known(0.2, max_tokens=64), known(0.3), known(0.4, max_tokens=64, steps=3)):
        save_measurement(home, each)
    assert {each.base_success for each in find_measurements(home, "shop@1")} == {0.3, 0.4}


def test_a_later_release_may_say_more_and_a_broken_file_says_nothing(home: Home) -> None:
    path = save_measurement(home, MeasuredEnvironment(environment="shop@1", measured_at="2026-01-01"))
    path.write_text(path.read_text().replace("{", '{"watts": 3,', 1))
    assert len(find_measurements(home, "shop@1")) == 1
    path.write_text("{")
    assert find_measurements(home, "shop@1") == ()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("shop", "empty"):
        (tmp_path / name).mkdir()
    for name in ("shop/environment.py", "shop/market.py", "tasks.jsonl", "judge.py"):
        (tmp_path / name).touch()
    return tmp_path


def source(reference: Reference) -> tuple[str, str, str]:
    return reference.source.kind, reference.source.place, reference.source.item


def test_a_module_tasks_with_a_function_and_an_address_are_references(folder: Path) -> None:
    assert source(read_reference("shops.market:Market")) == ("module", "shops.market", "Market")
    tasks = read_reference("tasks.jsonl", "judge.py:mine")
    assert source(tasks) == ("reward", "judge.py", "mine")
    assert (tasks.folder, tasks.lines, tasks.name) == (folder, str(folder / "tasks.jsonl"), "tasks")
    adapter = read_reference("reasoning-gym:chain_sum?max_terms=3")
    assert source(adapter)[:2] == ("adapter", "reasoning-gym:chain_sum?max_terms=3")
    assert adapter.name == "reasoning-gym-chain_sum-max_terms-3"


def test_data_sets_and_judges_by_name_are_references(folder: Path) -> None:
    for name in ("sums.parquet", "saved/state.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    for text, lines, name in (
        ("sums.parquet?prompt=q&where=a:b", f"{folder}/sums.parquet?prompt=q&where=a:b", "sums"),
        ("hf:openai/gsm8k?name=main", "hf:openai/gsm8k?name=main", "gsm8k"), ("saved", f"{folder}/saved", "saved"),
    ):  # fmt: skip
        known = read_reference(text, "math")
        assert (source(known), known.folder, known.lines, known.name) == (("judge", "math", ""), None, lines, name)
        assert read_code(known) == CodeFiles({}, "math-verify[antlr4_13_2]==0.9.0\n")
    judged = read_reference("hf:a/b", "model?base_url=http://there/v1&model=m&rubric=Be kind.")
    assert source(judged)[2] == "base_url=http%3A%2F%2Fthere%2Fv1&model=m&rubric=Be+kind."
    assert source(read_reference("sums.parquet", "judge.py:mine")) == ("reward", "judge.py", "mine")
    assert read_code(read_reference("sums.parquet", "judge.py")).files.keys().isdisjoint({"sums.parquet"})


def test_installed_packages_offer_environments(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = folder / "site" / "offering-1.0.dist-info"
    known.mkdir(parents=True)
    (known / "METADATA").write_text("Metadata-Version: 2.1\nName: offering\nVersion: 1.0\n")
    lines = ("[ajet.environments]", "bazaar = no_such_module.worlds:Bazaar", "shop = no_such_module:Shop")
    (known / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.setattr(sys, "path", [str(folder / "site"), *sys.path])
    assert {"bazaar", "shop"} <= find_entry_points().keys()
    assert source(read_reference("bazaar")) == ("module", "no_such_module.worlds", "Bazaar")
    assert source(read_reference("shop")) == ("module", "no_such_module", "Shop")  # a name comes before a folder


@pytest.mark.parametrize(("text", "reward", "expected"), [
    ("empty", None, "expected environment.py in empty; found none; write one (docs/environments.md), or begin"),
    ("shop/missing.py", None, "expected missing.py in shop; found none"),
    ("shop:not a name", None, "expected the name of a class after the colon; found 'not a name'"),
    ("no/such/folder", None, "found 'no/such/folder', and there is no file or folder of that name; ajet env list"),
    ("./shopp", None, "found './shopp', and there is no file or folder of that name; did you mean shop?"),
    ("shopp/market.py", None, "found none; did you mean shop/market.py?"),
    ("shop/markt.py", None, "expected markt.py in shop; found none; did you mean shop/market.py?"),
    ("shpo", None, "found 'shpo'; did you mean shop?"),
    ("tsaks.jsonl", None, "found 'tsaks.jsonl': no such file; did you mean tasks.jsonl?"),
    ("tsaks.jsonl", "judge.py", "found 'tsaks.jsonl': no such file; did you mean tasks.jsonl?"),
    ("tasks.jsonl", "juge.py", "found 'juge.py': no such file; did you mean judge.py?"),
    ("~nobody-of-that-name/x", None, "found '~nobody-of-that-name/x'"), ("x" * 5000, None, "found 'xxx"),
    ("", None, "found ''"), ("gues", None, "guess"),
    ("hugging-face:gsm8k", None, "addresses begin with reasoning-gym:, textarena:, gymnasium:"),
    ("https://example.org/x", None, "addresses begin with"),
    ("tasks.jsonl", None, "expected --reward FILE.py[:NAME] beside tasks.jsonl"),
    ("shop", "judge.py", "expected a file TASKS.jsonl for --reward to judge; found 'shop': a folder"),
    ("judge.py", "judge.py", "found 'judge.py': another file"),
    ("none.jsonl", "judge.py", "found 'none.jsonl': no such file"),
    ("guess", "judge.py", "found 'guess': no such file"),
    ("tasks.jsonl", "none.py", "expected --reward as FILE.py or FILE.py:NAME; found 'none.py'"),
    ("tasks.jsonl", "shop", "expected --reward as FILE.py or FILE.py:NAME; found 'shop'"),
    ("tasks.jsonl", "~nobody-of-that-name/x.py", "expected --reward as FILE.py"),
])  # fmt: skip
def test_what_is_no_reference_is_refused_in_one_line(text: str, reward: str | None, expected: str) -> None:
    with pytest.raises(BadEnvironment) as refused:
        read_reference(text, reward)
    said = str(refused.value)
    assert (expected in said, len(said) < 600) == (True, True)
    assert not [part for part in ("--env", "\n") if part in said]  # a command may take it as an argument

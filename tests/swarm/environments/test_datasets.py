"""Tests of data sets read as tasks."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from swarm.environments import Task
from swarm.environments.building import write_lines
from swarm.environments.custom import demonstrations_from_json
from swarm.environments.datasets import read
from swarm.environments.loading import RewardTasks
from swarm.errors import InvalidRequest

Rows = Sequence[Mapping[str, Any]]
SUMS: Rows = [{"question": f"{n}+{n}?", "answer": 2 * n, "level": "hard" if n > 1 else "easy"} for n in range(4)]


def tasks_of(address: str) -> list[Task]:
    return [task for task, _ in read(address)[0]]


def lines_file(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def saved(kind: str, folder: Path) -> str:
    """Write SUMS as a kind of data set; return its address."""
    datasets = pytest.importorskip("datasets")
    own, place = datasets.Dataset.from_list(list(SUMS)), folder / f"sums.{kind}"
    match kind:
        case "parquet":
            own.to_parquet(place)
        case "csv":
            own.to_csv(place)
        case "json":
            place.write_text(json.dumps(SUMS))
        case "jsonl":
            lines_file(place, SUMS)
        case "disk":
            own.save_to_disk(place)
        case "splits":
            datasets.DatasetDict({"train": own, "test": own}).save_to_disk(place)
            return f"{place}?split=test&"
        case _:
            (place / "data").mkdir(parents=True)
            own.to_parquet(place / "data" / "train-00000-of-00001.parquet")
    return f"{place}?"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "csv", "json", "jsonl", "disk", "splits", "folder"])
def test_rows_of_whatever_kind_of_data_set_are_the_same_tasks(kind: str, tmp_path: Path) -> None:
    address = f"{saved(kind, tmp_path)}prompt=question&kind=level"
    (task,) = tasks_of(f"{address}&where=level:HARD&where=answer:6")
    answer = "6" if kind == "csv" else 6  # whose cells are text
    assert (task.data, task.kind) == ({"messages": [{"role": "user", "content": "3+3?"}], "answer": answer}, "hard")
    assert len(tasks_of(address)) == 4
    assert len(tasks_of(f"{address}&rows=2")) == 2


def test_a_field_may_be_within_an_object_and_a_prompt_be_messages(tmp_path: Path) -> None:
    prompt = [{"role": "user", "content": "2+2?", "name": None}]
    row = {
        "prompt": prompt,
        "reward_model": {"ground_truth": "4"},
        "extra": {"index": 7},
        "data_source": "sums",
        "none": None,
    }
    address = f"{lines_file(tmp_path / 'verl.jsonl', [row])}?answer=reward_model.ground_truth&id=extra.index"
    data = {"messages": [{"role": "user", "content": "2+2?"}], "answer": "4", "data_source": "sums"}
    assert tasks_of(address) == [Task("7", data)]


@pytest.mark.slow
def test_columns_that_are_no_json_do_not_come_along(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list([{"prompt": "?", "image": b"\x00", "level": 1}]).to_parquet(tmp_path / "x.parquet")
    assert set(tasks_of(f"{tmp_path / 'x.parquet'}?rows=9")[0].data) == {"messages", "level"}


def test_rows_that_can_be_no_tasks_are_counted_with_their_reason(tmp_path: Path) -> None:
    rows = [*SUMS, SUMS[0], {"question": "?"}, {"question": 5, "answer": 1}, {"question": "x", "answer": float("nan")}]
    found, _, left = read(f"{lines_file(tmp_path / 'sums.jsonl', rows)}?prompt=question&answer=answer")
    assert len(found) == 4
    assert left.startswith("left out 4 rows: ")
    for reason in (
        "says the same as another, or has its id (1)",
        "has no answer (1)",
        "a text as `prompt`",
        "Out of range",
    ):
        assert reason in left


def talk(*said: str, **also: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[n % 2], "content": text} for n, text in enumerate(said)], **also}


TALKS: Rows = [
    talk("a?", "A", agreed=True, language="en"), talk("b?", "B", "c?", "C", "Thanks", agreed=True, language="de"),
    talk("d?", "D", agreed=False, language="en"), talk("e?", "E", agreed="true", language="en"),
    talk("f?", agreed=True),
]  # fmt: skip


def test_of_recorded_conversations_those_with_consent_are_tasks_up_to_the_last_answer(tmp_path: Path) -> None:
    path = lines_file(tmp_path / "talks.jsonl", TALKS)
    found, answers, left = read(f"{path}?consent=agreed")
    assert [(len(task.data["messages"]), task.data["answer"]) for task, _ in found] == [(1, "A"), (3, "C")]
    assert list(answers.values()) == [{"role": "assistant", "content": text} for text in "AC"]
    assert left == "left out 3 rows: has no consent in agreed (2), has no recorded answer in words (1)"
    assert [task.data["answer"] for task in tasks_of(f"{path}?consent=all&where=language:en")] == ["A", "D", "E"]


@pytest.mark.parametrize("query", ["", "?rows=3"])
def test_recorded_conversations_without_a_word_of_consent_are_refused(query: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"expected consent .* say \?consent=FIELD"):
        read(f"{lines_file(tmp_path / 'talks.jsonl', TALKS)}{query}")


def test_recorded_answers_are_demonstrations_of_training_tasks_alone(tmp_path: Path) -> None:
    path = lines_file(tmp_path / "talks.jsonl", [talk(f"What is word {n}?", f"It is {n}.") for n in range(200)])
    said = write_lines(RewardTasks(Path("exact")), "talks", f"{path}?consent=all", tmp_path, "answer")
    plays = demonstrations_from_json((tmp_path / "demonstrations.json").read_bytes())
    assert said["demonstrations"] == len(plays) == said["splits"]["train"]
    train = {task["data"]["answer"] for task in json.loads((tmp_path / "tasks" / "train.json").read_text())}
    assert {play.messages[-1]["content"] for play in plays} == train


def test_a_csv_is_read_as_it_is_written_and_from_its_own_file_alone(tmp_path: Path) -> None:
    (tmp_path / "sums[1].csv").write_text("prompt,answer\na?,02134\nb?,1.10\nc?,\n")
    (tmp_path / "sums1.csv").write_text("prompt,answer\nx?,1\n")
    assert [task.data["answer"] for task in tasks_of(f"{tmp_path}/sums[1].csv")] == ["02134", "1.10", ""]


@pytest.mark.parametrize(("address", "expected"), [
    ("numbers.json?prompt=x", "is no object"), ("sums.jsonl?rows=0", "1 or more"),
    ("sums.jsonl?prompt=qustion", r"left out 4 rows: has no qustion \(4\); its columns: question, answer, level"),
    ("sums.jsonl?rows=many", "could not read it: ValueError"), ("none.jsonl?rows=1", "FileNotFoundError"),
    ("broken.json?rows=1", "JSONDecodeError"),
])  # fmt: skip
def test_what_cannot_be_read_is_refused_in_one_line(address: str, expected: str, tmp_path: Path) -> None:
    lines_file(tmp_path / "sums.jsonl", SUMS)
    (tmp_path / "broken.json").write_text("[{")
    (tmp_path / "numbers.json").write_text("5")
    with pytest.raises(InvalidRequest, match=expected) as refused:
        read(f"{tmp_path}/{address}")
    assert "\n" not in str(refused.value)


def test_tasks_without_what_their_judge_needs_are_refused(tmp_path: Path) -> None:
    path = lines_file(tmp_path / "sums.jsonl", [{"prompt": "?"}])
    with pytest.raises(InvalidRequest, match=r"expected `answer` to judge by .* \?answer=COLUMN"):
        write_lines(RewardTasks(Path("exact")), "sums", f"{path}?rows=1", tmp_path, "answer")


def test_without_the_library_a_line_says_what_to_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InvalidRequest, match=r"pip install 'ajet\[data\]'"):
        read("hf:openai/gsm8k?split=train")


@pytest.mark.parametrize(
    "error", [ConnectionError("Couldn't reach 'openai/gsm8k' on the Hub"), ValueError("Config name is missing")]
)
def test_a_hub_that_gives_nothing_is_told_in_one_line(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(InvalidRequest, match=r"expected a data set at hf:openai/gsm8k.*network, or fetch it elsewhere"):
        read("hf:openai/gsm8k?name=main&split=train")


def test_a_hub_is_asked_for_a_configuration_and_a_split(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets, asked = pytest.importorskip("datasets"), list[Any]()

    def give(*where: object, **how: object) -> dict[str, Rows]:
        asked.append((where, how))
        return {"train": SUMS, "test": SUMS[:1]}

    monkeypatch.setattr(datasets, "load_dataset", give)
    assert len(tasks_of("hf:openai/gsm8k?name=main&split=test&prompt=question")) == 1
    assert asked == [(("openai/gsm8k", "main"), {"revision": None, "streaming": True})]
    with pytest.raises(InvalidRequest, match="expected split=NAME of hf:openai/gsm8k among train, test; found none"):
        read("hf:openai/gsm8k?prompt=question")

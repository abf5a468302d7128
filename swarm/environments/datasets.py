"""Reads data sets as tasks, a row each: files, folders, Hugging Face's hub, and conversations recorded elsewhere.

gsm8k.parquet?prompt=question&answer=answer     a field of a task by the column it is in; `a.b`: within an object
hf:openai/gsm8k?name=main&split=train&rows=2000&prompt=question
talks.jsonl?consent=agreed&where=language:en    up to its last answer each is a prompt, and that the `answer`
"""

import csv
import glob
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

from swarm.environments.base import Message, Split, Task
from swarm.environments.loading import PROMPT, read_lines, to_task
from swarm.errors import InvalidRequest

HUB: Final = "hf:"
SUFFIXES: Final = (".jsonl", ".json", ".csv", ".parquet")
_Row = Mapping[str, Any]


def read(address: str) -> tuple[Sequence[tuple[Task, Split | None]], Mapping[str, Message], str]:
    """Return the tasks at an address, the recorded answers of some by their ids, and in words what was left out."""
    place, _, query = address.partition("?")
    if place.endswith(".jsonl") and not query:
        return read_lines(Path(place)), {}, ""
    fields, where = dict(parse_qsl(query)), [value.partition(":") for key, value in parse_qsl(query) if key == "where"]
    rows, consent, _ = (fields.pop(key, "") for key in ("rows", "consent", "where"))
    tasks, answers, left = dict[str, tuple[Task, Split | None]](), dict[str, Message](), Counter[str]()
    row: _Row = {}
    try:
        most = int(rows) if rows else None
        if most is not None and most < 1:
            raise ValueError(f"rows={rows}: expected 1 or more")
        for row in _open(place, fields):
            try:
                task, split, answer = _read_row(row, fields, where, consent)
                if task.id in tasks:
                    raise LookupError("says the same as another, or has its id")
            except LookupError as reason:
                left[reason.args[0]] += 1
                continue
            tasks[task.id] = task, split
            answers |= {task.id: answer} if answer else {}
            if len(tasks) == most:
                break
    except (OSError, ValueError) as error:
        how = "see to name and network, or fetch it elsewhere and name the folder" if HUB in place else "mend it"
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise InvalidRequest(f"expected a data set at {address}; could not read it: {said:.300}; {how}") from error
    columns = ", ".join(row) if isinstance(row, dict) else "none"
    why = f"left out {left.total()} rows: " + ", ".join(f"{reason} ({count})" for reason, count in left.most_common())
    if not tasks:
        raise InvalidRequest(f"expected tasks in {address}; found none; {why}; its columns: {columns}")
    return [*tasks.values()], answers, why if left else ""


def _open(place: str, fields: dict[str, str]) -> Any:
    if place.endswith((".jsonl", ".json")):
        text = Path(place).read_text(encoding="utf-8").strip()
        return list(json.loads(text if text[:1] == "[" else f"[{','.join(filter(str.strip, text.split(chr(10))))}]"))
    if place.endswith(".csv"):  # all of it is text: 02134 is no number
        with open(place, encoding="utf-8-sig", newline="") as file:
            return list(csv.DictReader(file))
    try:
        import datasets
    except ImportError as error:
        raise InvalidRequest(f"expected the package datasets for {place}: pip install 'ajet[data]'") from error
    if place.endswith(SUFFIXES):
        return datasets.load_dataset("parquet", data_files=glob.escape(place), split="train", streaming=True)
    name, revision, split = (fields.pop(key, None) for key in ("name", "revision", "split"))
    if any((Path(place) / saved).is_file() for saved in ("state.json", "dataset_dict.json")):
        found = datasets.load_from_disk(place)
    else:
        found = datasets.load_dataset(place.removeprefix(HUB), name, revision=revision, streaming=True)
    parts = found if isinstance(found, dict) else {"train": found}
    split = next(iter(parts)) if split is None and len(parts) == 1 else split
    if split not in parts:
        raise InvalidRequest(f"expected split=NAME of {place} among {', '.join(parts)}; found {split or 'none'}")
    return parts[split]


def _read_row(
    row: _Row, fields: Mapping[str, str], where: Iterable[tuple[str, str, str]], consent: str
) -> tuple[Task, Split | None, Message | None]:
    """Return a row's task, its split and its recorded answer; raise LookupError where it is none."""
    row, answer = json.loads(json.dumps(row, default=lambda _: None)), None
    if not isinstance(row, dict):
        raise LookupError("is no object")
    if any(str(_find(row, field)).casefold() != value.casefold() for field, _, value in where):
        raise LookupError("is not what `where` asks for")
    if consent not in ("", "all") and _find(row, consent) is not True:
        raise LookupError(f"has no consent in {consent}")
    value = {field: _find(row, column) for field, column in fields.items()}
    named = {column.partition(".")[0] for column in fields.values()} | value.keys()
    value |= {key: item for key, item in row.items() if key not in named and item is not None}
    if isinstance(value.get("prompt"), list):
        value[PROMPT] = value.pop("prompt")
    elif "prompt" in value and PROMPT in value:
        del value[PROMPT if "prompt" in fields else "prompt"]
    messages = value.get(PROMPT)
    if isinstance(messages, list) and all(isinstance(message, dict) for message in messages):
        messages = [{k: v for k, v in one.items() if v is not None or k == "content"} for one in messages]
        value[PROMPT] = messages
        if consent:
            last = max((at for at, one in enumerate(messages) if one.get("role") == "assistant"), default=0)
            if not last or not isinstance(messages[last].get("content"), str):
                raise LookupError("has no recorded answer in words")
            value[PROMPT], answer = messages[:last], messages[last]
            value.setdefault("answer", answer["content"])
    try:
        return *to_task(value, json.dumps(value, sort_keys=True, allow_nan=False).encode(), "a row"), answer
    except (InvalidRequest, ValueError) as error:
        if isinstance(error, InvalidRequest) and error.param == "consent":
            raise  # of one row, it is of all
        raise LookupError(str(error)) from error


def _find(row: Any, column: str) -> Any:
    for name in [column] if column in row else column.split("."):
        if not isinstance(row, Mapping) or row.get(name) is None:
            raise LookupError(f"has no {column}")
        row = row[name]
    return row

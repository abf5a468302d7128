"""Jobs made of what other trainers are told: scripts of TRL's, parsed and never run, and verl's configurations."""

import ast
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import resources
from math import ceil
from pathlib import Path
from string import Template
from typing import Any, Final

import yaml
from pydantic import ValidationError

from research.errors import BadInput
from swarm.errors import to_invalid_request
from swarm.job import Job, PathModel

TABLES: Final = tomllib.loads(resources.files(__package__).joinpath("job_import.toml").read_text("utf-8"))
"""Their fields, the defaults of these, and what they come to."""
_FIRST: Final = {"GRPOConfig": ("output_dir",), "GRPOTrainer": ("model", "reward_funcs", "args"), "LoraConfig": ()}


class _Expression(str):
    """What only a run knows."""


def import_job(path: Path, model: str | None, rows: int | None) -> tuple[dict[str, Any], list[tuple[str, Any, str]]]:
    """Return the fields, not at their defaults, of the job that trains what a script of TRL's (`.py`) or a
    configuration of verl's (YAML, or words `key=value`) does with a data set of so many rows; and of what is otherwise
    field, value and why. `model` stands for the model there. Raises BadInput."""
    notes: list[tuple[str, Any, str]] = []
    try:
        text = path.read_text("utf-8")
        job = _read_trl(text, notes) if path.suffix == ".py" else _read_verl(text, path.suffix, notes)
        own = {name[1:]: job.pop(name) for name in list(job) if name[0] == "_"}
        place = model or own["model"]
        if place is None or isinstance(place, _Expression):
            raise ValueError(f"expected a model's folder; found {place or 'none'}; give it: --model FOLDER")
        job |= {"model": {"kind": "path", "path": place}, **_reckon(job, own, rows, notes)}
        job = {name: value for name, value in job.items() if name not in own.get("without", ())}
        usual = Job.default_fields(PathModel(path=place), Job.model_validate(job).lora_rank)
    except (OSError, SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, yaml.YAMLError) as error:
        why = to_invalid_request(error) if isinstance(error, ValidationError) else error
        raise BadInput(f"{path} comes to no job: {' '.join(str(why).split())}") from error
    return {name: value for name, value in job.items() if value != usual[name]}, notes


def _reckon(job: Mapping[str, Any], own: Mapping[str, Any], rows: int | None, notes: list[Any]) -> dict[str, int]:
    """Return batch, steps and context: TRL counts episodes and optimiser steps, verl prompts and batches."""
    group, of_trl = job["group_size"], "device" in own
    update = own["device"] * own["accumulated"] if of_trl else own["mini"] * group
    once = own["device"] * (own["per_generation"] or own["accumulated"]) if of_trl else own["prompts"] * group
    batch = own.get("batch") or once
    if batch % update:
        raise ValueError(f"expected whole optimiser steps in a batch; found {batch} episodes, and {update} in a step")
    of_batch = batch // update * job["epochs"] if of_trl else 1
    steps = ceil((own["steps"] or -1) / of_batch)
    if steps < 1 and rows is None:
        notes.append(("steps", Job().steps, f"{own['epochs']} epochs of a data set of unknown size: give its --rows"))
    steps = steps if steps > 0 else ceil(rows * group // batch * own["epochs"]) if rows else Job().steps
    warmup = own["warmup"] if own["warmup"] > 0 else own["warmup_share"] or 0
    return {
        "episodes_per_step": batch, "minibatches": batch // update, "steps": steps,
        "lr_warmup_steps": ceil(warmup / of_batch if warmup >= 1 else warmup * steps),
        "max_context": own["context"] or own.get("prompt", max(job["max_tokens"], 256)) + job["max_tokens"],
    }  # fmt: skip


def _translate(kind: str, given: Mapping[str, Any], notes: list[Any]) -> dict[str, Any]:
    """Return fields of the job, and with a _ before their names what others are reckoned from."""
    fields, apart, job = TABLES[kind]["fields"], tuple(TABLES[kind]["apart"]), dict[str, Any]()
    theirs = {name: entry.get("default") for name, entry in fields.items()} | dict(given)
    for name, value in theirs.items():
        unknown = {"why": "it trains nothing" if name.startswith(apart) else "no field of a job stands for it"}
        entry, key = fields.get(name, unknown), str(value).lower()
        if not all(theirs[other] for other in entry.get("when", ())):
            continue
        if isinstance(value, _Expression) and "loose" not in entry and entry.keys() & {"job", "values"}:
            raise ValueError(f"expected a value for {name}; found {value}, which only a run knows: write it there")
        if key not in entry.get("values", {key: None}):
            raise ValueError(f"expected {name} {' or '.join(entry['values'])}; found {value!r}: {entry.get('why', '')}")
        for field, result in (entry["values"][key] if "values" in entry else {entry.get("job"): value}).items():
            if isinstance(result, Mapping):
                job[field] = {**job.get(field, {}), **result}
            elif field and (result is not None or field[0] == "_") and job.setdefault(field, result) != result:
                raise ValueError(f"expected one {field}; found {job[field]!r} and, by {name}, {result!r}")
        changed = "why" in entry and "values" not in entry and value != entry.get("neutral", entry.get("default"))
        notes += [(name, value, entry.get("told") or entry["why"])] if changed or "told" in entry else []
    if job.get("algorithm") == "dr_grpo" and job.pop("normalize_advantage"):
        raise ValueError("expected advantages that are not scaled, with the loss of dr_grpo; no job has both")
    return job


def _read_trl(text: str, notes: list[Any]) -> dict[str, Any]:
    calls = dict(_read_calls(list(ast.walk(ast.parse(text)))))
    if not calls.keys() & {"GRPOConfig", "GRPOTrainer"}:
        raise ValueError("expected a call of GRPOConfig or GRPOTrainer; found neither")
    trainer = calls.get("GRPOTrainer", {})
    for argument, kind in (("args", "GRPOConfig"), ("peft_config", "LoraConfig")) if trainer else ():
        found, made = trainer.get(argument), rf"(\w+\.)*{kind}\("
        if kind in calls if found is None else not (isinstance(found, _Expression) and re.match(made, found)):
            raise ValueError(f"expected {argument}={kind}(...) of GRPOTrainer, called by its name; found {found}")
    tables = ("GRPOConfig", "GRPOTrainer", *calls.keys() & {"LoraConfig"})
    job = {key: value for name in tables for key, value in _translate(name, calls.get(name, {}), notes).items()}
    if job["_adapter"] is not None and "lora_rank" not in job:
        raise ValueError(f"expected a call of LoraConfig; found the peft_config {job['_adapter']}")
    return job


def _read_calls(nodes: list[ast.AST]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield arguments of each call of a table's name; a name stands for the literal that alone is assigned to it."""
    stored = Counter(node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load))
    stored.update(node.arg for node in nodes if isinstance(node, ast.arg))
    stored.update(node.asname or node.name for node in nodes if isinstance(node, ast.alias))
    changed = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    changed |= {ast.unparse(node.args[1])[1:-1] for node in calls if ast.unparse(node.func) == "setattr"}
    if late := changed & {field for kind in _FIRST for field in TABLES[kind]["fields"]}:
        raise ValueError(f"expected {min(late)} where the configuration is made; found it changed afterwards")
    assigned = [(node.targets[0], node.value) for node in nodes if isinstance(node, ast.Assign)]
    named = {name.id: value for name, value in assigned if isinstance(name, ast.Name) and stored[name.id] == 1}
    named = {} if stored["*"] else named

    def evaluate(node: ast.expr) -> Any:
        node = named.get(node.id, node) if isinstance(node, ast.Name) else node
        try:
            return ast.literal_eval(node)
        except ValueError:
            return _Expression(ast.unparse(node)[:80])

    for node in calls:
        if (name := ast.unparse(node.func).split(".")[-1]) not in _FIRST:
            continue
        stored[f"call of {name}"] += 1
        given = dict(zip(_FIRST[name], node.args, strict=False))
        given |= {word.arg or "**": word.value for word in node.keywords}
        if stored[f"call of {name}"] > 1 or "**" in given or len(node.args) > len(_FIRST[name]):
            raise ValueError(f"expected one call of {name}, with keywords; found {ast.unparse(node)[:120]}")
        yield name, {key: evaluate(value) for key, value in given.items()}


def _read_verl(text: str, suffix: str, notes: list[Any]) -> dict[str, Any]:
    if suffix in (".yaml", ".yml"):
        tree = yaml.safe_load(text)
    else:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
        pairs = [found.groups() for word in words if (found := re.fullmatch(r"(?s)\+{0,2}([\w.]+)=(.*)", word))]
        last = {pair[0]: pair[1] for pair in pairs}
        if twice := [name for name, value in pairs if last[name] != value]:
            raise ValueError(f"expected one {twice[0]}; found it set again, to {last[twice[0]]}: keep one training")
        variables = {name: value for name, value in pairs if "." not in name}
        tree = {name: yaml.safe_load(Template(said).safe_substitute(variables)) for name, said in pairs if "." in name}
    given = dict(_flatten(tree)) if isinstance(tree, dict) else {}
    if not given.keys() & TABLES["verl"]["fields"].keys():
        raise ValueError("expected fields of verl's, such as algorithm.adv_estimator; found none")
    return _translate("verl", given, notes)


def _flatten(tree: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{under}{name}.")
        elif isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value):  # a text in YAML 1.1
            yield f"{under}{name}", float(value)
        elif name != "_target_":
            yield f"{under}{name}", _Expression(value) if isinstance(value, str) and "$" in value else value

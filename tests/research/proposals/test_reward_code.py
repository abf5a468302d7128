from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from research.design.comparison import StatisticalRequirements
from research.errors import BadInput, DesignRefused, ResearchError
from research.isolation.mode import UNISOLATED
from research.planners import analysis
from research.proposals.actions import DEFAULT_TABLE, KILL, UNRULED, Condition, ProposedRule
from research.proposals.flags import RequestedComparison
from research.proposals.metric_choice import MetricChoice, RequestedMetric, default_effect
from research.proposals.slots import MOST_BYTES, SLOTS, check_code_in, code_name
from research.scheduler.required_runs import decide, rules_for
from research.text import describe
from sandboxes import Exit
from studies.records.procedure import Rule
from studies.records.verdict import Verdict
from swarm.job import Job
from tests.studies.synthetic import hypothesis, judged

JOB = Job(steps=40, episodes_per_step=128, environment="guess")


def judge(asked: str | None = None, training_s: float = 30.0) -> MetricChoice:
    return MetricChoice(None if asked is None else RequestedMetric.parse(asked), lambda job: training_s)


@pytest.mark.parametrize(("text", "error", "said"), [
    ("episode:0.7", BadInput, "did you mean episodes"), ("speed", BadInput, "they are success, gain"),
    ("success:0.7", BadInput, "expected success alone"), ("episodes:", BadInput, "expected episodes:THRESHOLD"),
    ("episodes:soon", BadInput, "found the threshold 'soon'"),
    ("episodes", DesignRefused, "expected a threshold"), ("episodes:1.5", DesignRefused, "between 0 and 1"),
    ("area:0", DesignRefused, "between 0 and 1"), ("fact:guesses", DesignRefused, "facts = "),
])  # fmt: skip
def test_what_no_metric_is_called_or_takes_or_gives_is_refused(
    text: str, error: type[ResearchError], said: str
) -> None:
    with pytest.raises(error, match=said) as refused:
        judge(text).metric([JOB], 512)
    assert "\n" not in refused.value.message


def test_a_study_keeps_what_was_asked_and_an_older_one_asked_for_nothing() -> None:
    asked = RequestedMetric("episodes", 0.7, words="faster")
    for wanted in (StatisticalRequirements(effect=256.0, metric=asked), StatisticalRequirements(power_named=True)):
        assert StatisticalRequirements.of(wanted.settings()) == wanted
    older = {"effect": 0.1, "power": 0.8, "looks": 3, "episodes": 512}
    assert (StatisticalRequirements.of(older).metric, StatisticalRequirements.of(older).power_named) == (None, False)


def test_episodes_are_cut_at_the_longest_training() -> None:
    metric = judge("episodes:0.7").metric([JOB, JOB.model_copy(update={"steps": 80})], 512)
    assert (metric.worst, metric.best, metric.horizon) == (10_240.0, 0.0, 10_240.0)
    assert not metric.higher_is_better
    assert default_effect(metric) == 1024.0


def test_seconds_are_cut_where_no_small_change_of_a_price_moves_them() -> None:
    horizons = {judge("seconds:0.7", seconds).metric([JOB], 512).horizon for seconds in (27.0, 30.0, 34.0)}
    assert horizons == {70.0}
    measured = judge("seconds:0.7").metric([JOB], 512)
    again = MetricChoice(RequestedMetric("seconds", 0.7), lambda job: 90.0, measured_by=measured)
    assert again.metric([JOB], 512) == measured


ASKED = judged(hypothesis(), {"a": 0.1, "b": 0.2, "c": 0.15}, {"d": 0.5, "e": 0.6}, alpha=0.05)


def verdict(name: str, **numbers: Any) -> Verdict:
    return ASKED.model_copy(update={"verdict": name, "p": 0.2, **numbers})


FUTILE = "verdict == 'inconclusive' and p > 0.5"
AT_A_LOOK = [
    # verdict, looks in all, p, which of the six hold
    ("supported", 2, 0.01, (1, 0, 0, 1, 0, 0)), ("supported", 1, 0.01, (1, 0, 0, 1, 0, 0)),
    ("refuted", 2, 0.01, (1, 0, 0, 0, 1, 0)), ("equivalent", 1, 0.9, (1, 0, 0, 0, 1, 0)),
    ("inconclusive", 2, 0.5, (0, 1, 0, 0, 0, 0)), ("inconclusive", 2, 0.51, (0, 1, 0, 0, 0, 1)),
    ("inconclusive", 1, 0.2, (0, 0, 1, 0, 0, 0)), ("inconclusive", 1, None, (0, 0, 1, 0, 0, 0)),
    ("invalid", 3, None, (0, 1, 0, 0, 0, 0)), ("invalid", 1, 0.9, (0, 0, 1, 0, 0, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "looks", "p", "expected"), AT_A_LOOK)
def test_conditions_hold_of_their_verdicts(name: str, looks: int, p: float | None, expected: tuple[int, ...]) -> None:
    tables = [(Rule(name="only", when=when, then="replicate"),) for when in get_args(Condition)]
    found = [decide(table, verdict(name, p=p), looks) for table in tables]
    assert [rule is not UNRULED for rule in found] == [bool(holds) for holds in expected]


@pytest.mark.parametrize("when", ["", "lo > 0", "verdict == 'inconclusive'", 'verdict == "supported"'])
def test_another_condition_is_refused_in_one_line_with_the_six(when: str) -> None:
    with pytest.raises(ValidationError) as refused:
        ProposedRule.model_validate({"name": "own", "when": when, "then": "settle"})
    line = describe(refused.value)
    assert line.startswith("when: expected ")
    assert line.endswith(f"found {when!r}")
    assert all(repr(condition) in line for condition in get_args(Condition))
    assert "\n" not in line


STRANGE = Rule(name="strange", when="lo > 0", then="continue")


@pytest.mark.parametrize(
    ("rules", "p", "decided"),
    [
        (rules_for(hypothesis().model_copy(update={"kill_if": FUTILE}), ()), 0.6, KILL),
        (rules_for(hypothesis().model_copy(update={"kill_if": FUTILE}), ()), 0.4, "look-again"),
        (rules_for(hypothesis(), ()), 0.6, "look-again"), (DEFAULT_TABLE[:1], 0.2, UNRULED.name),
        ((STRANGE,), 0.2, UNRULED.name), ((STRANGE, *DEFAULT_TABLE), 0.2, "look-again"),
    ],
    ids=["killed", "not killed", "no kill condition", "covered by no rule", "a rule of another version", "and others"],
)  # fmt: skip
def test_the_first_rule_that_this_version_knows_and_that_holds_decides(
    rules: tuple[Rule, ...], p: float, decided: str
) -> None:
    assert decide(rules, verdict("inconclusive", p=p), 2).name == decided
    assert UNRULED.then == "settle"


PLAIN = "def reward(task: dict, messages: list[dict], outcome: dict) -> float:\n    return outcome['reward']\n"


@pytest.mark.parametrize("source", [
    PLAIN, "import math\n\nHALF = 0.5\n\n\n" + PLAIN,
    "def reward(task, messages, outcome):\n\treturn 0.0 if '§' in str(messages) else 1.0",
    "def reward(x):\n    return 0\n\n\n" + PLAIN,
])  # fmt: skip
def test_a_function_of_the_right_shape_is_taken_as_it_is(source: str) -> None:
    assert SLOTS["reward"].check(source) == source


@pytest.mark.parametrize(("source", "told"), [
    ("", "expected def reward"), (" \n", "expected def reward"), (PLAIN + "#" * MOST_BYTES, "at most 8192 bytes"),
    (PLAIN + "#" + "ä" * (MOST_BYTES // 2), "at most 8192 bytes"),
    ("def reward(task, messages, outcome)\n    return 1", "a syntax error in line 1"),
    ("reward = lambda task, messages, outcome: 1", "found no such function"),
    ("async def reward(task, messages, outcome):\n    return 1", "found no such function"),
    ("class A:\n    def reward(task, messages, outcome):\n        return 1", "found no such function"),
    ("def reward(task, outcome):\n    return 1", "parameters (task, outcome)"),
    ("def reward(task, outcome, messages):\n    return 1", "parameters (task, outcome, messages)"),
    ("def reward(task, messages, outcome, *rest):\n    return 1", "*rest"),
    ("def reward(task, messages, *, outcome):\n    return 1", "*, outcome"),
    (PLAIN + "def reward(task):\n    return 1", "parameters (task)"), (PLAIN + "\0", "U+0000 in line 3"),
    (PLAIN + "x = '\u202egnol'", "U+202E in line 3"), (PLAIN + "x = '\u2066'", "U+2066 in line 3"),
    (PLAIN + "x = 'a\u200bb'", "U+200B"), (PLAIN.replace("\n", "\r\n"), "U+000D in line 1"),
    (PLAIN + "x = '\x1b[2J'", "U+001B"), (PLAIN + "x = '\ud800'", "U+D800"),
    ("\ufeff" + PLAIN, "U+FEFF in line 1"), (PLAIN + "x = " + "-" * 8000 + "1", "what its parser cannot take"),
    (PLAIN + "x = " + "1+" * 4000 + "1", "what its parser cannot take"),
    (PLAIN + "x = " + "(" * 300 + ")" * 300, "too many nested parentheses"), (PLAIN + "x = " + "9" * 5000, "4300"),
    *((f"def reward(task, *, maze={default}):\n    return 1.0\n", "found parameters (task, *, maze)")
      for default in ("-" * 2000 + "1", "x" + ".y" * 2000, "1" + "+1" * 2000)),
])  # fmt: skip
def test_what_is_not_well_formed_is_refused_in_one_line(source: str, told: str) -> None:
    with pytest.raises(DesignRefused) as caught:
        SLOTS["reward"].check(source)
    assert told in caught.value.message
    assert "\n" not in caught.value.message


@given(st.text(max_size=200))
def test_any_text_is_taken_or_refused_and_never_raises_anything_else(text: str) -> None:
    with suppress(DesignRefused):
        assert SLOTS["reward"].check(text) == text


def test_checking_a_source_does_not_run_it(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    SLOTS["reward"].check(f"open({str(trace)!r}, 'w').write('x')\n{PLAIN}")
    assert not trace.exists()


@pytest.mark.parametrize("name", ["", "Dense", "a_b", "-a", "a" * 33, "a b", "../x", 3, True, "é", "a\n"])
def test_anything_else_is_no_name(name: object) -> None:
    with pytest.raises(DesignRefused, match="reward: expected 'built-in' or a"):
        code_name("reward", name)


@pytest.mark.parametrize("slot", SLOTS)
def test_what_is_built_in_is_well_formed_code_of_its_slot_and_of_no_other(slot: str) -> None:
    source = SLOTS[slot].built_in
    assert SLOTS[slot].check(source) == source
    for other in SLOTS.keys() - {slot}:
        with pytest.raises(DesignRefused, match="found no such function"):
            SLOTS[other].check(source)


@pytest.mark.parametrize(("slot", "source", "told"), [
    ("reward", "= reward - steps", "found steps"), ("advantage", "= rewards", "found rewards"),
    ("reward", "= mean", "found mean"), ("advantage", "= (reward - mean) / std", ""),
    ("reward", "= reward - 0.1 * turns", ""),
])  # fmt: skip
def test_an_expression_names_what_its_slot_has_in_the_environment(slot: str, source: str, told: str) -> None:
    assert SLOTS[slot].check(source) == source
    if not told:
        return check_code_in("guess", [(slot, source)])
    with pytest.raises(DesignRefused, match=told):
        check_code_in("guess", [(slot, source)])
    return None


@pytest.mark.parametrize(("reason", "refused"), [
    ("error", True), ("timeout", True), ("out_of_memory", True), ("finished", False), ("stopped", False),
    ("lost", False), ("killed", False),
])  # fmt: skip
def test_code_is_refused_for_what_it_did_and_not_for_what_became_of_its_container(
    reason: Any, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = SimpleNamespace(wait=lambda: Exit(reason, 1), logs=lambda: "KeyError: 'worth'", results=dict)
    monkeypatch.setattr(analysis, "_run", lambda *_: ended)
    with pytest.raises(DesignRefused, match="KeyError") if refused else nullcontext():
        analysis.try_code("s", UNISOLATED, list, "reward", SLOTS["reward"].built_in, "guess")


PLAYED = [
    {"task_id": task, "sample": 0, "reward": reward, "success": reward > 0, "facts": {"guesses": 2.0}, "data": {},
     "messages": [{"role": "user", "content": "Guess."}, {"role": "assistant", "content": "7"}]}
    for task in "ab" for reward in (1.0, 0.0)
]  # fmt: skip
TRIED = "tried on 4 recorded plays (of the newest 256 at most)"


def test_an_expression_is_tried_on_recorded_plays_without_a_container() -> None:
    def attempt(slot: str, source: str, *blind: bool) -> str:
        asked: list[str] = []
        told = analysis.try_code(
            "s", UNISOLATED, lambda name: asked.append(name) or PLAYED, slot, source, "guess", *blind
        )
        assert asked == [] if any(blind) else ["guess"]
        return told

    assert attempt("reward", "= reward - 0.1 * turns") == f"reward: {TRIED}: rewards -0.1 to 0.9"
    assert attempt("advantage", "= reward - mean") == f"advantage: {TRIED}: advantages -0.5 to 0.5"
    assert attempt("reward", "= 1 / reward", True) == ""
    with pytest.raises(DesignRefused, match="code: tried in guess, on recorded play 2: the reward function raised"):
        attempt("reward", "= 1 / reward")
    with pytest.raises(DesignRefused, match=r"on recorded play 1: .* is inf, and no finite number"):
        attempt("reward", "= 1e308 * 10 * turns")
    assert attempt("reward", SLOTS["reward"].built_in) == ""  # no container can be had


@pytest.mark.parametrize(("body", "told"), [
    ("return 2 * outcome['reward']", f"reward: {TRIED}: rewards 0 to 2"),
    ("return 1 / (outcome['reward'] * len(messages) - 2)", "on recorded play 1: the reward function raised Zero"),
    ("return outcome['facts'].get('guesses', 0.0)", "on recorded play 1: expected .* a finite number, found nan"),
    ("import os; os._exit(0)", ""),
])  # fmt: skip
def test_python_is_tried_on_recorded_plays_where_its_container_is(
    body: str, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(files: dict[str, bytes], command: tuple[str, ...], *rest: Any) -> Any:
        for name, data in files.items():
            (tmp_path / name).write_bytes(data)
        here = [part.replace("/input", str(tmp_path)).replace("/workspace/results", str(tmp_path)) for part in command]
        done = subprocess.run([sys.executable, *here[1:]], capture_output=True, text=True, check=False)
        left = {name: tmp_path / name for name in ("result.json",) if (tmp_path / name).exists()}
        reason: Any = "error" if done.returncode else "finished"
        return SimpleNamespace(wait=lambda: Exit(reason, 0), logs=lambda: done.stderr, results=lambda: left)

    monkeypatch.setattr(analysis, "_run", run)
    source = f"def reward(task, messages, outcome):\n    {body}\n"
    plays = [play | {"facts": {"guesses": float("nan")}} for play in PLAYED]
    with pytest.raises(DesignRefused, match=told) if "recorded play 1" in told else nullcontext():
        assert analysis.try_code("s", UNISOLATED, lambda name: plays, "reward", source, "guess") == told


@pytest.mark.parametrize(
    "result", [b"", b"[]", b"{}", b'["a", 1, 2]', b"[1, 2]", b"[" * 50_000, b"[%s, 1, 2]" % (b"9" * 999)]
)
def test_what_code_leaves_in_place_of_numbers_is_not_told(
    result: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (left := tmp_path / "result.json").write_bytes(result)
    ended = SimpleNamespace(wait=lambda: Exit("finished", 0), logs=str, results=lambda: {"result.json": left})
    monkeypatch.setattr(analysis, "_run", lambda *_: ended)
    assert analysis.try_code("s", UNISOLATED, list, "reward", SLOTS["reward"].built_in, "guess") == ""


@pytest.mark.parametrize("source", ["= 1 / 0", "= 1e308 * 10", "= 0 ** -1"])
def test_a_constant_that_is_no_finite_number_is_no_code(source: str) -> None:
    with pytest.raises(DesignRefused, match=r"has no value|no finite number"):
        SLOTS["advantage"].check(source)


@pytest.mark.parametrize("slot", ["task_weights", "prompt", "agent"])
def test_no_expression_stands_for_what_gives_no_number(slot: str) -> None:
    with pytest.raises(DesignRefused, match="found an expression"):
        SLOTS[slot].check("= 1")


def test_code_by_flags_is_named_kept_and_written_as_it_was_given(tmp_path: Path) -> None:
    file = tmp_path / "Leave One.py"
    file.write_text(SLOTS["advantage"].built_in)
    written = f"advantage=built-in,max(0, min(reward, mean)),{file}"
    asked = RequestedComparison.parse([written, "group_size=4,8"], [])
    assert asked.vary["advantage"] == ("built-in", "expression-1", "leave-one")
    assert asked.code["expression-1"][1] == "=max(0, min(reward, mean))"
    assert RequestedComparison.of(asked.settings()) == asked
    assert asked.list_varied()[0] == written
    for bad in ("reward=reward,built-in", "reward=built-in", "reward=built-in,missing.py", f"reward=built-in,{file}"):
        with pytest.raises(ResearchError):
            RequestedComparison.parse([bad], [])
    with pytest.raises(ResearchError, match="compared apart"):
        RequestedComparison.parse([written, "group_size=4,8,16"], [], shape="together")

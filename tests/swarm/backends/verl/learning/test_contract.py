"""Rows as verl's batches, and the loss over them: nothing lost, nothing that depends on how they are dealt and cut."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from swarm.algorithms.losses import token_weights
from swarm.algorithms.objective import Objective, UpdateSums
from swarm.algorithms.rows import Row, flatten_tokens, train_rows
from swarm.backends.protocols import TrainEpisode
from swarm.job import Job
from swarm.rendering.messages import BackendError
from swarm.timelines.node import TrainRow

pytest.importorskip("tensordict", reason="tensordict comes with verl, which is not installed here")
from swarm.backends.verl.backend import _learner
from swarm.backends.verl.learner import RowPartition
from swarm.backends.verl.worker import ObjectiveLoss, batch_tokens, verl_batch
from tests.swarm.algorithms.factories import loss_of

_VOCABULARY = 11
_CPU = torch.device("cpu")
_JOBS: list[dict[str, Any]] = [
    {},
    {"algorithm": "dr_grpo", "entropy_coef": 0.1, "max_context": 256},
    {"algorithm": "gspo", "rollout_correction": "off", "clip_ratio": 0.05},
    {"kl_coef": 0.2, "loss_weighting": "token", "rollout_correction": "mask"},
    {"epochs": 2, "max_staleness": 1, "clip_ratio": 0.05},
]


def _row(rng: random.Random) -> TrainRow:
    ids: list[int] = []
    sampled: list[int] = []
    for _ in range(rng.randint(1, 3)):
        given, drawn = rng.randint(1, 5), rng.randint(1, 4)
        ids += [rng.randrange(_VOCABULARY) for _ in range(given + drawn)]
        sampled += [0] * given + [1] * drawn
    logprobs = [rng.uniform(-4, -1) if flag else 0.0 for flag in sampled]
    return TrainRow(tuple(ids), tuple(sampled), tuple(logprobs), tuple(rng.randint(0, 2) if s else -1 for s in sampled))


def make_rows(
    seed: int, job: Job, weights: Sequence[float] = tuple(0.5 + number for number in range(6))
) -> tuple[list[Row], list[float], list[float]]:
    rng = random.Random(seed)
    made = [TrainEpisode(str(i), "g", 0.0, tuple(_row(rng) for _ in range(1 + i % 2)), weights[i]) for i in range(6)]
    rows = train_rows(made)
    counts = [sum(len(row.targets) for row in own) for own in rows]
    flat = [row for own in rows for row in own]
    for row in flat:
        row.reference = row.rollout - 0.1 if job.kl_coef else None
        row.proximal = row.rollout + 0.1 if job.epochs > 1 else None
    return flat, [rng.gauss(0, 1) for _ in made], token_weights(job, counts, [each.weight for each in made])


def engine_output(table: Tensor, batch: Any) -> dict[str, Tensor]:
    """What verl's engine says of a batch under a model whose logits depend on the last id alone."""
    ids, offsets = batch["input_ids"].values(), batch["input_ids"].offsets()
    every = table[ids].log_softmax(-1)
    values = {"log_probs": every.gather(-1, ids.roll(-1)[:, None])[:, 0], "entropy": -(every.exp() * every).sum(-1)}
    return {name: torch.nested.nested_tensor_from_jagged(value, offsets) for name, value in values.items()}


def make_table() -> Tensor:
    return torch.randn(_VOCABULARY, _VOCABULARY, generator=torch.Generator().manual_seed(0)).requires_grad_()


def _straight(job: Job, rows: list[Row], advantages: list[float], weights: list[float]) -> tuple[Tensor, UpdateSums]:
    """The gradient and the sums of the objective over all tokens at once, from the whole vocabulary's log-probs."""
    table, tokens, sums = (
        make_table(),
        flatten_tokens(rows, advantages, weights, _CPU),
        UpdateSums(2, job.correction_cap),
    )
    given = torch.cat([row.ids[row.places] for row in rows])
    known = [row.reference for row in rows if row.reference is not None]
    reference = torch.cat(known) if known else None
    loss = loss_of(job, table[given].log_softmax(-1), tokens, reference, sums)
    return torch.autograd.grad(loss, table)[0], sums


@pytest.mark.parametrize("seed", range(4))
def test_every_sampled_token_is_there_once_with_all_that_it_carries(seed: int) -> None:
    rows, advantages, weights = make_rows(seed, Job(epochs=2))
    found, _ = batch_tokens(verl_batch(rows, advantages, weights, padding=seed))
    expected = flatten_tokens(rows, advantages, weights, _CPU)
    for name in ("targets", "rollout", "versions", "proximal", "advantages", "weights", "episodes"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


def test_a_row_s_prompt_ends_before_its_first_sampled_token_and_later_prompts_are_masked() -> None:
    row = TrainRow((5, 6, 7, 8, 9, 4), (0, 0, 1, 1, 0, 1), (0, 0, -1, -2, 0, -3), (-1, -1, 0, 0, -1, 1))
    (own,) = train_rows([TrainEpisode("a", "g", 0.0, (row,))])
    batch = verl_batch(own, [0.5], [0.25], padding=1)
    read = {name: [part.tolist() for part in batch[name].unbind()] for name in batch.keys()}  # noqa: SIM118
    assert read["input_ids"] == [[5, 6, 7, 8, 9, 4], [0, 0]]
    assert read["position_ids"] == [[0, 1, 2, 3, 4, 5], [0, 1]]
    assert read["prompts"] == [[5, 6], [0]]
    assert read["responses"] == [[7, 8, 9, 4], [0]]
    assert read["response_mask"] == [[1, 1, 0, 1], [0]]
    assert read["loss_mask"] == [[0, 0, 1, 1, 0, 1], [0, 0]]
    assert read["advantages"] == [[0.5, 0.5, 0, 0.5], [0]]
    assert read["token_weights"] == [[0.25, 0.25, 0, 0.25], [0]]
    assert read["rollout_log_probs"] == [[-1, -2, 0, -3], [0]]
    assert read["versions"] == [[0, 0, 0, 1], [0]]


@pytest.mark.parametrize(("world", "tokens"), [(1, 4096), (2, 24), (3, 4096)])
@pytest.mark.parametrize("fields", _JOBS, ids=str)
def test_ranks_and_micro_batches_add_up_to_the_gradient_of_all_tokens_at_once(
    fields: dict[str, Any], world: int, tokens: int
) -> None:
    job = Job(**fields)
    rows, advantages, weights = make_rows(world, job)
    expected, straight = _straight(job, rows, advantages, weights)
    objective, flat = Objective(job), flatten_tokens(rows, advantages, weights, _CPU)
    if objective.needs_sequences:
        given = torch.cat([row.ids[row.places] for row in rows])
        present = make_table().detach()[given].log_softmax(-1).gather(-1, flat.targets[:, None])[:, 0]
        sequences = objective.sequences([(present, flat)])[0].split([len(row.targets) for row in rows])
        for row, sequence in zip(rows, sequences, strict=True):
            row.sequence = sequence
    gradients, sums = [], UpdateSums(2, job.correction_cap)
    for own in RowPartition(rows, world, tokens).batches(advantages, weights):
        table, loss = make_table(), pickle.loads(pickle.dumps(ObjectiveLoss(job, 2)))
        for batch in own:
            batch.set_non_tensor("dp_size", world)
            torch.autograd.backward(loss(engine_output(table, batch), batch)[0])
        gradients.append(table.grad)
        sums.merge(loss.sums)
    assert torch.allclose(torch.stack(gradients).mean(0), expected, atol=1e-6)
    assert expected.abs().max() > 1e-3
    sums.steps = straight.steps = 1
    assert dict(sums.metrics()) == pytest.approx(dict(straight.metrics()), rel=1e-5, abs=1e-6)


def test_padding_alone_has_a_gradient_of_0_so_that_its_rank_exchanges_with_the_others() -> None:
    batch = verl_batch([], [], [], padding=2)
    batch.set_non_tensor("dp_size", 2)
    table = make_table()
    share, _ = ObjectiveLoss(Job(), 0)(engine_output(table, batch), batch)
    assert share.item() == 0
    assert torch.autograd.grad(share, table)[0].abs().max() == 0


@pytest.mark.parametrize("world", [1, 2, 4, 20])
@pytest.mark.parametrize("tokens", [1, 16, 40, 4096])
def test_ranks_get_as_many_micro_batches_each_within_the_tokens_and_answers_come_back_in_order(
    world: int, tokens: int
) -> None:
    rows, advantages, weights = make_rows(1, Job())
    deal = RowPartition(rows, world, tokens)
    batches = deal.batches(advantages, weights)
    assert len({len(own) for own in batches}) == 1
    every = [[len(part) for part in batch["input_ids"].unbind()] for own in batches for batch in own]
    padded = [len(lengths) * max(lengths) for lengths in every]
    assert all(size <= tokens or len(lengths) == 1 for size, lengths in zip(padded, every, strict=True))
    assert sum(padded) == deal.tokens
    answers = [
        torch.cat([batch_tokens(each)[0].targets if each["response_mask"].values().any() else torch.zeros(0).long()
                   for each in own])
        for own in batches
    ]  # fmt: skip
    assert [part.tolist() for part in deal.gather(answers)] == [row.targets.tolist() for row in rows]


def test_a_long_row_does_not_pad_the_short_ones_and_no_rank_is_idle_while_another_has_several() -> None:
    lengths = [4000, *[100] * 60]
    rows = [
        Row(0, torch.zeros(n).long(), torch.tensor([n - 1]), torch.tensor([0]), torch.zeros(1), torch.zeros(1).long())
        for n in lengths
    ]
    deal = RowPartition(rows, 4, 8192)
    assert deal.tokens == sum(length + 1 for length in lengths)
    assert all(batch["response_mask"].values().any() for own in deal.batches([1.0], [1.0]) for batch in own)


def test_log_probs_are_computed_many_at_once_in_fp32_whatever_the_logits_are(adapter: Any) -> None:
    engines = import_module("verl.workers.engine.fsdp.transformer_impl")
    assert all(map(callable, (engines.logprobs_from_logits, engines.prepare_micro_batches)))
    logits = torch.randn(1300, _VOCABULARY).bfloat16().requires_grad_()
    labels = torch.randint(_VOCABULARY, (1300,))
    expected = logits.float().log_softmax(-1).gather(-1, labels[:, None])[:, 0]
    found = adapter.logprobs_of(logits, labels)
    assert found.dtype == torch.float32
    assert torch.allclose(found, expected, atol=1e-6)
    gradients = [torch.autograd.grad((each * torch.arange(1300.0)).sum(), logits)[0] for each in (found, expected)]
    assert torch.allclose(*gradients, rtol=1e-2)


@pytest.fixture
def adapter() -> Any:
    pytest.importorskip("verl", reason="verl is not installed here: `make test-verl` has an environment of its own")
    return import_module("swarm.backends.verl.adapter")


class _FakeEngine:
    is_param_offload_enabled = True

    def __init__(self) -> None:
        self.done: list[str] = []

    def to(self, device: str, **what: bool) -> None:
        self.done.append(f"to {device}: {', '.join(name for name, moved in what.items() if moved)}")

    @contextmanager
    def mode(self, fails: bool = False) -> Iterator[None]:
        self.done.append("there")
        if fails:
            raise MemoryError("on the way there")
        try:
            yield
        finally:
            self.done.append("back")


@pytest.fixture
def sharing(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> _FakeEngine:
    engine = _FakeEngine()
    monkeypatch.setattr(adapter, "_empty_cache", lambda engine: engine.done.append("emptied"))
    return engine


def test_what_fails_on_the_way_or_within_leaves_it_too(adapter: Any, sharing: _FakeEngine) -> None:
    with pytest.raises(MemoryError), adapter.enter_mode(sharing, sharing.mode(fails=True)):
        pass
    with pytest.raises(ValueError, match="within"), adapter.enter_mode(sharing, sharing.mode()):
        raise ValueError("within")
    moved = "to cpu: model, optimizer, grad"
    assert sharing.done == ["there", moved, "emptied", "there", "back", moved, "emptied"]


@pytest.mark.parametrize(("device", "colocated", "offloads"), [
    ("cuda", True, True), ("cuda", False, False), ("cpu", True, False),
])  # fmt: skip
def test_what_shares_a_gpu_lies_on_the_host(
    device: str, colocated: bool, offloads: bool, adapter: Any, llama: Path
) -> None:
    engine = adapter._configurations(llama, Job(backend="verl", verl={"colocated": colocated}), device)[1]
    assert (engine.param_offload, engine.optimizer_offload) == (offloads, offloads)


def test_moves_to_the_host_are_waited_for(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """verl's own functions, which would not wait, are called by the names that are replaced."""
    utils, engines = map(import_module, ("verl.utils.fsdp_utils", "verl.workers.engine.fsdp.transformer_impl"))
    monkeypatch.setattr(utils, "offload_fsdp2_model_to_cpu", utils.offload_fsdp2_model_to_cpu)
    monkeypatch.setattr(engines, "offload_fsdp_optimizer", engines.offload_fsdp_optimizer)
    monkeypatch.setattr(utils, "fsdp_version", lambda model: 2)
    adapter._wait_for_moves()
    model = Mock()
    engines.offload_fsdp_model_to_cpu(model)
    model.to.assert_called_once_with("cpu")
    moment, count = Mock(spec=Tensor), 3
    state = {"exp_avg": moment, "step": count}
    engines.offload_fsdp_optimizer(Mock(state={"w": state}))
    assert state == {"exp_avg": moment.cpu.return_value, "step": count}


def test_ranks_that_wait_as_ray_is_left_end_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is where a replica does not boot: out of a task SystemExit would end the server, with code 0."""
    monkeypatch.setattr("swarm.backends.verl.learner.TrainerGroup", Mock(side_effect=SystemExit(0)))
    with pytest.raises(BackendError, match="Ray was left"):
        _learner(Job(backend="verl"), Path(), Mock(), None)

"""Under autocast, results are float32, and no gradient is lost."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from actors.policy.network import Evaluation, FactoredRecurrentActorCritic
from tests.support.learning.sequences import SequenceBatch, evaluate
from tests.support.learning.toy import CORES, toy_network, toy_seed, toy_sequence, toy_wave

LENGTHS = (3, 5, 2, 9)


def sequence(network: FactoredRecurrentActorCritic) -> SequenceBatch:
    return toy_sequence(toy_wave(network, [toy_seed(n, truncated=False, salt=i) for i, n in enumerate(LENGTHS)]))


def loss(out: Evaluation) -> Tensor:
    return out.log_probs.sum() + out.values.square().sum() - out.entropies.sum()


def gradients(network: FactoredRecurrentActorCritic, out: Evaluation) -> list[Tensor]:
    parameters = list(network.parameters())
    return list(torch.autograd.grad(loss(out), parameters, allow_unused=True, materialize_grads=True))


@pytest.mark.parametrize("core", CORES)
def test_under_bf16_results_are_float32_and_agree_to_bf16_precision(core: str) -> None:
    network = toy_network(core=core, critic="q_op")
    given = sequence(network)
    exact = evaluate(network, given)
    with torch.autocast("cpu", torch.bfloat16):
        reduced = evaluate(network, given)
    assert all(t.dtype == torch.float32 for t in reduced)
    assert not torch.equal(exact.hidden, reduced.hidden)  # autocast had an effect
    for a, b in zip(exact, reduced, strict=True):
        if a.numel():
            assert float((a - b).detach().abs().max() / a.detach().abs().max().clamp(min=1.0)) < 3e-2
    kept = [g.norm() for g in gradients(network, exact)]
    for a, b in zip(kept, (g.norm() for g in gradients(network, reduced)), strict=True):
        assert float(abs(a - b)) < 0.1 * float(a) + 0.05

"""The kernels of training compute what the network computes in float64, and its gradients by autograd."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from actors.policy import kernels
from actors.policy.cores.sequences import SequenceLayout, Steps
from actors.policy.network import Evaluation, FactoredRecurrentActorCritic
from actors.policy.state import PolicyState
from actors.types.spaces import Spaces
from tests.property.policy.test_acting_kernels import KINDS, network
from tests.support.learning.toy import SPACES

LENGTHS = [3, 0, 7, 1, 7, 2]
CASES = [
    *((spaces, options) for spaces, options in KINDS if options.get("core") != "lstm+memory"),
    (SPACES, {"num_layers": 2}),
    (SPACES, {"num_layers": 3, "core": "feedforward", "critic": "q_op"}),
    (SPACES, {"probability_floor": 0.05, "floor_mass": 0.02}),  # every floor is at its limit
]


def random_steps(spaces: Spaces, made: FactoredRecurrentActorCritic, seed: int, lengths: list[int]) -> Steps:
    rng, spec, count = np.random.default_rng(seed), spaces.action, sum(lengths)
    actions = np.stack([rng.integers(n, size=count) for n in spec.sizes], 1)
    legal = rng.random((count, spec.flat_size)) < 0.5
    for head, first in enumerate(spec.offsets):
        legal[np.arange(count), first + actions[:, head]] = True
    state = PolicyState(*(t + torch.randn_like(t) for t in made.initial_state(len(lengths))))
    return Steps(
        torch.from_numpy(3 * rng.standard_normal((count, spaces.obs_size)).astype(np.float32)),
        torch.from_numpy(rng.integers(-1, max(1, spaces.num_blueprints), (count, spaces.slots))),
        torch.from_numpy(actions),
        torch.from_numpy(legal),
        state,
        SequenceLayout(lengths, 1.3, torch.device("cpu")),
    )


def gradients(made: FactoredRecurrentActorCritic, steps: Steps, seed: int) -> tuple[Evaluation, dict[str, Tensor]]:
    """An evaluation, and the gradient of a random function of its results."""
    made.zero_grad(set_to_none=True)
    out = made.evaluate_steps(steps)
    generator = torch.Generator().manual_seed(seed)
    parts = [t * torch.randn(t.shape, generator=generator) for t in (out.log_probs, out.entropies, out.values)]
    torch.stack([p.sum() for p in parts]).sum().backward()
    return out, {name: p.grad for name, p in made.named_parameters() if p.grad is not None}


def in_double(steps: Steps) -> Steps:
    return steps._replace(obs=steps.obs.double(), state=PolicyState(*(t.double() for t in steps.state)))


@pytest.mark.parametrize(("spaces", "options"), CASES)
def test_results_and_gradients_equal_those_of_the_network_in_float64(spaces: Spaces, options: dict[str, Any]) -> None:
    made = network(spaces, options, seed=0)
    steps = random_steps(spaces, made, 1, LENGTHS)
    exact = copy.deepcopy(made).double()
    assert made._uses_kernels(steps)
    assert not exact._uses_kernels(in_double(steps))
    ours, own = gradients(made, steps, 2)
    theirs, reference = gradients(exact, in_double(steps), 2)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.double(), other.double(), rtol=1e-4, atol=2e-5)
    assert all(name in own for name in reference)
    for name, grad in own.items():
        other = reference.get(name, torch.zeros_like(grad))  # of an unused parameter, autograd has none
        scale = float(other.abs().max()) + 0.1  # some are exactly 0, such as those of a bias that moves all logits
        torch.testing.assert_close(grad.double() / scale, other.double() / scale, rtol=1e-3, atol=1e-4, msg=name)


def test_parts_without_gradient_are_evaluated_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    made = network(SPACES, {"num_layers": 2}, seed=0)
    steps = random_steps(SPACES, made, 1, LENGTHS)
    whole = made.evaluate_steps(steps)
    monkeypatch.setattr(kernels, "MOST_STEPS", 8)
    with torch.no_grad():
        parts = made.evaluate_steps(steps)
    for mine, other in zip(parts, whole, strict=True):
        torch.testing.assert_close(mine, other.detach(), rtol=0.0, atol=0.0)


def test_inputs_of_other_shapes_are_refused() -> None:
    made = network(SPACES, {}, seed=0)
    steps = random_steps(SPACES, made, 1, [2, 3])
    wrong = {
        "obs": steps.obs[:, 1:],
        "masks": steps.masks[:-1],
        "state": PolicyState(*(t[:, :1] for t in steps.state)),
        "layout": SequenceLayout([2, 4], 1.3, torch.device("cpu")),
    }
    for name, value in wrong.items():
        with pytest.raises(ValueError, match="2 sequences"):
            made.evaluate_steps(steps._replace(**{name: value}))


def check_all_kinds() -> None:
    """For `test_broken_kernels`."""
    for spaces, options in CASES:
        test_results_and_gradients_equal_those_of_the_network_in_float64(spaces, options)

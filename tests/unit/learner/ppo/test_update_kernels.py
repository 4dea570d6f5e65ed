"""The compiled loss, gradient norm and AdamW compute what PyTorch does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from actors.policy.network import Evaluation
from learner.config import LearnerConfig
from learner.ppo import objective as objective_module
from learner.ppo.objective import Loss, make_denominators, objective
from learner.ppo.optimizer import GatedAdamW, clip_gradients
from learner.ppo.targets import Targets
from tests.support.learning.without_kernels import without_kernels

STEPS, HEADS = 57, 3
OPTIONS: list[dict[str, Any]] = [
    {},
    {"ratio": "joint"},
    {"objective": "decoupled", "value_clip": None},
    {"policy_denominator": "head_steps", "clip": 0.05},
]


def given(config: LearnerConfig) -> tuple[Evaluation, Targets]:
    """Ratios on both sides of the clip, values on both sides of theirs, and a step that no head counts in."""
    g = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g)

    behaviour, values = -noise(STEPS, HEADS).abs(), noise(STEPS)
    log_probs = behaviour + 0.2 * noise(STEPS, HEADS)
    counted = torch.rand((STEPS, HEADS), generator=g) < 0.7
    counted[3] = False
    leaves = [x.requires_grad_() for x in (log_probs, noise(STEPS, HEADS).abs(), values + 0.3 * noise(STEPS))]
    out = Evaluation(*leaves, values, noise(STEPS, 4), noise(STEPS, 0))
    advantages = noise(STEPS, 1 if config.ratio == "joint" else HEADS)
    proximal = behaviour + 0.05 * noise(STEPS, HEADS)
    return out, Targets(advantages, noise(STEPS), values, proximal, behaviour, counted, counted.any(1))


def losses_and_gradients(config: LearnerConfig, change: float = 0.0) -> tuple[Loss, list[Tensor]]:
    out, t = given(config)
    with torch.no_grad():
        out.log_probs[5, 0] += change
    loss = objective(out, t, config, 0.3, make_denominators(t, config, 2))
    loss.backward()
    return loss, [x.grad for x in out[:3] if x.grad is not None]


@pytest.mark.parametrize("options", OPTIONS)
def test_the_compiled_loss_is_the_objective(options: dict[str, Any]) -> None:
    config = LearnerConfig(**options)
    ours, own = losses_and_gradients(config)
    assert ours.gradients
    with without_kernels():
        theirs, other = losses_and_gradients(config)
    assert not theirs.gradients
    torch.testing.assert_close(ours[:4], tuple(t.detach() for t in theirs[:4]), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-6)


def test_nan_reaches_the_gradient_so_that_the_step_is_skipped() -> None:
    for config in (LearnerConfig(), LearnerConfig(ratio="joint")):
        loss, grads = losses_and_gradients(config, change=float("nan"))
        assert bool(loss.total.isnan())
        assert bool(grads[0][5].isnan().any())
        out, t = given(config)
        broken = out._replace(values=(out.values + float("nan")).detach().requires_grad_())
        objective(broken, t, config, 0.3, make_denominators(t, config, 2)).backward()
        assert broken.values.grad is not None
        assert bool(broken.values.grad.isnan().all())


def test_continuous_heads_have_no_kernel() -> None:
    config = LearnerConfig()
    out, t = given(config)
    assert not objective_module.has_kernel(out, config, make_denominators(t, config, 1), continuous=1)


def parameters(dtype: torch.dtype) -> list[nn.Parameter]:
    g = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=g).to(dtype)) for shape in ((7, 5), (7,), (1,), (33, 2))]


def test_adamw_takes_the_steps_of_pytorch_in_float64() -> None:
    ours, exact = parameters(torch.float32), parameters(torch.float64)
    groups = [
        [{"params": own[:2], "weight_decay": 0.3, "name": "a"}, {"params": own[2:], "name": "b", "weight_decay": 0.0}]
        for own in (ours, exact)
    ]
    optimizer, reference = (
        GatedAdamW(groups[0], lr=1e-2, eps=1e-5, fused=True),
        torch.optim.AdamW(groups[1], lr=1e-2, eps=1e-5),
    )
    g = torch.Generator().manual_seed(2)
    for step in range(5):
        for a, b in zip(ours, exact, strict=True):
            a.grad = torch.randn(a.shape, generator=g) * 10.0 ** (step - 3)
            b.grad = a.grad.double()
        norm, by_group = clip_gradients(optimizer, 0.5)
        expected = nn.utils.clip_grad_norm_(exact, 0.5)
        torch.testing.assert_close(norm.double(), expected.double(), rtol=1e-5, atol=0.0)
        assert set(by_group) == {"grad_norm_a", "grad_norm_b"}
        torch.testing.assert_close(torch.stack(list(by_group.values())).square().sum(), norm.square())
        optimizer.found_inf = torch.tensor(float(step == 2))  # type: ignore[assignment]
        optimizer.step()
        if step != 2:
            reference.step()
        for a, b in zip(ours, exact, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-6)
    assert {float(optimizer.state[p]["step"]) for p in ours} == {4.0}


def check_all() -> None:
    """For `test_broken_kernels`."""
    for options in OPTIONS:
        test_the_compiled_loss_is_the_objective(options)
    test_adamw_takes_the_steps_of_pytorch_in_float64()

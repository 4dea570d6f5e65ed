"""Nothing in the minibatch loop waits for the device: the KL stop and the skip are flags on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from learner.config import LearnerConfig
from learner.ppo import update as update_module
from learner.ppo.batch import Batch, make_batch
from learner.ppo.optimizer import make_optimizer
from learner.ppo.update import PPOUpdate
from tests.support.learning.toy import SPACES, toy_network, toy_seed, toy_wave
from tests.support.learning.without_kernels import without_kernels

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique")
OPTIONS: list[dict[str, Any]] = [{}, {"chunk_length": 3, "burn_in": 2}, {"objective": "decoupled", "ratio": "joint"}]


class Waits(TorchDispatchMode):
    """Counts operators whose result, or whose result's shape, the host must read."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name == "index" and any(t is not None and t.dtype == torch.bool for t in args[1])
        if name in WAITS or by_mask:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


def batch(config: LearnerConfig, device: str = "cpu") -> Batch:
    seeds = [toy_seed(n, truncated=i % 2 == 0, salt=i) for i, n in enumerate((5, 2, 9, 4, 7, 8))]
    episodes = toy_wave(toy_network(), seeds)
    return make_batch(episodes, SPACES, config.chunk_length, config.burn_in).to(torch.device(device))


def make(device: str = "cpu", **changes: Any) -> PPOUpdate:
    fields: dict[str, Any] = {"state_stride": 1, "gamma": 0.9, "update_epochs": 2, "minibatches": 3}
    network = toy_network().to(device)
    ppo = PPOUpdate(network, make_optimizer(network, 1e-3, 0.0), LearnerConfig(**(fields | changes)), seed=1)
    ppo.reads_flags = False
    return ppo


def waits_in_loop(ppo: PPOUpdate) -> list[str]:
    """From the first minibatch's load to the last one's step."""
    mode = Waits()
    evaluate, step = ppo._evaluate, ppo.optimizer.step
    loads = 0

    def first(*arguments: Any) -> Any:
        nonlocal loads
        loads += 1
        if loads == 2:  # the first is the proximal pass
            mode.__enter__()
        return evaluate(*arguments)

    def last() -> None:
        step()
        if loads == 7:
            mode.__exit__(None, None, None)

    with pytest.MonkeyPatch.context() as patch, without_kernels():
        patch.setattr(ppo, "_evaluate", first)
        patch.setattr(ppo.optimizer, "step", last)
        metrics = ppo(batch(ppo.config), update=0, version=0)
    assert (loads, metrics["update_epochs_done"]) == (8, 2.0)  # the last measures how far the policy has moved
    return mode.seen


@pytest.mark.parametrize("options", OPTIONS)
def test_the_loop_never_waits(options: dict[str, Any]) -> None:
    assert waits_in_loop(make(target_kl=10.0, **options)) == []


def reading_a_flag(objective: Callable[..., Any], *arguments: Any) -> Any:
    loss = objective(*arguments)
    assert float(loss.policy) == float(loss.policy)
    return loss


def selecting_by_mask(objective: Callable[..., Any], out: Any, t: Any, *rest: Any) -> Any:
    assert t.returns[t.unforced].shape
    return objective(out, t, *rest)


@pytest.mark.parametrize("wrong", [reading_a_flag, selecting_by_mask])
def test_a_wait_is_seen(wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    objective = update_module.objective
    monkeypatch.setattr(update_module, "objective", lambda *a: wrong(objective, *a))
    assert waits_in_loop(make(target_kl=10.0))


def test_a_stop_that_is_not_read_leaves_the_same_weights_as_one_that_is() -> None:
    """On a device the passes after the stop run and change nothing."""
    read, gated = make(target_kl=1e-6, update_epochs=4), make(target_kl=1e-6, update_epochs=4)
    read.reads_flags = True
    ours, theirs = read(batch(read.config), update=0, version=0), gated(batch(read.config), update=0, version=0)
    assert 0.0 < ours["update_epochs_done"] == theirs["update_epochs_done"] < 4.0
    for a, b in zip(read.network.parameters(), gated.network.parameters(), strict=True):
        assert torch.equal(a, b)
    for name in ("loss_policy", "loss_value", "ratio_max", "skipped_steps"):
        assert ours[name] == theirs[name]


@pytest.mark.cuda
@pytest.mark.parametrize("options", OPTIONS)
def test_the_loop_never_waits_for_cuda(options: dict[str, Any]) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    ppo = make("cuda", target_kl=10.0, **options)
    ppo(batch(ppo.config, "cuda"), update=0, version=0)  # moments and workspaces are there
    optimize, plan = ppo._optimize, ppo._minibatches

    def planned(*arguments: Any) -> Any:
        found = plan(*arguments)
        torch.cuda.set_sync_debug_mode("error")
        return found

    def loop(*arguments: Any) -> Any:
        try:
            return optimize(*arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    ppo._minibatches, ppo._optimize = planned, loop  # type: ignore[method-assign]
    ppo(batch(ppo.config, "cuda"), update=1, version=0)

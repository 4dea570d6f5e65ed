"""Nothing in the minibatch loop waits for the device: the KL stop and the skip are flags on it.

`tests.support.learning.device_learning` counts the waits on a pretended device.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from learner.config import LearnerConfig
from learner.ppo.batch import Batch
from learner.ppo.update import PPOUpdate
from tests.support.learning.batches import toy_batch, toy_ppo
from tests.support.learning.toy import toy_network

OPTIONS: list[dict[str, Any]] = [{}, {"chunk_length": 3, "burn_in": 2}, {"objective": "decoupled", "ratio": "joint"}]


def batch(config: LearnerConfig, device: str = "cpu") -> Batch:
    return toy_batch((5, 2, 9, 4, 7, 8), config.chunk_length, config.burn_in).to(torch.device(device))


def make(device: str = "cpu", **changes: Any) -> PPOUpdate:
    ppo = toy_ppo(1e-3, toy_network().to(device), **({"update_epochs": 2, "minibatches": 3} | changes))
    ppo.reads_flags = False
    return ppo


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

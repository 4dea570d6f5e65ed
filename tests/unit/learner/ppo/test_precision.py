"""bf16 covers encoder and core; heads, values and losses stay in float32, and every weight keeps its gradient."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.support.learning.batches import toy_batch, toy_ppo
from tests.support.learning.toy import CORES, toy_network

LENGTHS = (5, 9, 4, 7)


@pytest.mark.parametrize("core", CORES)
def test_bf16_is_near_float32_and_distinguished_from_it(core: str) -> None:
    """Within the tolerance of a lag of 0, and not the same arithmetic."""
    network, errors = toy_network(core=core, critic="q_op"), dict[str, float]()
    given = toy_batch(LENGTHS, core=core, critic="q_op")
    for precision in ("float32", "bf16"):
        ppo = toy_ppo(1e-3, precision=precision, network=copy.deepcopy(network))
        errors[precision] = ppo(given, update=0, version=0)["ratio_error"]
    assert errors["float32"] < 1e-5 < errors["bf16"] < 6e-2


@pytest.fixture
def switches() -> Iterator[list[Any]]:
    """Whether cuDNN and matrix products may use TF32; as before afterwards."""
    own: list[Any] = [torch.backends.cudnn, torch.backends.cuda.matmul]
    before = [switch.allow_tf32 for switch in own]
    yield own
    for switch, allowed in zip(own, before, strict=True):
        switch.allow_tf32 = allowed


@pytest.mark.parametrize("tf32", [False, True])
def test_tf32_is_a_setting_of_the_update_alone(tf32: bool, switches: list[Any]) -> None:
    """PyTorch lets cuDNN's LSTM use TF32 unless that is turned off."""
    seen = list[bool]()
    for switch in switches:
        switch.allow_tf32 = not tf32
    ppo = toy_ppo(1e-3, precision="tf32" if tf32 else "float32")

    def watch(*_: Any) -> None:
        seen.extend(switch.allow_tf32 for switch in switches)

    ppo.network.norm.register_forward_hook(watch)
    ppo.optimizer.register_step_pre_hook(watch)
    assert ppo(toy_batch(LENGTHS), update=0, version=0)["ratio_error_limit"] == pytest.approx(0.02 if tf32 else 0.001)
    ppo.forward(toy_batch(LENGTHS))
    assert set(seen) == {tf32}
    assert [switch.allow_tf32 for switch in switches] == [not tf32] * 2


@pytest.mark.cuda
def test_on_cuda_the_lstm_agrees_with_the_cpu_but_for_rounding() -> None:
    """An H100 differs by 1.3e-5; TF32, which keeps ten bits of a factor, would by 5e-4 and more."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    plain = toy_ppo(1e-3, network=toy_network().to("cuda"))(toy_batch(LENGTHS), update=0, version=0)
    assert plain["ratio_error"] < 5e-5


def test_a_pass_without_gradient_leaves_no_casts_of_weights_to_the_next_one() -> None:
    ppo = toy_ppo(1e-3, precision="bf16", chunk_length=3, burn_in=2)
    ppo(toy_batch(LENGTHS, 3, 2), update=0, version=0)
    shift = "heads.pointer.2.bias"  # the same for all slots: its gradient is 0 but for rounding
    for name, p in ppo.network.named_parameters():
        assert p.grad is not None, name
        assert name == shift or bool(p.grad.any()), name

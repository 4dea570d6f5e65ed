"""Every program that uses a device, run on one and compared with the CPU.

`python -m tests.support.learning.device_programs NAME...` runs those on the pretended device and prints what failed.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from actors.config import EnvConfig
from actors.env import seed_fleet
from actors.env.seed_fleet import SeedTrainingFleet
from actors.policy.acting.policy import ActingPolicy
from actors.policy.cores import core as core_module
from actors.policy.network import MaskTensors
from actors.precision import matmul_allows_tf32, tf32
from actors.types.episode import Episode
from actors.types.fleet_step import FleetStep
from actors.types.spaces import Spaces
from learner.ppo.imitation import imitate
from tests.support.learning.device_hosts import LONG_HOSTS
from tests.support.learning.device_learning import CASES, CPU, LEARNING, SEEDS, same
from tests.support.learning.device_serving import SERVING
from tests.support.learning.toy import toy_network, toy_wave

COLUMN = [(1, 3, 8, 0, 2, 1), (5, 3, 0, 0, 0, 0), (5, 3, 0, 0, 0, 0)]
"""Actions that germinate a column, let it learn and blend it in."""


def same_episodes(ours: list[Episode], theirs: list[Episode]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        for name in ("obs", "actions", "log_probs", "values", "rewards", "bootstrap_value"):
            same(getattr(a, name), getattr(b, name))


def act(device: torch.device) -> None:
    """By the network itself and by the programs that actors and server use, through whole episodes."""
    for options, _ in CASES[:-1]:
        expected = toy_wave(toy_network(**options), SEEDS)
        moved = toy_network(**options).to(device)
        same_episodes(toy_wave(moved, SEEDS), expected)
        same_episodes(toy_wave(ActingPolicy(moved), SEEDS), expected)


def imitation(device: torch.device) -> None:
    episodes = toy_wave(toy_network(), SEEDS)
    ours, theirs = (
        imitate(toy_network(seed=3).to(to), episodes, passes=2, lr=1e-3, seed=0, gamma=0.9) for to in (device, CPU)
    )
    for a, b in zip(ours, theirs, strict=True):
        same(a, b)


def fleet(device: torch.device) -> None:
    """Seed hosts and their growing networks in the tensor form, through an episode of random legal actions.

    The first environment grows a column, which learns and is then part of its host.
    """

    def play(tasks: tuple[str, ...], to: torch.device) -> list[FleetStep]:
        with patch.object(seed_fleet, "_device", lambda *_: to):
            config = EnvConfig(tasks=tasks, horizon_epochs=4, inner_steps=(1, 2), backend="torch")
            own = SeedTrainingFleet(config, 2, 0, torch.float64, read_test=True)
        steps, rng = [own.reset([1, 2])], np.random.default_rng(0)
        while own.running:
            actions = np.stack([legal(own.spaces, steps[-1], row, rng) for row in range(2)])
            actions[0] = COLUMN[len(steps) - 1] if len(steps) <= len(COLUMN) else 0
            steps.append(own.step(actions))
            assert 0 not in own.illegal
        return steps

    for tasks in (("spirals",), ("gratings",)):  # an MLP and a convolutional network
        for ours, theirs in zip(play(tasks, device), play(tasks, CPU), strict=True):
            same(ours.obs, theirs.obs)
            same(ours.rewards, theirs.rewards)


def legal(spaces: Spaces, step: FleetStep, row: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    masks = step.masks
    assert masks.slot is not None
    op = rng.choice(np.flatnonzero(masks.op[row]))
    slot = rng.choice(np.flatnonzero(masks.slot[row, op])) if masks.slot[row, op].any() else 0
    heads = np.split(masks.rest[row, op, slot], np.cumsum([h.size for h in spaces.action.rest_heads])[:-1])
    return np.array([op, slot, *(rng.choice(np.flatnonzero(m)) if m.any() else 0 for m in heads)])


def masks_left_behind(device: torch.device) -> None:
    """Must fail: the masks of a step stay where they are made."""
    made = MaskTensors.from_masks
    with patch.object(MaskTensors, "from_masks", lambda masks, device: made(masks, CPU)):
        act(device)


def precision_settings(device: torch.device) -> None:
    """Needs no device, but a process of its own: what one of PyTorch's settings does to the other cannot be undone."""
    backends = torch.backends
    matmul, conv, rnn = own = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)

    def check() -> None:
        before = [switch.fp32_precision for switch in own]
        for allowed in (False, True):
            with tf32(allowed):
                assert [switch.fp32_precision for switch in own] == ["tf32" if allowed else "ieee"] * 3
                assert matmul_allows_tf32() == matmul.allow_tf32 == backends.cudnn.allow_tf32 == allowed
            assert [switch.fp32_precision for switch in own] == before, (before, allowed)

    check()
    assert (backends.cudnn.allow_tf32, matmul.allow_tf32) == (True, False)
    matmul.fp32_precision, conv.fp32_precision = "tf32", "ieee"  # now `allow_tf32` cannot be read
    check()
    matmul.fp32_precision = conv.fp32_precision = rnn.fp32_precision = "none"
    backends.fp32_precision = "tf32"  # which the three inherit
    check()


QUICK = (act, imitation, fleet, *LEARNING, *SERVING)
PROGRAMS: dict[str, Callable[[torch.device], None]] = {
    own.__name__: own for own in (*QUICK, *LONG_HOSTS, masks_left_behind, precision_settings)
}


@contextmanager
def without_fused_lstm() -> Iterator[None]:
    """ATen's fused LSTM cell is for real devices alone: on the pretended one its equations run."""
    fused = core_module._fused

    def run(x: Tensor, h: Tensor, c: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        if x.device == CPU:
            return fused(x, h, c, weights)
        assert h.is_contiguous(), "cuDNN takes contiguous states only"
        assert c.is_contiguous(), "cuDNN takes contiguous states only"
        return core_module._by_cell(x, h, c, weights)

    with patch.object(core_module, "_fused", run):
        yield


def main() -> None:
    from tests.support.learning.pretend_device import register  # which not every release of PyTorch can do

    device, found = register(), {}
    for name in sys.argv[1:]:
        try:
            with without_fused_lstm():
                PROGRAMS[name](device)
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    main()

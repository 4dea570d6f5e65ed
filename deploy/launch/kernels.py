"""The functions that compile the kernels of each part of Tamiyo, each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable

from actors.env import seed_fleet
from actors.env.channels.compile import compile_kernels as compile_channels
from actors.policy.gradients.compile import compile_kernels as compile_gradient
from actors.policy.kernels.compile import compile_kernels as compile_step
from learner.kernels.compile import compile_kernels as compile_update

COMPILE: dict[str, Callable[[], None]] = {
    "the policy's step": compile_step,
    "the policy's gradient": compile_gradient,
    "the update": compile_update,
    "the environments": seed_fleet.compile_kernels,
    "convolutional hosts": compile_channels,
}

"""Running a model beside its training without side effects on buffers, random numbers, or modes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from actors.growth.slot_module import SlotModule


@contextmanager
def without_side_effects(model: nn.Module, learners: Iterable[nn.Module] = ()) -> Iterator[None]:
    """Replace buffers (such as BatchNorm's running statistics) by copies, and restore them afterwards together with
    random number generators and each module's mode. The buffers of `learners` change as in training."""
    kept = {id(module) for learner in learners for module in learner.modules()}
    originals = [
        (module, name, buffer)
        for module in model.modules()
        if not isinstance(module, SlotModule) and id(module) not in kept
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    modes = [(module, module.training) for module in model.modules()]
    devices = {p.device for p in model.parameters() if p.is_cuda}
    for module, name, buffer in originals:
        module._buffers[name] = buffer.clone()
    try:
        with torch.random.fork_rng(devices=list(devices)):
            yield
    finally:
        for module, name, buffer in originals:
            module._buffers[name] = buffer
        for module, mode in modes:
            module.training = mode


@contextmanager
def fresh_statistics(model: nn.Module) -> Iterator[None]:
    """Reset BatchNorm's running statistics and average them over all batches inside. Use within
    `without_side_effects`."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum

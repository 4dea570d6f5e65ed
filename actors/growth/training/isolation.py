"""Running a model beside its training without side effects on buffers, random numbers, modes, or its own state."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from actors.growth.slot_module import SlotModule

OF_MODULES = frozenset(nn.Module().__dict__) - {"training"}
"""Attributes in which every module keeps its parameters, submodules and hooks."""

PLAIN = frozenset({int, float, bool, str, type(None), torch.Size})
"""Types of what cannot change."""


@contextmanager
def random_numbers_kept(devices: Iterable[torch.device | int]) -> Iterator[None]:
    """Restore the random number generators of Python, NumPy and PyTorch, on the CPU and these devices, afterwards."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 (a user's code may draw from it)
    try:
        with torch.random.fork_rng(devices=list(devices)):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


@contextmanager
def without_side_effects(model: nn.Module, learners: Iterable[nn.Module] = ()) -> Iterator[None]:
    """Replace buffers (such as BatchNorm's running statistics) and what modules keep as attributes by copies, and
    restore them afterwards together with random number generators and each module's mode. The buffers of `learners`
    change as in training."""
    kept = {id(module) for learner in learners for module in learner.modules()}
    modules = [m for m in model.modules() if not isinstance(m, SlotModule)]
    modes = [(m, m.training) for m in modules]
    modules = [m for m in modules if id(m) not in kept]
    buffers = [(m, name, b) for m in modules for name, b in m._buffers.items() if b is not None]
    attributes = [(m, {k: v for k, v in m.__dict__.items() if k not in OF_MODULES}) for m in modules]
    generators = [
        (v, v.get_state()) for _, values in attributes for v in values.values() if isinstance(v, torch.Generator)
    ]
    cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = {p.device for p in model.parameters() if p.is_cuda} if cuda else ()
    for module, name, buffer in buffers:
        module._buffers[name] = buffer.clone()
    for module, values in attributes:
        module.__dict__.update({name: _scratch(value) for name, value in values.items() if type(value) not in PLAIN})
    try:
        with random_numbers_kept(devices):
            yield
    finally:
        for generator, state in generators:
            generator.set_state(state)
        for module, name, buffer in buffers:
            module._buffers[name] = buffer
        for module, values in attributes:
            for name in module.__dict__.keys() - values.keys() - OF_MODULES:
                del module.__dict__[name]
            module.__dict__.update(values)
        for module, mode in modes:
            if module.training is not mode:  # setting an attribute of a module takes a microsecond
                module.training = mode


def _scratch(value: Any) -> Any:
    """Return a copy of what a module may change in place, and anything else itself."""
    match value:
        case Tensor() if not value.requires_grad and not isinstance(value, nn.Parameter):
            return value.clone()
        case list() | deque() | set() | dict() if type(value).__module__ in ("builtins", "collections"):
            made = copy.copy(value)
            if isinstance(made, dict):
                made.update({key: _scratch(element) for key, element in made.items()})
            elif isinstance(made, list | deque):
                for i, element in enumerate(made):
                    made[i] = _scratch(element)
            return made
        case random.Random() | np.random.Generator():
            return copy.deepcopy(value)
        case _:
            return value


def reset_statistics(model: nn.Module) -> None:
    """Let BatchNorm average its statistics over all further batches. Use within `without_side_effects`."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
            module.reset_running_stats()
            module.momentum = None


@contextmanager
def unscaled_losses() -> Iterator[None]:
    """Let `GradScaler.scale` return what it is given within the context."""
    scaler: Any = torch.amp.GradScaler
    scale = scaler.scale
    scaler.scale = lambda self, outputs: outputs
    try:
        yield
    finally:
        scaler.scale = scale

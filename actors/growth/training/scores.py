"""`ScoreRecorder`: what a seed in each slot could do, from the gradients of the user's own backward passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

EVERY = 8
"""In the first epoch, one minibatch of this many is scored. In each later one, the middle and the last are, where they
were in the epoch before. The last score counts; the other serves an epoch that ends earlier."""


class ScoreRecorder:
    """Records the norm of the loss's gradient with respect to a slot's output, relative to that of the model's own.

    Both are of one backward pass, the last before the optimizer step, as they leave it: a loss scale cancels, and
    clipping has no effect. Copies of the model, also those in files, have None in its place.
    """

    def __init__(self, host: Sequence[nn.Parameter], optimizer: Optimizer) -> None:
        """`host` are the model's parameters, none of a compiled model, which would be compiled again for hooks."""
        self._host = list(host)
        self._handles: list[Any] = []  # hooks on the model's parameters while a minibatch is scored
        self._paused = False
        self._step, self.steps_per_epoch = 0, 0  # optimizer steps in this epoch and in the one before
        self._outputs: dict[int, Tensor] = {}  # norm of the gradient at each slot, and of each parameter
        self._parameters: dict[int, Tensor] = {}
        self._scores: dict[int, Tensor] = {}
        optimizer.register_step_post_hook(self._stepped)
        self._arm()

    def __reduce__(self) -> Any:
        return type(None), ()

    @property
    def due(self) -> bool:
        """Whether the minibatch in progress is scored."""
        return bool(self._handles) and not self._paused

    def see(self, slots: Iterable[int], output: Tensor) -> None:
        """Record the gradient of a tensor that is the output of these slots."""
        if not self.due or not torch.is_grad_enabled() or not output.requires_grad:
            return
        at = tuple(slots)

        def record(gradient: Tensor) -> None:
            self._outputs.update(dict.fromkeys(at, torch.linalg.vector_norm(gradient.detach())))

        output.register_hook(record)  # type: ignore[no-untyped-call]

    def watch(self, host: Sequence[nn.Parameter]) -> None:
        """Compare with the gradient of these parameters from now on: the model has become another."""
        self._disarm()
        self._host = list(host)
        self._arm()

    def take(self) -> dict[int, float]:
        """Return the scores by slot and begin a new epoch."""
        scores = {s: float(score) for s, score in self._scores.items()}
        self._scores, self.steps_per_epoch, self._step = {}, self._step, 0
        self._arm()
        return {s: score for s, score in scores.items() if isfinite(score)}

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Ignore the passes within the context."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def _stepped(self, *_: Any) -> None:
        if self._outputs and self._parameters:
            norm = torch.linalg.vector_norm(torch.stack(list(self._parameters.values())))
            self._scores = {s: output / norm for s, output in self._outputs.items()}
        self._step += 1
        self._arm()

    def _arm(self) -> None:
        """Watch the parameters if the next minibatch is to be scored, and only then."""
        self._outputs, self._parameters = {}, {}
        steps = self.steps_per_epoch
        due = self._step in (steps // 2, steps - 1) if steps else self._step % EVERY == 0
        if due and not self._handles:
            self._handles = [p.register_hook(partial(self._note, i)) for i, p in enumerate(self._host)]  # type: ignore[no-untyped-call]
        elif not due:
            self._disarm()

    def _disarm(self) -> None:
        for handle in self._handles:
            handle.remove()
        for p in self._host if self._handles else ():
            if not p._backward_hooks:  # PyTorch looks into an empty dictionary in each backward pass, for a microsecond
                p._backward_hooks = None
        self._handles = []

    def _note(self, index: int, gradient: Tensor) -> None:
        if not self._paused:
            self._parameters[index] = torch.linalg.vector_norm(gradient.detach())

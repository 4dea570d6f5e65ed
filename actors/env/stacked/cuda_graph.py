"""`run_steps`: runs the minibatches of an epoch, optionally as a CUDA graph that is replayed.

On a GPU, a step of small networks is hundreds of kernel launches, which take longer than the work; a graph is one
launch. The seeds that take part do not change within an epoch, and steps change tensors only in place. So the first
minibatch warms up, and the second is captured in a graph that runs for it and all later ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class StepResult(NamedTuple):
    """What a training step measured."""

    loss: Tensor  # [E]
    host_norms: Tensor  # [E], norm of the gradient of each host before clipping
    seed_norms: Tensor  # [n], of each seed
    output_norms: Tensor | None
    """[E, S + 1], norms of the loss's gradient with respect to the output of each slot in the stream, and to the
    logits; None if they were not asked for."""


Step = Callable[[Tensor, Tensor, bool], StepResult]
"""(x, y, whether to measure `output_norms`) -> result."""


def run_steps(step: Step, x: Tensor, y: Tensor, measured: Collection[int], use_graph: bool) -> Iterator[StepResult]:
    """Call `step` on every minibatch and yield its result; `output_norms` are those of steps in `measured` at least."""
    if not use_graph or len(x) < 3:
        for k, (batch, labels) in enumerate(zip(x, y, strict=True)):
            yield step(batch, labels, k in measured)
        return
    yield _warm_up(step, x[0], y[0])
    captured = CapturedStep(step, x[1], y[1])
    for batch, labels in zip(x[1:], y[1:], strict=True):
        yield captured(batch, labels)


def _warm_up(step: Step, x: Tensor, y: Tensor) -> StepResult:
    """Run a step on a side stream, as CUDA graphs require before capture."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        out = step(x, y, True)
    torch.cuda.current_stream().wait_stream(side)
    return out


class CapturedStep:
    """A step captured in a CUDA graph, for minibatches of one shape."""

    def __init__(self, step: Step, x: Tensor, y: Tensor) -> None:
        """Capture `step`; capturing does not run it."""
        self.x, self.y = x.clone(), y.clone()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = step(self.x, self.y, True)

    def __call__(self, x: Tensor, y: Tensor) -> StepResult:
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()
        return StepResult(*(None if t is None else t.clone() for t in self.out))  # type: ignore[arg-type]

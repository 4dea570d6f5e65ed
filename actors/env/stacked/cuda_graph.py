"""`run_steps`: runs the minibatches of an epoch, optionally as a CUDA graph that is replayed.

On a GPU, a step of small networks is hundreds of kernel launches, which take longer than the work; a graph is one
launch. The seeds that take part do not change within an epoch, and steps change tensors only in place. So the first
minibatch warms up, and the second is captured in a graph that runs for it and all later ones.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Step = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def run_steps(step: Step, x: Tensor, y: Tensor, use_graph: bool) -> list[tuple[Tensor, Tensor]]:
    """Call `step` on every minibatch; return (losses, gradient norms) of each."""
    if not use_graph or len(x) < 3:
        return [step(batch, labels) for batch, labels in zip(x, y, strict=True)]
    first = _warm_up(step, x[0], y[0])
    captured = CapturedStep(step, x[1], y[1])
    return [first, *(captured(batch, labels) for batch, labels in zip(x[1:], y[1:], strict=True))]


def _warm_up(step: Step, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Run a step on a side stream, as CUDA graphs require before capture."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        out = step(x, y)
    torch.cuda.current_stream().wait_stream(side)
    return out


class CapturedStep:
    """A step captured in a CUDA graph, for minibatches of one shape."""

    def __init__(self, step: Step, x: Tensor, y: Tensor) -> None:
        """Capture `step`; capturing does not run it."""
        self.x, self.y = x.clone(), y.clone()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = step(self.x, self.y)

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()
        loss, norms = self.out
        return loss.clone(), norms.clone()

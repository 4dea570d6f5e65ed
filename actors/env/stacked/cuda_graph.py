"""`run_steps`: runs the minibatches of an epoch, optionally as a CUDA graph that is replayed.

On a GPU, a step of small networks is hundreds of kernel launches, which take longer than the work; a graph is one
launch. The seeds that take part do not change within an epoch, and steps change tensors only in place. So the first
minibatch warms up, and the second is captured in a graph that runs for it and all later ones.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
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


class GraphMemory:
    """The stream on which graphs are warmed up and captured, and the memory that they share.

    `torch.cuda.graph` would give the allocator's free memory back to the driver at every capture, and each graph memory
    of its own that no later one uses again. A pool exists as long as one of its graphs does, so the newest is kept.
    Graphs that share a pool must not be replayed in turns: each is used for one epoch, before the next is captured.
    """

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._newest: torch.cuda.CUDAGraph | None = None

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        """Run on the stream, after what was started before and before what is started later."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield
        torch.cuda.current_stream().wait_stream(self.stream)

    @contextmanager
    def capture(self) -> Iterator[torch.cuda.CUDAGraph]:
        """Capture what runs inside. Meanwhile nothing is garbage-collected, since CUDA refuses to destroy a graph, or
        to free memory, during a capture."""
        graph = torch.cuda.CUDAGraph()
        collects = gc.isenabled()
        gc.disable()
        try:
            with self.on_stream():
                graph.capture_begin(pool=self._pool)
                try:
                    yield graph
                finally:
                    graph.capture_end()
        finally:
            if collects:
                gc.enable()
        self._newest = graph


@cache
def _memory(device: int) -> GraphMemory:
    return GraphMemory()


def _warm_up(step: Step, x: Tensor, y: Tensor) -> StepResult:
    """Run a step on the stream of captures, as CUDA graphs require before a capture."""
    with _memory(x.get_device()).on_stream():
        return step(x, y, True)


class CapturedStep:
    """A step captured in a CUDA graph, for minibatches of one shape."""

    def __init__(self, step: Step, x: Tensor, y: Tensor) -> None:
        """Capture `step`; capturing does not run it."""
        self.x, self.y = x.clone(), y.clone()
        with _memory(x.get_device()).capture() as self.graph:
            self.out = step(self.x, self.y, True)

    def __call__(self, x: Tensor, y: Tensor) -> StepResult:
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()
        return StepResult(*(None if t is None else t.clone() for t in self.out))  # type: ignore[arg-type]

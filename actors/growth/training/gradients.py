"""`ShadowGradients`: the gradients of a minibatch's loss with respect to young seeds, and to nothing else."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from actors.growth.training.live_objects import live_objects


class ShadowGradients:
    """Computes gradients of losses that may or may not carry the scale of a `GradScaler`; they never do themselves.

    In half precision small gradients would be lost, so that the loss is scaled here where the loop did not. A gradient
    that overflows counts as 0 and, unlike one of the model, does not make the scaler skip a step.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._seen: dict[tuple[int, ...], tuple[bool, list[GradScaler]]] = {}  # by parameters

    def __call__(self, loss: Tensor, params: Sequence[nn.Parameter], scaler: GradScaler | None) -> list[Tensor | None]:
        """Return the gradient of each parameter, None where `loss` does not depend on it. Without `scaler`, one that
        the loop uses is found among all live objects."""
        key = tuple(map(id, params))
        if key not in self._seen:
            live = live_objects(lambda kind: issubclass(kind, GradScaler)) if scaler is None else []
            self._seen[key] = any(node.name() == "CheckpointFunctionBackward" for node in _nodes(loss)), live
        reentrant, scalers = self._seen[key]
        used = [scaler] if scaler is not None else scalers
        known = [scale for s in used if s.is_enabled() and (scale := s._get_scale_async()) is not None]
        scale = next((scale for scale in known if _carries(loss, scale)), None)
        if scale is None and known:
            scale = known[0]
            loss = loss * scale.to(loss.device)
        with _as_fabric():
            if reentrant:
                found = self._by_backward(loss, params)
            else:
                found = list(torch.autograd.grad(loss, params, allow_unused=True))
        return found if scale is None else _unscaled(found, scale)

    def _by_backward(self, loss: Tensor, params: Sequence[nn.Parameter]) -> list[Tensor | None]:
        """Run a whole backward pass, the only kind that reentrant checkpoints permit, and undo the rest of it."""
        of_graph = [node.variable for node in _nodes(loss) if hasattr(node, "variable")]
        leaves = {id(p): p for p in (*self._model.parameters(), *params, *of_graph)}.values()
        before = [(leaf, leaf.grad) for leaf in leaves]
        for leaf in leaves:
            leaf.grad = None
        try:
            loss.backward()  # type: ignore[no-untyped-call]
            return [p.grad for p in params]
        finally:
            for leaf, gradient in before:
                leaf.grad = gradient


@contextmanager
def _as_fabric() -> Iterator[None]:
    """Enter a context in which Lightning Fabric, which refuses backward passes that are not its own, permits them."""
    wrappers: Any = sys.modules.get("lightning.fabric.wrappers") or sys.modules.get("lightning_fabric.wrappers")
    before = getattr(wrappers, "_in_fabric_backward", None)
    if before is not None:
        wrappers._in_fabric_backward = True
    try:
        yield
    finally:
        if before is not None:
            wrappers._in_fabric_backward = before


def _carries(loss: Tensor, scale: Tensor) -> bool:
    """Return whether the loss, or what it is a simple function of, was multiplied by this very tensor."""
    node: Any = loss.grad_fn
    for _ in range(4):
        factor = getattr(node, "_saved_other", None) if node is not None and node.name() == "MulBackward0" else None
        if isinstance(factor, Tensor) and factor.data_ptr() == scale.data_ptr():
            return True
        node = node.next_functions[0][0] if node is not None and node.next_functions else None
    return False


def _unscaled(gradients: Sequence[Tensor | None], scale: Tensor) -> list[Tensor | None]:
    """Divide by the scale; where any gradient overflowed, return zeros."""
    given = [g for g in gradients if g is not None]
    if not given:
        return list(gradients)
    finite = torch.isfinite(torch.stack([norm.float() for norm in torch._foreach_norm(given, inf)])).all()
    return [None if g is None else torch.where(finite, g / scale.to(g.device, g.dtype), 0.0) for g in gradients]


def _nodes(loss: Tensor) -> Iterable[Any]:
    """Return the nodes of the graph that leads to a loss."""
    seen, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [before for before, _ in node.next_functions]
    return seen

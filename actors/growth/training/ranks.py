"""`Ranks`: the processes of `DistributedDataParallel`. The first one decides, all apply the decision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

T = TypeVar("T")


class Ranks:
    """The process group of a model; a single process without `DistributedDataParallel`. DDP does not know parameters
    that are added later, so gradients of seeds are averaged here."""

    def __init__(self, ddp: DistributedDataParallel | None) -> None:
        self._ddp = ddp
        self._group: Any = None if ddp is None else ddp.process_group
        self.size = 1 if ddp is None else dist.get_world_size(self._group)

    @property
    def first(self) -> bool:
        return self._ddp is None or dist.get_rank(self._group) == 0

    def broadcast(self, value: T) -> T:
        """Return the first rank's value in all ranks."""
        if self.size == 1:
            return value
        box: list[Any] = [value]
        dist.broadcast_object_list(box, group=self._group, group_src=0)
        agreed: T = box[0]
        return agreed

    def average(self, gradients: Sequence[Tensor]) -> None:
        """Average gradients over all ranks, in place."""
        if self.size == 1 or not gradients:
            return
        flat = torch.cat([g.flatten() for g in gradients])
        dist.all_reduce(flat, group=self._group)
        flat /= self.size
        for gradient, mean in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def average_on_accumulate(self, parameters: Sequence[nn.Parameter]) -> None:
        """Average the gradients of `parameters` after each backward pass."""
        if self.size > 1:
            for parameter in parameters:
                parameter.register_post_accumulate_grad_hook(lambda p: self.average([p.grad]))  # type: ignore[no-untyped-call]

    def leave_ddp(self, parameters: Sequence[nn.Parameter]) -> None:
        """Average the gradients of the model's own `parameters` here, since DDP waits for parameters that are gone."""
        if self._ddp is not None and self._ddp.require_backward_grad_sync:
            self._ddp.require_backward_grad_sync = False
            self.average_on_accumulate(parameters)

    def share_buffers(self, modules: Iterable[nn.Module]) -> None:
        """Give all ranks the first rank's buffers of modules that DDP does not know, where it does so for its own."""
        if self.size > 1 and self._ddp is not None and self._ddp.broadcast_buffers:
            for module in modules:
                for buffer in module.buffers():
                    dist.broadcast(buffer, group=self._group, group_src=0)

    def no_sync(self) -> AbstractContextManager[None]:
        """Return a context in which a forward pass does not prepare DDP's gradient synchronisation."""
        return nullcontext() if self._ddp is None else self._ddp.no_sync()


def unwrap(model: nn.Module) -> tuple[nn.Module, DistributedDataParallel | None, bool]:
    """Return (the innermost module, its `DistributedDataParallel` or None, whether it is compiled)."""
    ddp, compiled = None, False
    while True:
        inner: Any = None
        if hasattr(model, "_orig_mod"):
            inner, compiled = model._orig_mod, True
        elif isinstance(model, DistributedDataParallel):
            inner, ddp = model.module, model
        elif isinstance(model, nn.DataParallel | torch.optim.swa_utils.AveragedModel):
            inner = model.module
        elif hasattr(model, "_forward_module"):  # of Lightning Fabric, whose precision then includes columns
            inner = model._forward_module
        if inner is None:
            return model, ddp, compiled or model._compiled_call_impl is not None
        model = inner

"""`Averages`: averages of a model's weights, found among all live objects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from actors.growth.slot_module import CHILD
from actors.growth.training.live_objects import live_objects


class Averages:
    """The averages of a model's weights: copies that PyTorch's `AveragedModel`, or a class of another library that is
    named after moving averages, holds, and lists of tensors as torch_ema's and diffusers'. Their updates pair
    parameters by position or by known names, so that they must grow with the model.

    An average that was there when this one was made, did not equal the model then and has not changed since is of
    another run.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._others = dict[int, Tensor]()  # sums of averages that did not equal the model, by the id of their holder
        for holder, held, copy in self._all():
            source = self._paired(held)[2] if copy is None else _parameters(model).values()
            if not torch.equal(sums := _sums(held), _sums(source)):
                self._others[id(holder)] = sums
        self._lists: list[tuple[Any, nn.Module, bool, list[nn.Parameter]]] = []
        self._named: list[tuple[Any, nn.Module]] = []

    def found(self) -> list[nn.Module]:
        """Return the copies that there are now. Call it before the model changes, and `regrow` after it."""
        self._lists, self._named, copies = [], [], []
        for holder, held, copy in self._all():
            if id(holder) in self._others and torch.equal(self._others[id(holder)], _sums(held)):
                continue
            if copy is not None:
                copies.append(copy)
                self._named.append((holder, copy))
            elif (paired := self._paired(held))[2]:
                self._lists.append((holder, *paired))
        return copies

    def regrow(self) -> None:
        """Give averages that are lists a tensor for each parameter that there is now, in the same order, and those that
        know names all of them."""
        for holder, module, trainable, before in self._lists:
            known = dict(zip(map(id, before), holder.shadow_params, strict=True))
            device, now = holder.shadow_params[0].device, _chosen(module, trainable)
            holder.shadow_params[:] = [known[id(p)] if id(p) in known else p.detach().clone().to(device) for p in now]
            if hasattr(holder, "_params_refs"):  # torch_ema's
                holder._params_refs = list(map(ref, now))
        for holder, copy in self._named:
            for names, tensors in ("parameter_names", copy.named_parameters()), ("buffer_names", copy.named_buffers()):
                averaged = getattr(holder, names, ())  # ema_pytorch's
                if isinstance(averaged, set):
                    averaged |= {n for n, t in tensors if CHILD in n and ".seed." in n and t.is_floating_point()}
        self._lists, self._named = [], []

    def _all(self) -> Iterator[tuple[Any, list[Tensor], Any]]:
        """Yield (what holds an average, its tensors, the copy of the model that has them or, for a list, None)."""
        for o in live_objects(_averages):
            for name in ("module", "ema_model", "ema"):
                copy: Any = getattr(o, name, None)
                same = type(copy) is type(self._model) and copy is not self._model
                if same and list(_parameters(copy)) == list(_parameters(self._model)):
                    yield o, list(_parameters(copy).values()), copy
            listed = getattr(o, "shadow_params", None)
            if isinstance(listed, list) and all(isinstance(each, Tensor) for each in listed):
                yield o, listed, None

    def _paired(self, averages: list[Tensor]) -> tuple[nn.Module, bool, list[nn.Parameter]]:
        """Return the module whose parameters, all or those that are trained, a list is of, and these; [] if unknown."""
        for module in self._model.modules():
            for trainable in (False, True):
                params = _chosen(module, trainable)
                if params and [p.shape for p in params] == [a.shape for a in averages]:
                    return module, trainable, params
        return self._model, False, []


def _averages(kind: type) -> bool:
    return issubclass(kind, AveragedModel) or bool(re.search("EMA|Ema|MovingAverage", kind.__name__))


def _chosen(module: nn.Module, trainable: bool) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad or not trainable]


def _parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of a model without those of seeds."""
    return {name: p for name, p in model.named_parameters() if f".{CHILD}" not in f".{name}"}


def _sums(tensors: Iterable[Tensor]) -> Tensor:
    """Return the sum of each tensor, by which a change is noticed."""
    return torch.tensor([float(t.detach().float().sum()) for t in tensors])

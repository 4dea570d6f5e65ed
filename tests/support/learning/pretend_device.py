"""A device called `pretend`: it computes on the CPU and, as CUDA does, refuses to mix its tensors with the CPU's.

Unlike on `meta`, values can be read back, so that whole programs run on it. PyTorch lets a process register one such
device, once and for good: use it only in a process of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

_COPIES = ("copy_", "_copy_from", "_to_copy")  # the operators that move data between devices
_make_tensor = torch.tensor
_LIBRARY = torch.library.Library("_", "IMPL")  # what it registers lasts as long as it does


class _Backend(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


class PretendTensor(Tensor):
    """Holds a tensor of the CPU; `device` says otherwise."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> PretendTensor:
        with torch.inference_mode(held.is_inference()):
            made: PretendTensor = torch.Tensor._make_wrapper_subclass(
                cls,
                held.shape,
                strides=held.stride(),
                storage_offset=held.storage_offset(),
                dtype=held.dtype,
                device=torch.device("pretend", 0),
            )
        made.held = held
        return made

    def tolist(self) -> Any:
        return self.held.tolist()

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self.detach().clone()

    def new_tensor(self, data: Any, **options: Any) -> Tensor:
        return _make_tensor(data, **({"dtype": self.dtype} | options)).to(self.device)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name, given = func.overloadpacket.__name__, [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    for t in given:
        if not isinstance(t, PretendTensor) and t.dim() and name not in _COPIES:  # CUDA takes scalars of the CPU
            raise RuntimeError(f"{name}: a tensor of the CPU, {list(t.shape)}, among tensors of the device")
    device = kwargs.get("device")
    held_args, held_kwargs = tree_map_only(
        PretendTensor, lambda t: t.held, (args, kwargs | ({} if device is None else {"device": "cpu"}))
    )
    out = func(*held_args, **held_kwargs)
    if device is not None and torch.device(device).type == "cpu":
        return out
    own = {id(t.held): t for t in given if isinstance(t, PretendTensor)}
    cpu = {id(t) for t in given if not isinstance(t, PretendTensor)}
    return tree_map_only(Tensor, lambda t: t if id(t) in cpu else own[id(t)] if id(t) in own else PretendTensor(t), out)


def _tensor(data: Any, *, device: Any = None, **options: Any) -> Tensor:
    """`torch.tensor`, which PyTorch does not dispatch to a device that is written in Python."""
    if device is None:  # that of a `with torch.device(...)`
        contexts = [mode for mode in _get_current_function_mode_stack() if isinstance(mode, DeviceContext)]
        device = contexts[-1].device if contexts else None  # type: ignore[attr-defined]
    elsewhere = device is not None and torch.device(device).type == "pretend"
    return _make_tensor(data, **options).to(device) if elsewhere else _make_tensor(data, device=device, **options)


def register() -> torch.device:
    """Make the device known to PyTorch, for the rest of this process."""
    _setup_privateuseone_for_python_backend("pretend", backend_module=_Backend())
    _LIBRARY.fallback(lambda op, *args, **kwargs: _run(op, args, kwargs), "PrivateUse1")
    torch.tensor = _tensor
    return torch.device("pretend", 0)

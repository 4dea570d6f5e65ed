"""`StackLayout`: the order of dimensions in the hidden tensors of a stack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from actors.kernels.cnn.functions import gathered
from actors.kernels.cnn.layout import NARROW, rows_innermost, with_rows_innermost
from actors.layers.convolution import split, with_kernels


@dataclass(frozen=True)
class StackLayout:
    """Where hidden tensors have environments (E) and rows of data (M).

    MLPs have `[E, M, W]`. CNNs have `[M, E, C, *space]`, so that folding E into C gives an ordinary batch of images.
    Tensors of the kernels in `actors.kernels.cnn` have rows of data innermost in memory, and keep them there.
    """

    dims: int  # spatial dimensions; 0 for MLPs

    @property
    def env_dim(self) -> int:
        return int(self.dims > 0)

    @property
    def row_dim(self) -> int:
        return int(self.dims == 0)

    def arranged(self, x: Tensor) -> Tensor:
        """Return the input of hosts with rows of data innermost in memory, if kernels will compute with it."""
        return with_rows_innermost(x) if self.dims and with_kernels(x, self.dims) else x

    def select(self, h: Tensor, envs: Tensor) -> Tensor:
        """Return `h` of some environments, by index."""
        (h,), env_dim, _ = self._in_memory(h)
        return self._restored(h.index_select(env_dim, envs), env_dim)

    def replace(self, h: Tensor, envs: Tensor, values: Tensor) -> Tensor:
        """Return `h` with the values of some environments replaced."""
        (h, values), env_dim, _ = self._in_memory(h, values)
        return self._restored(h.index_copy(env_dim, envs, values), env_dim)

    def slice(self, h: Tensor, envs: slice) -> Tensor:
        """Return `h` of consecutive environments."""
        return h[:, envs] if self.env_dim else h[envs]

    def cat(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the environments of several tensors, one after the other."""
        if len(parts) == 1:
            return parts[0]
        ordered, env_dim, _ = self._in_memory(*parts)
        return self._restored(torch.cat(ordered, env_dim), env_dim)

    def doubled(self, h: Tensor) -> Tensor:
        """Return `h` of one environment as two equal ones."""
        return h.expand([2 if d == self.env_dim else -1 for d in range(h.dim())])

    def by_env(self, h: Tensor) -> Tensor:
        """Return the entries of each environment, `[E, -1]`, in an order that does not depend on the others."""
        (h,), env_dim, _ = self._in_memory(h)
        return h.transpose(0, env_dim).flatten(1)

    def select_variants(self, h: Tensor, count: int, indices: list[int]) -> Tensor:
        """Return some of the `count` variants that the rows hold, one after the other."""
        if indices == list(range(count)):
            return h
        (h,), env_dim, row_dim = self._in_memory(h)
        chosen = split(h, row_dim, count).index_select(row_dim, h.new_tensor(indices).long())
        return self._restored(chosen.flatten(row_dim, row_dim + 1), env_dim)

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the variants of several tensors, one after the other."""
        ordered, env_dim, row_dim = self._in_memory(*parts)
        return self._restored(torch.cat(ordered, row_dim), env_dim)

    def _in_memory(self, *parts: Tensor) -> tuple[list[Tensor], int, int]:
        """Return tensors with their dimensions in the order of memory, and the dimensions of environments and rows."""
        if self.env_dim and all(rows_innermost(h) for h in parts):
            return [h.movedim(0, -1) for h in parts], 0, parts[0].dim() - 1
        return list(parts), self.env_dim, self.row_dim

    def _restored(self, h: Tensor, env_dim: int) -> Tensor:
        """Undo `_in_memory`, which found environments in this dimension."""
        return h if env_dim == self.env_dim else h.movedim(-1, 0)

    def batch(self, data: Tensor, rows: Tensor) -> Tensor:
        """Gather minibatches: rows `[S, E, B]` of every environment's `data [E, N, ...]`, in this layout."""
        if self.dims and rows.shape[2] % NARROW == 0 and data.is_cpu and data.dtype is torch.float32:
            return gathered(data, rows)
        if self.env_dim:
            rows = rows.mT
        envs = rows.new_tensor(range(data.shape[0]))
        return data[envs if self.env_dim else envs[:, None], rows]

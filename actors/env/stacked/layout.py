"""`StackLayout`: the order of dimensions in the hidden tensors of a stack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from actors.kernels.cnn.functions import gathered
from actors.kernels.cnn.layout import NARROW, rows_innermost, with_rows_innermost
from actors.layers.convolution import with_kernels


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
        if self.env_dim and rows_innermost(h):
            return h.movedim(0, -1).index_select(0, envs).movedim(-1, 0)
        return h.index_select(self.env_dim, envs)

    def replace(self, h: Tensor, envs: Tensor, values: Tensor) -> Tensor:
        """Return `h` with the values of some environments replaced."""
        if self.env_dim and rows_innermost(h):
            return h.movedim(0, -1).index_copy(0, envs, values.movedim(0, -1)).movedim(-1, 0)
        return h.index_copy(self.env_dim, envs, values)

    def slice(self, h: Tensor, envs: slice) -> Tensor:
        """Return `h` of consecutive environments."""
        return h[envs] if self.env_dim == 0 else h[:, envs]

    def cat(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the environments of several tensors, one after the other."""
        if len(parts) == 1:
            return parts[0]
        if self.env_dim and all(rows_innermost(h) for h in parts):
            return torch.cat([h.movedim(0, -1) for h in parts]).movedim(-1, 0)
        return torch.cat(list(parts), self.env_dim)

    def doubled(self, h: Tensor) -> Tensor:
        """Return `h` of one environment as two equal ones."""
        shape = [2 if d == self.env_dim else -1 for d in range(h.dim())]
        return h.expand(shape)

    def by_env(self, h: Tensor) -> Tensor:
        """Return the entries of each environment, `[E, -1]`, in an order that does not depend on the others."""
        return (h.movedim(0, -1) if self.env_dim and rows_innermost(h) else h.transpose(0, self.env_dim)).flatten(1)

    def select_variants(self, h: Tensor, count: int, indices: list[int]) -> Tensor:
        """Return some of the `count` variants that the rows hold, one after the other."""
        if indices == list(range(count)):
            return h
        if self.env_dim and rows_innermost(h):
            last = h.movedim(0, -1)
            chosen: Tensor = last.reshape(*last.shape[:-1], count, -1)[..., indices, :]
            return chosen.flatten(-2).movedim(-1, 0)
        r = self.row_dim
        variants = h.reshape(*h.shape[:r], count, -1, *h.shape[r + 1 :])
        return variants.index_select(r, h.new_tensor(indices).long()).flatten(r, r + 1)

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the variants of several tensors, one after the other."""
        if self.env_dim and all(rows_innermost(h) for h in parts):
            return torch.cat([h.movedim(0, -1) for h in parts], -1).movedim(-1, 0)
        return torch.cat(list(parts), self.row_dim)

    def batch(self, data: Tensor, rows: Tensor) -> Tensor:
        """Gather minibatches: rows `[S, E, B]` of every environment's `data [E, N, ...]`, in this layout."""
        if self.dims and rows.shape[2] % NARROW == 0 and data.is_cpu and data.dtype is torch.float32:
            return gathered(data, rows)
        if self.env_dim:
            rows = rows.mT
        envs = rows.new_tensor(range(data.shape[0]))
        return data[envs if self.env_dim else envs[:, None], rows]

"""`StackLayout`: where a stack's hidden tensors have their environments and their rows."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class StackLayout:
    """`[E, M, W]` for units; `[M, E, C, *space]` for channels, where a fold of E into C makes a plain batch."""

    dims: int  # spatial dimensions; 0 for units

    @property
    def env_dim(self) -> int:
        return int(self.dims > 0)

    @property
    def row_dim(self) -> int:
        return int(self.dims == 0)

    def pick(self, h: Tensor, envs: Tensor) -> Tensor:
        return h.index_select(self.env_dim, envs)

    def put(self, h: Tensor, envs: Tensor, values: Tensor) -> Tensor:
        return h.index_copy(self.env_dim, envs, values)

    def slice(self, h: Tensor, envs: slice) -> Tensor:
        return h[envs] if self.env_dim == 0 else h[:, envs]

    def twice(self, h: Tensor) -> Tensor:
        """One environment as two."""
        shape = [2 if d == self.env_dim else -1 for d in range(h.dim())]
        return h.expand(shape)

    def variants(self, h: Tensor, count: int) -> Tensor:
        """Rows that hold `count` variants one after the other, with a dimension of their own at `row_dim`."""
        r = self.row_dim
        return h.reshape(*h.shape[:r], count, h.shape[r] // count, *h.shape[r + 1 :])

    def pick_variants(self, h: Tensor, count: int, wanted: list[int]) -> Tensor:
        if wanted == list(range(count)):
            return h
        index = h.new_tensor(wanted).long()
        return self.variants(h, count).index_select(self.row_dim, index).flatten(self.row_dim, self.row_dim + 1)

    def batch(self, data: Tensor, rows: Tensor) -> Tensor:
        """Rows `[..., E, B]` of every environment's `data [E, N, ...]`, laid out."""
        if self.env_dim:
            rows = rows.mT
        envs = rows.new_tensor(range(data.shape[0]))
        return data[envs if self.env_dim else envs[:, None], rows]

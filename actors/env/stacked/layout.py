"""`StackLayout`: the order of dimensions in the hidden tensors of a stack."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class StackLayout:
    """Where hidden tensors have environments (E) and rows of data (M).

    MLPs have `[E, M, W]`. CNNs have `[M, E, C, *space]`, so that folding E into C gives an ordinary batch of images.
    """

    dims: int  # spatial dimensions; 0 for MLPs

    @property
    def env_dim(self) -> int:
        return int(self.dims > 0)

    @property
    def row_dim(self) -> int:
        return int(self.dims == 0)

    def select(self, h: Tensor, envs: Tensor) -> Tensor:
        """Return `h` of some environments, by index."""
        return h.index_select(self.env_dim, envs)

    def replace(self, h: Tensor, envs: Tensor, values: Tensor) -> Tensor:
        """Return `h` with the values of some environments replaced."""
        return h.index_copy(self.env_dim, envs, values)

    def slice(self, h: Tensor, envs: slice) -> Tensor:
        """Return `h` of consecutive environments."""
        return h[envs] if self.env_dim == 0 else h[:, envs]

    def doubled(self, h: Tensor) -> Tensor:
        """Return `h` of one environment as two equal ones."""
        shape = [2 if d == self.env_dim else -1 for d in range(h.dim())]
        return h.expand(shape)

    def by_env(self, h: Tensor) -> Tensor:
        """Return the entries of each environment, `[E, -1]`, in an order that does not depend on the others."""
        return h.transpose(0, self.env_dim).flatten(1)

    def variants(self, h: Tensor, count: int) -> Tensor:
        """Split rows that hold `count` variants one after the other; the variants become dimension `row_dim`."""
        r = self.row_dim
        return h.reshape(*h.shape[:r], count, h.shape[r] // count, *h.shape[r + 1 :])

    def select_variants(self, h: Tensor, count: int, indices: list[int]) -> Tensor:
        """Return some of the `count` variants that the rows hold, one after the other."""
        if indices == list(range(count)):
            return h
        index = h.new_tensor(indices).long()
        return self.variants(h, count).index_select(self.row_dim, index).flatten(self.row_dim, self.row_dim + 1)

    def batch(self, data: Tensor, rows: Tensor) -> Tensor:
        """Gather minibatches: rows `[..., E, B]` of every environment's `data [E, N, ...]`, in this layout."""
        if self.env_dim:
            rows = rows.mT
        envs = rows.new_tensor(range(data.shape[0]))
        return data[envs if self.env_dim else envs[:, None], rows]

"""`empty`: arrays that begin at a line of the cache, and whose memory is used again.

A vector that lies in two lines takes twice as long to load. The C library returns large blocks to the system when they
are freed; asking for them again, page by page, took a tenth of the time of a pass of hosts on 32x32 images.
"""

from __future__ import annotations

import threading
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST = 2**12
"""Smaller arrays, in numbers, come from NumPy."""
LINE = 16
"""Numbers in a line of the cache."""
MOST_KEPT = 2**26
"""Of free blocks, a thread keeps at most so many numbers, 256 MB; beyond that it frees all of them."""


def aligned(size: int) -> NDArray[np.float32]:
    """Return an array that begins at a line of the cache."""
    block = np.empty(size + LINE, np.float32)
    first = -block.ctypes.data // block.itemsize % LINE
    return block[first : first + size]


class _Free(threading.local):
    """The free blocks of a thread."""

    def __init__(self) -> None:
        self.blocks: dict[int, list[NDArray[np.float32]]] = {}  # by size
        self.kept = 0

    def take(self, size: int) -> NDArray[np.float32]:
        if blocks := self.blocks.get(size):
            self.kept -= size
            return blocks.pop()
        return aligned(size)

    def give(self, block: NDArray[np.float32]) -> None:
        if self.kept + len(block) > MOST_KEPT:
            self.blocks, self.kept = {}, 0
        self.blocks.setdefault(len(block), []).append(block)
        self.kept += len(block)


_free = _Free()


class _Lease:
    """Owns a block while an array uses it, and frees it after that."""

    def __init__(self, block: NDArray[np.float32], shape: tuple[int, ...]) -> None:
        self.block, self.free = block, _free
        self.__array_interface__: dict[str, Any] = block.__array_interface__ | {"shape": shape}

    def __del__(self) -> None:
        self.free.give(self.block)


def empty(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return an array in single precision, with numbers of any value."""
    size = prod(shape)
    if size < LEAST:
        return np.empty(shape, np.float32)
    step = 2 ** (size.bit_length() - 3)  # sizes are rounded up by at most a quarter, so that few of them differ
    return np.asarray(_Lease(_free.take(-(-size // step) * step), shape))

"""Memory of anyone that holds the elements of an array, as libraries describe it to each other."""

from __future__ import annotations

import itertools
import operator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu.core.dtype import DType


class Strided(NamedTuple):
    """An array in memory.

    Attributes:
        device: where it is, as DLPack names devices: type and number.
        address: of the element whose indices are all 0; 0 where there are no elements.
        shape: sizes of its axes.
        strides: how many elements further on along each axis the next one is.
        dtype: of its elements.
        owner: keeps the memory alive.
        read_only: whether its owner forbids writing.
        offset: bytes from `address` to that element: on devices where `address` is that of an
            object which stands for memory, not of the memory.
    """

    device: tuple[int, int]
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    owner: object
    read_only: bool = False
    offset: int = 0

    @property
    def is_row_major(self) -> bool:
        """Whether its elements lie one after the other, the last axis varying fastest."""
        steps = zip(self.shape, self.strides, row_major(self.shape), strict=True)
        return all(size == 1 or step == wanted for size, step, wanted in steps)

    def extent(self) -> tuple[int, int]:
        """Where its memory begins, in elements from `address`, and how many elements it spans.

        There is at least one element.
        """
        ends = [(n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)]
        first = sum(end for end in ends if end < 0)
        return first, sum(end for end in ends if end > 0) - first + 1

    def host_array(self) -> npt.NDArray[Any]:
        """It as a read-only numpy array that keeps the owner alive; the memory is the host's."""
        # Integers: numpy knows not every float by itself.
        bits = self.dtype.np if self.dtype.is_complex else np.dtype(f"u{self.dtype.itemsize}")
        array = np.empty(self.shape, bits)
        if array.size:
            array = np.asarray(_HostMemory(self, array.dtype))
        return array.view(self.dtype.np)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of elements that lie one after the other, the last axis varying fastest.

    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    counts = itertools.accumulate(reversed(shape[1:]), operator.mul, initial=1)
    return tuple(reversed(list(counts)))[-len(shape) :] if shape else ()


class _HostMemory:
    """Memory as numpy's array interface describes it; numpy keeps this object."""

    def __init__(self, memory: Strided, bits: np.dtype[Any]):
        self.owner = memory.owner
        read_only = True
        self.__array_interface__ = {
            "version": 3,
            "typestr": bits.str,
            "shape": memory.shape,
            "strides": tuple(step * bits.itemsize for step in memory.strides),
            "data": (memory.address, read_only),
        }

"""Which part of a value each device has, and values put together of parts in files.

A piece is a part of a tensor in a file of a checkpoint, under the tensor's name and where the piece
begins: ``layer.weight@128,0``. All pieces of a tensor have one shape, and fill it without overlap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from gpu.compiler.ir.graph.grid import Grid, Region, copies, own_regions
from gpu.core.dtype import DType
from gpu.core.errors import FormatError
from gpu.distributed.exchange import Bytes
from gpu.tensor.formats.hostbytes import tensor_over
from gpu.tensor.tensor import Tensor

_BEGINS: Final = "@"
Shape = tuple[int, ...]


def own_pieces(
    tensors: Mapping[str, Tensor], rank: int, ranks: int
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """What a rank writes of each tensor, copied: every piece of all ranks once, evenly spread.

    Of a tensor on no mesh, which all ranks have alike, one rank writes all.
    """
    for number, (name, tensor) in enumerate(tensors.items()):
        if 0 in tensor.shape:
            continue
        if not isinstance(tensor.device, Grid):
            if number % ranks == rank:
                yield _key(name, (0,) * tensor.ndim), np.array(tensor.numpy())
            continue
        grid, cuts = tensor.device, tensor._cuts
        chosen = number % copies(grid, cuts)
        regions = own_regions(grid, cuts, tensor.shape)
        for part, region in zip(tensor.local(), regions, strict=True):
            if region.copy == chosen:
                yield _key(name, region.start), np.array(part.numpy())


def _key(name: str, start: Sequence[int]) -> str:
    return name + _BEGINS + ",".join(map(str, start))


class Piece(NamedTuple):
    """A part of a tensor, in a file.

    Attributes:
        region: of the tensor.
        data: its bytes, which are read when they are touched.
    """

    region: Region
    data: Bytes


class Pieces:
    """The pieces of one tensor, which are checked to be all of it.

    Attributes:
        name: of the tensor.
        dtype: of its elements.
        shape: of the tensor.
    """

    def __init__(self, name: str, dtype: DType, shape: Shape, pieces: Sequence[Piece]):
        """Raises FormatError where the pieces are not of one shape, or not all of the tensor."""
        self.name, self.dtype, self.shape, self._pieces = name, dtype, shape, pieces
        if 0 in shape:
            return
        sizes = {piece.region.shape for piece in pieces}
        starts = {piece.region.start for piece in pieces}
        is_one = len(sizes) == 1 and len(starts) == len(pieces)
        if not is_one or not _tiles(shape, next(iter(sizes)), starts):
            raise FormatError(
                f"{name} of shape {list(shape)} is not whole in the checkpoint: it has"
                f" {len(pieces)} pieces, of shapes {sorted(sizes)[:4]}; a file of it is another's"
            )

    def read(self, region: Region, device: str) -> Tensor:
        """The elements of a region, as a tensor on a device."""
        item = self.dtype.itemsize
        out = np.empty((*region.shape, item), np.uint8)
        for piece in self._pieces:
            inside, there = [], []
            for at, size, begins, length in zip(*region[:2], *piece.region[:2], strict=True):
                first, end = max(at, begins), min(at + size, begins + length)
                inside.append(slice(first - at, end - at))
                there.append(slice(first - begins, end - begins))
                if first >= end:
                    break
            else:
                source = piece.data.reshape(*piece.region.shape, item)
                out[tuple(inside)] = source[tuple(there)]
        return tensor_over(out.reshape(-1), region.shape, self.dtype, device)

    def like(self, target: Tensor) -> Tensor:
        """The value as `target` lies on its mesh; whole on one device where it is on none."""
        grid = target.device
        if not isinstance(grid, Grid):
            device = grid if isinstance(grid, str) else grid[0]
            return self.read(Region((0,) * len(self.shape), self.shape), device)
        regions = own_regions(grid, target._cuts, self.shape)
        parts = [self.read(region, name) for region, name in zip(regions, grid, strict=True)]
        return Tensor.from_local(parts, grid.mesh, target.spec)


def _tiles(shape: Shape, size: Shape, starts: set[Shape]) -> bool:
    """Whether parts of a size that begin at `starts`, one each, are all of a shape."""
    pairs = [*zip(shape, size, strict=True)]
    if 0 in size or any(whole % part for whole, part in pairs):
        return False
    if math.prod(shape) // math.prod(size) != len(starts):
        return False
    return starts == {*itertools.product(*(range(0, whole, part) for whole, part in pairs))}


def begin_of(key: str) -> tuple[str, Shape]:
    """The name of a tensor, and where a piece of it begins. Raises FormatError for other names."""
    name, found, text = key.rpartition(_BEGINS)
    numbers = text.split(",") if text else []
    if not found or not all(n.isascii() and n.isdecimal() and len(n) < 20 for n in numbers):
        raise FormatError(f"{key!r:.100} is no piece of a tensor, as name@0,128 is")
    return name, tuple(map(int, numbers))

"""Whether what ranks should have alike is alike: a checksum of every copy."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from gpu.compiler.ir.graph.grid import Grid, Region, own_regions
from gpu.core.errors import DistributedError
from gpu.distributed.start import init
from gpu.tensor.nn.state import get_state_dict
from gpu.tensor.tensor import Tensor


def check_replicas(state: object) -> None:
    """Compares all that several ranks have alike, bit by bit.

    All ranks call it, with the same: a model, an optimizer, or a dict of these. It is what a bad
    memory, or a program that is not the same on all ranks, is found by.

    Raises DistributedError, on all ranks, with the first tensor that differs and the ranks.
    """
    group = init()
    named = get_state_dict(state)
    if group.size == 1 or not named:
        return
    first, *rest = named.values()
    first.realize(*rest)
    sums = [(name, *pair) for name, tensor in named.items() for pair in _checksums(tensor)]
    own = Tensor(np.array([pair for _, *pair in sums], np.uint64))
    found: dict[tuple[str, int], dict[int, list[int]]] = {}
    for rank, each in enumerate(group.all_gather(own)):
        for (name, *_), (where, what) in zip(sums, each.tolist(), strict=True):
            found.setdefault((name, where), {}).setdefault(what, []).append(rank)
    for (name, _), contents in found.items():
        if len(contents) > 1:
            told = " and ".join(f"on {ranks}" for ranks in contents.values())
            raise DistributedError(
                f"copies of {name}, which ranks have alike, differ: one is {told}; go on from a"
                " checkpoint, and look whether all ranks computed the same"
            )


def _checksums(tensor: Tensor) -> list[tuple[int, int]]:
    """For each part that this rank has, where that is and what it holds."""
    grid = tensor.device
    if not isinstance(grid, Grid):
        return [(_hash(repr(tensor.shape).encode()), _hash(tensor.numpy().tobytes()))]
    regions = own_regions(grid, tensor._cuts, tensor.shape)
    return [
        (_hash(repr(Region(*region[:2])).encode()), _hash(part.numpy().tobytes()))
        for region, part in zip(regions, tensor.local(), strict=True)
    ]


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")

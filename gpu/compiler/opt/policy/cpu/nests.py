"""Lanes for kernels that compute blocks: several nests, one after the other, inside outer loops.

Each nest is scheduled as a kernel of its own would be, but that workers share outer loops alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpu.compiler.ir import kernel as K
from gpu.compiler.opt.analysis.loop_nest import outer_nest
from gpu.compiler.opt.analysis.reduction_nest import reduction_nest
from gpu.compiler.opt.opts import Opt, Tile
from gpu.compiler.opt.policy.cpu import tiling
from gpu.compiler.opt.policy.cpu.vectorize import vectorize
from gpu.compiler.targets import Target


def in_nests(kernel: K.Kernel, target: Target) -> list[Opt]:
    """Tiles for the products among the nests, and lanes for the others; none without a product."""
    core = replace(target, workers=1)
    nests = [kernel._replace(body=K.Block((loop,))) for loop in _nests(kernel)]
    if len(nests) < 2:
        return []
    tiles = [tiling.choose(nest, core) if _is_product(nest) else None for nest in nests]
    if not any(tiles):
        return []
    opts: list[Opt] = []
    for nest, tiled in zip(nests, tiles, strict=True):
        opts += [Tile(tiled, _name(nest))] if tiled else vectorize(nest, core)
    return opts


def _is_product(nest: K.Kernel) -> bool:
    """Whether it combines several operands."""
    found = reduction_nest(nest.body)
    return found is not None and len(found.operands) > 1


def _nests(kernel: K.Kernel) -> Iterator[K.Loop]:
    """The loops that follow each other inside the outermost ones."""
    around = outer_nest(kernel.body)
    for stmt in around[-1].body.body if around else ():
        if isinstance(stmt, K.Loop):
            yield stmt


def _name(nest: K.Kernel) -> str:
    (loop,) = nest.body.body
    assert isinstance(loop, K.Loop)
    return loop.var.name

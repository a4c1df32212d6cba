"""Lanes for kernels of several nests, one after the other.

Each nest is scheduled as a kernel of its own would be. Where all are inside outer loops, workers
share those alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from gpu.compiler.ir import kernel as K
from gpu.compiler.opt.analysis.dependence import is_independent
from gpu.compiler.opt.analysis.loop_nest import is_shared, outer_nest
from gpu.compiler.opt.analysis.reduction_nest import Nest, reduction_nest
from gpu.compiler.opt.opts import Bind, Opt, Residues, Tile, apply
from gpu.compiler.opt.policy.cpu import tiling
from gpu.compiler.opt.policy.cpu.vectorize import vectorize
from gpu.compiler.opt.primitives.residues import residues_of
from gpu.compiler.opt.primitives.tiling import Tiling
from gpu.compiler.targets import Target

# Nests that a kernel becomes at most: each is text, and takes time to be compiled.
MOST_NESTS: Final = 9


def in_nests(kernel: K.Kernel, target: Target) -> list[Opt]:
    """Tiles for the products among the nests, and lanes for the others; none without a product."""
    core = replace(target, workers=1)
    nests = [kernel._replace(body=K.Block((loop,))) for loop in _nests(kernel)]
    if len(nests) < 2:
        return []
    tiles = [
        tiling.cheapest(nest, core, _name(nest)) if _is_product(nest) else [] for nest in nests
    ]
    if not any(tiles):
        return []
    opts: list[Opt] = []
    for nest, tiled in zip(nests, tiles, strict=True):
        opts += tiled or vectorize(nest, core)
    return opts


def by_residue(kernel: K.Kernel, target: Target) -> list[Opt]:
    """A nest for each remainder of the places of a sum, if masks ask for few; else none.

    Workers share each of them: they write different elements.
    """
    found = reduction_nest(kernel.body)
    rows: list[str] = []
    count = 1
    for residue in residues_of(found) if found else ():
        if count * residue.factor <= MOST_NESTS:
            rows.append(residue.row.name)
            count *= residue.factor
    if not rows:
        return []
    first = Residues(tuple(rows))
    parts = apply(kernel, [first]).body
    nests = [kernel._replace(body=K.Block((loop,))) for loop in parts.body]
    tiles = _tilings(nests, target)
    others = [nest for nest, tiled in zip(nests, tiles, strict=True) if tiled is None]
    lanes = [[*vectorize(nest, target)] for nest in others]
    made = [apply(nest, opts).body.body for nest, opts in zip(others, lanes, strict=True)]
    outer = [stmt for stmts in made for stmt in stmts if isinstance(stmt, K.Loop)]
    is_parallel = is_shared(parts, target) and all(map(is_independent, outer))
    kind = target.parallel if is_parallel else ""
    whole = (
        Tile(tiled._replace(parallel=kind), _name(nest))
        for nest, tiled in zip(nests, tiles, strict=True)
        if tiled
    )
    binds = (Bind(loop.var.name, kind) for loop in outer if is_parallel)
    return [first, *whole, *itertools.chain(*lanes), *binds]


def _tilings(nests: Sequence[K.Kernel], target: Target) -> list[Tiling | None]:
    """The tiling of each nest, None where there is none.

    Nests that differ in how long their loops are have the tiles of the one with most steps.
    """
    found = {n: nest for n, one in enumerate(nests) if (nest := reduction_nest(one.body))}
    chosen: dict[int, Tiling | None] = {}
    for number in sorted(found, key=lambda n: -found[n].all_steps):
        fitted = (_fitted(tiled, found[n], found[number]) for n, tiled in chosen.items() if tiled)
        chosen[number] = next(filter(None, fitted), None) or tiling.choose(nests[number], target)
    return [chosen.get(number) for number in range(len(nests))]


def _fitted(tiled: Tiling, own: Nest, nest: Nest) -> Tiling | None:
    """The tiling of one nest for another one, if it is of independent loops that both have."""
    if len(own.independent) != len(nest.independent) or len(own.operands) != len(nest.operands):
        return None
    pairs = zip(own.independent, nest.independent, strict=True)
    both = {one.name: (one, other) for one, other in pairs if one.stop is other.stop is None}
    if not {tiled.lane, *dict(tiled.loops)} <= both.keys():
        return None
    before, lane = both[tiled.lane]
    if before.extent != lane.extent:
        return None
    sizes = ((both[name][1], size) for name, size in tiled.loops)
    loops = tuple((v.name, size if v is lane else min(size, v.extent)) for v, size in sizes)
    return tiled._replace(lane=lane.name, loops=loops)


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

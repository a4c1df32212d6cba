"""Kernels that compute blocks of rows: what a large value holds of them stays near by.

A value with many more elements than all that it is made of, and than what is made of it, as the
scores of attention are, needs no memory of its own where the kernels that read it go through it
row by row, or column by column. Each computes some rows of it at once, as many as a cache holds,
from the sources; so the products on both sides find elements that they use again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from gpu.compiler.fusion.views import (
    Access,
    Indices,
    domain_indices,
    domain_loops,
    inner_vars,
    outer_first,
    source_accesses,
    walked,
)
from gpu.compiler.ir.dims import has_symbols
from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.index import ALWAYS, Mask, Var, at_most, loop_var

# Bytes of a value from which it is worth the trouble; and how many times the elements of what it is
# made of, and of what becomes of it, it has at least.
LARGE: Final = 1 << 20
SPREAD: Final = 2
# Bytes of a value that a block should have, and how many rows it has at least and at most.
BLOCK_BYTES: Final = 1 << 18
FEWEST_ROWS: Final = 32
MOST_ROWS: Final = 64
# How many times the elements of a value may be read again for its blocks: more than are written and
# read where the value is stored, since a cache has many of them.
REREAD: Final = 8


class Block(NamedTuple):
    """Part of the domain of a kernel that is computed together.

    Attributes:
        outside: axes of the output whose loops are around a block, that of `axis` the last one.
        axis: the axis along which a block has some elements.
        size: how many.
    """

    outside: tuple[int, ...]
    axis: int
    size: int


class Domain(NamedTuple):
    """The loops of a kernel over its output.

    Attributes:
        loops: outermost first.
        indices: the element of the output that they stand at.
        mask: where there is one: the last block may have fewer.
        depth: how many loops are around a block; 0 without blocks.
    """

    loops: tuple[Var, ...]
    indices: Indices
    mask: Mask = ALWAYS
    depth: int = 0


def kernel_domain(root: Node, name: str, block: Block | None, is_read: bool = False) -> Domain:
    """The domain of a kernel whose output is `root`; loops are named by `name` and the axis.

    With `is_read` of one that writes what `root` is somewhere else, element by element.
    """
    shape = root.shape if is_read else walked(root)
    loops = domain_loops(shape, name)
    indices = domain_indices(shape, loops)
    if block is None:
        return Domain(outer_first(root, loops), indices)
    size, axis = root.shape[block.axis], block.axis
    assert isinstance(size, int)
    number = loop_var(f"{name}{axis}b", -(-size // block.size))
    row = loop_var(f"{name}{axis}", block.size)
    place = number * block.size + row
    inside = [var for a in range(len(indices)) if a not in block.outside for var in indices[a].vars]
    around = [var for a in block.outside if a != axis for var in indices[a].vars]
    return Domain(
        (*around, number, row, *inside),
        (*indices[:axis], place, *indices[axis + 1 :]),
        at_most(place, size - 1),
        len(around) + 1,
    )


def block_for(
    node: Node,
    accesses: Collection[Access],
    root: Node,
    domain: Domain,
    in_memory: Callable[[Node], bool],
) -> Block | None:
    """The blocks in which the kernel of `root` may compute what it reads of `node`; None for none.

    `domain` is that of the kernel without blocks.
    """
    if has_symbols((node.shape, root.shape)) or node.nbytes < LARGE:
        return None
    used = frozenset[Var]().union(*(i.vars for indices, _ in accesses for i in indices))
    outside = tuple(
        axis for axis, index in enumerate(domain.indices) if index.vars and index.vars <= used
    )
    if not outside:
        return None
    sources = _sources(node, next(iter(accesses)), in_memory)
    if not is_spread(node, sum(source.size for source in sources) + root.size):
        return None
    axis = outside[-1]
    rows = root.shape[axis]
    row = node.size // math.prod(int(root.shape[a]) for a in outside)
    most = min(max(BLOCK_BYTES // max(row * node.dtype.itemsize, 1), FEWEST_ROWS), MOST_ROWS)
    size = _even(int(rows), most)
    along = domain.indices[axis].vars
    whole = sum(source.size for source, moving in sources.items() if along.isdisjoint(moving))
    again = whole * -(-int(rows) // size)
    return Block(outside, axis, size) if size < rows and again <= REREAD * node.size else None


def _sources(
    node: Node, access: Access, in_memory: Callable[[Node], bool]
) -> dict[Node, frozenset[Var]]:
    """What is read from memory to compute an element of `node`, and what its place depends on."""
    found: dict[Node, frozenset[Var]] = {}
    seen, waiting = {node}, [(node, access)]
    while waiting:
        reader, where = waiting.pop()
        loops = inner_vars(reader, f"again{len(seen)}_")
        for source, read in source_accesses(reader, where, loops):
            if in_memory(source):
                own = frozenset[Var]().union(*(index.vars for index in read[0]))
                found[source] = found.get(source, frozenset()) | own
            elif source not in seen:
                seen.add(source)
                waiting.append((source, read))
    return found


def is_spread(node: Node, others: int) -> bool:
    """Whether `node` is large, and has many more elements than `others`."""
    return node.nbytes >= LARGE and node.size > SPREAD * others


def _even(rows: int, most: int) -> int:
    """Rows of a block: a divisor of all where there is a large one, else an even cut."""
    largest = next(n for n in range(min(most, rows), 0, -1) if rows % n == 0)
    return largest if 2 * largest > most else -(-rows // -(-rows // most))

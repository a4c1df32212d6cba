"""Reductions of many elements, split in two: partial results, and their sum.

There are two reasons: with few results, or few columns of them, not every worker would have a part;
and a sum of products that is longer than a cache, as the gradient of a convolution's weights over a
batch, would read all its operands anew for every few results. A part of it stays in the cache
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gpu.compiler.ir.dims import has_symbols
from gpu.compiler.ir.graph import Node, accumulate_as, unmoved
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.rewrite import rewrite
from gpu.compiler.targets import Target

# Elements combined into one result from which a second kernel is worth its launch.
LONG: Final = 1 << 17
# Results from which there is enough to do at once anyway.
MANY: Final = 16
PARTS: Final = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
# Parts that any machine gets of a reduction to one result; those with blocks of threads get blocks
# enough that each worker has two, which read while the other adds up.
LEAST_PARTS: Final = 64
BLOCKS_EACH: Final = 2
# Of reductions from row to row: bytes of the columns that a block does, elements that it has to do
# at least, and how many times too few blocks there are before they are worth a second kernel.
LINE: Final = 128
LEAST_WORK: Final = 1 << 14
FEW_BLOCKS: Final = 8
# Products summed into one result from which their operands are worth keeping in a cache, how often
# each element of those is used, and bytes of operands that stay in one.
LONG_SUM: Final = 1 << 13
REUSED: Final = 8
CACHED: Final = 1 << 19


def split_reductions(
    roots: Sequence[Node],
    is_leaf: Callable[[Node], bool],
    target_of: Callable[[str], Target],
) -> list[Node]:
    """Long reductions to few results become partial results, one for each part, and their sum.

    `target_of` gives the machine of a device; one with a single worker gains nothing.
    """

    def change(node: Node) -> Node | None:
        target = target_of(node.device)
        if target.workers > 1 and (parts := _parts_of_columns(node, target)) > 1:
            return _split(node, parts, _most_divisible(node, parts))
        if target.workers > 1 and (parts := _parts_of_long(node, target)) > 1:
            return _split(node, parts, _longest(node))
        if target.vector_bytes and (parts := _parts_in_cache(node)) > 1:
            return _split(node, parts, _longest(node))
        return None

    return rewrite(roots, is_leaf, change)


def _parts_of_long(node: Node, target: Target) -> int:
    """Parts of a long reduction to few results; 1 for any other node."""
    if node.kind != "reduce" or not node.size or node.src[0].size < LONG * node.size:
        return 1
    blocks = BLOCKS_EACH * target.workers if target.threads else 0
    return max(-(-blocks // node.size), LEAST_PARTS if node.size <= MANY else 1)


def _parts_of_columns(node: Node, target: Target) -> int:
    """Parts of a reduction from row to row, of which a block of threads does a few columns.

    There are so many that the blocks are enough for the machine; 1 for any other node, and where
    each would have little to do.
    """
    if not target.access_bytes or node.kind != "reduce" or not node.size:
        return 1
    source, axes = node.src[0], node.attr[1]
    if not source.shape or len(source.shape) - 1 in axes or uses_again(source):
        return 1
    blocks = -(-node.size * source.dtype.itemsize // LINE)
    wanted = -(-BLOCKS_EACH * target.workers // blocks)
    parts = min(wanted, source.size // (blocks * LEAST_WORK))
    return parts if wanted >= FEW_BLOCKS else 1


def uses_again(source: Node) -> bool:
    """Whether a value is made of elements of several others that it uses many times each."""
    made = unmoved(source)
    while made.kind == "cast":
        made = unmoved(made.src[0])
    operands = [unmoved(operand).size for operand in made.src] if made.kind == "alu" else []
    return len(operands) > 1 and source.size >= REUSED * max(operands)


def _parts_in_cache(node: Node) -> int:
    """Parts of a long sum of products whose operands fit a cache; 1 where there is no gain."""
    if node.kind != "reduce" or node.attr[0] != "add" or not node.size:
        return 1
    product = node.src[0]
    if product.size < LONG_SUM * node.size or (product.kind, product.attr) != ("alu", ("mul",)):
        return 1
    bases = [unmoved(factor) for factor in product.src]
    if product.size < REUSED * max(base.size for base in bases):
        return 1
    read = sum(base.nbytes for base in bases)
    parts = -(-read // CACHED)
    # With more, writing the partial results and reading them again would take over.
    return parts if 4 * parts * node.nbytes <= read else 1


def _counted(node: Node) -> list[int]:
    """Axes of a reduction whose sizes are known."""
    return [a for a in node.attr[1] if not has_symbols(node.src[0].shape[a])]


def _longest(node: Node) -> int | None:
    """The longest axis of a reduction."""
    return max(_counted(node), key=lambda a: node.src[0].shape[a], default=None)


def _most_divisible(node: Node, wanted: int) -> int | None:
    """The first axis of a reduction that can be cut into `wanted` parts, or nearly as many."""

    def parts(axis: int) -> int:
        possible = [p for p in PARTS if node.src[0].shape[axis] % p == 0]
        return min(max(possible, default=1), wanted)

    return max(_counted(node), key=parts, default=None)


def _split(node: Node, wanted: int, axis: int | None) -> Node | None:
    """The reduction in `wanted` parts, or the next number that an axis can be cut into."""
    if axis is None:
        return None
    monoid, axes = node.attr
    source = node.src[0]
    size = source.shape[axis]
    possible = [p for p in PARTS if size % p == 0]
    # Odd sizes have few divisors, of which any will do.
    possible = possible or [p for p in range(3, PARTS[-1], 2) if size % p == 0 and p < size]
    if not possible:
        return None
    parts = next((p for p in possible if p >= wanted), possible[-1])
    wide = G.cast(source, accumulate_as(source.dtype))
    shape = (*source.shape[:axis], parts, size // parts, *source.shape[axis + 1 :])
    inner = [a + (a >= axis) for a in axes]  # the split axis by its second half
    # In memory of their own: two reductions by one monoid would become one again.
    partial = G.contiguous(G.reduce(monoid, G.reshape(wide, shape), inner))
    whole = G.reduce(monoid, partial, (axis,))
    return G.cast(G.reshape(whole, node.shape), node.dtype)

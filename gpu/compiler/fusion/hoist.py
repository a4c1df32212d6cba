"""Factors that stand still along a sum, taken out of it.

`sum(a * r)` over axes along which `r` is the same is `sum(a) * r`: weights that are normalised for
a product with a matrix need no value of their own then, since the product is normalised instead.
That is done where `a` is an exponential, whose sum is what normalises it: other factors may be
there to keep a sum from overflowing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpu.compiler.fusion.blocks import LARGE
from gpu.compiler.fusion.views import domain_indices, domain_loops, source_index
from gpu.compiler.ir.dims import has_symbols
from gpu.compiler.ir.graph import MOVEMENT, Node, make
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.rewrite import rewrite
from gpu.compiler.ir.index import ALWAYS


def hoist_factors(
    roots: Sequence[Node], is_leaf: Callable[[Node], bool], applies: Callable[[str], bool]
) -> list[Node]:
    """Sums of products with a large computed factor, without what stands still in that factor.

    `applies` says for which devices.
    """

    def change(node: Node) -> Node | None:
        if node.kind != "reduce" or node.attr[0] != "add" or not applies(node.device):
            return None
        product = node.src[0]
        if (product.kind, product.attr) != ("alu", ("mul",)) or not product.dtype.is_float:
            return None
        for number, factor in enumerate(product.src):
            found = _split(factor, node.attr[1], is_leaf)
            if found is not None:
                moving, still = found
                sources = [moving if n == number else s for n, s in enumerate(product.src)]
                total = G.reduce("add", G.alu("mul", *sources), node.attr[1])
                once = [(0, 1 if a in node.attr[1] else d, 1) for a, d in enumerate(still.shape)]
                return G.alu("mul", total, G.slice_(still, once))
        return None

    return rewrite(roots, is_leaf, change)


def _split(
    factor: Node, axes: Sequence[int], is_leaf: Callable[[Node], bool]
) -> tuple[Node, Node] | None:
    """A factor as what moves along `axes` and what does not, if it is such a product."""
    views, base = [], factor
    while base.kind in MOVEMENT and not is_leaf(base):
        views.append(base)
        base = base.src[0]
    if is_leaf(base) or (base.kind, base.attr) != ("alu", ("mul",)) or base.nbytes < LARGE:
        return None
    if has_symbols((factor.shape, base.shape)):
        return None
    for still, moving in (base.src, base.src[::-1]):
        grows = (moving.kind, moving.attr) in (("alu", ("exp",)), ("alu", ("exp2",)))
        if grows and _stands_still(_seen(still, views), axes, is_leaf):
            return _seen(moving, views), _seen(still, views)
    return None


def _seen(node: Node, views: Sequence[Node]) -> Node:
    """`node` through views of another one of its shape."""
    for view in reversed(views):
        node = make(view.kind, (node,), view.attr, view.shape, view.dtype, view.device)
    return node


def _stands_still(node: Node, axes: Sequence[int], is_leaf: Callable[[Node], bool]) -> bool:
    """Whether a view shows the same along `axes`."""
    loops = domain_loops(node.shape, "i")
    indices = domain_indices(node.shape, loops)
    along = frozenset[object]().union(*(indices[axis].vars for axis in axes))
    while node.kind in MOVEMENT and not is_leaf(node):
        indices, mask = source_index(node, indices)
        if mask is not ALWAYS:
            return False
        node = node.src[0]
    return all(along.isdisjoint(index.vars) for index in indices)

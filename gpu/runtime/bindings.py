"""Programs with variables that are bound to two values: what has to be computed before the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpu.compiler.ir.dims import Symbol, TwoValues, dimension, find_symbols
from gpu.compiler.ir.graph import Node, Shape, toposort


def earlier(roots: Sequence[Node], is_computed: Callable[[Node], bool]) -> Node | None:
    """Something that has to be computed by itself, before `roots` are or besides them.

    It was built with another value of a variable than what is made of it, or than another root. So
    each step of a loop may write at another position before anything is computed. Raises TwoValues
    where sizes differ, which computing does not change.
    """
    symbols: dict[Node, Shape] = {}
    for node in toposort(roots, is_computed):
        own: dict[str, Symbol] = {}
        find_symbols(node.shape if is_computed(node) else (node.shape, node.attr), own)
        for source in () if is_computed(node) else node.src:
            if _disagree(symbols[source], own) and not is_computed(source):
                return source
            find_symbols(symbols[source], own)
        symbols[node] = tuple(dimension(symbol.as_expr) for symbol in own.values())
    together: dict[str, Symbol] = {}
    for root in roots:
        if not is_computed(root):
            if _disagree(symbols[root], together):
                return root
            find_symbols(symbols[root], together)
    return None


def _disagree(some: Shape, others: dict[str, Symbol]) -> bool:
    try:
        find_symbols(some, dict(others))
    except TwoValues:
        return True
    return False

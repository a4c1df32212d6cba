"""From graphs of complex numbers to graphs of floats: a rule for each kind of node.

`lower` gives for each complex node its numbers as pairs of floats, a last axis of two, as they lie
in memory. What is computed is an `interleave` of two nodes, the real and the imaginary parts, of
which `G.component` gives each back: so only what has to be in memory is ever put together.

Quotients are formed as numpy forms them, by R. L. Smith's method ("Algorithm 116: Complex
division", 1962), products with four multiplications.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gpu.compiler.ir.dims import has_symbols, is_many
from gpu.compiler.ir.graph import MOVEMENT, Node, make, toposort
from gpu.compiler.ir.graph import build as G
from gpu.core.errors import Unsupported


class Lowered(dict[Node, Node]):
    """What nodes have become, and which of them stay as they are."""

    def __init__(self, is_leaf: Callable[[Node], bool]):
        super().__init__()
        self.is_leaf = is_leaf


Rule = Callable[[Node, Lowered], Node]


def lower(
    roots: Sequence[Node],
    is_leaf: Callable[[Node], bool],
    read: Callable[[Node], Node] = G.as_real,
    note: Callable[[Node, Node], object] = lambda node, lowered: None,
) -> list[Node]:
    """`roots` without complex numbers: of each that is complex the pairs.

    Args:
        roots: nodes of any dtype.
        is_leaf: which nodes stay as they are.
        read: gives the pairs of a complex one of them.
        note: is told of each node that is computed, and of what it became.

    Raises Unsupported for an operation that has no rule for complex numbers.
    """
    done = Lowered(is_leaf)
    for node in toposort(roots, is_leaf):
        if is_leaf(node):
            done[node] = read(node) if node.dtype.is_complex else node
            continue
        if node.dtype.is_complex or any(source.dtype.is_complex for source in node.src):
            rule = _RULES.get(node.kind)
            done[node] = _refuse(node) if rule is None else rule(node, done)
        else:
            done[node] = _rebuilt(node, done)
        if done[node] is not node:
            note(node, done[node])
    return [done[root] for root in roots]


def _refuse(node: Node) -> Node:
    what = " ".join([node.kind, *map(str, node.attr)])
    raise Unsupported(
        f"{what} is not there for {node.dtype.name}: compute it of .real and .imag, or on"
        " x.view_as_real(), whose last axis has both parts"
    )


def _rebuilt(node: Node, done: Lowered) -> Node:
    """A node of real numbers over what its sources have become."""
    sources = tuple([done[source] for source in node.src])
    if all(new is old for new, old in zip(sources, node.src, strict=True)):
        return node
    if node.kind == "slice" and _is_apart(sources[0]) and _is_half(node):
        ranges = zip(node.attr[:-1], node.shape[:-1], strict=True)
        part = G.component(sources[0], node.attr[-1][0])
        return G.reshape(G.slice_(part, [(s, n, d) for (s, d), n in ranges]), node.shape)
    return make(node.kind, sources, node.attr, node.shape, node.dtype, node.device)


def _parts(pairs: Node) -> tuple[Node, Node]:
    return G.component(pairs, 0), G.component(pairs, 1)


def _is_half(node: Node) -> bool:
    """Whether a slice of pairs takes one part of each, and always the same."""
    return node.shape[-1] == 1 and not has_symbols(node.attr[-1][0])


def _is_apart(pairs: Node) -> bool:
    """Whether the parts are two nodes, which nobody has put together in memory."""
    return pairs.kind == "interleave" and not pairs.attr[0]


def _stored(pairs: Node) -> Node:
    """The same pairs in memory."""
    return G.interleave(*_parts(pairs), is_stored=True)


def _each(change: Callable[..., Node], *operands: Node) -> Node:
    """Pairs whose parts are made in one way of those of `operands`, which are pairs too."""
    return G.interleave(
        change(*(G.component(pairs, 0) for pairs in operands)),
        change(*(G.component(pairs, 1) for pairs in operands)),
    )


# Operations on elements.


def _mul(x: Node, y: Node) -> Node:
    (a, b), (c, d) = _parts(x), _parts(y)
    return G.interleave(
        G.alu("sub", G.alu("mul", a, c), G.alu("mul", b, d)),
        G.alu("add", G.alu("mul", a, d), G.alu("mul", b, c)),
    )


def _div(x: Node, y: Node) -> Node:
    """The larger part of the divisor is divided by, so that no square over- or underflows."""
    (re, im), (c, d) = _parts(x), _parts(y)
    size_c, size_d = G.alu("abs", c), G.alu("abs", d)
    wide = G.alu("le", size_d, size_c)

    def chosen(if_wide: Node, otherwise: Node) -> Node:
        return G.alu("where", wide, if_wide, otherwise)

    large, small = chosen(c, d), chosen(d, c)
    ratio = G.alu("div", small, large)
    one = G.const(1, c.shape, c.dtype, c.device)
    scale = G.alu("div", one, G.alu("add", large, G.alu("mul", small, ratio)))
    first, second = chosen(re, im), chosen(im, re)
    along = G.alu("mul", G.alu("add", first, G.alu("mul", second, ratio)), scale)
    turned = G.alu("mul", first, ratio)
    across = chosen(G.alu("sub", second, turned), G.alu("sub", turned, second))
    zero = G.alu("eq", large, G.const(0, c.shape, c.dtype, c.device))
    return G.interleave(
        G.alu("where", zero, G.alu("div", re, size_c), along),
        G.alu("where", zero, G.alu("div", im, size_c), G.alu("mul", across, scale)),
    )


def _eq(x: Node, y: Node) -> Node:
    pairs = zip(_parts(x), _parts(y), strict=True)
    return G.alu("and", *(G.alu("eq", a, b) for a, b in pairs))


def _ne(x: Node, y: Node) -> Node:
    pairs = zip(_parts(x), _parts(y), strict=True)
    return G.alu("or", *(G.alu("ne", a, b) for a, b in pairs))


def _by_parts(op: str) -> Callable[..., Node]:
    return lambda *operands: _each(lambda *parts: G.alu(op, *parts), *operands)


def _where(condition: Node, x: Node, y: Node) -> Node:
    return _each(lambda a, b: G.alu("where", condition, a, b), x, y)


_OPS: Final[dict[str, Callable[..., Node]]] = {
    "neg": _by_parts("neg"),
    "add": _by_parts("add"),
    "sub": _by_parts("sub"),
    "mul": _mul,
    "div": _div,
    "eq": _eq,
    "ne": _ne,
    "where": _where,
}


def _alu(node: Node, done: Lowered) -> Node:
    return _OPS[node.attr[0]](*(done[source] for source in node.src))


def _cast(node: Node, done: Lowered) -> Node:
    (source,), part = node.src, node.dtype.real
    if source.dtype.is_complex:
        return _each(lambda x: G.cast(x, part), done[source])
    zero = G.const(0, node.shape, part, node.device)
    return G.interleave(G.cast(done[source], part), zero)


# Movements: of both parts where they are apart, else of pairs as they lie.


def _movement(node: Node, done: Lowered) -> Node:
    pairs = done[node.src[0]]
    if _is_apart(pairs):
        return _each(lambda part: _moved(node, part, ()), pairs)
    return _moved(node, pairs, (2,))


def _moved(node: Node, x: Node, tail: tuple[int, ...]) -> Node:
    """`x`, which may have a last axis besides, moved as `node` moves its source."""
    attr, shape = node.attr, (*node.shape, *tail)
    if tail and node.kind == "permute":
        attr = ((*attr[0], len(node.shape)),)
    elif tail and node.kind in ("slice", "pad"):
        attr = (*attr, (0, 1) if node.kind == "slice" else (0, 0, 0))
    if node.kind == "pad":
        return G.pad(x, attr)
    if x.kind == "const" and node.kind != "unskew":
        return G.const(x.attr[0], shape, x.dtype, x.device)
    return make(node.kind, (x,), attr, shape, x.dtype, x.device)


def _written(pairs: Node, value: Node, place: Sequence[tuple[int, int]]) -> Node:
    """Pairs whose parts are apart with a region replaced."""
    return _each(lambda part, new: G.write(part, new, place), pairs, value)


def _write(node: Node, done: Lowered) -> Node:
    pairs, value = (done[source] for source in node.src)
    if _is_apart(pairs):
        return _written(pairs, value, node.attr)
    return G.write(pairs, value, [*node.attr, (0, 1)])


# Sums, products, and what an index says.


def _reduce(node: Node, done: Lowered) -> Node:
    monoid, axes = node.attr
    (x,) = node.src
    if monoid == "mul":
        return _product(node, done[x])
    if _is_contraction(x, done):
        first, second = (_apart(factor, done) for factor in x.src)
        return _sum_of_products(first, second, axes)
    return _each(lambda part: G.reduce(monoid, part, axes), done[x])


def _is_contraction(x: Node, done: Lowered) -> bool:
    """Whether `x`, which is summed, has products of repeated factors, as those of matrices are."""
    product = x.kind == "alu" and x.attr == ("mul",) and not done.is_leaf(x)
    return product and all(_repeated(factor, done) is not None for factor in x.src)


def _repeated(x: Node, done: Lowered) -> list[Node] | None:
    """The movements that lead to `x` from numbers of which it repeats all; None without such."""
    chain: list[Node] = []
    repeats = False
    while x.kind in MOVEMENT and not done.is_leaf(x):
        if repeats and x.kind not in ("expand", "reshape", "permute"):
            break
        chain.append(x)
        repeats = repeats or x.kind == "expand"
        x = x.src[0]
    return chain if repeats else None


def _apart(x: Node, done: Lowered) -> tuple[Node, Node]:
    """The parts of repeated numbers, each in memory of its own before they are repeated."""
    chain = _repeated(x, done)
    assert chain is not None
    first, second = map(G.contiguous, _parts(done[chain[-1].src[0]]))
    for node in reversed(chain):
        first, second = _moved(node, first, ()), _moved(node, second, ())
    return first, second


def _sum_of_products(x: tuple[Node, Node], y: tuple[Node, Node], axes: Sequence[int]) -> Node:
    """Four sums of real products, each in a kernel of its own, which can have tiles."""

    def total(p: Node, q: Node) -> Node:
        return G.contiguous(G.reduce("add", G.alu("mul", p, q), axes))

    (a, b), (c, d) = x, y
    return G.interleave(
        G.alu("sub", total(a, c), total(b, d)), G.alu("add", total(a, d), total(b, c))
    )


def _product(node: Node, pairs: Node) -> Node:
    """Halves are multiplied, and what is left over at the end, until one number is left."""
    for axis in node.attr[1]:
        while is_many(count := pairs.shape[axis]):
            if has_symbols(count):
                raise Unsupported(
                    f"a product of complex numbers along axis {axis} of symbolic size {count};"
                    " bind the size, or sum logarithms"
                )
            half = count // 2
            low, high = _along(pairs, axis, 0, half), _along(pairs, axis, half, half)
            product = _mul(low, high)
            if count % 2:
                rest, first = _along(pairs, axis, 2 * half, 1), _along(product, axis, 0, 1)
                place = [(0, 1)] * len(node.shape)
                product = _written(product, _mul(first, rest), place)
            pairs = _stored(product)
    return pairs


def _along(pairs: Node, axis: int, start: int, count: int) -> Node:
    """Some numbers along an axis, as parts."""
    ranges = [(0, n, 1) for n in pairs.shape[:-1]]
    ranges[axis] = (start, count, 1)
    return _each(lambda part: G.slice_(part, ranges), pairs)


def _scan(node: Node, done: Lowered) -> Node:
    (monoid, axis), pairs = node.attr, done[node.src[0]]
    if monoid == "add":
        return _each(lambda part: G.scan(monoid, part, axis), pairs)
    count = node.shape[axis]
    if has_symbols(count):
        _refuse(node)
    distance = 1
    while distance < count:  # W. D. Hillis and G. L. Steele, "Data parallel algorithms", 1986
        later = _mul(
            _along(pairs, axis, distance, count - distance),
            _along(pairs, axis, 0, count - distance),
        )
        place = [(distance if a == axis else 0, 1) for a in range(len(node.shape))]
        pairs = _stored(_written(pairs, later, place))
        distance *= 2
    return pairs


def _gather(node: Node, done: Lowered) -> Node:
    x, index = node.src
    return _each(lambda part: G.gather(part, done[index], node.attr[0]), done[x])


def _reorder(node: Node, done: Lowered) -> Node:
    x, index = node.src
    return _each(lambda part: G.reorder(part, done[index], node.attr[0]), done[x])


def _scatter(node: Node, done: Lowered) -> Node:
    x, index, updates = (done[source] for source in node.src)
    axis, monoid = node.attr
    if monoid == "mul":
        _refuse(node)
    return _each(lambda old, new: G.scatter(old, index, new, axis, monoid), x, updates)


# What is in memory.


def _contiguous(node: Node, done: Lowered) -> Node:
    pairs = done[node.src[0]]
    if _is_apart(pairs):
        return _stored(pairs)
    return make("contiguous", (pairs,), node.attr, pairs.shape, pairs.dtype, pairs.device)


def _custom_grad(node: Node, done: Lowered) -> Node:
    """For complex numbers too, rules give a gradient for each operand, whatever the value."""
    first, *operands = (done[source] for source in node.src)
    rule, *numbers = node.attr
    real = rule == "recomputed" and not any(source.dtype.is_complex for source in node.src)
    if rule not in ("flat", "own", "argument", "checked") and not real:
        _refuse(node)
    if not node.dtype.is_complex:
        return G.custom_grad(rule, first, operands, *numbers)
    return _each(lambda part: G.custom_grad(rule, part, operands, *numbers), first)


def _multi(node: Node, done: Lowered) -> Node:
    shape = (*node.shape, 2)
    return G.multi([done[part] for part in node.src], node.attr[0], shape, node.device)


def _const(node: Node, done: Lowered) -> Node:
    return G.interleave(G.real(node), G.imag(node))


def _iota(node: Node, done: Lowered) -> Node:
    line = G.iota(node.shape[0], node.dtype.real, node.device)
    return G.interleave(line, G.const(0, line.shape, line.dtype, line.device))


def _detach(node: Node, done: Lowered) -> Node:
    pairs = done[node.src[0]]
    if _is_apart(pairs):
        return _each(G.detach, pairs)
    return G.detach(pairs)


def _same(node: Node, done: Lowered) -> Node:
    return done[node.src[0]]


_RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(MOVEMENT, _movement),
    "const": _const,
    "iota": _iota,
    "alu": _alu,
    "cast": _cast,
    "as_real": _same,
    "as_complex": _same,
    "reduce": _reduce,
    "scan": _scan,
    "gather": _gather,
    "reorder": _reorder,
    "scatter": _scatter,
    "write": _write,
    "contiguous": _contiguous,
    "detach": _detach,
    "custom_grad": _custom_grad,
    "copy": lambda node, done: G.copy(done[node.src[0]], node.device, *node.attr),
    "multi": _multi,
    "part": lambda node, done: G.part(done[node.src[0]], *node.attr),
}

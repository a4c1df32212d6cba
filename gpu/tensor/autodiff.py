"""Reverse-mode differentiation: from a graph to the graph of its gradients."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import product
from typing import Final

from gpu.compiler.ir.derivative import RULES, has_gradient
from gpu.compiler.ir.graph import MOVEMENT, Node, toposort
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.grid import axes_of, cuts_of
from gpu.core.dtype import dtypes
from gpu.tensor import customgrad
from gpu.tensor.loops import loop_gradients
from gpu.tensor.recompute import is_recomputed, recomputed_gradients, results_together

Gradients = tuple[Node | None, ...]


def gradients(
    result: Node, seed: Node, targets: Sequence[Node], order: Sequence[Node] | None = None
) -> list[Node | None]:
    """The gradient of `result` with respect to each of `targets`.

    Args:
        result: the node that is differentiated.
        seed: the gradient of `result`, of its shape and dtype.
        targets: nodes of the graph below `result`.
        order: what `result` is computed from, sources first, where the caller has it.

    Returns:
        A node of the target's shape and dtype for each target, or None where `result` does not
        depend on it through operations that have a gradient.
    """
    return pulled_back({result: seed}, targets, order)


def pulled_back(
    seeds: Mapping[Node, Node], targets: Sequence[Node], order: Sequence[Node] | None = None
) -> list[Node | None]:
    """The same for several results, each with its gradient."""
    wanted = set(targets)
    order = toposort(seeds, wanted.__contains__) if order is None else order
    if any(node.dtype.kind == "complex" for node in order):
        return _of_complex(seeds, targets)
    return _pulled_back(seeds, targets, order)


def _of_complex(seeds: Mapping[Node, Node], targets: Sequence[Node]) -> list[Node | None]:
    """The same where some nodes are complex, on the graph of their parts.

    Of a real function that of a complex target is the derivative by its real part plus i times that
    by its imaginary part, as in torch.
    """
    from gpu.compiler.ir.graph.complex import lower  # only now: few programs need it

    wanted = set(targets)
    lowered = lower([*seeds], lambda node: node in wanted or node.kind == "buffer")
    total: dict[Node, Node] = {}
    for result, seed in zip(lowered, seeds.values(), strict=True):
        own = G.as_real(seed) if seed.dtype.is_complex else seed
        total[result] = G.alu("add", total[result], own) if result in total else own
    ends = [G.as_real(node) if node.dtype.is_complex else node for node in targets]
    found = _pulled_back(total, ends, toposort(total, set(ends).__contains__))
    return [
        G.as_complex(grad) if grad is not None and target.dtype.is_complex else grad
        for grad, target in zip(found, targets, strict=True)
    ]


def _pulled_back(
    seeds: Mapping[Node, Node], targets: Sequence[Node], order: Sequence[Node]
) -> list[Node | None]:
    wanted = set(targets)
    carries = _nodes_that_carry(order, wanted)
    grads = dict(seeds)
    together = results_together(order)
    # For each node that has results, the gradients of those, by their numbers.
    of_results: dict[Node, dict[int, Node]] = {}
    for node in reversed(order):
        if node in together:
            for source, own in _recomputed(together[node], grads, wanted, carries).items():
                _add(grads, source, own)
        if is_recomputed(node):  # with the first of the function's results
            continue
        if node in wanted or node not in carries or not (node in grads or node in of_results):
            continue
        if node.kind == "loop":
            needed = [source in carries for source in node.src]
            parts = tuple(loop_gradients(node, of_results.pop(node), needed, pulled_back))
        elif node.kind in ("kernel", "host"):
            parts = tuple(node.attr[1](node, of_results.pop(node)))
        elif node.kind == "result":
            of_results.setdefault(node.src[0], {})[node.attr[0]] = grads.pop(node)
            continue
        elif node.kind == "alu":
            parts = _alu(node, grads.pop(node), carries)
        elif node.kind in MOVEMENT:
            parts = _of_view(node, grads.pop(node))
        else:
            parts = _RULES[node.kind](node, grads.pop(node))
        for source, part in zip(node.src, parts, strict=True):
            if part is not None and source in carries:
                _add(grads, source, part)
    return [grads.get(target) for target in targets]


def _add(grads: dict[Node, Node], source: Node, part: Node) -> None:
    known = grads.get(source)
    grads[source] = part if known is None else G.alu("add", known, part)


def _recomputed(
    results: Sequence[Node], grads: dict[Node, Node], wanted: set[Node], carries: set[Node]
) -> Mapping[Node, Node]:
    """What comes of the gradients of one function's results, which are used up."""
    ends = {node for node in results if node in wanted or node not in carries}
    seeds = {node: grads.pop(node) for node in results if node in grads and node not in ends}
    return recomputed_gradients(seeds, wanted, carries, pulled_back) if seeds else {}


def reaches(result: Node, targets: Container[Node]) -> bool:
    """Whether a gradient of `result` could reach one of `targets`."""
    return next(reached(result, targets), None) is not None


def reached(result: Node, targets: Container[Node]) -> Iterator[Node]:
    """The nodes of `targets` that a gradient of `result` could reach first."""
    seen = {result}
    stack = [result]
    while stack:
        node = stack.pop()
        if node in targets:
            yield node
        elif node.kind != "detach" and has_gradient(node.dtype):
            for source in node.src:
                if source not in seen:
                    seen.add(source)
                    stack.append(source)


def _nodes_that_carry(order: Sequence[Node], wanted: set[Node]) -> set[Node]:
    """Nodes through which a gradient can flow to something wanted."""
    carries = set(wanted)
    for node in order:
        flows = node.kind != "detach" and has_gradient(node.dtype)
        if flows and not carries.isdisjoint(node.src):
            carries.add(node)
    return carries


def _of_view(node: Node, grad: Node) -> Gradients:
    """The gradient of what a view shows, summed before it is rounded to fewer bits."""
    if grad.kind == "cast":
        wide = grad.src[0].dtype
        if wide.is_float and grad.dtype.is_float and wide.bits > grad.dtype.bits:
            (part,) = _RULES[node.kind](node, grad.src[0])
            return (part and G.cast(part, grad.dtype.element),)
    return _RULES[node.kind](node, grad)


def _alu(node: Node, grad: Node, carries: Container[Node]) -> Gradients:
    rule = RULES.get(node.attr[0])
    if rule is None:
        return (None,) * len(node.src)
    parts = rule(G.GraphBuilder(node.shape, node.device), node.src, node, grad)
    return tuple(
        [
            None if part is None or source not in carries else part()
            for source, part in zip(node.src, parts, strict=True)
        ]
    )


def _cast(node: Node, grad: Node) -> Gradients:
    source = node.src[0].dtype
    return (G.cast(grad, source.element) if has_gradient(source) else None,)


def _reduce(node: Node, grad: Node) -> Gradients:
    monoid, axes = node.attr
    (x,) = node.src
    if monoid == "add":
        return (G.expand(grad, x.shape),)
    if monoid == "mul":
        return (_product(node, grad),)
    chosen = G.alu("eq", x, G.expand(node, x.shape))
    share = G.cast(chosen, x.dtype)
    ties = G.reduce("add", share, axes)
    each = G.expand(G.alu("div", grad, ties), x.shape)
    return (G.alu("mul", share, each),)


def _product(node: Node, grad: Node) -> Node:
    """The gradient of a product: the product of the others, right also where factors are zero."""
    (x,), axes = node.src, node.attr[1]
    b = G.GraphBuilder(x.shape, x.device)
    zero, one = b.like(x, 0), b.like(x, 1)
    is_zero = b.eq(x, zero)
    zeros = G.expand(G.reduce("add", b.where(is_zero, one, zero), axes), x.shape)
    rest = G.expand(G.reduce("mul", b.where(is_zero, one, x), axes), x.shape)
    others_if_zero = b.where(b.eq(zeros, one), rest, zero)
    others = b.where(b.eq(zeros, zero), b.div(rest, b.where(is_zero, one, x)), zero)
    return b.mul(G.expand(grad, x.shape), b.where(is_zero, others_if_zero, others))


def _expand(node: Node, grad: Node) -> Gradients:
    source = node.src[0].shape
    axes = [a for a, (s, d) in enumerate(zip(source, node.shape, strict=True)) if s != d]
    return (G.reduce("add", grad, axes),)


def _permute(node: Node, grad: Node) -> Gradients:
    order: tuple[int, ...] = node.attr[0]
    return (G.permute(grad, [order.index(axis) for axis in range(len(order))]),)


def _slice(node: Node, grad: Node) -> Gradients:
    backwards = [axis for axis, (_, step) in enumerate(node.attr) if step < 0]
    if backwards:
        grad = G.slice_(
            grad,
            [(n - 1, n, -1) if a in backwards else (0, n, 1) for a, n in enumerate(grad.shape)],
        )
    padding = []
    for (start, step), size, whole in zip(node.attr, node.shape, node.src[0].shape, strict=True):
        first = start if step > 0 else start + (size - 1) * step
        covered = (size - 1) * abs(step) + 1
        padding.append((first, whole - first - covered, abs(step) - 1) if size else (0, whole, 0))
    return (G.pad(grad, padding),)


def _pad(node: Node, grad: Node) -> Gradients:
    sizes = node.src[0].shape
    ranges = [(lo, size, gap + 1) for (lo, _, gap), size in zip(node.attr, sizes, strict=True)]
    return (G.slice_(grad, ranges),)


def _skew(node: Node, grad: Node) -> Gradients:
    axis, tap, stride, dilation = node.attr
    return (G.unskew(grad, axis, tap, stride, dilation, node.src[0].shape[axis]),)


def _unskew(node: Node, grad: Node) -> Gradients:
    axis, tap, stride, dilation = node.attr
    return (G.skew(grad, axis, tap, stride, dilation, node.src[0].shape[axis]),)


def _gather(node: Node, grad: Node) -> Gradients:
    x, index = node.src
    zeros = G.const(0, x.shape, x.dtype, x.device)
    return (G.scatter(zeros, index, grad, node.attr[0], "add"), None)


def _scatter(node: Node, grad: Node) -> Gradients:
    axis, monoid = node.attr
    _, index, updates = node.src
    if monoid == "add":
        return (grad, None, G.gather(grad, index, axis))
    if monoid == "set":
        zeros = G.const(0, updates.shape, updates.dtype, updates.device)
        return (G.scatter(grad, index, zeros, axis, "set"), None, _last_writer(node, grad))
    if monoid == "mul":
        return _scattered_product(node, grad)
    return _scattered_extreme(node, grad)


def _scattered_extreme(node: Node, grad: Node) -> Gradients:
    """The gradient of a scattered max or min: those that are equal to the result share it."""
    x, index, updates = node.src
    own, theirs = customgrad.scattered_extreme(x, index, updates, node, node.attr[0], grad)
    return (own, None, theirs)


def _scattered_product(node: Node, grad: Node) -> Gradients:
    """The gradient of a scattered product: each factor's is the product of all others.

    It is found by leaving zeros out and counting them, so that one zero among the factors is right.
    """
    x, index, updates = node.src
    axis = node.attr[0]
    zero_x, zero_updates = _where_zero(x), _where_zero(updates)
    zeros = G.scatter(zero_x, index, zero_updates, axis, "add")
    rest = G.scatter(_nonzero_or_one(x), index, _nonzero_or_one(updates), axis, "mul")
    parts: list[Node] = []
    for factor, is_zero, pick in ((x, zero_x, False), (updates, zero_updates, True)):
        total, count, above = (G.gather(n, index, axis) if pick else n for n in (rest, zeros, grad))
        others = G.alu("div", total, _nonzero_or_one(factor))
        blank = G.const(0, factor.shape, factor.dtype, factor.device)
        alone = G.alu("eq", count, is_zero)  # no factor but perhaps this one is zero
        parts.append(G.alu("mul", above, G.alu("where", alone, others, blank)))
    return (parts[0], None, parts[1])


def _where_zero(x: Node) -> Node:
    """1 where `x` is zero, else 0, in the dtype of `x`."""
    return G.cast(G.alu("eq", x, G.const(0, x.shape, x.dtype, x.device)), x.dtype)


def _nonzero_or_one(x: Node) -> Node:
    """`x` with 1 in place of zeros."""
    zero = G.alu("eq", x, G.const(0, x.shape, x.dtype, x.device))
    return G.alu("where", zero, G.const(1, x.shape, x.dtype, x.device), x)


def _last_writer(node: Node, grad: Node) -> Node:
    """The gradient of the updates that stayed: of several for one element, the last."""
    x, index, updates = node.src
    axis = node.attr[0]
    order = G.reshape(G.iota(index.size, dtypes.int64, index.device), index.shape)
    nobody = G.const(-1, x.shape, dtypes.int64, x.device)
    winner = G.gather(G.scatter(nobody, index, order, axis, "set"), index, axis)
    zero = G.const(0, updates.shape, updates.dtype, updates.device)
    return G.alu("where", G.alu("eq", winner, order), G.gather(grad, index, axis), zero)


def _flip(x: Node, axis: int) -> Node:
    return G.slice_(x, [(n - 1, n, -1) if a == axis else (0, n, 1) for a, n in enumerate(x.shape)])


def _scan(node: Node, grad: Node) -> Gradients:
    monoid, axis = node.attr
    if monoid == "add":
        return (_flip(G.scan("add", _flip(grad, axis), axis), axis),)
    if monoid == "mul":
        return (_running_product(node, grad),)
    return (_running_extreme(node, grad),)


def _running_extreme(node: Node, grad: Node) -> Node:
    """The gradient of a running max or min: it goes to the last element that was the extreme."""
    (x,), axis = node.src, node.attr[1]
    size = x.shape[axis]
    line = tuple(size if a == axis else 1 for a in range(len(x.shape)))
    iota = G.reshape(G.iota(size, dtypes.int64, x.device), line)
    start = G.const(0, x.shape, dtypes.int64, x.device)
    found = G.alu("or", G.alu("eq", x, node), G.alu("ne", x, x))
    position = G.scan("max", G.alu("where", found, G.expand(iota, x.shape), start), axis)
    zeros = G.const(0, x.shape, x.dtype, x.device)
    return G.scatter(zeros, position, grad, axis, "add")


def _running_product(node: Node, grad: Node) -> Node:
    """The gradient of a running product, without a division: right also where factors are zero.

    That of factor i is what was multiplied before it times rest(i), where rest(i) = grad(i) +
    factor(i + 1) * rest(i + 1). The recurrence is solved in log2(size) steps of twice the reach.
    """
    (x,), axis = node.src, node.attr[1]
    size = x.shape[axis]
    rest, factor = grad, _moved(x, axis, -1)
    distance = 1
    while distance < size:
        rest = G.alu("add", rest, G.alu("mul", factor, _moved(rest, axis, -distance)))
        factor = G.alu("mul", factor, _moved(factor, axis, -distance))
        distance *= 2
    first = [(0, 1 if a == axis else n, 1) for a, n in enumerate(x.shape)]
    one = G.const(1, tuple(n for _, n, _ in first), x.dtype, x.device)
    before = G.write(_moved(node, axis, 1), one, [(0, 1)] * len(x.shape))
    return G.alu("mul", before, rest)


def _moved(x: Node, axis: int, by: int) -> Node:
    """`x` with element i of `axis` moved to i + `by`; zeros take the freed places."""
    kept = [(0, n, 1) for n in x.shape]
    kept[axis] = (max(0, -by), x.shape[axis] - abs(by), 1)
    around = [(0, 0, 0)] * len(x.shape)
    around[axis] = (max(0, by), max(0, -by), 0)
    return G.pad(G.slice_(x, kept), around)


def _multi(node: Node, grad: Node) -> Gradients:
    """Of parts that are the same value, its gradient goes to the first."""
    (layout,) = node.attr
    shared = [cut is None for cut in cuts_of(layout)]
    axes, firsts = axes_of(node.device), set[tuple[int, ...]]()
    found: list[Node | None] = []
    sizes = [1 if axis.ranks else axis.size for axis in axes]
    for number, place in enumerate(product(*map(range, sizes))):
        own = tuple(0 if same else at for same, at in zip(shared, place, strict=True))
        found.append(None if own in firsts else G.part(grad, number, layout))
        firsts.add(own)
    return tuple(found)


def _part(node: Node, grad: Node) -> Gradients:
    number, layout = node.attr
    source = node.src[0]
    if not any(cut is not None for cut in cuts_of(layout)):
        return (G.copy(grad, source.device),)
    blank = [G.const(0, node.shape, node.dtype, device) for device in source.device]
    parts = [*blank[:number], grad, *blank[number + 1 :]]
    return (G.multi(parts, layout, source.shape, source.device),)


def _write(node: Node, grad: Node) -> Gradients:
    value = node.src[1]
    zeros = G.const(0, value.shape, value.dtype, value.device)
    ranges = [(s, n, d) for (s, d), n in zip(node.attr, value.shape, strict=True)]
    return (G.write(grad, zeros, node.attr), G.slice_(grad, ranges))


def _fft(node: Node, grad: Node) -> Gradients:
    """The transform is linear, and its adjoint is the transform of the other sign."""
    axis, radices, inverse, scale = node.attr
    factors = node.src[1] if len(node.src) > 1 else None
    adjoint = G.fft(grad, axis, radices, factors, not inverse, scale)
    return (adjoint, None)[: len(node.src)]


def _custom(node: Node, grad: Node) -> Gradients:
    return tuple(customgrad.RULES[node.attr[0]](node, grad))


def _nothing(node: Node, grad: Node) -> Gradients:
    return (None,) * len(node.src)


_RULES: Final[dict[str, Callable[[Node, Node], Gradients]]] = {
    "buffer": _nothing,
    "const": _nothing,
    "iota": _nothing,
    "index": _nothing,
    "bitcast": _nothing,
    "detach": _nothing,
    "barrier": lambda node, grad: (grad, *[None] * (len(node.src) - 1)),
    "custom_grad": _custom,
    "cast": _cast,
    "reduce": _reduce,
    "reshape": lambda node, grad: (G.reshape(grad, node.src[0].shape),),
    "expand": _expand,
    "permute": _permute,
    "slice": _slice,
    "pad": _pad,
    "skew": _skew,
    "unskew": _unskew,
    "gather": _gather,
    "scatter": _scatter,
    "scan": _scan,
    "cumcount": _nothing,
    "reorder": lambda node, grad: (G.gather(grad, node.src[1], node.attr[0]), None),
    "write": _write,
    "random": _nothing,
    "contiguous": lambda node, grad: (grad,),
    "as_real": _nothing,
    "interleave": lambda node, grad: tuple(G.places(grad, node.attr[1])),
    "fft": _fft,
    "copy": lambda node, grad: (G.copy(grad, node.src[0].device),),
    "multi": _multi,
    "part": _part,
}

"""Gradients that do not follow from how a value is computed: the rules of `custom_grad` nodes.

Each is torch's, at ties, zeros and infinities too, where the gradient of the formula would be
another one or NaN. A rule takes the node and its gradient, and gives that of each source, of nodes
that have gradients themselves.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Final

from gpu.compiler.ir.derivative import has_gradient
from gpu.compiler.ir.dims import upper
from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import dtype_named
from gpu.core.floatlimits import limits_of
from gpu.runtime.origins import copy_origin

Gradients = Sequence[Node | None]
Rule = Callable[[Node, Node], Gradients]

_identities = itertools.count(1)


def own(x: Node) -> Node:
    """`x`, a constant that the user made, as a tensor of its own.

    Equal constants are one node, and what is computed from them alone is a constant: a gradient
    could not tell which it belongs to, nor find the way there.
    """
    if x.kind != "const" or not has_gradient(x.dtype):
        return x
    return G.custom_grad("own", x, (), next(_identities))


def argument(x: Node) -> Node:
    """`x` as a node of its own, which tells a derivative by it from those by others."""
    return G.custom_grad("argument", x, (), next(_identities))


def straight(value: Node, x: Node) -> Node:
    """`value` with the gradient of `x`, to which it is close."""
    return value if value.kind == "const" else G.custom_grad("straight", value, (x,))


def given(rule: Rule, value: Node, operands: Sequence[Node]) -> Node:
    """`value`, with the gradients for `value` and `operands` that `rule` gives.

    Rules are kept for the life of the process: equal ones have to compare equal.
    """
    number = _given.setdefault(rule, len(_given))
    return G.custom_grad("given", value, operands, number)


_given: Final[dict[Rule, int]] = {}


def _by_given(node: Node, grad: Node) -> Gradients:
    rule = next(itertools.islice(_given, node.attr[1], None))
    return rule(node, grad)


def _flat(node: Node, grad: Node) -> list[Node]:
    return [grad, *(G.const(0, x.shape, x.dtype, x.device) for x in node.src[1:])]


def logit(value: Node, share: Node) -> Node:
    """`value`, the logit of `share`: its gradient is infinite at 0 and 1, and NaN beyond."""
    if value.kind == "const" or not share.dtype.is_float:
        return value
    return G.custom_grad("logit", value, (share,))


def _logit(node: Node, grad: Node) -> Gradients:
    _, share = node.src
    b = G.GraphBuilder(share.shape, share.device)
    product = b.mul(share, b.sub(b.like(share, 1), share))
    outside = b.op("lt", product, b.like(product, 0))
    return (None, b.div(grad, b.where(outside, b.like(product, math.nan), product)))


def deviations(x: Node, centred: Node, axes: Sequence[int]) -> Node:
    """The sum over `axes` of the squares of `centred`, which is `x` less its mean over them."""
    total = G.reduce("add", G.alu("mul", centred, centred), axes)
    return G.custom_grad("deviations", total, (x, centred))


def _deviations(node: Node, grad: Node) -> Gradients:
    # The mean's own share is the sum of deviations, which is 0, or NaN beside an infinity.
    _, x, centred = node.src
    twice = G.alu("mul", grad, G.const(2, grad.shape, grad.dtype, grad.device))
    return (None, G.alu("mul", G.expand(twice, x.shape), centred), None)


def _remainder(node: Node, grad: Node) -> Gradients:
    """That of the divisor is by the whole quotient, found from what it leaves."""
    _, x, y = node.src
    b = G.GraphBuilder(x.shape, x.device)
    whole = b.op("rint", b.div(b.sub(x, node), y))
    quotient = b.where(b.eq(y, b.like(y, 0)), b.div(x, y), whole)
    return (None, grad, b.neg(b.mul(grad, quotient)))


def first_max(windows: Node, order: Node, axes: Sequence[int]) -> Node:
    """The largest over `axes`, kept with size 1; of equal ones the gradient goes to the first.

    `order` says with its numbers, not negative, which is first; a NaN is the largest, the last one.
    """
    return G.custom_grad("first_max", G.reduce("max", windows, axes), (windows, order), *axes)


def place_of_max(windows: Node, order: Node, largest: Node, axes: Sequence[int]) -> Node:
    """The place in `order` of the element that `first_max` takes: -1 - place where it is a NaN."""
    return G.reduce("min", _ranks(windows, order, largest), axes)


def _ranks(windows: Node, order: Node, largest: Node) -> Node:
    """Numbers of which the least marks the largest element, and is that of no other one."""
    b = G.GraphBuilder(windows.shape, windows.device)
    behind = b.sub(b.like(order, -1), order)  # a later NaN comes first, and all before any number
    others = b.where(
        b.eq(windows, G.expand(largest, windows.shape)), order, b.like(order, order.dtype.max)
    )
    return b.where(b.op("ne", windows, windows), behind, others)


def _first_max(node: Node, grad: Node) -> Gradients:
    largest, windows, order = node.src
    rank = place_of_max(windows, order, largest, node.attr[1:])
    b = G.GraphBuilder(rank.shape, rank.device)
    place = b.where(b.op("lt", rank, b.like(rank, 0)), b.sub(b.like(rank, -1), rank), rank)
    # Numbers that follow from where an element is are compared: ranks would have to be kept.
    b = G.GraphBuilder(windows.shape, windows.device)
    spread = G.expand(grad, windows.shape)
    chosen = b.eq(order, G.expand(place, windows.shape))
    return (None, b.where(chosen, spread, b.like(spread, 0)), None)


def scattered_extreme(
    x: Node, index: Node, updates: Node, result: Node, axis: int, grad: Node
) -> tuple[Node, Node]:
    """The gradients of `x` and `updates` of a scattered max or min.

    Those that are equal to the result share its gradient.
    """
    own = G.cast(G.alu("eq", x, result), x.dtype)
    best = G.gather(result, index, axis)
    theirs = G.cast(G.alu("eq", updates, best), x.dtype)
    ties = G.scatter(own, index, theirs, axis, "add")
    one = G.const(1, x.shape, x.dtype, x.device)
    share = G.alu("div", grad, G.alu("max", ties, one))  # without a tie, a NaN: nobody has a share
    each = G.gather(share, index, axis)
    return G.alu("mul", own, share), G.alu("mul", theirs, each)


def _replacing_extreme(node: Node, grad: Node) -> Gradients:
    """The same where `x` does not take part in what is written to: as in torch, it still counts
    among those that share, but its own share is nobody's.
    """
    (_, x, index, updates), axis = node.src, node.attr[1]
    own, theirs = scattered_extreme(x, index, updates, node, axis, grad)
    nothing = G.const(0, updates.shape, x.dtype, x.device)
    return (None, G.scatter(own, index, nothing, axis, "set"), None, theirs)


def power(x: Node, y: Node) -> Node:
    """`x` to the power of `y`, floats of one dtype and shape, as C's pow.

    2 ** (y * log2(x)), with an error that grows with the exponent of the result.
    """
    value = _raised(x, y)
    return value if value.kind == "const" else G.custom_grad("power", value, (x, y))


def power_of(x: Node, number: float) -> Node:
    """`x` to the power of a Python number: a root is one, as in torch, which is NaN at -inf."""
    y = G.const(number, x.shape, x.dtype, x.device)
    b = G.GraphBuilder(x.shape, x.device)
    if number == 0:
        return b.like(x, 1)
    if number in (0.5, -0.5):
        root = b.op("sqrt", x)
        value = root if number > 0 else b.div(b.like(x, 1), root)
    else:
        value = _raised(x, y)
    return value if value.kind == "const" else G.custom_grad("power_of", value, (x, y))


def _raised(x: Node, y: Node) -> Node:
    b = G.GraphBuilder(x.shape, x.device)
    one = b.like(x, 1)
    size = b.op("abs", x)
    raised = b.op("exp2", b.mul(y, b.op("log2", size)))
    always = b.op("or", b.eq(x, one), b.eq(y, b.like(y, 0)))
    always = b.op("or", always, b.op("and", b.eq(size, one), b.eq(b.op("abs", y), _infinity(b, y))))
    magnitude = b.where(always, one, raised)
    whole = b.eq(b.op("floor", y), y)
    half = b.mul(y, b.like(y, 0.5))
    odd = b.op("and", whole, b.op("ne", b.op("floor", half), half))
    signed = b.where(b.op("and", odd, _signbit(b, x)), b.neg(magnitude), magnitude)
    negative = b.op("and", b.lt(x, b.like(x, 0)), b.lt(size, _infinity(b, x)))
    undefined = b.op("and", negative, b.op("not", whole))
    return b.where(undefined, b.like(x, math.nan), signed)


def attention(scores: Node, values: Node, kept: Node | None) -> Node:
    """softmax(`scores`), times `kept` if there is one, as a matrix @ `values`.

    Rows of scores that are minus infinity alone give zeros. All have the same axes but the last
    two; those of `kept` are those of `scores`. The gradient computes the softmax again, from the
    scores and a number for each row: between the two passes nothing of the size of the scores is
    needed (T. Dao et al., "FlashAttention", 2022).
    """
    base, total = _rows(scores)
    b = G.GraphBuilder(total.shape, total.device)
    share = G.expand(b.div(b.like(total, 1), total), scores.shape)
    weights = G.alu("mul", _exp(scores, base), share)
    used = weights if kept is None else G.alu("mul", weights, kept)
    turned = _turned(G.cast(values, scores.dtype))
    value = G.cast(_products(_rounded(used, values), turned), values.dtype)
    operands = (scores, values) if kept is None else (scores, values, kept)
    return value if value.kind == "const" else G.custom_grad("attention", value, operands)


def _attention(node: Node, grad: Node) -> Gradients:
    value, scores, values, *factor = node.src
    wide = scores.dtype
    base, total = _rows(scores)
    b = G.GraphBuilder(total.shape, total.device)
    level = b.add(base, b.mul(b.op("log2", total), b.like(total, math.log(2))))
    weights = used = _exp(scores, level)
    grad_wide = G.cast(grad, wide)
    change = _products(grad_wide, G.cast(values, wide))
    if factor:
        used, change = (G.alu("mul", each, factor[0]) for each in (weights, change))
    # The sum of weights * change along a row.
    mean = G.reduce("add", G.alu("mul", grad_wide, G.cast(node, wide)), (len(value.shape) - 1,))
    slope = G.alu("mul", weights, G.alu("sub", change, G.expand(mean, scores.shape)))
    of_values = _products(_turned(_rounded(used, values)), _turned(grad_wide))
    return (None, _rounded(slope, values), G.cast(of_values, values.dtype), *(None for _ in factor))


def _rows(scores: Node) -> tuple[Node, Node]:
    """The largest of each row, or 0 if it is minus infinity, and the sum of exp(scores - that).

    The sum of such a row is 0, for which 1 comes back.
    """
    last = (len(scores.shape) - 1,)
    top = G.detach(G.reduce("max", scores, last))
    b = G.GraphBuilder(top.shape, top.device)
    base = b.where(b.eq(top, b.like(top, -math.inf)), b.like(top, 0), top)
    total = G.reduce("add", _exp(scores, base), last)
    return base, b.where(b.eq(total, b.like(total, 0)), b.like(total, 1), total)


def _exp(scores: Node, base: Node) -> Node:
    """exp(`scores` - `base`), 0 where that over the length of a row would be subnormal.

    Products of subnormal numbers take a CPU a hundred cycles each.
    """
    b = G.GraphBuilder(scores.shape, scores.device)
    below = G.alu("sub", scores, G.expand(base, scores.shape))
    most = max(upper(scores.shape[-1]), 1)
    least = math.log(limits_of(scores.dtype).smallest_normal * most)
    is_small = b.lt(below, b.like(below, least))
    return b.op("exp", b.where(is_small, b.like(below, -math.inf), below))


def _products(a: Node, b: Node) -> Node:
    """a @ b.T over the last two axes, of which the others are the same."""
    (*batch, rows, inner), columns, axis = a.shape, b.shape[-2], len(a.shape)
    whole = (*batch, rows, columns, inner)
    left = G.expand(G.reshape(a, (*batch, rows, 1, inner)), whole)
    right = G.expand(G.reshape(b, (*batch, 1, columns, inner)), whole)
    return G.reshape(G.reduce("add", G.alu("mul", left, right), (axis,)), whole[:-1])


def _turned(x: Node) -> Node:
    """`x` with its last two axes exchanged."""
    *batch, rows, columns = range(len(x.shape))
    return G.permute(x, (*batch, columns, rows))


def _rounded(x: Node, like: Node) -> Node:
    """`x` as precise as `like`, so that what is narrow is multiplied by what is."""
    return G.cast(G.cast(x, like.dtype), x.dtype)


def _infinity(b: G.GraphBuilder, x: Node) -> Node:
    return b.like(x, math.inf)


def _signbit(b: G.GraphBuilder, x: Node) -> Node:
    bits = b.bitcast(x, dtype_named(f"int{x.dtype.bits}"))
    return b.lt(bits, b.like(bits, 0))


def _power(node: Node, grad: Node) -> Gradients:
    _, x, y = node.src
    b = G.GraphBuilder(x.shape, x.device)
    zero = b.like(x, 0)
    slope = b.mul(y, power(x, b.sub(y, b.like(y, 1))))
    base = b.where(b.eq(y, zero), zero, b.mul(grad, slope))
    if y.kind == "const":
        return (None, base, None)
    logarithm = b.mul(b.op("log2", x), b.like(x, math.log(2)))
    flat = b.op("and", b.eq(x, zero), b.op("le", zero, y))
    return (None, base, b.where(flat, zero, b.mul(grad, b.mul(node, logarithm))))


def _power_of(node: Node, grad: Node) -> Gradients:
    _, x, y = node.src
    slope = G.alu("mul", y, power_of(x, y.attr[0] - 1))
    return (None, G.alu("mul", grad, slope), None)


def _checked(node: Node, grad: Node) -> Gradients:
    """What is wrong with a value is told of its gradient too, which a loop computes apart."""
    told = G.custom_grad("checked", grad, node.src[1:], *node.attr[1:])
    copy_origin(node, told)
    return (told, None)


_FACTORIZATIONS: Final = (
    *("cholesky", "cholesky_solve", "lu", "solve", "triangular", "qr_q", "qr_r", "matrix_exp"),
)


def _factorization(node: Node, grad: Node) -> Gradients:
    from gpu.tensor.linalg.gradients import RULES  # only now: it needs tensors' methods

    return RULES[node.attr[0]](node, grad)


RULES: Final[dict[str, Rule]] = {
    "checked": _checked,
    **dict.fromkeys(_FACTORIZATIONS, _factorization),
    "own": lambda node, grad: (None,),
    "argument": lambda node, grad: (grad,),
    "flat": _flat,
    "given": _by_given,
    "straight": lambda node, grad: (None, grad),
    "remainder": _remainder,
    "logit": _logit,
    "deviations": _deviations,
    "first_max": _first_max,
    "replacing_extreme": _replacing_extreme,
    "power": _power,
    "power_of": _power_of,
    "attention": _attention,
}
AXES: Final = frozenset({"first_max", "replacing_extreme"})
"""Rules of which the numbers are axes."""

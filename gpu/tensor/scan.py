"""`gpu.scan`: a loop over a function of the user's, traced and compiled once, run for each step.

The function is called one time, with tensors that stand for a step's carry and slices. What it
computes becomes the body of a `loop` node; what it computes of tensors from outside alone is
computed once, before the loop. docs/jit.md tells users more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from gpu.compiler.ir.dims import (
    Symbol,
    any_symbols,
    dimension,
    find_symbols,
    has_symbols,
    symbol,
)
from gpu.compiler.ir.graph import MOVEMENT, NO_SOURCES, Node, Shape, toposort
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.body import STEP
from gpu.compiler.ir.graph.node import place
from gpu.core.config import config
from gpu.core.errors import DTypeError, InvalidType, InvalidValue, ShapeError, Unsupported
from gpu.runtime.execute import is_computed
from gpu.runtime.status import any_words, is_checked, stacked
from gpu.tensor.arguments import integer
from gpu.tensor.callforms import (
    form_in_words,
    map_tensors,
    stand_in_like,
    tensors_in,
    without_value,
)
from gpu.tensor.loops import Bound, make_loop
from gpu.tensor.puretrace import PureTrace
from gpu.tensor.tensor import Tensor
from gpu.tensor.tracing import JitError, active, tracing_inside

# What is done again in each step instead of being kept in memory: it computes nothing.
_SHOWN: Final = MOVEMENT | {"as_complex", "as_real", "detach"}

Body = Callable[[Any, Any], tuple[Any, Any]]


def scan(
    body: Body,
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    checkpoint: int | None = None,
) -> tuple[Any, Any]:
    """Runs ``carry, y = body(carry, x)`` for each x along the first axis of `xs`.

    `init`, `xs`, the carry and y are tensors, or lists, tuples and dicts of them, or None. It is
    the loop ::

        carry, ys = init, []
        for x in xs:
            carry, y = body(carry, x)
            ys.append(y)
        return carry, stack(ys)

    but `body` is called once, whatever the length, and its kernels are compiled once and launched
    for each step. Gradients go through it, also to tensors that `body` uses from outside, and it
    may be used in jitted functions and in other bodies. The carry of every step is kept where a
    gradient is asked for.

    Args:
        body: a function of the carry and a slice; of `None` for each x where `xs` is None.
        init: the first carry.
        xs: what is gone through, all of one length.
        length: how many steps there are, where `xs` does not tell.
        reverse: begins with the last slice; ys are still in the order of `xs`.
        checkpoint: steps between those carries that are kept for a gradient, which computes the
            others again: about the root of the length needs the least memory.

    Returns:
        The carry after the last step, and what each step gave, stacked along a new first axis.

    Raises:
        ShapeError, DTypeError: the carry that `body` gives is of another form than that it takes;
            lengths differ, or are 0.
        InvalidType, InvalidValue: what is carried or given is no tensors, `body` no function.
        JitError: `body` reads a value, writes to a tensor from outside, or draws random numbers.
        Unsupported: tensors on several devices, or of symbolic sizes.

    >>> import gpu
    >>> from gpu import Tensor
    >>> def step(total, x):
    ...     return total + x, total * x
    >>> total, products = gpu.scan(step, Tensor(0.0), Tensor([1.0, 2.0, 3.0]))
    >>> total.item(), products.tolist()
    (6.0, [0.0, 2.0, 9.0])
    """
    name = _name_of(body)
    _check_tensors(init, "init")
    _check_tensors(xs, "xs")
    steps = _length(xs, length)
    if checkpoint is not None:
        return _in_segments(body, init, xs, steps, reverse, integer(checkpoint, "checkpoint"))
    if config.CHECK or steps == 1:  # CHECK looks at the values of each step
        return _step_by_step(body, init, xs, steps, reverse, name)
    return _traced_loop(body, init, xs, steps, reverse, name)


def _name_of(body: object) -> str:
    if not callable(body):
        raise InvalidType(f"the body of a scan is a function of a carry and a slice, got {body!r}")
    return getattr(body, "__qualname__", repr(body))


def _traced_loop(
    body: Body, init: Any, xs: Any, steps: int, reverse: bool, name: str
) -> tuple[Any, Any]:
    """The loop of what `body` does in one call."""
    with _traced(f"{name}, the body of a scan"):
        carry = map_tensors(init, lambda t: _stand_in(t, t.shape, name))
        slices = map_tensors(xs, lambda t: _stand_in(t, t.shape[1:], name))
        carried = [Bound(t._value, x._node) for t, x in _pairs(carry, init) if t.numel()]
        sliced = [Bound(t._value, x._node) for t, x in _pairs(slices, xs) if t.numel()]
        new, ys = _checked(body(carry, slices), init, name)
        nodes = [t._node for t in (*tensors_in(new), *tensors_in(ys)) if t.numel()]
    parameters = [each.parameter for each in (*carried, *sliced)]
    order = toposort(nodes) if any_words() else []
    told = [node for node in _changing(order, parameters) if is_checked(node)]
    nodes += [node.src[1] for node in told]
    constants = _constants(nodes, parameters)
    operands = [each.operand for each in (*constants, *carried, *sliced)]
    _check_place([*nodes, *operands], name)
    ys = map_tensors(ys, lambda t: t if operands and t.numel() else _repeated(t, steps))
    if not operands:
        return new, ys
    loop = make_loop(constants, carried, sliced, nodes, steps, reverse)
    found = [G.result(loop, number) for number in range(len(nodes))]
    for node, words in zip(told, found[len(nodes) - len(told) :], strict=True):
        found = [stacked(value, node, words, steps) for value in found]
    results = iter(map(Tensor._wrap, found))
    new, ys = (map_tensors(v, lambda t: next(results) if t.numel() else t) for v in (new, ys))
    return new, ys


def _pairs(value: Any, like: Any) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(tensors_in(value), tensors_in(like), strict=True)


@contextmanager
def _traced(name: str) -> Iterator[None]:
    trace = _BodyTrace(name, active())
    with tracing_inside(trace):
        yield
    if trace.random:
        raise JitError(
            f"random numbers drawn inside {name}, would be the same in each step: draw those of all"
            " steps before, and give them with xs"
        )


class _BodyTrace(PureTrace):
    """What a body does."""

    def refused(self, what: str) -> JitError:
        """See `PureTrace`."""
        return JitError(
            f"{self.name}, {what}, which would happen once and not in each step: make it part of "
            "the carry, and return it"
        )


def _check_tensors(value: Any, name: str) -> None:
    if isinstance(value, Tensor) or value is None:
        return
    if not isinstance(value, (list, tuple, dict)):
        raise InvalidType(
            f"{name} of a scan has {type(value).__name__} {value!r}: expected tensors, in lists, "
            "tuples and dicts, or None; give a number as Tensor(number)"
        )
    for each in value.values() if isinstance(value, dict) else value:
        _check_tensors(each, name)


def _length(xs: Any, length: int | None) -> int:
    """How many steps there are. Raises ShapeError where that is not clear, or none."""
    lengths = [] if length is None else [integer(length, "length")]
    for tensor in tensors_in(xs):
        if has_symbols(tensor.shape[:1]):
            raise Unsupported(f"a scan over {tensor._described()}, whose length is symbolic")
        if not tensor.shape:
            raise ShapeError("a scan goes along the first axis of xs, and one of them is 0-d")
        lengths.append(tensor.shape[0])
    if not lengths:
        raise InvalidValue("a scan without xs needs length=, how many steps it has")
    if len({*lengths}) > 1:
        told = "" if length is None else f", where length is {length}"
        sizes = ", ".join(str(t.shape[0]) for t in tensors_in(xs))
        raise ShapeError(f"xs of a scan must be of one length: they have {sizes}{told}")
    if lengths[0] < 1:
        raise ShapeError(f"a scan of length {lengths[0]}: expected one step or more")
    return lengths[0]


def _checked(result: Any, init: Any, name: str) -> tuple[Any, Any]:
    """The carry and what is stacked, of which the carry is of the form of `init`."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise InvalidType(
            f"{name}, the body of a scan, must return a pair (carry, y), where y may be None; it "
            f"returned {type(result).__name__}"
        )
    carry, ys = _ordered(result[0], init), result[1]
    _check_tensors(carry, f"the carry that {name} returns, in the body")
    _check_tensors(ys, f"what {name} returns, in the body")
    if _structure(init) != _structure(carry):
        raise InvalidType(
            f"{name}, the body of a scan, must return the carry in the form that it takes: it takes"
            f" {form_in_words(init)} and returns {form_in_words(carry)}"
        )
    for number, (new, old) in enumerate(_pairs(carry, init)):
        which = f"tensor {number} of the carry" if len(list(tensors_in(init))) > 1 else "the carry"
        if new.shape != old.shape:
            raise ShapeError(
                f"{which} of a scan has shape {list(old.shape)} and becomes {list(new.shape)} in "
                f"{name}: it must keep its shape"
            )
        if new.dtype is not old.dtype:
            raise DTypeError(
                f"{which} of a scan is {old.dtype.name} and becomes {new.dtype.name} in {name}: "
                f"cast one of the two, as in .cast('{old.dtype.name}')"
            )
    return carry, ys


def _ordered(value: Any, like: Any) -> Any:
    """`value` with the keys of dicts in the order that they have in `like`."""
    if isinstance(value, dict) and isinstance(like, dict) and value.keys() == like.keys():
        return {key: _ordered(value[key], like[key]) for key in like}
    if type(value) in (list, tuple) and type(like) is type(value) and len(value) == len(like):
        return type(value)(_ordered(*pair) for pair in zip(value, like, strict=True))
    return value


def _structure(value: Any) -> Any:
    """What is told apart of nested tensors but for the tensors."""
    if isinstance(value, dict):
        return (type(value), [(k, _structure(v)) for k, v in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value), [_structure(v) for v in value])
    return value is None


def _constants(results: Sequence[Node], parameters: Sequence[Node]) -> list[Bound]:
    """What is the same in each step and computed, or found in memory, before the loop.

    Views of it, and constants, are part of the step.
    """
    order = toposort(results, set(parameters).__contains__)
    changing = _changing(order, parameters)
    found: dict[Node, None] = {}
    waiting = [s for node in order if node in changing for s in node.src if s not in changing]
    waiting += [node for node in results if node not in changing]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if is_computed(node) or not (node.kind in _SHOWN or node.kind in NO_SOURCES):
            found[node] = None
            continue
        new = [source for source in node.src if source not in seen]
        seen.update(new)
        waiting += new
    return [Bound(node, node) for node in found]


def _changing(order: Sequence[Node], parameters: Sequence[Node]) -> dict[Node, None]:
    """The parameters of a step, and what depends on them of nodes that are given sources first.

    Or on the number of the step, which places in a body of our own may have (`stepped`).
    """
    changing = dict.fromkeys(parameters)
    has_steps = any_symbols()
    for node in order:
        if not changing.keys().isdisjoint(node.src) or (has_steps and _knows_step(node)):
            changing[node] = None
    return changing


def _knows_step(node: Node) -> bool:
    found: dict[str, Symbol] = {}
    find_symbols((node.shape, node.attr), found)
    return STEP in found


def stepped(
    body: Callable[..., tuple[tuple[Tensor, ...], Any]],
    carry: tuple[Tensor, ...],
    steps: int,
    xs: Any = None,
    reverse: bool = False,
) -> tuple[tuple[Tensor, ...], Any]:
    """`scan` of ``carry, y = body(number, x, *carry)``, of which `number` is that of the step.

    It is a dimension: slices may begin there, and sizes depend on it. So one body does all steps of
    what goes through a matrix block by block.
    """
    if config.CHECK or steps == 1:
        found = []
        for step in reversed(range(steps)) if reverse else range(steps):
            carry, ys = body(step, _at(xs, step), *carry)
            found.append(ys)
        found = found[::-1] if reverse else found
        return carry, _stacked(found)
    number = dimension(symbol(STEP, 0, steps - 1, 0).as_expr)
    return scan(lambda own, x: body(number, x, *own), carry, xs, steps, reverse)


def _check_place(nodes: Sequence[Node], name: str) -> None:
    devices = dict.fromkeys(place(node.device) for node in toposort(nodes))
    several = [d for d in devices if "," in d] or list(devices)[1:]
    if several:
        raise Unsupported(
            f"{name}, the body of a scan, uses tensors on {' and '.join(devices)}: all must be on "
            "one device, where .to(device) brings them"
        )
    for node in nodes:
        if has_symbols(node.shape):
            raise Unsupported(f"{name}, the body of a scan, uses {node!r}, whose size is symbolic")


def _stand_in(tensor: Tensor, shape: Shape, name: str) -> Tensor:
    """What is given to a body; a value without elements is known."""
    if tensor.numel():
        return Tensor._wrap(stand_in_like(tensor._node, without_value(name), shape))
    return Tensor._wrap(G.const(0, shape, tensor.dtype, tensor.device))


def _repeated(tensor: Tensor, count: int) -> Tensor:
    """What each step gives if that is the same, which depends on nothing."""
    return tensor.expand(count, *tensor.shape)


def _at(xs: Any, step: int) -> Any:
    return map_tensors(xs, lambda t: t[step])


def _step_by_step(
    body: Body, init: Any, xs: Any, length: int, reverse: bool, name: str
) -> tuple[Any, Any]:
    """The same with a call of `body` for each step."""
    carry, found = init, []
    for step in reversed(range(length)) if reverse else range(length):
        carry, ys = _checked(body(carry, _at(xs, step)), init, name)
        found.append(ys)
    return carry, _stacked(found[::-1] if reverse else found)


def _stacked(found: Sequence[Any]) -> Any:
    """What each step gave along a new first axis."""
    columns = zip(*(tensors_in(ys) for ys in found), strict=True)
    made = iter([Tensor.stack(*column) for column in columns])
    return map_tensors(found[0], lambda _: next(made))


def _in_segments(
    body: Body, init: Any, xs: Any, length: int, reverse: bool, size: int
) -> tuple[Any, Any]:
    """A scan over scans, of so many steps each, of which the first carries are kept.

    What is left over is a segment of its own, the last.
    """
    if size < 1:
        raise InvalidValue(f"checkpoint={size}: expected 1 or more, the steps between carries")
    count, rest = divmod(length, size)

    def part(first: int, many: int) -> Any:
        return map_tensors(xs, lambda t: t[first : first + many])

    def segment(carry: Any, own: Any) -> tuple[Any, Any]:
        return scan(body, carry, own, size, reverse)

    def whole(carry: Any) -> tuple[Any, Any]:
        own = map_tensors(part(0, count * size), lambda t: t.reshape(count, size, *t.shape[1:]))
        carry, ys = scan(segment, carry, own, count, reverse)
        return carry, map_tensors(ys, lambda t: t.reshape(count * size, *t.shape[2:]))

    def remaining(carry: Any) -> tuple[Any, Any]:
        return scan(body, carry, part(count * size, rest), rest, reverse)

    runs = [run for run, many in ((whole, count), (remaining, rest)) if many]
    carry, found = init, []
    for run in reversed(runs) if reverse else runs:
        carry, ys = run(carry)
        found.append(ys)
    found = found[::-1] if reverse else found
    columns = zip(*(tensors_in(ys) for ys in found), strict=True)
    joined = iter([Tensor.cat(*column) if len(column) > 1 else column[0] for column in columns])
    return carry, map_tensors(found[0], lambda _: next(joined))

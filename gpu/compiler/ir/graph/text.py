"""The text form of the graph IR.

One line a node, sources first; the last line names the roots:

    device CPU
    %0 = buffer 0 : f32[4096,4096]
    %1 = reduce max (1) %0 : f32[4096,1]
    %2 = expand %1 : f32[4096,4096]
    %3 = sub %0, %2 : f32[4096,4096]
    return %3

Attributes stand in parentheses: a slice as `start:step` and a pad as `before:after:interior` for
each axis, the identity of a contiguous node unless it is 0. Buffers are numbered by the first use
of their handle, since handles are opaque. With nodes on several devices there is no first line, and
each node says `on DEVICE`, or `on DEVICE+DEVICE`
where it is on several itself. Variables that sizes and attributes depend on come first, with their
bounds and the value they are bound to:

    symbol p 1..511 = 7
    %1 = slice (0:1, p:1) %0 : f32[4,p + 1]

Kernels of users come before nodes too, each with its number and as JSON; what runs one says which,
as in `%1 = kernel (0) %0 : f32[]`. So do calls of functions of the host, as in `%1 = host (0) %0 :
f32[]`, which are numbered with them.

The bodies of loops come before all, each a text of its own between `body`, with its number and how
many carries and slices it has, and `end`. It returns its parameters and then its results; those of
a loop say its body, its length and whether it goes backwards:

    body 0 (1, 1)
    device CPU
    %0 = buffer 0 : f32[4]
    %1 = buffer 1 : f32[4]
    %2 = add %0, %1 : f32[4]
    return %0, %1, %2
    end
    device CPU
    %0 = buffer 0 : f32[4]
    %1 = buffer 1 : f32[9,4]
    %2 = loop (0, 9, 0) %0, %1 : f32[]
    %3 = result (0) %2 : f32[4]
    return %3
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from gpu.compiler.ir import optable
from gpu.compiler.ir.dims import Dim, Symbol, symbol
from gpu.compiler.ir.graph import RULES, Node, Place, bodies_of, make, symbols_of, toposort
from gpu.compiler.ir.graph.body import Body
from gpu.compiler.ir.graph.hostcall import HostCall
from gpu.compiler.ir.graph.userkernel import Array, Source, UserKernel
from gpu.compiler.ir.text import Cursor, cursors, print_scalar, print_shape
from gpu.core.dtype import dtype_named, dtypes
from gpu.core.errors import ParseError

Symbols: TypeAlias = "Mapping[str, Symbol]"
_NO_SYMBOLS: Final[Symbols] = {}
_DEVICES: Final = "+"
# Kinds whose first attribute is a text of its own, before the nodes.
_CALLS: Final = frozenset({"kernel", "host"})


def handles_of(roots: Iterable[Node]) -> list[Hashable]:
    """Handles of the buffers that `roots` reach, in the order in which `print_graph` numbers."""
    return list(dict.fromkeys(n.attr[0] for n in toposort(roots) if n.kind == "buffer"))


def print_graph(roots: Iterable[Node]) -> str:
    """`roots` and everything they reach as text."""
    roots = list(roots)
    order = toposort(roots)
    devices = {node.device for node in order}
    numbers = {handle: number for number, handle in enumerate(handles_of(roots))}
    names = {node: f"%{number}" for number, node in enumerate(order)}
    bodies = bodies_of(roots)
    lines = [line for number, body in enumerate(bodies) for line in _print_body(number, body)]
    kernels = _kernels_of(order)
    lines += [_print_kernel(i, kernel) for i, kernel in enumerate(kernels)]
    lines += [f"device {_place(next(iter(devices)))}"] if len(devices) == 1 else []
    lines += [f"symbol {s.name} {s.lo}..{s.hi} = {s.bound}" for s in symbols_of(order)]
    for node in order:
        operands = ", ".join(names[s] for s in node.src)
        parts = [names[node], "=", _label(node, numbers, bodies, kernels), operands, ":"]
        parts.append(f"{node.dtype.code}{print_shape(node.shape)}")
        if len(devices) > 1:
            parts.append(f"on {_place(node.device)}")
        lines.append(" ".join(part for part in parts if part))
    lines.append(f"return {', '.join(names[root] for root in roots)}".rstrip())
    return "\n".join(lines) + "\n"


def _kernels_of(nodes: Iterable[Node]) -> list[UserKernel | HostCall]:
    return list(dict.fromkeys(node.attr[0] for node in nodes if node.kind in _CALLS))


def _print_kernel(number: int, kernel: UserKernel | HostCall) -> str:
    """As JSON, of which no character begins a comment."""
    if isinstance(kernel, HostCall):
        return f"host {number} {json.dumps(kernel.as_data())}"
    arrays = ([[n, s, d.name] for n, s, d in each] for each in (kernel.outputs, kernel.inputs))
    text = json.dumps([kernel.name, *arrays, *kernel[3:]]).replace("#", "\\u0023")
    return f"kernel {number} {text}"


def _arrays(listed: Any) -> tuple[Array, ...]:
    return tuple(Array(name, tuple(shape), dtype_named(dtype)) for name, shape, dtype in listed)


def _read_kernel(listed: Any) -> UserKernel:
    name, outputs, inputs, ir, sources, *launch = listed
    return UserKernel(
        *(name, _arrays(outputs), _arrays(inputs), ir),
        *(tuple(Source(*each) for each in sources), *launch),
    )


def _print_body(number: int, body: Body) -> list[str]:
    text = print_graph((*body.parameters, *body.results))
    return [f"body {number} ({body.carries}, {body.slices})", *text.splitlines(), "end"]


def _place(device: Place) -> str:
    return device if isinstance(device, str) else _DEVICES.join(device)


def _label(
    node: Node,
    numbers: dict[Hashable, int],
    bodies: Sequence[Body],
    kernels: Sequence[UserKernel | HostCall],
) -> str:
    match node.kind:
        case "kernel" | "host":
            return f"{node.kind} ({kernels.index(node.attr[0])})"
        case "buffer":
            return f"buffer {numbers[node.attr[0]]}"
        case "const":
            return f"const {print_scalar(node.attr[0])}"
        case "alu":
            return str(node.attr[0])
        case "reduce":
            monoid, axes = node.attr
            return f"reduce {monoid} ({', '.join(map(str, axes))})"
        case "loop":
            body, length, reverse = node.attr
            return f"loop ({bodies.index(body)}, {length}, {int(reverse)})"
        case "skew" | "unskew" | "gather" | "cumcount" | "reorder" | "result":
            return f"{node.kind} ({', '.join(map(str, node.attr))})"
        case "multi" | "part":
            return f"{node.kind} ({', '.join(str(a) for a in node.attr if a is not None)})"
        case "scatter":
            axis, monoid = node.attr
            return f"scatter {monoid} ({axis})"
        case "scan":
            monoid, axis = node.attr
            return f"scan {monoid} ({axis})"
        case "custom_grad":
            return f"custom_grad {node.attr[0]} ({', '.join(map(str, node.attr[1:]))})"
        case "index":
            return f"index ({node.attr[0]})"
        case "permute":
            return f"permute ({', '.join(map(str, node.attr[0]))})"
        case "contiguous":
            return node.kind if node.attr == (0,) else f"{node.kind} ({node.attr[0]})"
        case "interleave":
            is_stored, axes = node.attr
            return f"interleave ({', '.join(map(str, (is_stored, *axes)))})"
        case "fft":
            axis, radices, inverse, scale = node.attr
            return f"fft {print_scalar(scale)} ({', '.join(map(str, (axis, inverse, *radices)))})"
        case "slice" | "pad" | "write":
            axes = (":".join(map(str, axis)) for axis in node.attr)
            return f"{node.kind} ({', '.join(axes)})"
        case _:
            return node.kind


def parse_graph(text: str, handles: Sequence[Hashable] | None = None) -> list[Node]:
    """The roots of a graph given as text; `handles` are those of buffer 0, 1, ...

    Without `handles` a buffer's number is its handle. Raises ParseError where the text is not of
    the form above, and ShapeError, DTypeError or DeviceMismatch where a node breaks its rules.
    """
    reader = _Reader(handles)
    lines = iter(cursors(text))
    for line in lines:
        if reader.roots is not None:
            raise line.error("nothing after the roots")
        reader.line(line, lines)
    if reader.roots is None:
        raise ParseError(f"line {text.count(chr(10)) + 1}: the graph has no `return` at its end")
    return reader.roots


class _Reader:
    """What has been read of a graph."""

    def __init__(self, handles: Sequence[Hashable] | None):
        self.handles = handles
        self.nodes: dict[int, Node] = {}
        self.device: Place = None
        self.symbols: dict[str, Symbol] = {}
        self.bodies: list[Body] = []
        self.kernels: list[UserKernel | HostCall] = []
        self.roots: list[Node] | None = None

    def line(self, at: Cursor, following: Iterator[Cursor]) -> None:
        """Reads one line, or those of a body."""
        if at.accept("device"):
            self.device = _device(at)
        elif at.accept("body"):
            self._body(at, following)
        elif at.accept("kernel"):
            self._kernel(at, _read_kernel)
        elif at.accept("host"):
            self._kernel(at, HostCall.from_data)
        elif at.accept("symbol"):
            self._symbol(at)
        elif at.accept("return"):
            self.roots = [] if at.done() else self._operands(at)
        else:
            self._node(at)
        at.end()

    def _body(self, at: Cursor, following: Iterator[Cursor]) -> None:
        number = at.integer("the number of a body")
        carries, slices = _counted(at, 2)
        if number != len(self.bodies):
            raise at.refused(f"number {len(self.bodies)}")
        at.end()
        inner = _Reader(None)
        for line in following:
            if line.accept("end"):
                line.end()
                break
            if inner.roots is not None:
                raise line.error("`end`, as nothing comes after the roots of a body")
            inner.line(line, following)
        roots = inner.roots or []
        count = sum(root.kind == "buffer" for root in inner.nodes.values())
        parameters, results = roots[:count], roots[count:]
        if len(results) < carries or count < carries + slices:
            raise at.refused(f"parameters and results for {carries} carries and {slices} slices")
        self.bodies.append(Body(parameters, results, carries, slices))

    def _kernel(self, at: Cursor, read: Callable[[Any], UserKernel | HostCall]) -> None:
        number = at.integer("the number of a kernel")
        if number != len(self.kernels):
            raise at.refused(f"number {len(self.kernels)}")
        try:
            made = read(json.loads(at.rest()))
        except (ValueError, TypeError) as error:
            raise at.refused("a kernel or call as JSON") from error
        self.kernels.append(made)

    def _symbol(self, at: Cursor) -> None:
        name, lo, hi = at.bounded_name()
        at.expect("=")
        value = at.integer("the value it is bound to")
        if not lo <= value <= hi:
            raise at.refused(f"a value in {lo}..{hi}")
        self.symbols[name] = symbol(name, lo, hi, value)

    def _operands(self, at: Cursor) -> list[Node]:
        operands = [self._operand(at)]
        while at.accept(","):
            operands.append(self._operand(at))
        return operands

    def _operand(self, at: Cursor) -> Node:
        number = at.reference()
        if number not in self.nodes:
            raise at.refused(f"a value defined above (%{number} is not)")
        return self.nodes[number]

    def _node(self, at: Cursor) -> None:
        number = at.reference()
        if number in self.nodes:
            raise at.refused(f"a number not used before (%{number} is)")
        at.expect("=")
        kind = at.name("a kind of node or an operation")
        attr: tuple[Any, ...] = ()
        literal = None
        if kind in optable.OPS:
            kind, attr = "alu", (kind,)
        elif kind == "buffer":
            attr = (self._handle(at),)
        elif kind == "const":
            literal = at.literal()
        elif kind == "loop":
            attr = self._loop(at)
        elif kind in _CALLS:
            (which,) = _counted(at, 1)
            if not 0 <= which < len(self.kernels):
                raise at.refused(f"the number of one of {len(self.kernels)} kernels")
            attr = (self.kernels[which], None)  # a rule of gradients is the user's function
        elif kind in _ATTRIBUTES:
            attr = _ATTRIBUTES[kind](at, self.symbols)
        elif kind == "alu" or kind not in RULES:
            raise at.refused(f"a kind of node or an operation ({kind} is neither)")
        src = tuple(self._operands(at)) if at.ahead("%") else ()
        at.expect(":")
        dtype = at.dtype()
        shape = at.shape(self.symbols)
        if literal is not None:
            attr = (literal(dtype),)
        device = _device(at) if at.accept("on") else self.device
        if device is None:
            raise at.error("`on` and a device (there is no `device` line)")
        self.nodes[number] = make(kind, src, attr, shape, dtype, device)

    def _loop(self, at: Cursor) -> tuple[Any, ...]:
        number, length, reverse = _counted(at, 3)
        if not 0 <= number < len(self.bodies):
            raise at.refused(f"the number of one of {len(self.bodies)} bodies")
        return (self.bodies[number], length, bool(reverse))

    def _handle(self, at: Cursor) -> Hashable:
        number = at.integer("the number of a buffer")
        if self.handles is None:
            return number
        if not 0 <= number < len(self.handles):
            raise at.refused(f"the number of one of {len(self.handles)} buffers")
        return self.handles[number]


def _device(at: Cursor) -> Place:
    names = at.word("the name of a device, or of several with `+` between them").split(_DEVICES)
    return names[0] if len(names) == 1 else tuple(names)


def _integers(at: Cursor, _: Symbols = _NO_SYMBOLS) -> tuple[int, ...]:
    at.expect("(")
    return at.listed(at.integer, ")")


def _reduce(at: Cursor, _: Symbols = _NO_SYMBOLS) -> tuple[Any, ...]:
    monoid = at.name("a monoid")
    if monoid not in optable.MONOIDS:
        raise at.refused(f"a monoid, one of {' '.join(optable.MONOIDS)},")
    return (monoid, _integers(at))


def _scatter(at: Cursor, _: Symbols) -> tuple[Any, ...]:
    monoid = at.name("a monoid or set")
    if monoid not in optable.MONOIDS and monoid != "set":
        raise at.refused(f"a monoid, one of {' '.join(optable.MONOIDS)}, or set,")
    return (*_counted(at, 1), monoid)


def _scan(at: Cursor, _: Symbols) -> tuple[Any, ...]:
    monoid, axes = _reduce(at)
    if len(axes) != 1:
        raise at.refused("one axis")
    return (monoid, axes[0])


def _custom_grad(at: Cursor, _: Symbols) -> tuple[Any, ...]:
    return (at.name("a rule of gradients"), *_integers(at))


def _number_or_zero(at: Cursor, _: Symbols) -> tuple[int, ...]:
    return _counted(at, 1) if at.ahead("(") else (0,)


def _interleave(at: Cursor, _: Symbols) -> tuple[Any, ...]:
    is_stored, *axes = _some(at, 2)
    return (is_stored, tuple(axes))


def _fft(at: Cursor, _: Symbols) -> tuple[Any, ...]:
    scale = at.literal()(dtypes.float64)
    axis, inverse, *radices = _some(at, 3)
    return (axis, tuple(radices), inverse, scale)


def _some(at: Cursor, least: int) -> tuple[int, ...]:
    numbers = _integers(at)
    if len(numbers) < least:
        raise at.refused(f"{least} numbers or more")
    return numbers


def _counted(at: Cursor, count: int) -> tuple[int, ...]:
    numbers = _integers(at)
    if len(numbers) != count:
        raise at.refused(f"{count} numbers")
    return numbers


def _axes(count: int) -> Callable[[Cursor, Symbols], tuple[Any, ...]]:
    def axis(at: Cursor, symbols: Symbols) -> tuple[Dim, ...]:
        numbers = [at.dimension(symbols)]
        for _ in range(count - 1):
            at.expect(":")
            numbers.append(at.dimension(symbols))
        return tuple(numbers)

    def read(at: Cursor, symbols: Symbols) -> tuple[Any, ...]:
        at.expect("(")
        return at.listed(lambda: axis(at, symbols), ")")

    return read


def _index(at: Cursor, symbols: Symbols) -> tuple[Any, ...]:
    at.expect("(")
    value = at.dimension(symbols)
    at.expect(")")
    return (value,)


def _multi(at: Cursor, _: Symbols) -> tuple[Any, ...]:
    axis = _integers(at)
    if len(axis) > 1:
        raise at.refused("one axis or none")
    return axis or (None,)


def _part(at: Cursor, _: Symbols) -> tuple[Any, ...]:
    numbers = _integers(at)
    if len(numbers) not in (1, 2):
        raise at.refused("the number of a device, and perhaps an axis")
    return numbers if len(numbers) == 2 else (*numbers, None)


_ATTRIBUTES: Final[dict[str, Callable[[Cursor, Symbols], tuple[Any, ...]]]] = {
    "reduce": _reduce,
    "contiguous": _number_or_zero,
    "interleave": _interleave,
    "fft": _fft,
    "permute": lambda at, _: (_integers(at),),
    "skew": lambda at, _: _counted(at, 4),
    "unskew": lambda at, _: _counted(at, 4),
    "gather": lambda at, _: _counted(at, 1),
    "cumcount": lambda at, _: _counted(at, 2),
    "reorder": lambda at, _: _counted(at, 1),
    "index": _index,
    "result": lambda at, _: _counted(at, 1),
    "multi": _multi,
    "part": _part,
    "scatter": _scatter,
    "scan": _scan,
    "custom_grad": _custom_grad,
    "write": _axes(2),
    "slice": _axes(2),
    "pad": _axes(3),
}

"""The text form of the linear IR.

A line an instruction, indented by the loops and ifs around it:

    program scale(out: f32[1024] written, x: f32[1024])
      %0 = param f32 out
      %1 = param f32 x
      %2 = const f32x8 2.0
      %3 = loop worker 0..1024 step 8
        %4 = load f32x8 %1, %3
        %5 = mul f32x8 %4, %2
        store %0, %3, %5 streaming
      %6 = end %3

Types are an element type and, for vectors, lanes. A loop with carries ends in `carry %a, %b`, as
does its `end`. Other attributes stand in parentheses after the operands: the position of `carry`
and `result`, the step of `ramp`, the lane of `extract`, the monoid of `fold`, the lanes of
`shuffle`, the elements of `copy`, the groups of `wait`, whether a `fragment` is transposed, the
instruction of `mma`, and how far rows of tiles are apart.

Values passed at launch stand behind the buffers with their bounds, and a loop that stays below one
says what is the most it can be:

    program head(out: f32[512] written; p 1..511)
      %1 = val i64 p
      %2 = loop serial 0..%1 most 511
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from gpu.compiler.ir.linear import OPS, Inst, Limit, Param, Program, Val
from gpu.compiler.ir.matrix import MATRICES
from gpu.compiler.ir.optable import MONOIDS
from gpu.compiler.ir.optable import OPS as SCALAR_OPS
from gpu.compiler.ir.text import Cursor, cursors, print_scalar
from gpu.core.dtype import DType, dtypes
from gpu.core.errors import ParseError

NAMELESS: Final = frozenset(
    {"store", "endif", "barrier", "copy", "commit", "wait", "store_tile", "prefetch"}
)
"""Instructions that nothing refers to."""

OPENS: Final = frozenset({"loop", "if"})
CLOSES: Final = frozenset({"end", "endif"})
_UNTYPED: Final = NAMELESS | OPENS | {"end"}
_PAREN: Final = frozenset(
    {"carry", "result", "ramp", "extract", "fold", "shuffle", "shuffle_xor", "copy", "wait"}
    | {"fragment", "mma", "load_tile", "store_tile"}
)


def print_linear(program: Program) -> str:
    """A program as text."""
    return "\n".join([print_header(program), *print_insts(program)]) + "\n"


def print_header(program: Program) -> str:
    """The line with the program's name and parameters."""
    params = (
        f"{p.name}: {p.dtype.code}[{p.elements}]{f' {p.image.code}' if p.image else ''}"
        f"{' written' if p.written else ''}"
        for p in program.params
    )
    vals = ", ".join(f"{v.name} {v.lo}..{v.hi}" for v in program.vals)
    return f"program {program.name}({', '.join(params)}{f'; {vals}' if vals else ''})"


def print_insts(program: Program) -> list[str]:
    """One line for each instruction of the body, whether or not the program is valid."""
    named = [inst for inst in program.body if inst.op not in NAMELESS]
    names = {inst: f"%{number}" for number, inst in enumerate(named)}
    depth, lines = 1, []
    for inst in program.body:
        depth = max(depth - (inst.op in CLOSES), 1)
        parts = ["  " * depth + (f"{names[inst]} =" if inst in names else "")]
        parts += _parts(inst, program, names)
        # Joined with spaces, but a nameless instruction starts right at its indentation.
        lines.append(parts[0] + (" " if inst in names else "") + " ".join(filter(None, parts[1:])))
        depth += inst.op in OPENS
    return lines


def _parts(inst: Inst, program: Program, names: dict[Inst, str]) -> list[str]:
    """What follows the `=`."""
    kind = f"{inst.dtype.code}x{inst.lanes}" if inst.lanes > 1 else inst.dtype.code
    args = ", ".join(names.get(a, "%?") for a in inst.args)
    match inst.op:
        case "const":
            return ["const", kind, print_scalar(inst.attr[0])]
        case "param":
            known = 0 <= inst.attr[0] < len(program.params)
            return ["param", kind, program.params[inst.attr[0]].name if known else "?"]
        case "val":
            known = 0 <= inst.attr[0] < len(program.vals)
            return ["val", kind, program.vals[inst.attr[0]].name if known else "?"]
        case "local":
            return ["local", kind, str(inst.attr[0]), str(inst.attr[1])]
        case "loop":
            loop, start, stop, step = inst.attr
            if isinstance(stop, Limit):
                stop = f"{names.get(stop.value, '%?')} most {stop.most}"
            every = f"step {step}" if step != 1 else ""
            return ["loop", loop, f"{start}..{stop}", every, f"carry {args}" if args else ""]
        case "end":
            opened = names.get(inst.attr[0], "%?")
            return ["end", opened, f"carry {args}" if args else ""]
        case "endif":
            return ["endif", names.get(inst.attr[0], "%?")]
        case "alu":
            return [inst.attr[0], kind, args]
        case "store":
            return ["store", args, "streaming" if inst.attr[0] else ""]
        case _:
            numbers = f"({', '.join(map(str, _flat(inst)))})" if inst.op in _PAREN else ""
            return [inst.op, "" if inst.op in _UNTYPED else kind, args, numbers]


def _flat(inst: Inst) -> tuple[Any, ...]:
    return tuple(inst.attr[0]) if inst.op == "shuffle" else inst.attr


def parse_linear(text: str) -> Program:
    """The program a text stands for; raises ParseError where it is not of the form above.

    Only the form is checked: `verify_linear` checks what the instructions mean. Instructions
    without a value get the dtype bool, a store that of what it stores.
    """
    lines = cursors(text)
    if not lines:
        raise ParseError("line 1: expected `program`, found nothing")
    name, params, vals = _header(lines[0])
    reader = _Reader(params, vals)
    body = tuple(reader.inst(line) for line in lines[1:])
    return Program(name, params, body, vals)


def _header(at: Cursor) -> tuple[str, tuple[Param, ...], tuple[Val, ...]]:
    at.expect("program")
    name = at.name("the name of the program")
    at.expect("(")
    params, vals = at.listed_in_two(lambda: _param(at), lambda: Val(*at.bounded_name()), ")")
    at.end()
    return name, params, vals


def _param(at: Cursor) -> Param:
    name = at.name("the name of a parameter")
    at.expect(":")
    dtype = at.dtype()
    at.expect("[")
    elements = at.integer("a number of elements")
    at.expect("]")
    image = at.image()
    return Param(name, dtype, elements, at.accept("written"), image)


class _Reader:
    """What has been read of a program's body."""

    def __init__(self, params: tuple[Param, ...], vals: tuple[Val, ...]):
        self.positions = {
            "param": {param.name: number for number, param in enumerate(params)},
            "val": {val.name: number for number, val in enumerate(vals)},
        }
        self.values: dict[int, Inst] = {}

    def inst(self, at: Cursor) -> Inst:
        """The instruction of one line."""
        number = None
        if at.ahead("%"):
            number = at.reference()
            if number in self.values:
                raise at.refused(f"a number not used before (%{number} is)")
            at.expect("=")
        inst = self._inst(at)
        if (inst.op in NAMELESS) != (number is None):
            raise at.refused(f"{inst.op} {'without' if number is not None else 'with'} a number")
        if number is not None:
            self.values[number] = inst
        at.end()
        return inst

    def _inst(self, at: Cursor) -> Inst:
        op = at.name("an operation")
        if op in SCALAR_OPS:
            dtype, lanes = at.lanes_type()
            return Inst("alu", dtype, lanes, self._values(at), (op,))
        if op not in OPS or op == "alu":
            raise at.refused(f"an operation ({op} is none)")
        if op in _UNTYPED:
            return self._untyped(op, at)
        dtype, lanes = at.lanes_type()
        if op in ("const", "param", "val", "local"):
            return Inst(op, dtype, lanes, (), self._leaf(op, dtype, at))
        args = self._values(at)
        return Inst(op, dtype, lanes, args, _numbers(op, at) if op in _PAREN else ())

    def _untyped(self, op: str, at: Cursor) -> Inst:
        if op == "loop":
            return self._loop(at)
        if op == "store":
            args = self._values(at)
            if len(args) < 3:
                raise at.refused("a pointer, an index and a value to store")
            return Inst("store", args[2].dtype, args[2].lanes, args, (at.accept("streaming"),))
        if op in ("barrier", "commit"):
            return Inst(op, dtypes.bool)
        if op == "prefetch":
            return Inst(op, dtypes.bool, 1, self._values(at))
        if op in ("copy", "wait", "store_tile"):
            args = self._values(at) if op != "wait" else ()
            return Inst(op, dtypes.bool, 1, args, _numbers(op, at))
        opened = self._value(at)
        if op == "if":
            return Inst("if", dtypes.bool, 1, (opened,))
        carries = self._values(at) if op == "end" and at.accept("carry") else ()
        return Inst(op, dtypes.bool, 1, carries, (opened,))

    def _loop(self, at: Cursor) -> Inst:
        kind = at.name("a kind of loop")
        start = at.integer()
        at.expect("..")
        stop: int | Limit = at.integer() if not at.ahead("%") else self._limit(at)
        step = at.integer() if at.accept("step") else 1
        carries = self._values(at) if at.accept("carry") else ()
        return Inst("loop", dtypes.int64, 1, carries, (kind, start, stop, step))

    def _limit(self, at: Cursor) -> Limit:
        value = self._value(at)
        at.expect("most")
        return Limit(value, at.integer())

    def _leaf(self, op: str, dtype: DType, at: Cursor) -> tuple[Any, ...]:
        if op == "const":
            return (at.literal()(dtype),)
        if op == "local":
            return (at.integer("a number of elements"), at.name("a memory space"))
        what = {"param": "parameter", "val": "value"}[op]
        name = at.name(f"the name of a {what}")
        if name not in self.positions[op]:
            raise at.refused(f"a {what}, one of {' '.join(self.positions[op]) or 'none'}")
        return (self.positions[op][name],)

    def _value(self, at: Cursor) -> Inst:
        number = at.reference()
        if number not in self.values:
            raise at.refused(f"a value defined above (%{number} is not)")
        return self.values[number]

    def _values(self, at: Cursor) -> tuple[Inst, ...]:
        values = [self._value(at)]
        while at.accept(","):
            values.append(self._value(at))
        return tuple(values)


def _one_of(known: Collection[str], what: str, at: Cursor) -> str:
    name = at.name(what)
    if name not in known:
        raise at.refused(f"{what}, one of {' '.join(known)}")
    at.expect(")")
    return name


def _numbers(op: str, at: Cursor) -> tuple[Any, ...]:
    at.expect("(")
    if op == "fold":
        return (_one_of(MONOIDS, "a monoid", at),)
    if op == "mma":
        return (_one_of(MATRICES, "a matrix instruction", at),)
    if op == "shuffle":
        return (at.listed(at.integer, ")"),)
    if op == "shuffle_xor":
        return tuple(at.listed(at.integer, ")"))
    number = at.integer()
    at.expect(")")
    return (number,)

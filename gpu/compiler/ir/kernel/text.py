"""The text form of the kernel IR.

The tree of statements, by indentation:

    kernel rows(out: f32[64] global, x: f32[64,100] global)
      loop r worker 64
        alloc acc: f32[] private
        acc[] = 0.0:f32
        loop c serial 128
          if 99 - c >= 0
            %0 = exp2(x[r, c])
            acc[] add= mul(%0, %0)
        out[r] = acc[]

A loop gives how many values its variable takes, from 0, or both ends as in `3..10`, which it
includes. Values passed at launch stand behind the buffers, with their bounds, and how often a loop
runs may depend on them:

    kernel tail(out: f32[512] global; p 1..511)
      loop i serial p + 1

`acc[] = v` sets, `acc[] add= v` combines by a monoid, and `out[g] distinct= v` sets what no other
iteration does; a mask follows as in
`out[r] = v if r - 1 >= 0`, and in a load inside the brackets: `x[r, c if 99 - c >= 0]`. A line
`barrier` is where the threads of a block meet, and `prefetch x[r + 1, c]` a hint. Values are
written as calls, `cast.f32(v)` and `bitcast.i32(v)` name the new dtype, constants theirs, and
`index(16*r + c)` is index arithmetic as a value, and `shuffle_xor.4.32(v)` what v is on the thread
whose number is this one's xor 4, in warps of 32. What an update uses twice, or nests deeply, gets a
number on a line before it. A line `let g 10 = cast.i64(n[r])` before an update gives it a variable
g of 10 values, from 0, whose value is data. Statements for matrix instructions are those of
`gpu/compiler/ir/kernel/matrix_text.py`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Final, TypeVar

from gpu.compiler.ir import kernel as ir
from gpu.compiler.ir.index import (
    ALWAYS,
    Expr,
    Mask,
    Var,
    iterations,
    loop_var,
    parse_expr,
    parse_mask,
)
from gpu.compiler.ir.kernel import (
    SPACES,
    Alloc,
    Barrier,
    Block,
    Buf,
    If,
    Kernel,
    Let,
    Loop,
    Prefetch,
    Stmt,
    Update,
    Value,
)
from gpu.compiler.ir.kernel.matrix_text import WORDS, parse_matrix, print_matrix
from gpu.compiler.ir.kernel.value_text import print_value
from gpu.compiler.ir.optable import MONOIDS, OPS
from gpu.compiler.ir.text import Cursor, cursors, print_shape
from gpu.core.dtype import BY_CODE
from gpu.core.errors import ParseError

T = TypeVar("T")

RESERVED: Final = frozenset({"loop", "alloc", "if", "block", "barrier", "prefetch", "let", *WORDS})
"""Words a statement starts with, which no buffer can be called."""

# Numbers beyond int64, and signs in a row that each cost the reader a level of recursion.
_ABSURD: Final = re.compile(r"\d{19}|(?:-\s*){9}")
_SHUFFLE: Final = re.compile(r"shuffle_xor\.(\d{1,4})\.(\d{1,4})", re.ASCII)
_READ_DEPTH: Final = 60
# In the place of a monoid: no two iterations write one element.
_DISTINCT: Final = "distinct"
_CONVERSIONS: Final = {"cast": ir.cast, "bitcast": ir.bitcast}


def print_kernel(kernel: Kernel) -> str:
    """A kernel as text."""
    lines = [print_signature(kernel)]
    lines += [line for stmt in print_statements(kernel) for line in stmt]
    return "\n".join(lines) + "\n"


def print_signature(kernel: Kernel) -> str:
    """The line with the kernel's name and parameters."""
    vals = ", ".join(f"{v.name} {v.lo}..{v.hi}" for v in kernel.vals)
    params = ", ".join(map(_declaration, kernel.params))
    return f"kernel {kernel.name}({params}{f'; {vals}' if vals else ''})"


def print_statements(kernel: Kernel) -> list[list[str]]:
    """The lines of each statement without those inside it, outer ones first."""
    printed: list[list[str]] = []
    _print_block(kernel.body, "  ", printed)
    return printed


def _print_block(block: Block, indent: str, printed: list[list[str]]) -> None:
    for stmt in block.body:
        printed.append([indent + line for line in _own_lines(stmt)])
        if isinstance(stmt, Loop | If):
            _print_block(stmt.body, indent + "  ", printed)
        elif isinstance(stmt, Block):
            _print_block(stmt, indent + "  ", printed)


def _own_lines(stmt: Stmt) -> list[str]:
    match stmt:
        case Block():
            return ["block"]
        case Barrier():
            return ["barrier"]
        case Prefetch(buf, indices):
            return [f"prefetch {buf.name}[{', '.join(map(str, indices))}]"]
        case Alloc(buf):
            return [f"alloc {_declaration(buf)}"]
        case If(mask, _):
            return [f"if {mask}"]
        case Loop(var, kind, _):
            extent = f"{var.lo}..{var.hi}" if var.lo else f"{iterations(var)}"
            return [f"loop {var.name} {kind} {extent}"]
        case Update(buf, indices, monoid, value, mask, lets, distinct):
            bound = [line for var, value_of in lets for line in _print_let(var, value_of)]
            lines, text = print_value(value)
            how = _DISTINCT if distinct else monoid or ""
            target = f"{buf.name}[{', '.join(map(str, indices))}] {how}="
            guard = "" if mask is ALWAYS else f" if {mask}"
            return [*bound, *lines, f"{target} {text}{guard}"]
        case _:
            return [print_matrix(stmt)]


def _print_let(var: Var, value: Value) -> list[str]:
    lines, text = print_value(value)
    return [*lines, f"let {var.name} {var.extent} = {text}"]


def _declaration(buf: Buf) -> str:
    image = f" {buf.image.code}" if buf.image else ""
    return f"{buf.name}: {buf.dtype.code}{print_shape(buf.shape)} {buf.space}{image}"


def parse_kernel(text: str) -> Kernel:
    """The kernel a text stands for.

    Raises ParseError where it is not of the form above, and DTypeError for an operation that takes
    no such operands; `verify_kernel` checks the rest.
    """
    lines = cursors(text)
    if not lines:
        raise ParseError("line 1: expected `kernel`, found nothing")
    at = lines[0]
    at.expect("kernel")
    name = at.name("the name of the kernel")
    at.expect("(")
    params, vals = at.listed_in_two(
        lambda: _read_declaration(at), lambda: Var(*at.bounded_name()), ")"
    )
    at.end()
    reader = _Reader(lines[1:])
    reader.bufs = {buf.name: buf for buf in params}
    reader.vars = {val.name: val for val in vals}
    body = reader.block(0)
    return Kernel(name, params, body, vals)


def _read_declaration(at: Cursor) -> Buf:
    name = at.name("the name of a buffer")
    at.expect(":")
    dtype = at.dtype()
    shape = at.shape()
    space = at.name("a memory space")
    if space not in SPACES:
        raise at.refused(f"a memory space, one of {' '.join(SPACES)}")
    return Buf(name, dtype, shape, space, at.image())


class _Reader:
    """What has been read of a kernel's body, and what names mean at this place."""

    def __init__(self, lines: list[Cursor]):
        self.lines = lines
        self.next = 0
        self.bufs: dict[str, Buf] = {}
        self.vars: dict[str, Var] = {}
        self.numbered: dict[int, Value] = {}
        self.lets: list[Let] = []

    def block(self, outer: int, depth: int = 0) -> Block:
        """The statements indented further than `outer`, which end where the indentation does."""
        body: list[Stmt] = []
        bufs, inside = dict(self.bufs), None
        while self.next < len(self.lines) and self.lines[self.next].indent > outer:
            at = self.lines[self.next]
            inside = at.indent if inside is None else inside
            if at.indent != inside or depth > _READ_DEPTH:
                raise at.error(f"a statement indented by {inside}, nested less than {_READ_DEPTH}")
            self.next += 1
            if at.ahead("%"):
                self._number(at)
            elif at.accept("let"):
                self._let(at)
            else:
                body.append(self._statement(at, depth))
                self.numbered = {}
        if depth == 0 and self.next < len(self.lines):
            raise self.lines[self.next].error("an indented statement")
        self.bufs = bufs
        return Block(tuple(body))

    def _statement(self, at: Cursor, depth: int) -> Stmt:
        if at.accept("loop"):
            return self._loop(at, depth)
        if at.accept("alloc"):
            buf = _read_declaration(at)
            at.end()
            self.bufs[buf.name] = buf
            return Alloc(buf)
        if at.accept("if"):
            mask = self._index_text(at, at.rest(), parse_mask)
            return If(mask, self.block(at.indent, depth + 1))
        if at.accept("barrier"):
            at.end()
            return Barrier()
        if at.accept("prefetch"):
            buf = self._buffer(at, at.name("a buffer"))
            indices, mask = self._indices(at)
            if mask is not ALWAYS:
                raise at.refused("a prefetch without a mask")
            at.end()
            return Prefetch(buf, indices)
        if at.accept("block"):
            at.end()
            return self.block(at.indent, depth + 1)
        if (word := next(filter(at.accept, WORDS), None)) is not None:
            return parse_matrix(word, at, self)
        return self._update(at)

    def _loop(self, at: Cursor, depth: int) -> Loop:
        name = at.name("the name of a variable")
        kind = at.name("a kind of loop")
        var = self._loop_var(at, name)
        outer = self.vars
        self.vars = {**outer, name: var}
        loop = Loop(self.vars[name], kind, self.block(at.indent, depth + 1))
        self.vars = outer
        return loop

    def _loop_var(self, at: Cursor, name: str) -> Var:
        if self.vars and not at.ahead_number():
            count = self._index_text(at, at.rest(), parse_expr)
            if count.hi < 1:
                raise at.error("a number of iterations")
            return loop_var(name, count)
        first = at.integer("how many iterations")
        lo, hi = (first, at.integer()) if at.accept("..") else (0, first - 1)
        at.end()
        if hi < lo:
            raise at.error("at least one iteration")
        return Var(name, lo, hi)

    def _update(self, at: Cursor) -> Update:
        buf = self._buffer(at, at.name("a statement"))
        indices, mask = self._indices(at)
        if mask is not ALWAYS:
            raise at.refused("the mask of an update after its value")
        distinct = at.accept(_DISTINCT)
        monoid = None if at.ahead("=") else at.name("= or a monoid")
        if monoid is not None and (distinct or monoid not in MONOIDS):
            raise at.refused(f"a monoid, one of {' '.join(MONOIDS)}, or {_DISTINCT}")
        at.expect("=")
        value = self._value(at)
        if at.accept("if"):
            mask = self._index_text(at, at.rest(), parse_mask)
        at.end()
        lets = tuple(self.lets)
        for let in lets:
            del self.vars[let.var.name]
        self.lets = []
        return Update(buf, indices, monoid, value, mask, lets, distinct)

    def _let(self, at: Cursor) -> None:
        name = at.name("the name of a variable")
        extent = at.integer("how many values")
        if name in self.vars or extent < 1:
            raise at.refused("a name that is not taken, and at least one value")
        at.expect("=")
        value = self._value(at)
        at.end()
        var = Var(name, 0, extent - 1)
        self.vars = {**self.vars, name: var}
        self.lets.append(Let(var, value))

    def _number(self, at: Cursor) -> None:
        number = at.reference()
        at.expect("=")
        self.numbered[number] = self._value(at)
        at.end()

    def _buffer(self, at: Cursor, name: str) -> Buf:
        if name not in self.bufs:
            raise at.refused(f"a buffer, one of {' '.join(self.bufs) or 'none'}")
        return self.bufs[name]

    def place(self, at: Cursor) -> tuple[Buf, tuple[Expr, ...], Mask]:
        """A buffer with its indices in brackets."""
        buf = self._buffer(at, at.name("a buffer"))
        return buf, *self._indices(at)

    def _indices(self, at: Cursor) -> tuple[tuple[Expr, ...], Mask]:
        at.expect("[")
        inside = at.through("]")
        listed, _, guard = inside.partition(" if ")
        parts = listed.split(",") if listed.strip() else []
        indices = tuple(self._index_text(at, part, parse_expr) for part in parts)
        return indices, self._index_text(at, guard, parse_mask) if guard else ALWAYS

    def _index_text(self, at: Cursor, text: str, parse: Callable[[str, dict[str, Var]], T]) -> T:
        if _nesting(text) > _READ_DEPTH or _ABSURD.search(text):
            raise at.refused(f"index arithmetic of sensible size, not {text[:40]!r}")
        try:
            return parse(text, self.vars)
        except ParseError as error:
            raise ParseError(f"line {at.number}: {error.message}") from error

    def _value(self, at: Cursor, depth: int = 0) -> Value:
        if depth > _READ_DEPTH:
            raise at.error(f"a value nested less than {_READ_DEPTH} deep; number its parts")
        if at.ahead("%"):
            number = at.reference()
            if number not in self.numbered:
                raise at.refused(f"a number given above, for this update (%{number})")
            return self.numbered[number]
        if at.ahead_literal():
            literal = at.literal()
            at.expect(":")
            dtype = at.dtype()
            return ir.const(dtype, literal(dtype))
        name = at.name("a value")
        if at.ahead("["):
            buf = self._buffer(at, name)
            return ir.load(buf, *self._indices(at))
        return self._call(at, name, depth)

    def _call(self, at: Cursor, name: str, depth: int) -> Value:
        at.expect("(")
        if name == "index":
            return ir.index(self._index_text(at, at.through(")"), parse_expr))
        args = at.listed(lambda: self._value(at, depth + 1), ")")
        if name in OPS:
            return ir.alu(name, *args)
        kind, _, code = name.partition(".")
        if (sizes := _SHUFFLE.fullmatch(name)) and len(args) == 1:
            return ir.shuffle_xor(args[0], int(sizes[1]), int(sizes[2]))
        if kind not in _CONVERSIONS or code not in BY_CODE or len(args) != 1:
            raise at.refused(f"an operation, index, cast.f32 or the like, not {name}")
        return _CONVERSIONS[kind](args[0], BY_CODE[code])


def _nesting(text: str) -> int:
    """How deep the parentheses of a text go."""
    steps = ({"(": 1, ")": -1}.get(character, 0) for character in text)
    return max(itertools.accumulate(steps), default=0)

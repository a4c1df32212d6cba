"""Programs of NIR, Mesa's intermediate language, as plain data and as text.

This is the seam between what prints kernels and what calls Mesa: such programs are made by
`gpu/compiler/render/nir/printer.py`, and `gpu/compiler/toolchain/nirbuild.py` has Mesa's functions
build them. The text is what is compiled and cached:

    nir copy block 256 shared 0 scratch 0 parameters 16
      %0 = param 64 (0)
      %1 = local_invocation_id 32
      %2 = u2u64 64 %1
      %3 = iadd 64 %0, %2
      %4 = load_global 8 %3 (1, 0)
      store_global %4, %3 (1)
    end

A program is one kernel for blocks of threads along x. Every value is a scalar in SSA form, and is
seen up to the end of the `if` or `loop` that it is made in; what is to be seen longer goes through
a register. Behind an operation stand the bits of its value (1 for a bool), then operands, then
numbers in parentheses. Beside the arithmetic in `ALU`, which is Mesa's by name and meaning:

=====================  ================  ==================  ======================================
op                     operands          numbers             value
=====================  ================  ==================  ======================================
load_const                               (bits,)             a constant, as the number of its bits
param                                    (offset,)           part of the kernel's parameters
workgroup_id                                                 number of the block, 32 bits
local_invocation_id                                          number of the thread in it, 32 bits
reg                                                          a register, which holds nothing yet
load_reg               reg                                   what the register holds now
store_reg              reg, value
load_global            address           (align, constant)   memory; `constant` is 1 where nothing
                                                             writes it
store_global           value, address    (align,)
load_shared            offset            (align,)            memory of the block, offset of 32 bits
store_shared           value, offset     (align,)
load_scratch           offset            (align,)            memory of the thread
store_scratch          value, offset     (align,)
shuffle_xor            value, number                         the value on the thread of the warp
                                                             whose number is this one's xor that
barrier                                                      all threads arrive, memory of the
                                                             block is in order
if                     bool
else, endif
loop, break, endloop                                         for ever, but for a break inside an if
=====================  ================  ==================  ======================================
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from gpu.core.errors import ParseError

ALU: Final = {
    **dict.fromkeys(("fabs", "ffloor", "fneg", "frcp", "fround_even", "frsq", "ftrunc"), "n>n"),
    **dict.fromkeys(("iabs", "ineg", "inot"), "n>n"),
    **dict.fromkeys(("fadd", "fmul"), "nn>n"),
    **dict.fromkeys(("iadd", "iand", "idiv", "imax", "imin", "imul", "ior", "irem"), "nn>n"),
    **dict.fromkeys(("isub", "ixor", "udiv", "umax", "umin", "umod"), "nn>n"),
    **dict.fromkeys(("ishl", "ishr", "ushr"), "n3>n"),
    **dict.fromkeys(("feq", "fge", "flt", "fneu"), "ss>1"),
    **dict.fromkeys(("ieq", "ige", "ilt", "ine", "uge", "ult"), "ss>1"),
    "ffma": "nnn>n",
    "bcsel": "1nn>n",
    "ufind_msb": "3>3",
    **dict.fromkeys(("b2f32", "b2f64", "b2i8", "b2i16", "b2i32", "b2i64"), "1>w"),
    **dict.fromkeys(("f2f16_rtne", "f2f32", "f2f64"), "s>w"),
    **dict.fromkeys(("f2i8", "f2i16", "f2i32", "f2i64"), "s>w"),
    **dict.fromkeys(("f2u8", "f2u16", "f2u32", "f2u64"), "s>w"),
    **dict.fromkeys(("i2f32", "i2f64", "u2f32", "u2f64"), "s>w"),
    **dict.fromkeys(("i2i8", "i2i16", "i2i32", "i2i64"), "s>w"),
    **dict.fromkeys(("u2u8", "u2u16", "u2u32", "u2u64"), "s>w"),
}
"""Operands and value of each operation: `n` has the bits of the value, `s` those of all other `s`,
`1` one bit, `3` 32 bits, `w` as many as the name tells."""

_OTHERS: Final = {
    # operation: (operands as above with r for a register, numbers, has a value)
    "load_const": ("", 1, True),
    "param": ("", 1, True),
    "workgroup_id": ("", 0, True),
    "local_invocation_id": ("", 0, True),
    "reg": ("", 0, True),
    "load_reg": ("r", 0, True),
    "store_reg": ("rs", 0, False),
    "load_global": ("6", 2, True),
    "store_global": ("s6", 1, False),
    "load_shared": ("3", 1, True),
    "store_shared": ("s3", 1, False),
    "load_scratch": ("3", 1, True),
    "store_scratch": ("s3", 1, False),
    "shuffle_xor": ("n3", 0, True),
    "barrier": ("", 0, False),
    "if": ("1", 0, False),
    "else": ("", 0, False),
    "endif": ("", 0, False),
    "loop": ("", 0, False),
    "break": ("", 0, False),
    "endloop": ("", 0, False),
}
_OPENS: Final = frozenset({"if", "else", "loop"})
_CLOSES: Final = {"else": ("if",), "endif": ("if", "else"), "endloop": ("loop",)}
_MEMORY: Final = re.compile(r"(load|store)_(global|shared|scratch)")
_WIDTHS: Final = (1, 8, 16, 32, 64)
_FIXED: Final = {"1": 1, "3": 32, "6": 64}
_MOST_THREADS: Final = 1024
_MOST_BYTES: Final = 1 << 24


class NirInst(NamedTuple):
    """One instruction.

    Attributes:
        op: see the module's head.
        bits: of its value; 0 where it has none.
        args: numbers of the values that are its operands.
        attr: numbers.
    """

    op: str
    bits: int = 0
    args: tuple[int, ...] = ()
    attr: tuple[int, ...] = ()


class NirProgram(NamedTuple):
    """A kernel.

    Attributes:
        name: of the kernel.
        block: threads of a block.
        shared: bytes of memory of a block.
        scratch: bytes of memory of a thread.
        parameters: bytes of its parameters.
        body: instructions; those with a value are numbered from 0 in this order.
    """

    name: str
    block: int
    shared: int
    scratch: int
    parameters: int
    body: tuple[NirInst, ...]


def print_nir(program: NirProgram) -> str:
    """A program as text."""
    lines = [
        f"nir {program.name} block {program.block} shared {program.shared}"
        f" scratch {program.scratch} parameters {program.parameters}"
    ]
    depth, number = 1, 0
    for inst in program.body:
        depth -= inst.op in _CLOSES
        start = "  " * depth
        if inst.bits:
            start += f"%{number} = {inst.op} {inst.bits}"
            number += 1
        else:
            start += inst.op
        parts = [start]
        if inst.args:
            parts.append(", ".join(f"%{arg}" for arg in inst.args))
        if inst.attr:
            parts.append(f"({', '.join(map(str, inst.attr))})")
        lines.append(" ".join(parts))
        depth += inst.op in _OPENS
    return "\n".join([*lines, _LAST, ""])


_LAST: Final = "end"
_HEAD: Final = re.compile(
    r"nir (\w+) block (\d{1,9}) shared (\d{1,9}) scratch (\d{1,9}) parameters (\d{1,9})"
)
_LINE: Final = re.compile(
    r"\s*(?:%(?P<number>\d{1,9}) = )?(?P<op>\w+)(?: (?P<bits>\d{1,2}))?"
    r"(?: (?P<args>%\d{1,9}(?:, %\d{1,9})*))?(?: \((?P<attr>\d{1,20}(?:, \d{1,20})*)\))?"
)


def parse_nir(text: str) -> NirProgram:
    """The program that `print_nir` gave, checked: Mesa would not survive a malformed one.

    Raises ParseError, with the line, for anything else.
    """
    lines = text.splitlines()
    head = _HEAD.fullmatch(lines[0]) if lines else None
    if head is None or lines[-1] != _LAST:
        raise ParseError(
            f"line 1: NIR begins with `nir NAME block ...`, its last line is `{_LAST}`"
        )
    block, shared, scratch, parameters = map(int, head.groups()[1:])
    if not 1 <= block <= _MOST_THREADS or max(shared, scratch, parameters) > _MOST_BYTES:
        raise ParseError(
            f"line 1: blocks have 1 to {_MOST_THREADS} threads, memories {_MOST_BYTES} bytes"
        )
    checker = _Checker(parameters)
    body = tuple(checker.line(at, line) for at, line in enumerate(lines[1:-1], 2))
    if checker.open:
        raise ParseError(f"line {len(lines)}: {checker.open[-1].op} is never closed")
    return NirProgram(head[1], block, shared, scratch, parameters, body)


class _Scope:
    """An open `if`, `else` or `loop`, and the values made inside."""

    def __init__(self, op: str):
        self.op = op
        self.made: list[int] = []


class _Checker:
    """What has been read of a body: bits of the values that are seen, and scopes."""

    def __init__(self, parameters: int):
        self.parameters = parameters
        self.open: list[_Scope] = []
        self.bits: dict[int, int] = {}
        self.registers: dict[int, int] = {}
        self.count = 0

    def line(self, at: int, line: str) -> NirInst:
        """The instruction of a line."""
        found = _LINE.fullmatch(line)
        if found is None:
            raise ParseError(f"line {at}: {line.strip()!r} is no instruction")
        inst = NirInst(
            found["op"],
            int(found["bits"] or 0),
            tuple(int(arg) for arg in re.findall(r"\d+", found["args"] or "")),
            tuple(int(number) for number in re.findall(r"\d+", found["attr"] or "")),
        )
        try:
            self._check(inst, found["number"])
        except ParseError as error:
            raise ParseError(f"line {at}: {line.strip()}: {error.message}") from None
        return inst

    def _check(self, inst: NirInst, number: str | None) -> None:
        operands, numbers, has_value = _shape(inst.op)
        _require((number is not None) == (inst.bits != 0) == has_value, "a value has a number")
        _require(len(inst.args) == len(operands), f"it has {len(operands)} operands")
        _require(len(inst.attr) == numbers, f"it has {numbers} numbers")
        if has_value:
            _require(inst.bits in _WIDTHS, "values have 1, 8, 16, 32 or 64 bits")
            _require(number == str(self.count), f"the next value is %{self.count}")
        self._check_bits(inst, operands)
        self._check_numbers(inst)
        self._nest(inst)
        if has_value:
            (self.registers if inst.op == "reg" else self.bits)[self.count] = inst.bits
            if self.open:
                self.open[-1].made.append(self.count)
            self.count += 1

    def _check_bits(self, inst: NirInst, operands: str) -> None:
        same: set[int] = set()
        for kind, arg in zip(operands, inst.args, strict=True):
            known = self.registers if kind == "r" else self.bits
            _require(arg in known, f"%{arg} is not seen here")
            if kind in "sr":
                same.add(known[arg])
            else:
                wanted = _FIXED.get(kind, inst.bits)
                _require(known[arg] == wanted, f"%{arg} has {known[arg]} bits, not {wanted}")
        if inst.op == "load_reg":
            same.add(inst.bits)
        _require(len(same) <= 1, f"operands of {sorted(same)} bits")
        result = ALU.get(inst.op, ">").split(">")[1]
        if result == "w":
            # 16 of f2f16_rtne, 32 of b2i32
            wanted = int(re.findall(r"\d+", inst.op)[-1])
            _require(inst.bits == wanted, f"its value has {wanted} bits")
        elif result in ("1", "3"):
            _require(inst.bits == _FIXED[result], f"its value has {_FIXED[result]} bits")
        if inst.op.endswith("_id"):
            _require(inst.bits == 32, "its value has 32 bits")

    def _check_numbers(self, inst: NirInst) -> None:
        if inst.op == "load_const":
            _require(inst.attr[0] < 1 << inst.bits, f"it fits no {inst.bits} bits")
        if inst.op == "param":
            inside = inst.attr[0] + inst.bits // 8 <= self.parameters
            aligned = inst.bits in (32, 64) and inst.attr[0] % (inst.bits // 8) == 0
            _require(inside and aligned, f"a word of {self.parameters} bytes, in its place")
        if _MEMORY.match(inst.op):
            align = inst.attr[0]
            _require(align in (1, 2, 4, 8, 16), "alignment is 1, 2, 4, 8 or 16 bytes")
            bits = inst.bits or self.bits[inst.args[0]]
            _require(bits >= 8, "a bool is no memory: give bytes")

    def _nest(self, inst: NirInst) -> None:
        """Opens and closes scopes."""
        if inst.op in _CLOSES:
            wanted = _CLOSES[inst.op]
            closes = bool(self.open) and self.open[-1].op in wanted
            _require(closes, f"it closes no {' or '.join(wanted)}")
            for made in self.open.pop().made:
                self.bits.pop(made, None)
                self.registers.pop(made, None)
        if inst.op == "break":
            kinds = [scope.op for scope in self.open]
            _require(kinds[-2:] == ["loop", "if"], "it stands in an if right inside a loop")
        if inst.op in _OPENS:
            self.open.append(_Scope(inst.op))


def _shape(op: str) -> tuple[str, int, bool]:
    if op in ALU:
        return ALU[op].split(">")[0], 0, True
    _require(op in _OTHERS, f"{op} is no operation")
    return _OTHERS[op]


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ParseError(message)

"""What PTX text consists of. NVIDIA, "Parallel Thread Execution ISA", chapters 4 and 5."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gpu.core.errors import ParseError

TYPES: Final = {
    **{f"{letter}{bits}": bits for letter in "bsu" for bits in (8, 16, 32, 64)},
    "f16": 16,
    "bf16": 16,
    "f32": 32,
    "f64": 64,
    "f16x2": 32,
    "bf16x2": 32,
    "tf32": 32,
    "e4m3x2": 16,
    "e5m2x2": 16,
    "s16x2": 32,
    "u16x2": 32,
    "b128": 128,
    "pred": 1,
}
"""Bits of the types."""


class PtxError(ParseError):
    """PTX that is malformed, or that the engine has no semantics for.

    Attributes:
        line: of the text, from 1.
        text: the statement.
    """

    def __init__(self, why: str, line: int, text: str):
        shown = " ".join(text.split())
        if len(shown) > 160:
            shown = f"{shown[:160]}..."
        super().__init__(f"PTX line {line}: {why}: `{shown}`")
        self.line = line
        self.text = shown


@dataclass(frozen=True, slots=True)
class Register:
    """A register or special register by name, the percent sign included; `!p` is negated."""

    name: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Number:
    """A literal.

    Attributes:
        bits: of an integer its value, of ``0f...`` and ``0d...`` the pattern.
        form: "int", "f32" for ``0f``, "f64" for ``0d`` and decimal fractions.
    """

    bits: int
    form: str = "int"


@dataclass(frozen=True, slots=True)
class Symbol:
    """A label, variable or function, and a number behind it; or an element of an array."""

    name: str
    offset: int = 0
    index: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """Some bytes or halves of a register, as video instructions take them: ``%r1.b3210``."""

    base: Register | Symbol
    parts: str


@dataclass(frozen=True, slots=True)
class Address:
    """``[base + offset]``; the base may be a number."""

    base: Register | Symbol | Number
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Pack:
    """``{a, b}``, and what stands in parentheses."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Both:
    """``a|b``: two destinations."""

    first: Register
    second: Register


@dataclass(frozen=True, slots=True)
class Sink:
    """``_``: a destination that goes nowhere."""


Operand = Register | Number | Symbol | Part | Address | Pack | Both | Sink


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        name: first part of the opcode, ``add``.
        parts: what follows it, ``("rn", "f32")``.
        guard: the predicate that it runs under.
        line, text: where it stands.
    """

    name: str
    parts: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | None
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Label:
    """A place to branch to."""

    name: str
    line: int


@dataclass(frozen=True, slots=True)
class BranchTargets:
    """``label: .branchtargets L1, L2;``, or ``.calltargets``; a ``.callprototype`` names none."""

    name: str
    targets: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable.

    Attributes:
        space: ``global``, ``const``, ``shared``, ``local`` or ``param``.
        size: in bytes, 0 for an array of unknown size.
        element: bytes of an element of an array.
        initial: (offset, bytes) of what it holds first.
        pointers: (offset, symbol) of addresses that it holds.
    """

    space: str
    name: str
    size: int
    align: int
    element: int
    initial: bytes = b""
    pointers: tuple[tuple[int, Symbol], ...] = ()


@dataclass(slots=True)
class Function:
    """A kernel or a function.

    Attributes:
        registers: name -> type.
        body: instructions and labels in order; None for a prototype.
        results: of a function, where it leaves what it returns.
    """

    name: str
    is_kernel: bool
    parameters: list[Variable]
    results: list[Variable]
    line: int
    registers: dict[str, str] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    body: list[Instruction | Label | BranchTargets] | None = None

    def parameter_offsets(self) -> dict[str, int]:
        """Where each parameter lies behind the first; they are aligned to their own size."""
        offsets, at = {}, 0
        for parameter in self.parameters:
            at = -(-at // parameter.align) * parameter.align
            offsets[parameter.name] = at
            at += parameter.size
        return offsets

    def parameter_bytes(self) -> int:
        """Bytes of all parameters."""
        offsets = self.parameter_offsets()
        return max((offsets[p.name] + p.size for p in self.parameters), default=0)


@dataclass(slots=True)
class Module:
    """A PTX file."""

    version: tuple[int, int]
    target: str
    variables: dict[str, Variable]
    functions: dict[str, Function]

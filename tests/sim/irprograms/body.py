"""The body of a random program while it is written: lines of LLVM IR, and the values in scope."""

from __future__ import annotations

import random
import re
from collections.abc import Set
from typing import Final

INTEGERS: Final = ("i8", "i16", "i32", "i64")
ODD: Final = ("i24", "i48")
FLOATS: Final = ("half", "float", "double")
VECTORS: Final = (
    *("<4 x i8>", "<2 x i16>", "<4 x i16>", "<2 x i32>", "<3 x i32>", "<4 x i32>", "<2 x i64>"),
    *("<2 x half>", "<4 x half>", "<2 x float>", "<4 x float>", "<2 x double>", "<3 x float>"),
)
SCALARS: Final = (*INTEGERS, *ODD, *FLOATS)
_WIDTHS: Final = {"half": 16, "float": 32, "double": 64}
_MANGLED: Final = {"half": "f16", "float": "f32", "double": "f64"}
_FLOAT_CONSTANTS: Final = {
    "half": ("0xH0000", "0xH8000", "0xH3C00", "0xHC100", "0xH7C00", "0xH0001", "0xH7BFF"),
    "float": (
        "0.0",
        "-0.0",
        "1.0",
        "-2.5",
        "0x7FF0000000000000",
        "0x36A0000000000000",
        "0x47EFFFFFE0000000",
    ),
    "double": ("0.0", "-0.0", "1.0", "-2.5", "0x7FF0000000000000", "0x1", "1.0e+308"),
}
INFINITY: Final = {"half": "0xH7C00", "float": "0x7FF0000000000000", "double": "0x7FF0000000000000"}
_VECTOR: Final = re.compile(r"<(\d+) x (\w+)>")


def element(kind: str) -> str:
    """The type of a vector's elements; of a scalar, itself."""
    found = _VECTOR.fullmatch(kind)
    return found[2] if found else kind


def count(kind: str) -> int:
    """Elements of a vector, 1 of a scalar."""
    found = _VECTOR.fullmatch(kind)
    return int(found[1]) if found else 1


def vector(number: int, kind: str) -> str:
    """The type of `number` elements."""
    return f"<{number} x {kind}>" if number > 1 else kind


def width(kind: str) -> int:
    """Bits of a scalar or of an element."""
    inner = element(kind)
    return _WIDTHS.get(inner) or int(inner[1:])


def mangled(kind: str) -> str:
    """How an intrinsic's name spells a type: ``i32``, ``f16``, ``v2f16``."""
    inner = _MANGLED.get(element(kind), element(kind))
    return f"v{count(kind)}{inner}" if count(kind) > 1 else inner


class Body:
    """Lines of a program, and by type the values that dominate the place where the next goes.

    Attributes:
        random: what all choices come from.
        avoid: names of operations that are left out, see `Dialect`.
        lines: of the phase that is being written.
        entry: allocas of that phase.
        pool: type -> names in scope, the latest last.
        arrays: (name, element type) of private arrays in scope, of 8 elements each.
        declared: declarations of intrinsics.
        block: the label of the current basic block.
    """

    def __init__(self, seed: int, avoid: Set[str] = frozenset()):
        self.random = random.Random(seed)
        self.avoid = avoid
        self.lines: list[str] = []
        self.entry: list[str] = []
        self.pool: dict[str, list[str]] = {}
        self.arrays: list[tuple[str, str]] = []
        self.declared: set[str] = set()
        self.block = ""
        self._count = 0

    def number(self) -> int:
        """A number that no name has yet."""
        self._count += 1
        return self._count

    def emit(self, kind: str, text: str) -> str:
        """Adds an instruction whose result has a type; the name of the result."""
        name = f"%v{self.number()}"
        self.lines.append(f"  {name} = {text}")
        self.pool.setdefault(kind, []).append(name)
        return name

    def line(self, text: str) -> None:
        """Adds an instruction without a result, or a label."""
        self.lines.append(text if text.endswith(":") else f"  {text}")

    def call(self, result: str, name: str, *arguments: tuple[str, str]) -> str:
        """A call of the intrinsic ``llvm.<name>``; arguments are (type, value)."""
        return self.emit(result, self.call_text(result, name, *arguments))

    def call_text(self, result: str, name: str, *arguments: tuple[str, str]) -> str:
        """The text of a call, for results that are no value of the pool."""
        types = ", ".join(kind for kind, _ in arguments)
        self.declared.add(f"declare {result} @llvm.{name}({types})")
        text = ", ".join(f"{kind} {value}" for kind, value in arguments)
        return f"call {result} @llvm.{name}({text})"

    def pick(self, kind: str) -> str:
        """A value of a type: a recent one, any, or a constant."""
        values = self.pool.get(kind)
        if not values or self.random.random() < 0.12:
            return self.constant(kind)
        return self.random.choice(values[-6:] if self.random.random() < 0.7 else values)

    def value(self, kind: str) -> str:
        """A value that no compiler knows."""
        values = self.pool.get(kind)
        if values:
            return self.random.choice(values[-6:] if self.random.random() < 0.7 else values)
        inner = element(kind)
        item, place = self.value(inner), self.random.randrange(count(kind))
        start = self.constant(kind)
        return self.emit(kind, f"insertelement {kind} {start}, {inner} {item}, i32 {place}")

    def constant(self, kind: str) -> str:
        """A constant, often one at the edge of what the type holds."""
        if count(kind) > 1:
            inner = element(kind)
            items = ", ".join(f"{inner} {self.constant(inner)}" for _ in range(count(kind)))
            return f"<{items}>"
        if kind == "i1":
            return self.random.choice(("true", "false"))
        if kind in FLOATS:
            choices = list(_FLOAT_CONSTANTS[kind])
            if f"{kind}.minus_zero" in self.avoid:
                del choices[1]
            return self.random.choice(choices)
        top = 1 << (width(kind) - 1)
        near = (0, 1, -1, 7, top - 1, -top, self.random.randrange(-top, top))
        return str(self.random.choice(near))

    def index(self, limit: int) -> str:
        """An i32 below a power of two, computed."""
        name = f"%x{self.number()}"
        self.lines.append(f"  {name} = and i32 {self.value('i32')}, {limit - 1}")
        return name

    def scalar(self) -> str:
        """A type: mostly of the usual widths."""
        odd = self.random.random() < 0.06
        return self.random.choice(ODD if odd else (*INTEGERS, "i32", *FLOATS))

    def integer(self) -> str:
        """An integer type."""
        odd = self.random.random() < 0.06
        return self.random.choice(ODD if odd else (*INTEGERS, "i32"))

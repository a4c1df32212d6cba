"""C for clang: its words, the head of every source, and the declarations of vector types."""

from __future__ import annotations

import math
from typing import Final

from gpu.compiler.render.cstyle.text import Emitter, Language, Type

_SCALARS: Final = {
    "i8": "signed char", "u8": "unsigned char", "i16": "short", "u16": "unsigned short",
    "i32": "int", "u32": "unsigned int", "i64": "long long", "u64": "unsigned long long",
    "f32": "float", "f64": "double", "half": "__fp16",
}  # fmt: skip
PRELUDE: Final = "\n".join(
    [
        "#ifndef SYMBOL",
        "#define SYMBOL(name) name",
        "#endif",
        *(f"typedef {spelled} {name};" for name, spelled in _SCALARS.items()),
    ]
)
"""Head of every source. `SYMBOL` lets a compiler of several sources at once tell their functions
apart; types may be defined again as the same types."""


class _C(Language):
    def special(self, kind: Type, value: float) -> str:
        """An infinity or a NaN, by clang's functions."""
        suffix = "f" if kind.bits == 32 else ""
        sign = "-" if math.copysign(1.0, value) < 0 else ""
        if math.isnan(value):
            return f'{sign}__builtin_nan{suffix}("")'
        return f"{sign}__builtin_inf{suffix}()"


C: Final = _C(
    words={name: name for name in _SCALARS},
    vector="{element}x{lanes}",
    lane="[{number}]",
    make="({kind}){{{lanes}}}",
    literal="(({kind}){number})",
    long="LL",
    least="(({kind})(-{most} - 1))",
    convert="(({kind}){x})",
    convert_vector="__builtin_convertvector({x}, {kind})",
    truth="{comparison}",
    compared="{comparison}",
    mask="({vector} != 0)",
    casts_vectors=True,
)
I64: Final = C.type("i64")


class CEmitter(Emitter):
    """Collects the statements of one function.

    Attributes:
        declarations: of vector types, in order of first use.
    """

    def __init__(self) -> None:
        super().__init__()
        self.declarations: dict[str, None] = {}
        self._spares: set[str] = set()

    def use(self, kind: Type) -> Type:
        """Declares a type where it is a vector; returns it."""
        if kind.lanes > 1:
            attribute = f"__attribute__((ext_vector_type({kind.lanes})))"
            self.declarations[f"typedef {kind.scalar} {kind} {attribute};"] = None
        return kind

    def in_memory(self, kind: Type) -> str:
        """The name of a type as it lies in an array: aligned as its elements only are."""
        if self.use(kind).lanes == 1:
            return str(kind)
        attribute = f"__attribute__((aligned({kind.bits // 8})))"
        self.declarations[f"typedef {kind} {kind}_packed {attribute};"] = None
        return f"{kind}_packed"

    def spare(self, purpose: str) -> str:
        """The name of 8 bytes on the stack, zero at first; one for each `purpose`."""
        if purpose not in self._spares:
            self._spares.add(purpose)
            self.entry.append(f"  u64 {purpose}[1] = {{0}};")
        return purpose

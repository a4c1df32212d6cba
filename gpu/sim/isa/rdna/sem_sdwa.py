"""SDWA: bytes and halves of registers as operands of the vector ALU, up to RDNA2.

AMD, "RDNA2 Instruction Set Architecture", section 6.6 ("Sub-Dword Addressing").
"""

from __future__ import annotations

from typing import Final

from gpu.sim.isa.frames import Build, Operation
from gpu.sim.isa.rdna.define import vector
from gpu.sim.isa.values import Value

PARTS: Final = ("b0", "b1", "b2", "b3", "w0", "w1")
"""By the code of a selection; the next one is the whole register."""
REST: Final = ("zero", "sign", "keep")
"""What DST_UNUSED makes of the other bits of a register."""


def _field(number: int) -> tuple[int, int]:
    """(lowest bit, bits) of a part."""
    return (8 * number, 8) if number < 4 else (16 * (number - 4), 16)


def _part(number: int, signed: bool) -> Build:
    low, bits = _field(number)

    def build(x: Value) -> Value:
        high = x.shl(32 - bits - low)
        return high.ashr(32 - bits) if signed else high.lshr(32 - bits)

    return build


def _place(number: int, rest: str) -> Build:
    low, bits = _field(number)

    def build(x: Value, old: Value) -> Value:
        high = x.shl(32 - bits)
        if rest == "sign":
            return high.ashr(32 - bits - low)
        kept = 0xFFFFFFFF ^ ((1 << bits) - 1) << low
        placed = high.lshr(32 - bits - low)
        return placed if rest == "zero" else placed | (old & (kept - (kept >> 31 << 32)))

    return build


TABLE: Final[dict[str, Operation]] = {
    **vector(
        "i32: i32",
        **{
            f"part_{part}_{sign}": _part(number, sign == "i")
            for number, part in enumerate(PARTS)
            for sign in "ui"
        },
    ),
    **vector(
        "i32: i32 i32",
        **{
            f"place_{part}_{rest}": _place(number, rest)
            for number, part in enumerate(PARTS)
            for rest in REST
        },
    ),
}

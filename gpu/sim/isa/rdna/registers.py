"""Names of registers and inline constants."""

from __future__ import annotations

from typing import Final

from gpu.sim.isa.rdna.formats import ACCUMULATOR, EXEC, M0, NULL, VCC_LO, VGPR

_PAIRS: Final = {VCC_LO: "vcc", EXEC: "exec"}
_SINGLES: Final = {
    VCC_LO: "vcc_lo",
    VCC_LO + 1: "vcc_hi",
    NULL: "null",
    M0: "m0",
    EXEC: "exec_lo",
    EXEC + 1: "exec_hi",
    235: "src_shared_base",
    236: "src_shared_limit",
    237: "src_private_base",
    238: "src_private_limit",
    251: "src_vccz",
    252: "src_execz",
    253: "src_scc",
    240: "0.5",
    241: "-0.5",
    242: "1.0",
    243: "-1.0",
    244: "2.0",
    245: "-2.0",
    246: "4.0",
    247: "-4.0",
    248: "0.15915494",
}


def register_name(code: int, dwords: int = 1) -> str:
    """The name of a source code: a scalar register, a constant, or from `VGPR` on a vector one."""
    if code >= VGPR + ACCUMULATOR:
        return register_range("a", code - VGPR - ACCUMULATOR, dwords)
    if code >= VGPR:
        return register_range("v", code - VGPR, dwords)
    if code < VCC_LO:
        return register_range("s", code, dwords)
    if 108 <= code < NULL:
        return register_range("ttmp", code - 108, dwords)
    if dwords == 2 and code in _PAIRS:
        return _PAIRS[code]
    if 128 <= code <= 208:
        return str(code - 128 if code <= 192 else 192 - code)
    return _SINGLES.get(code, f"src_{code}")


def register_range(bank: str, number: int, dwords: int) -> str:
    """``v1`` or ``v[1:2]``."""
    return f"{bank}{number}" if dwords == 1 else f"{bank}[{number}:{number + dwords - 1}]"

"""The scalar float unit of RDNA3.5 and later.

AMD, "RDNA3.5 Instruction Set Architecture", section 6.8: each of its instructions gives what the
one of the vector ALU gives that has its name. Halves are the low ones of registers; a half as a
result makes the upper one zero.
"""

from __future__ import annotations

from typing import Final

from gpu.sim.isa.frames import Operation
from gpu.sim.isa.rdna import sem_compare, sem_convert, sem_float
from gpu.sim.isa.rdna.define import scalar

_VECTOR: Final = {**sem_float.TABLE, **sem_convert.TABLE, **sem_compare.TABLE}
_BOTH: Final = ("add", "sub", "min", "max", "mul", "fmac", "ceil", "floor", "trunc", "rndne")
_RDNA4: Final = ("minimum", "maximum")
_PSEUDO: Final = ("exp", "log", "rcp", "rsq", "sqrt")
"""Transcendental operations of the vector ALU on scalar registers, ``v_s_``, of RDNA4."""
_MODIFIERS: Final = ("clamp", "scale")
_COMPARES: Final = (
    *("lt", "eq", "le", "gt", "lg", "ge", "o", "u"),
    *("nge", "nlg", "ngt", "nle", "neq", "nlt"),
)
_NAMES: Final = (
    *(f"{name}_{kind}" for name in (*_BOTH, *_RDNA4) for kind in ("f32", "f16")),
    *("fmaak_f32", "fmamk_f32", "cvt_f32_i32", "cvt_f32_u32", "cvt_i32_f32", "cvt_u32_f32"),
    *("cvt_f16_f32", "cvt_f32_f16", "cvt_pk_rtz_f16_f32"),
)


def _operations() -> dict[str, Operation]:
    names = {f"s_{name}": f"v_{name}" for name in _NAMES}
    for kind in ("f32", "f16"):
        names |= {f"v_s_{name}_{kind}": f"v_{name}_{kind}" for name in _PSEUDO}
        names |= {f"s_{name}_{kind}": f"{name}_{kind}" for name in _MODIFIERS}
    found = {name: _VECTOR[v]._replace(name=name, is_scalar=True) for name, v in names.items()}
    for kind in ("f32", "f16"):
        for test in _COMPARES:
            name = f"cmp_{test}_{kind}"
            found[f"s_{name}"] = _VECTOR[f"v_{name}"]._replace(
                name=f"s_{name}", results=("scc",), is_scalar=True
            )
    return found


TABLE: Final[dict[str, Operation]] = {
    **_operations(),
    **scalar("f32: i32", s_cvt_hi_f32_f16=lambda x: x.lshr(16).to("i16").bits("f16").to("f32")),
}

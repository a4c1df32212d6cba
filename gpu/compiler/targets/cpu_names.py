"""Named CPUs and architecture levels as instruction set features, for `DEV=CPU::znver2`.

From LLVM's processor definitions (`llvm/lib/TargetParser/X86TargetParser.cpp` and
`llvm/lib/Target/AArch64/AArch64Processors.td`), cut down to the features that
`gpu/compiler/targets/cpu.py` knows. A name stands for its features alone: code compiled for
one runs on every machine that has them.
"""

from __future__ import annotations

from typing import Final

_V2: Final = ("popcnt", "sse4.2")
_V3: Final = (*_V2, "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V4: Final = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_ICE_LAKE: Final = (
    *_V4, "avx512bitalg", "avx512ifma", "avx512vbmi", "avx512vbmi2", "avx512vnni",
    "avx512vpopcntdq", "gfni",
)  # fmt: skip
_ZEN4: Final = (*_ICE_LAKE, "avx512bf16")
_ARM_V8_2: Final = ("dotprod", "fullfp16", "lse")

X86_CPUS: Final[dict[str, tuple[str, ...]]] = {
    "x86-64": (), "x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4,
    "nehalem": _V2, "sandybridge": (*_V2, "avx"), "haswell": _V3, "skylake": _V3,
    "skylake-avx512": _V4, "cascadelake": (*_V4, "avx512vnni"),
    "cooperlake": (*_V4, "avx512vnni", "avx512bf16"),
    "icelake-client": _ICE_LAKE, "icelake-server": _ICE_LAKE,
    "alderlake": (*_V3, "avxvnni", "gfni"),
    "sapphirerapids": (
        *_ICE_LAKE, "amx-bf16", "amx-int8", "avx512bf16", "avx512fp16", "avxvnni",
    ),
    "znver1": _V3, "znver2": _V3, "znver3": _V3, "znver4": _ZEN4, "znver5": (*_ZEN4, "avxvnni"),
}  # fmt: skip
ARM_CPUS: Final[dict[str, tuple[str, ...]]] = {
    "apple-m1": _ARM_V8_2, "apple-m2": (*_ARM_V8_2, "bf16", "i8mm"), "neoverse-n1": _ARM_V8_2,
    "neoverse-n2": (*_ARM_V8_2, "bf16", "i8mm"), "neoverse-v1": (*_ARM_V8_2, "bf16", "i8mm"),
    "neoverse-v2": (*_ARM_V8_2, "bf16", "i8mm"),
}  # fmt: skip


def is_cpu(name: str) -> bool:
    """Whether `name` is a CPU or an architecture level that is known here."""
    return name in X86_CPUS or name in ARM_CPUS

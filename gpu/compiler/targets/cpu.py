"""CPUs as targets: what they have, from their instruction set features.

Never from a CPU's name, which LLVM gets wrong under virtual machines that hide or add features.
Feature names and what each implies are LLVM's (`llvm/lib/Target/X86/X86.td`). Only features that
change the code for our kernels are known here.
"""

from __future__ import annotations

import platform
from functools import cache
from typing import Final

from gpu.compiler.ir.optable import OPS
from gpu.compiler.targets import DERIVED, Native, Target
from gpu.compiler.targets.cpu_dots import dots_of
from gpu.compiler.targets.cpu_names import ARM_CPUS, X86_CPUS
from gpu.compiler.targets.edges import LLVM
from gpu.core.devspec import did_you_mean
from gpu.core.dtype import dtypes
from gpu.core.errors import Unsupported
from gpu.core.files import read_bytes
from gpu.core.log import get_logger
from gpu.core.tiledata import tiles_refused

log = get_logger(__name__)

X86: Final = "x86_64"
ARM: Final = "aarch64"
_ARCHITECTURES: Final = {"x86_64": X86, "amd64": X86, "AMD64": X86, "aarch64": ARM, "arm64": ARM}
_ROUNDING: Final = frozenset({"floor", "rint", "trunc"})
_FOREIGN_FLOATS: Final = frozenset({dtypes.bfloat16, dtypes.fp8e4m3, dtypes.fp8e5m2})

# Feature -> features it directly implies.
_X86_FEATURES: Final[dict[str, tuple[str, ...]]] = {
    "sse3": (), "ssse3": ("sse3",), "sse4.1": ("ssse3",), "sse4.2": ("sse4.1",),
    "popcnt": (), "lzcnt": (), "movbe": (), "bmi": (), "bmi2": (), "gfni": (),
    "avx": ("sse4.2",), "f16c": ("avx",), "fma": ("avx",), "avx2": ("avx",),
    "avxvnni": ("avx2",), "avxvnniint8": ("avx2",),
    "avx512f": ("avx2", "f16c", "fma"), "avx512cd": ("avx512f",), "avx512bw": ("avx512f",),
    "avx512dq": ("avx512f",), "avx512vl": ("avx512f",), "avx512ifma": ("avx512f",),
    "avx512vnni": ("avx512f",), "avx512bf16": ("avx512bw",), "avx512vbmi": ("avx512bw",),
    "avx512vbmi2": ("avx512bw",), "avx512bitalg": ("avx512bw",),
    "avx512vpopcntdq": ("avx512f",), "avx512fp16": ("avx512bw", "avx512vl", "avx512dq"),
    "amx-tile": (), "amx-bf16": ("amx-tile",), "amx-int8": ("amx-tile",),
}  # fmt: skip
_ARM_FEATURES: Final[dict[str, tuple[str, ...]]] = {
    "neon": (), "fullfp16": ("neon",), "dotprod": ("neon",), "bf16": ("neon",), "i8mm": ("neon",),
    "lse": (),
}  # fmt: skip
_FEATURES: Final = {X86: _X86_FEATURES, ARM: _ARM_FEATURES}
_CPUS: Final = {X86: X86_CPUS, ARM: ARM_CPUS}
_TILES: Final = "amx-tile"
# Matrix instruction -> the feature it belongs to.
_MATRICES: Final = {
    "m16n16k32.bf16": "amx-bf16", "m16n16k64.i8": "amx-int8", "m16n16k64.u8": "amx-int8",
    "m16n16k64.i8u8": "amx-int8", "m16n16k64.u8i8": "amx-int8",
}  # fmt: skip
_BASELINE: Final = {X86: frozenset[str](), ARM: frozenset({"neon"})}
# The names Linux uses in /proc/cpuinfo where they differ (arch/x86/include/asm/cpufeatures.h and
# arch/arm64/kernel/cpuinfo.c).
_LINUX_NAMES: Final = {
    "pni": "sse3", "sse4_1": "sse4.1", "sse4_2": "sse4.2", "abm": "lzcnt", "bmi1": "bmi",
    "avx_vnni": "avxvnni", "avx_vnni_int8": "avxvnniint8",
    "avx512_vnni": "avx512vnni", "avx512_bf16": "avx512bf16",
    "avx512_vbmi2": "avx512vbmi2", "avx512_bitalg": "avx512bitalg",
    "avx512_vpopcntdq": "avx512vpopcntdq", "avx512_fp16": "avx512fp16", "amx_tile": "amx-tile",
    "amx_bf16": "amx-bf16", "amx_int8": "amx-int8", "asimd": "neon", "asimdhp": "fullfp16",
    "asimddp": "dotprod", "atomics": "lse",
}  # fmt: skip


def host_target(features: str | None = None, workers: int = 1) -> Target:
    """The CPU to compile for, with `workers` threads.

    `features` in place of this machine's: an architecture or a CPU, then features by LLVM's names
    on top of what that has, as in `x86_64,avx2,-bmi2` or `znver4,-gfni`; a feature brings what it
    implies, and one with a minus takes away what implies it. Without an architecture, this
    machine's baseline is meant. Raises Unsupported for a name that is not known.
    """
    if features is None:
        architecture, present = host_architecture(), _host_features()
    else:
        architecture, present = _parse(features)
    x86 = architecture == X86
    wide = 64 if "avx512f" in present else 32 if "avx" in present else 16
    return Target(
        name=architecture,
        native=_native(architecture, present),
        parallel="worker",
        workers=workers,
        vector_bytes=wide,
        registers=32 if not x86 or "avx512f" in present else 16,
        features=",".join(f"+{name}" for name in sorted(present)),
        matrices=tuple(name for name, needs in _MATRICES.items() if needs in present),
    )


def host_architecture() -> str:
    """`x86_64` or `aarch64`. Raises Unsupported on other machines."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise Unsupported(f"this machine is {machine}; the CPU device runs on x86-64 and arm64")
    return _ARCHITECTURES[machine]


def _native(architecture: str, present: frozenset[str]) -> Native:
    x86 = architecture == X86
    missing = set(DERIVED) - {row.op for row in dots_of(architecture, present)}
    if x86 and "sse4.1" not in present:
        missing |= _ROUNDING
    if x86 and "fma" not in present:
        missing.add("fma")
    converts_half = not x86 or "f16c" in present
    half = frozenset({dtypes.float16})
    return Native(
        ops=frozenset(OPS) - missing,
        storage_only=_FOREIGN_FLOATS if converts_half else _FOREIGN_FLOATS | half,
        compute_as_float32=half if converts_half else frozenset(),
        float_quotients=True,
        edges=LLVM,
    )


def missing_here(target: Target) -> list[str]:
    """The features of a target that this machine lacks: code for it cannot run here if any.

    A target of another architecture lacks its architecture.
    """
    if target.name != host_architecture():
        return [target.name]
    return sorted(set(target.features.split(",")) - {f"+{f}" for f in _host_features()} - {""})


def _parse(text: str) -> tuple[str, frozenset[str]]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    architecture, cpu = host_architecture(), ""
    if words and words[0] in _ARCHITECTURES:
        architecture = _ARCHITECTURES[words.pop(0)]
    elif words and (owners := [a for a, cpus in _CPUS.items() if words[0] in cpus]):
        architecture, cpu = owners[0], words.pop(0)
    known = _FEATURES[architecture]
    present = _BASELINE[architecture]
    for name in _CPUS[architecture].get(cpu, ()):
        present |= _with_implied(known, name)
    for word in words:
        name = word.lstrip("+-")
        if name not in known:
            raise Unsupported(
                f"{name!r} in {text!r} is no feature of {architecture} that is known"
                f"{did_you_mean(name, [*known, *_CPUS[architecture]])}"
            )
        if word.startswith("-"):
            present = frozenset(f for f in present if name not in _with_implied(known, f))
        else:
            present |= _with_implied(known, name)
    return architecture, present


def _with_implied(known: dict[str, tuple[str, ...]], name: str) -> frozenset[str]:
    return frozenset({name}).union(*(_with_implied(known, n) for n in known[name]))


@cache
def _host_features() -> frozenset[str]:
    """The features of this machine that are known here, and that the system lets us use."""
    architecture = host_architecture()
    known = _FEATURES[architecture]
    if platform.system() == "Linux":
        named = _linux_flags(read_bytes("/proc/cpuinfo").decode(errors="replace"))
    else:
        import llvmlite.binding

        named = {n for n, present in llvmlite.binding.get_host_cpu_features().items() if present}
    present = frozenset(name for name in named if name in known) | _BASELINE[architecture]
    if _TILES in present and (reason := tiles_refused()):
        log.warning("AMX is left out, this process gets no tile registers: %s", reason)
        present -= {_TILES}
    # A hypervisor may hide a feature but not those that imply it: these do not count either.
    return frozenset(name for name in present if _with_implied(known, name) <= present)


def _linux_flags(cpuinfo: str) -> set[str]:
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return {_LINUX_NAMES.get(flag, flag) for flag in value.split()}
    return set()

"""Instructions of CPUs that add products of neighbours: which feature has which.

From Intel's "Intel 64 and IA-32 Architectures Software Developer's Manual", volume 2 (PMADDWD,
VPDPBUSD, VPDPWSSD, VPDPB[SU,UU,SS]D, VDPBF16PS), and Arm's "Architecture Reference Manual for
A-profile" (SDOT, UDOT, USDOT). Those of integers wrap. VDPBF16PS rounds after each product, to
nearest, and takes denormal numbers, and gives them, as zero; Arm's BFDOT, which rounds otherwise,
is not used. Names of intrinsics are LLVM's (`llvm/include/llvm/IR`); where these only multiply,
LLVM joins them with the addition if the CPU has that as one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple


class DotInstruction(NamedTuple):
    """An instruction that adds products of neighbours.

    Attributes:
        op: the operation of the op table.
        needs: the features that it takes.
        lanes: words of a vector.
        intrinsic: its name in LLVM.
        element: bits of what the intrinsic takes vectors of for both factors.
        adds: whether it takes what is added to.
    """

    op: str
    needs: frozenset[str]
    lanes: int
    intrinsic: str
    element: int
    adds: bool = True


def _rows(op: str, intrinsic: str, element: int, *widths: tuple[int, str]) -> list[DotInstruction]:
    """An instruction in several widths, each with the features that it takes."""
    adds = element != 16
    return [
        DotInstruction(op, frozenset(needs.split()), lanes, intrinsic.format(bits=32 * lanes),
                       element, adds)
        for lanes, needs in widths
    ]  # fmt: skip


_VNNI: Final = "llvm.x86.avx512.vpdpbusd.{bits}"
_X86: Final = (
    *_rows("dot_u8i8", _VNNI, 32, (16, "avx512vnni"), (8, "avx512vnni avx512vl"),
           (4, "avx512vnni avx512vl"), (8, "avxvnni"), (4, "avxvnni")),
    *_rows("dot_i8i8", "llvm.x86.avx2.vpdpbssd.{bits}", 32, (8, "avxvnniint8"), (4, "avxvnniint8")),
    *_rows("dot_u8u8", "llvm.x86.avx2.vpdpbuud.{bits}", 32, (8, "avxvnniint8"), (4, "avxvnniint8")),
    *_rows("dot_i16i16", "llvm.x86.avx512.pmaddw.d.512", 16, (16, "avx512bw")),
    *_rows("dot_i16i16", "llvm.x86.avx2.pmadd.wd", 16, (8, "avx2")),
    *_rows("dot_i16i16", "llvm.x86.sse2.pmadd.wd", 16, (4, "")),
    *_rows("dot_bf16", "llvm.x86.avx512bf16.dpbf16ps.{bits}", 32, (16, "avx512bf16"),
           (8, "avx512bf16 avx512vl"), (4, "avx512bf16 avx512vl")),
)  # fmt: skip
_ARM: Final = tuple(
    DotInstruction(op, frozenset({needs}), 4, f"llvm.aarch64.neon.{name}.v4i32.v16i8", 8)
    for op, name, needs in (
        ("dot_i8i8", "sdot", "dotprod"), ("dot_u8u8", "udot", "dotprod"),
        ("dot_u8i8", "usdot", "i8mm"),
    )
)  # fmt: skip
_ROWS: Final = {"x86_64": _X86, "aarch64": _ARM}


def dots_of(architecture: str, features: Collection[str]) -> list[DotInstruction]:
    """The instructions of a CPU with these features, the widest of each operation first."""
    present = frozenset(features)
    found = [row for row in _ROWS[architecture] if row.needs <= present]
    return sorted(found, key=lambda row: -row.lanes)

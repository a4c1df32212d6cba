"""Innermost loops of compiled kernels, counted for CPUs that need not be here.

`hot_loops.json` has what was counted when it was last written, by `python -m tools.hot_loops
--write tests/unit/hot_loops.json`: a kernel that gets worse fails here, by name; who makes one
better writes the table anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from tools.hot_loops import (
    DIALECTS,
    KERNELS,
    TARGETS,
    Counts,
    assemblies,
    count,
    innermost_loops,
    operations,
)

TABLE: Final = json.loads(Path(__file__).with_name("hot_loops.json").read_text())
# What other versions of LLVM may differ by.
MORE: Final = 1.1
MORE_SPILLS: Final = 4

X86 = """
kernel:
\txorl\t%eax, %eax
.LBB0_1:
\tvxorps\t%xmm0, %xmm0, %xmm0
.LBB0_2:
\tvbroadcastss\t(%rdi,%rcx,4), %zmm1
\tvmovups\t64(%rsp), %zmm2
\tvfmadd231ps\t(%rsi,%rcx,4), %zmm1, %zmm0
\tvaddps\t%ymm3, %ymm2, %ymm2
\tvmulss\t%xmm4, %xmm5, %xmm4
\tvgatherdps\t(%rdi,%zmm6,4), %zmm7 {%k1}
\tvpdpbusd\t%zmm8, %zmm9, %zmm10
\tincq\t%rcx
\tcmpq\t$64, %rcx
\tjl\t.LBB0_2
.LBB0_3:
\taddq\t$8, %rdx
\tjne\t.LBB0_3
\tincq\t%rax
\tjl\t.LBB0_1
\tretq
"""
ARM = """
.LBB0_1:
\tldr\tq1, [sp, #16]
\tfmla\tv0.4s, v1.4s, v2.s[0]
\tfadd\ts4, s4, s5
\tld1\t{ v3.s }[1], [x3]
\tadd\tv6.8h, v6.8h, v7.8h
\tadd\tx3, x3, #4
\tsdot\tv8.4s, v9.16b, v10.16b
\tsubs\tx4, x4, #1
\tb.ne\t.LBB0_1
"""


def test_loops_are_counted() -> None:
    inner, second = innermost_loops(X86)
    assert (len(inner), len(second)) == (10, 2)
    work = 2 * 16 + 8 + 1 + 8 * 16
    assert operations(inner, DIALECTS["x86_64"]) == work
    assert operations(second, DIALECTS["x86_64"]) == 0
    counts = count([X86], "x86-64-v4")
    assert counts is not None
    assert counts[:4] == (round(100 * 7 / work, 2), 1, 1, 1)


def test_loops_of_arm_are_counted() -> None:
    (loop,) = innermost_loops(ARM)
    work = 2 * 4 + 1 + 8 + 8 * 4
    assert operations(loop, DIALECTS["aarch64"]) == work
    counts = count([ARM], "apple-m1")
    assert counts is not None
    assert counts[:4] == (round(100 * 5 / work, 2), 1, 1, 1)


def test_what_computes_nothing_has_no_counts() -> None:
    assert count(["\tretq\n"], "x86-64-v4") is None


def test_the_table_is_of_what_is_counted() -> None:
    assert set(TABLE) <= set(KERNELS)
    assert all(set(row) <= set(TARGETS) for row in TABLE.values())
    assert sum(map(len, TABLE.values())) > 0.9 * len(KERNELS) * len(TARGETS)


@pytest.mark.parametrize("target", TARGETS)
def test_no_kernel_gets_worse(target: str) -> None:
    worse = []
    for name, make in KERNELS.items():
        found = count(assemblies(make(), target), target)
        if found is None or target not in TABLE.get(name, {}):
            continue
        before = Counts(*TABLE[name][target])
        if (
            found.vectors > MORE * before.vectors
            or found.scalars > before.scalars
            or found.spills > before.spills + MORE_SPILLS
            or found.gathers > before.gathers
        ):
            worse.append(f"{name}: {found[:4]}, was {before[:4]}")
    assert not worse, "\n".join(worse)

"""Counts of what waves execute, for a chip's performance counters: more records, where asked for.

A program that counts has a record before each instruction, which adds 1 in memory of the grid's own
(`TALLY` in the header), and one behind each access to LDS, which adds the conflicts of its banks.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu.sim.isa import frames, layout
from gpu.sim.isa.layout import WaveLayout
from gpu.sim.isa.native import Make
from gpu.sim.isa.values import Emitter

KINDS: Final = ("valu", "salu", "smem", "lds", "lds_conflicts", "others")
"""What is counted: instructions by kind, cycles that accesses to LDS take beyond their least."""
COUNT: Final = "tally"
CONFLICTS: Final = "tally_conflicts"
_MASK: Final = "i256"  # of lanes, wider than any that a wave has
_BANKS: Final = 32
"""Of LDS, each a dword wide (AMD, "RDNA3 Instruction Set Architecture", section 2.1)."""


def new_tally() -> npt.NDArray[np.uint64]:
    """A grid's counts, in the order of `KINDS`."""
    return np.zeros(len(KINDS), np.uint64)


def slot(kind: str) -> int:
    """The immediate of a record that counts so."""
    return 8 * KINDS.index(kind)


def modules(wave: WaveLayout) -> Mapping[str, Make]:
    """The native functions, by name."""
    return {COUNT: partial(_count_module, wave), CONFLICTS: partial(_conflicts_module, wave)}


def _add(e: Emitter, count: str) -> None:
    place = e.raw(
        f"getelementptr i8, ptr {frames.header(e, layout.TALLY, 'ptr')},"
        f" i64 {frames.field(e, layout.IMMEDIATE, 'i64')}"
    )
    old = e.raw(f"load i64, ptr {place}, align 8")
    e.lines.append(f"store i64 {e.raw(f'add i64 {old}, {count}')}, ptr {place}, align 8")
    frames.next_record(e)


def _count_module(wave: WaveLayout) -> str:
    e = Emitter(1, wave)
    _add(e, "1")
    return frames.module([(COUNT, e)])


def _conflicts_module(wave: WaveLayout) -> str:
    """Pointers are in row d, as a resolve left them; the aux word has the dwords of a lane."""
    e = Emitter(1, wave)
    lanes, rows = wave.lanes, frames.row(e, "d")
    active, dwords = frames.active_lanes(e), frames.field(e, layout.AUX)
    mask = e.raw(f"zext {wave.mask} {active} to {_MASK}")
    _add(e, e.raw(f"call i64 @conflicts(ptr {rows}, {_MASK} {mask}, i32 {dwords}, i32 {lanes})"))
    return _CONFLICTS + frames.module([(CONFLICTS, e)])


# LDS serves 32 lanes of a dword, 16 of two or 8 of more in a cycle, and one dword of each bank.
# Lanes that want the same dword share it.
_CONFLICTS: Final = f"""
define private i64 @conflicts(ptr %rows, {_MASK} %active, i32 %dwords, i32 %lanes) {{
entry:
  %banks = alloca [{_BANKS} x i64], align 16
  %two = icmp eq i32 %dwords, 2
  %few = select i1 %two, i32 16, i32 32
  %many = icmp ugt i32 %dwords, 2
  %size = select i1 %many, i32 8, i32 %few
  br label %group
group:
  %start = phi i32 [ 0, %entry ], [ %end, %grouped ]
  %sum = phi i64 [ 0, %entry ], [ %more, %grouped ]
  %end = add i32 %start, %size
  store [{_BANKS} x i64] zeroinitializer, ptr %banks, align 16
  br label %lane
lane:
  %at = phi i32 [ %start, %group ], [ %next, %laned ]
  %most = phi i64 [ 1, %group ], [ %worst, %laned ]
  %wide = zext i32 %at to {_MASK}
  %bit = lshr {_MASK} %active, %wide
  %on = trunc {_MASK} %bit to i1
  %own = getelementptr i64, ptr %rows, i32 %at
  %address = load i64, ptr %own, align 8
  %word = lshr i64 %address, 2
  br i1 %on, label %before, label %laned
before:
  %j = phi i32 [ %start, %lane ], [ %following, %differs ]
  %all = icmp eq i32 %j, %at
  br i1 %all, label %add, label %compare
compare:
  %jwide = zext i32 %j to {_MASK}
  %jbit = lshr {_MASK} %active, %jwide
  %jon = trunc {_MASK} %jbit to i1
  %other = getelementptr i64, ptr %rows, i32 %j
  %theirs = load i64, ptr %other, align 8
  %theirword = lshr i64 %theirs, 2
  %same = icmp eq i64 %theirword, %word
  %shared = and i1 %same, %jon
  br i1 %shared, label %laned, label %differs
differs:
  %following = add i32 %j, 1
  br label %before
add:
  %k = phi i32 [ 0, %before ], [ %k1, %add ]
  %high = phi i64 [ %most, %before ], [ %higher, %add ]
  %kwide = zext i32 %k to i64
  %place = add i64 %word, %kwide
  %bank = and i64 %place, {_BANKS - 1}
  %slot = getelementptr i64, ptr %banks, i64 %bank
  %old = load i64, ptr %slot, align 8
  %new = add i64 %old, 1
  store i64 %new, ptr %slot, align 8
  %above = icmp ugt i64 %new, %high
  %higher = select i1 %above, i64 %new, i64 %high
  %k1 = add i32 %k, 1
  %again = icmp ult i32 %k1, %dwords
  br i1 %again, label %add, label %laned
laned:
  %worst = phi i64 [ %most, %lane ], [ %most, %compare ], [ %higher, %add ]
  %next = add i32 %at, 1
  %further = icmp ult i32 %next, %end
  br i1 %further, label %lane, label %grouped
grouped:
  %extra = sub i64 %worst, 1
  %more = add i64 %sum, %extra
  %left = icmp ult i32 %end, %lanes
  br i1 %left, label %group, label %done
done:
  ret i64 %more
}}
"""

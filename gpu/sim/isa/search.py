"""The slow path of address resolution, and scalar loads, in plain LLVM IR.

Ranges are sorted by address and do not overlap; see `layout.RANGE`.
"""

from __future__ import annotations

from typing import Final

from gpu.sim.isa import frames, layout
from gpu.sim.isa.layout import WaveLayout
from gpu.sim.isa.values import Emitter

_L: Final = layout


def each_lane(head: str, resolve: str, wave: WaveLayout, failed: str = "") -> str:
    """A function that replaces the addresses of active lanes by host addresses.

    It is called with the wave's header, a record, the row of addresses, and what the access is. It
    gives -1, or the first lane that may not, after ``failed`` told of `%lane` and `%address`.
    ``head`` defines it, and ``resolve`` is the function for one lane. Its module declares
    `llvm.cttz` of a mask.
    """
    entered, kind = Emitter(1, wave), wave.mask
    active = frames.active_lanes(entered)
    loading = "\n".join(f"  {line}" for line in entered.lines)
    return f"""
{head}(ptr %w, ptr %o, ptr %rows, i32 %aux) {{
entry:
{loading}
  br label %loop
loop:
  %mask = phi {kind} [ {active}, %entry ], [ %rest, %good ]
  %empty = icmp eq {kind} %mask, 0
  br i1 %empty, label %all, label %one
one:
  %count = call {kind} @llvm.cttz.{kind}({kind} %mask, i1 true)
  %lane = {"trunc" if wave.words > 1 else "bitcast"} {kind} %count to i32
  %below = sub {kind} %mask, 1
  %rest = and {kind} %mask, %below
  %place = getelementptr i64, ptr %rows, i32 %lane
  %address = load i64, ptr %place
  %host = call i64 @{resolve}(ptr %w, ptr %o, i64 %address, i32 %lane, i32 %aux)
  %bad = icmp eq i64 %host, 0
  br i1 %bad, label %failed, label %good
good:
  store i64 %host, ptr %place
  br label %loop
all:
  ret i32 -1
failed:
{failed}  ret i32 %lane
}}
"""


ACCESS: Final = """\
  %size.32 = and i32 %aux, 255
  %size = zext i32 %size.32 to i64
  %access.s = lshr i32 %aux, 8
  %access = and i32 %access.s, 255
  %align.s = lshr i32 %aux, 16
  %align.32 = and i32 %align.s, 255
  %align = zext i32 %align.32 to i64
  %odd.bits = and i64 %address, %align
  %odd = icmp ne i64 %odd.bits, 0
  br i1 %odd, label %bad, label %aligned
aligned:
"""
"""What `%aux` says of one access: `%size`, `%access`, and that `%address` is aligned."""
IN_RANGE: Final = """\
global:
  %range = call ptr @find_range(ptr %w, ptr %o, i64 %address, i64 %size, i32 %access)
  %missing = icmp eq ptr %range, null
  br i1 %missing, label %bad, label %good
good:
  %delta.p = getelementptr i8, ptr %range, i64 16
  %delta = load i64, ptr %delta.p
  %host = add i64 %address, %delta
  ret i64 %host
bad:
  ret i64 0
}
"""
"""The end of a function that gives the host address of one access, or 0: it looks in memory."""

SEARCH: Final = f"""
; The range that holds [address, address + size) and allows the access, or null. A binary search;
; the record %o keeps the number of the range, where the next access looks first.
define internal ptr @find_range(ptr %w, ptr %o, i64 %address, i64 %size, i32 %access) {{
entry:
  %ranges.p = getelementptr i8, ptr %w, i64 {_L.RANGES}
  %ranges = load ptr, ptr %ranges.p
  %count.p = getelementptr i8, ptr %w, i64 {_L.RANGE_COUNT}
  %count = load i64, ptr %count.p
  br label %loop
loop:
  %low = phi i64 [ 0, %entry ], [ %next.low, %step ]
  %high = phi i64 [ %count, %entry ], [ %next.high, %step ]
  %more = icmp ult i64 %low, %high
  br i1 %more, label %step, label %ended
step:
  %sum = add i64 %low, %high
  %middle = lshr i64 %sum, 1
  %at = getelementptr [4 x i64], ptr %ranges, i64 %middle
  %start = load i64, ptr %at
  %beyond = icmp ugt i64 %start, %address
  %middle.1 = add i64 %middle, 1
  %next.low = select i1 %beyond, i64 %low, i64 %middle.1
  %next.high = select i1 %beyond, i64 %middle, i64 %high
  br label %loop
ended:
  %none = icmp eq i64 %low, 0
  br i1 %none, label %missing, label %check
check:
  %index = sub i64 %low, 1
  %range = getelementptr [4 x i64], ptr %ranges, i64 %index
  %begin = load i64, ptr %range
  %length.p = getelementptr i8, ptr %range, i64 8
  %length = load i64, ptr %length.p
  %flags.p = getelementptr i8, ptr %range, i64 24
  %flags = load i32, ptr %flags.p
  %offset = sub i64 %address, %begin
  %end = add i64 %offset, %size
  %wraps = icmp ult i64 %end, %size
  %inside = icmp ule i64 %end, %length
  %allowed = and i32 %flags, %access
  %permitted = icmp eq i32 %allowed, %access
  %fits = and i1 %inside, %permitted
  %straight = xor i1 %wraps, true
  %good = and i1 %fits, %straight
  br i1 %good, label %found, label %missing
found:
  %hint = getelementptr i8, ptr %o, i64 {_L.HINT}
  store i64 %index, ptr %hint
  ret ptr %range
missing:
  ret ptr null
}}

; The host address of one access, 0 where it is not allowed. Flat accesses see both apertures.
define internal i64 @resolve_one(ptr %w, ptr %o, i64 %address, i32 %lane, i32 %aux) {{
entry:
{ACCESS}  %flat.bit = and i32 %aux, 16777216
  %flat = icmp ne i32 %flat.bit, 0
  br i1 %flat, label %windows, label %global
windows:
  %high.64 = lshr i64 %address, 32
  %high = trunc i64 %high.64 to i32
  %low = and i64 %address, 4294967295
  %end = add i64 %low, %size
  %shared.p = getelementptr i8, ptr %w, i64 {_L.SHARED_APERTURE}
  %shared = load i32, ptr %shared.p
  %is.shared = icmp eq i32 %high, %shared
  br i1 %is.shared, label %lds, label %not.shared
lds:
  %lds.size.p = getelementptr i8, ptr %w, i64 {_L.LDS_SIZE}
  %lds.size.32 = load i32, ptr %lds.size.p
  %lds.size = zext i32 %lds.size.32 to i64
  %lds.fits = icmp ule i64 %end, %lds.size
  %lds.p = getelementptr i8, ptr %w, i64 {_L.LDS}
  %lds.base = load i64, ptr %lds.p
  %lds.at = add i64 %lds.base, %low
  br i1 %lds.fits, label %lds.good, label %bad
lds.good:
  ret i64 %lds.at
not.shared:
  %private.p = getelementptr i8, ptr %w, i64 {_L.PRIVATE_APERTURE}
  %private = load i32, ptr %private.p
  %is.private = icmp eq i32 %high, %private
  br i1 %is.private, label %scratch, label %global
scratch:
  %own.p = getelementptr i8, ptr %w, i64 {_L.SCRATCH_SIZE}
  %own.32 = load i32, ptr %own.p
  %own = zext i32 %own.32 to i64
  %own.fits = icmp ule i64 %end, %own
  %base.p = getelementptr i8, ptr %w, i64 {_L.SCRATCH}
  %base = load i64, ptr %base.p
  %lane.64 = zext i32 %lane to i64
  %before = mul i64 %lane.64, %own
  %mine = add i64 %base, %before
  %own.at = add i64 %mine, %low
  br i1 %own.fits, label %own.good, label %bad
own.good:
  ret i64 %own.at
{IN_RANGE}"""
"""Functions that the resolve operations call, beside `slow_resolve`."""


def search_module(wave: WaveLayout) -> str:
    """The functions that the resolve operations call."""
    return SEARCH + each_lane("define internal i32 @slow_resolve", "resolve_one", wave)

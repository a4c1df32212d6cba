"""The loop over the waves of a grid, in plain LLVM IR.

`run_grid` makes workgroups resident while there is room, and gives turns to resident waves at
random, under a seed. It comes back when its budget is used up, when the grid has ended or no wave
gets on, and with what a wave stopped for that only its instruction set knows (`gpu/sim/isa/grid.py`
sees to that).

The budget counts what ran: one for each branch that a wave takes, and one for each turn that ends
otherwise. At most 64 waves are resident, so sets of them are words with a bit for each.
"""

from __future__ import annotations

from typing import Final

from gpu.sim.isa import layout
from gpu.sim.isa.waves import POISON

NAME: Final = "run_grid"
"""The function of the module."""
RESIDENT: Final = 64
"""Waves at a time; more than one workgroup where they fit, as groups may wait for each other."""
SLICE: Final = 1000
"""Taken branches after which another wave gets its turn."""
LOOK: Final = 8 * SLICE
"""Taken branches of a wave after which it is looked at, to see whether it goes round in circles."""

FIELDS: Final = (
    *("budget", "random", "wave", "instructions"),
    *("live", "waiting", "kept", "circling", "closed", "endless", "free"),
    *("next", "groups", "waves_per_group", "asks"),
    *("waves", "wave_size", "row_size", "templates"),
    *("lds", "lds_stride", "lds_size"),
    *("scratch", "scratch_size"),
    *("ranges", "range_count", "ids", "id_count"),
)
"""Words of the memory that `run_grid` is given (u64):

- budget: what is left of it; random: the generator's state, not 0; wave: the one that stopped last
- instructions: executed by the waves that have ended
- sets of resident waves: live: not ended; waiting: at a barrier; kept: at one that the caller
  opens; circling: known to go round in circles; closed: have done so since others did anything;
  endless: can never end
- free: set of slots for workgroups; next, groups, waves_per_group: workgroups to come, all, size
- asks: whether each barrier is the caller's, also one that all threads wait for
- waves, wave_size, row_size: resident waves lie one behind the other; templates: address of
  addresses of what each wave of a workgroup begins as
- lds, lds_stride, lds_size: memory of workgroups, and how much of it a wave can reach
- scratch: address of an address for each resident wave, or 0; scratch_size: bytes to poison
- ranges, range_count: what addresses mean; ids, id_count: `ID` rows
"""
ID_FIELDS: Final = 6
"""Words (u64) that tell how a row differs among workgroups: its offset, step, wrap, divisor,
modulus, scale. `number // step % wrap // divisor % modulus * scale` is added to what it holds."""

# What `run_grid` gives back beside statuses of waves.
SPENT: Final = 16
ENDED: Final = 17
STANDS: Final = 18
"""All waves that live wait at barriers, or are closed or endless."""
LOOKED: Final = 19
"""The wave has taken `LOOK` branches since the last time."""
SETTLE: Final = 20
"""The waves of a workgroup stand at barriers that only the caller knows."""


def _pointers(*names: str) -> str:
    return "\n".join(
        f"  %{name}.p = getelementptr i64, ptr %g, i64 {FIELDS.index(name)}" for name in names
    )


def _loads(*names: str) -> str:
    return "\n".join(f"  %{name} = load i64, ptr %{name}.p" for name in names)


_STARTED: Final = ("next", "free", "live", "waiting", "kept", "circling", "endless")
_START: Final = (
    *("waves_per_group", "waves", "wave_size", "row_size", "templates", "lds", "lds_stride"),
    *("lds_size", "scratch", "scratch_size", "ids", "id_count"),
)
MODULE: Final = f"""
declare i64 @llvm.cttz.i64(i64, i1)
declare i64 @llvm.ctpop.i64(i64)
declare i64 @llvm.umin.i64(i64, i64)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.x86.sse.ldmxcsr(ptr)
declare void @llvm.x86.sse.stmxcsr(ptr)

; Executes from a record on, under the rounding mode of the wave.
define internal i32 @run(ptr %w, ptr %o) noinline {{
  %host = getelementptr i8, ptr %w, i64 {layout.HOST_MXCSR}
  call void @llvm.x86.sse.stmxcsr(ptr %host)
  %own = getelementptr i8, ptr %w, i64 {layout.MXCSR32}
  call void @llvm.x86.sse.ldmxcsr(ptr %own)
  %target = load ptr, ptr %o
  %status = call i32 %target(ptr %w, ptr %o)
  call void @llvm.x86.sse.ldmxcsr(ptr %host)
  ret i32 %status
}}

; Makes the next workgroup resident in a slot that is free.
define internal void @start_group(ptr %g, i64 %slot) noinline {{
entry:
{_pointers("closed", *_STARTED, *_START)}
{_loads(*_STARTED, *_START)}
  %next.1 = add i64 %next, 1
  store i64 %next.1, ptr %next.p
  store i64 0, ptr %closed.p
  %bit = shl i64 1, %slot
  %taken = xor i64 %bit, -1
  %free.1 = and i64 %free, %taken
  store i64 %free.1, ptr %free.p
  %first = mul i64 %slot, %waves_per_group
  %absent = sub i64 64, %waves_per_group
  %ones = lshr i64 -1, %absent
  %group = shl i64 %ones, %first
  %others = xor i64 %group, -1
  %live.1 = or i64 %live, %group
  store i64 %live.1, ptr %live.p
  %waiting.1 = and i64 %waiting, %others
  store i64 %waiting.1, ptr %waiting.p
  %kept.1 = and i64 %kept, %others
  store i64 %kept.1, ptr %kept.p
  %endless.1 = and i64 %endless, %others
  store i64 %endless.1, ptr %endless.p
  %circling.1 = and i64 %circling, %others
  store i64 %circling.1, ptr %circling.p
  %lds.before = mul i64 %slot, %lds_stride
  %lds.here = add i64 %lds, %lds.before
  %lds.at = inttoptr i64 %lds.here to ptr
  call void @llvm.memset.p0.i64(ptr %lds.at, i8 {POISON - 256}, i64 %lds_size, i1 false)
  br label %wave
wave:
  %index = phi i64 [ 0, %entry ], [ %index.1, %made ]
  %number = add i64 %first, %index
  %before = mul i64 %number, %wave_size
  %address = add i64 %waves, %before
  %w = inttoptr i64 %address to ptr
  %templates.at = inttoptr i64 %templates to ptr
  %template.p = getelementptr ptr, ptr %templates.at, i64 %index
  %template = load ptr, ptr %template.p
  call void @llvm.memcpy.p0.p0.i64(ptr %w, ptr %template, i64 %wave_size, i1 false)
  %w.lds = getelementptr i8, ptr %w, i64 {layout.LDS}
  store i64 %lds.here, ptr %w.lds
  %w.group = getelementptr i8, ptr %w, i64 {layout.GROUP}
  store i64 %next, ptr %w.group
  %has.scratch = icmp ne i64 %scratch, 0
  br i1 %has.scratch, label %private, label %each.id
private:
  %scratch.table = inttoptr i64 %scratch to ptr
  %mine.p = getelementptr ptr, ptr %scratch.table, i64 %number
  %mine = load ptr, ptr %mine.p
  %w.scratch = getelementptr i8, ptr %w, i64 {layout.SCRATCH}
  store ptr %mine, ptr %w.scratch
  call void @llvm.memset.p0.i64(ptr %mine, i8 {POISON - 256}, i64 %scratch_size, i1 false)
  br label %each.id
each.id:
  %id = phi i64 [ 0, %wave ], [ 0, %private ], [ %id.1, %filled ]
  %more.ids = icmp ult i64 %id, %id_count
  br i1 %more.ids, label %one.id, label %made
one.id:
  %ids.at = inttoptr i64 %ids to ptr
  %what = getelementptr [{ID_FIELDS} x i64], ptr %ids.at, i64 %id
  %row.offset = load i64, ptr %what
  %step.p = getelementptr i64, ptr %what, i64 1
  %step = load i64, ptr %step.p
  %wrap.p = getelementptr i64, ptr %what, i64 2
  %wrap = load i64, ptr %wrap.p
  %divisor.p = getelementptr i64, ptr %what, i64 3
  %divisor = load i64, ptr %divisor.p
  %modulus.p = getelementptr i64, ptr %what, i64 4
  %modulus = load i64, ptr %modulus.p
  %scale.p = getelementptr i64, ptr %what, i64 5
  %scale = load i64, ptr %scale.p
  %id.a = udiv i64 %next, %step
  %id.b = urem i64 %id.a, %wrap
  %id.c = udiv i64 %id.b, %divisor
  %id.d = urem i64 %id.c, %modulus
  %id.e = mul i64 %id.d, %scale
  %more = trunc i64 %id.e to i32
  %row = getelementptr i8, ptr %w, i64 %row.offset
  %held = load i32, ptr %row
  %value = add i32 %held, %more
  br label %fill
fill:
  %at = phi i64 [ 0, %one.id ], [ %at.1, %fill ]
  %lane = getelementptr i8, ptr %row, i64 %at
  store i32 %value, ptr %lane
  %at.1 = add i64 %at, 4
  %row.more = icmp ult i64 %at.1, %row_size
  br i1 %row.more, label %fill, label %filled
filled:
  %id.1 = add i64 %id, 1
  br label %each.id
made:
  %index.1 = add i64 %index, 1
  %wave.more = icmp ult i64 %index.1, %waves_per_group
  br i1 %wave.more, label %wave, label %done
done:
  ret void
}}

define i32 @run_grid(ptr %g) {{
entry:
{_pointers(*FIELDS)}
  br label %loop
loop:
{_loads("live", "next", "groups", "free", "budget")}
  %idle = icmp eq i64 %live, 0
  %all.begun = icmp uge i64 %next, %groups
  %over = and i1 %idle, %all.begun
  br i1 %over, label %ended, label %afford
ended:
  ret i32 {ENDED}
afford:
  %has.budget = icmp sgt i64 %budget, 0
  br i1 %has.budget, label %admit, label %spent
spent:
  ret i32 {SPENT}
admit:
  %has.room = icmp ne i64 %free, 0
  %to.begin = xor i1 %all.begun, true
  %begins = and i1 %has.room, %to.begin
  br i1 %begins, label %begin, label %choose
begin:
  %slot = call i64 @llvm.cttz.i64(i64 %free, i1 true)
  call void @start_group(ptr %g, i64 %slot)
  br label %loop
choose:
{_loads("waiting", "closed", "endless", "random")}
  %in.circles = or i64 %closed, %endless
  %stopped = or i64 %waiting, %in.circles
  %going = xor i64 %stopped, -1
  %ready = and i64 %live, %going
  %none = icmp eq i64 %ready, 0
  br i1 %none, label %stands, label %draw
stands:
  ret i32 {STANDS}
draw:
  ; xorshift64*: George Marsaglia, "Xorshift RNGs"; Sebastiano Vigna's multiplier.
  %x.1 = lshr i64 %random, 12
  %x.2 = xor i64 %random, %x.1
  %x.3 = shl i64 %x.2, 25
  %x.4 = xor i64 %x.2, %x.3
  %x.5 = lshr i64 %x.4, 27
  %x.6 = xor i64 %x.4, %x.5
  store i64 %x.6, ptr %random.p
  %x.7 = mul i64 %x.6, 2685821657736338717
  %drawn = lshr i64 %x.7, 32
  %candidates = call i64 @llvm.ctpop.i64(i64 %ready)
  %scaled = mul i64 %drawn, %candidates
  %skip = lshr i64 %scaled, 32
  br label %pick
pick:
  %left = phi i64 [ %skip, %draw ], [ %left.1, %drop ]
  %set = phi i64 [ %ready, %draw ], [ %set.1, %drop ]
  %here = icmp eq i64 %left, 0
  br i1 %here, label %turn, label %drop
drop:
  %left.1 = sub i64 %left, 1
  %below = sub i64 %set, 1
  %set.1 = and i64 %set, %below
  br label %pick
turn:
  %number = call i64 @llvm.cttz.i64(i64 %set, i1 true)
  store i64 %number, ptr %wave.p
{_loads("waves", "wave_size", "ranges", "range_count", "circling")}
  %before = mul i64 %number, %wave_size
  %address = add i64 %waves, %before
  %w = inttoptr i64 %address to ptr
  %w.ranges = getelementptr i8, ptr %w, i64 {layout.RANGES}
  store i64 %ranges, ptr %w.ranges
  %w.range_count = getelementptr i8, ptr %w, i64 {layout.RANGE_COUNT}
  store i64 %range_count, ptr %w.range_count
  %w.look = getelementptr i8, ptr %w, i64 {layout.LOOK}
  %look = load i32, ptr %w.look
  %look.64 = zext i32 %look to i64
  %most = call i64 @llvm.umin.i64(i64 %budget, i64 %look.64)
  %slice = call i64 @llvm.umin.i64(i64 %most, i64 {SLICE})
  %slice.32 = trunc i64 %slice to i32
  %w.budget = getelementptr i8, ptr %w, i64 {layout.BUDGET}
  %before.last = sub i32 %slice.32, 1
  store i32 %before.last, ptr %w.budget
  %w.resume = getelementptr i8, ptr %w, i64 {layout.RESUME}
  %resume = load ptr, ptr %w.resume
  %status = call i32 @run(ptr %w, ptr %resume)
  %unused = load i32, ptr %w.budget
  %branches = sub i32 %before.last, %unused
  %look.1 = sub i32 %look, %branches
  store i32 %look.1, ptr %w.look
  %sliced = icmp eq i32 %status, {layout.SLICE}
  %otherwise = select i1 %sliced, i32 0, i32 1
  %used = add i32 %branches, %otherwise
  %used.64 = zext i32 %used to i64
  %budget.1 = sub i64 %budget, %used.64
  store i64 %budget.1, ptr %budget.p
  %bit = shl i64 1, %number
  %circles = and i64 %circling, %bit
  %plain = icmp eq i64 %circles, 0
  %closed.1 = select i1 %plain, i64 0, i64 %closed
  store i64 %closed.1, ptr %closed.p
  switch i32 %status, label %other [
    i32 {layout.SLICE}, label %sliced.out
    i32 {layout.BARRIER}, label %barrier
    i32 {layout.END}, label %end
  ]
other:
  ret i32 %status
sliced.out:
  %due = icmp eq i32 %look.1, 0
  br i1 %due, label %looked, label %lanes
looked:
  store i32 {LOOK}, ptr %w.look
  ret i32 {LOOKED}
lanes:
  %w.lowest = getelementptr i8, ptr %w, i64 {layout.LOWEST}
  %lowest = load i32, ptr %w.lowest
  %together = icmp eq i32 %lowest, {layout.NOBODY - (1 << 32)}
  br i1 %together, label %loop, label %other
barrier:
{_loads("asks")}
  %w.id = getelementptr i8, ptr %w, i64 {layout.BARRIER_ID}
  %barrier.id = load i32, ptr %w.id
  %w.threads = getelementptr i8, ptr %w, i64 {layout.BARRIER_THREADS}
  %threads = load i32, ptr %w.threads
  %w.kind = getelementptr i8, ptr %w, i64 {layout.BARRIER_KIND}
  %kind = load i32, ptr %w.kind
  %special.1 = or i32 %barrier.id, %threads
  %special.2 = or i32 %special.1, %kind
  %asks.32 = trunc i64 %asks to i32
  %special = or i32 %special.2, %asks.32
  %usual = icmp eq i32 %special, 0
  br i1 %usual, label %wait, label %other
wait:
  %waiting.1 = or i64 %waiting, %bit
  store i64 %waiting.1, ptr %waiting.p
  br label %settle
end:
{_loads("instructions")}
  %gone = xor i64 %bit, -1
  %live.1 = and i64 %live, %gone
  store i64 %live.1, ptr %live.p
  %w.count = getelementptr i8, ptr %w, i64 {layout.COUNT}
  %count = load i64, ptr %w.count
  %last = load ptr, ptr %w.resume
  %place.p = getelementptr i8, ptr %last, i64 {layout.PLACE}
  %place = load i32, ptr %place.p
  %place.64 = sext i32 %place to i64
  %passed = add i64 %count, %place.64
  %passed.1 = add i64 %passed, 1
  %instructions.1 = add i64 %instructions, %passed.1
  store i64 %instructions.1, ptr %instructions.p
  br label %settle
settle:
  ; Whether the workgroup has ended, or all of it that lives waits.
  %live.now = phi i64 [ %live, %wait ], [ %live.1, %end ]
  %waiting.now = phi i64 [ %waiting.1, %wait ], [ %waiting, %end ]
{_loads("waves_per_group", "kept")}
  %slot.mine = udiv i64 %number, %waves_per_group
  %first = mul i64 %slot.mine, %waves_per_group
  %absent = sub i64 64, %waves_per_group
  %ones = lshr i64 -1, %absent
  %group = shl i64 %ones, %first
  %members = and i64 %live.now, %group
  %group.over = icmp eq i64 %members, 0
  br i1 %group.over, label %vacate, label %alive
vacate:
  %slot.bit = shl i64 1, %slot.mine
  %free.1 = or i64 %free, %slot.bit
  store i64 %free.1, ptr %free.p
  br label %loop
alive:
  %awake = xor i64 %waiting.now, -1
  %on.way = and i64 %members, %awake
  %all.wait = icmp eq i64 %on.way, 0
  br i1 %all.wait, label %open, label %loop
open:
  %held = and i64 %kept, %members
  %ours = icmp eq i64 %held, 0
  br i1 %ours, label %release, label %ask
ask:
  ret i32 {SETTLE}
release:
  %out = xor i64 %group, -1
  %waiting.2 = and i64 %waiting.now, %out
  store i64 %waiting.2, ptr %waiting.p
  br label %loop
}}
"""

"""Branches, divergence, barriers: the control functions of a warp.

Active lanes (EXEC) are those that stand at the current record. Others that are alive wait, each
with a place in the row PCS. The lanes with the lowest place go first: a jump to somewhere behind
LOWEST, the lowest place of a lane that waits for its turn, puts the active lanes back and takes
those. Where code can be reached from two sides there is a `join` record, at which active lanes take
along who waits there. So lanes come together as early as the order of the code allows.

A ``.sync`` of lanes that are not all there blocks those that are, until the others come or end;
the budget makes loops of waiting lanes leave, and whoever runs the warp then lets others go first.
"""

from __future__ import annotations

from typing import Final

from gpu.sim.isa import control, frames, jumps, layout
from gpu.sim.isa.frames import Builder
from gpu.sim.isa.ptx import wave
from gpu.sim.isa.values import Emitter, Value

_EXEC: Final = wave.EXEC

# Chooses the lanes with the lowest place among those that may go on; gives their record, or null
# where there are none. Its parts are vector operations over the row PCS.
_CHOOSE: Final = f"""
declare i32 @llvm.vector.reduce.umin.v32i32(<32 x i32>)
define internal ptr @choose(ptr %w) noinline {{
  %alive.p = getelementptr i8, ptr %w, i64 {wave.ALIVE}
  %alive = load i32, ptr %alive.p
  %blocked.p = getelementptr i8, ptr %w, i64 {wave.BLOCKED}
  %blocked = load i32, ptr %blocked.p
  %waiting.p = getelementptr i8, ptr %w, i64 {wave.AT_BARRIER}
  %waiting = load i32, ptr %waiting.p
  %stopped = or i32 %blocked, %waiting
  %free = xor i32 %stopped, -1
  %ready = and i32 %alive, %free
  %pcs.p = getelementptr i8, ptr %w, i64 {wave.PCS}
  %pcs = load <32 x i32>, ptr %pcs.p, align 128
  %on = bitcast i32 %ready to <32 x i1>
  %places = select <32 x i1> %on, <32 x i32> %pcs, <32 x i32> splat (i32 -1)
  %low = call i32 @llvm.vector.reduce.umin.v32i32(<32 x i32> %places)
  %one = insertelement <32 x i32> poison, i32 %low, i64 0
  %all = shufflevector <32 x i32> %one, <32 x i32> poison, <32 x i32> zeroinitializer
  %same = icmp eq <32 x i32> %places, %all
  %chosen = and <32 x i1> %same, %on
  %exec = bitcast <32 x i1> %chosen to i32
  %exec.p = getelementptr i8, ptr %w, i64 {_EXEC}
  store i32 %exec, ptr %exec.p
  %rest = select <32 x i1> %chosen, <32 x i32> splat (i32 -1), <32 x i32> %places
  %next = call i32 @llvm.vector.reduce.umin.v32i32(<32 x i32> %rest)
  %lowest.p = getelementptr i8, ptr %w, i64 {layout.LOWEST}
  store i32 %next, ptr %lowest.p
  %none = icmp eq i32 %exec, 0
  %code.p = getelementptr i8, ptr %w, i64 {wave.CODE}
  %code = load i64, ptr %code.p
  %wide = zext i32 %low to i64
  %sum = add i64 %code, %wide
  %record = inttoptr i64 %sum to ptr
  %result = select i1 %none, ptr null, ptr %record
  ret ptr %result
}}

define internal void @park(ptr %w, i32 %lanes, i32 %place) noinline {{
  %pcs.p = getelementptr i8, ptr %w, i64 {wave.PCS}
  %pcs = load <32 x i32>, ptr %pcs.p, align 128
  %on = bitcast i32 %lanes to <32 x i1>
  %one = insertelement <32 x i32> poison, i32 %place, i64 0
  %all = shufflevector <32 x i32> %one, <32 x i32> poison, <32 x i32> zeroinitializer
  %new = select <32 x i1> %on, <32 x i32> %all, <32 x i32> %pcs
  store <32 x i32> %new, ptr %pcs.p, align 128
  ret void
}}

define internal i32 @standing_at(ptr %w, i32 %place) noinline {{
  %pcs.p = getelementptr i8, ptr %w, i64 {wave.PCS}
  %pcs = load <32 x i32>, ptr %pcs.p, align 128
  %one = insertelement <32 x i32> poison, i32 %place, i64 0
  %all = shufflevector <32 x i32> %one, <32 x i32> poison, <32 x i32> zeroinitializer
  %same = icmp eq <32 x i32> %pcs, %all
  %found = bitcast <32 x i1> %same to i32
  %alive.p = getelementptr i8, ptr %w, i64 {wave.ALIVE}
  %alive = load i32, ptr %alive.p
  %barrier.p = getelementptr i8, ptr %w, i64 {wave.AT_BARRIER}
  %barrier = load i32, ptr %barrier.p
  %exec.p = getelementptr i8, ptr %w, i64 {_EXEC}
  %exec = load i32, ptr %exec.p
  %gone = or i32 %barrier, %exec
  %left = xor i32 %gone, -1
  %there = and i32 %found, %alive
  %result = and i32 %there, %left
  ret i32 %result
}}
"""


def control_module() -> str:
    """The module with all of them."""
    builders = {name: (build, 1) for name, build in _BUILDERS.items()}
    return _CHOOSE + frames.joined(builders, wave.WARP)


def _schedule(e: Emitter) -> None:
    """Goes on with the lanes whose turn it is; nobody is active now."""
    record = e.raw("call ptr @choose(ptr %w)")
    none = e.raw(f"icmp eq ptr {record}, null")
    idle, go, ended, waits = e.labels("idle", "go", "ended", "waits")
    barrier, stuck = e.labels("barrier", "stuck")
    e.lines += [f"br i1 {none}, label %{idle}, label %{go}", f"{go}:"]
    jumps.pay(e, record)
    e.lines.append(f"{idle}:")
    alive = frames.header(e, wave.ALIVE)
    over = e.raw(f"icmp eq i32 {alive}, 0")
    e.lines += [f"br i1 {over}, label %{ended}, label %{waits}", f"{ended}:"]
    frames.stop(e, layout.END, "%o")
    e.lines.append(f"{waits}:")
    there = frames.header(e, wave.AT_BARRIER)
    whole = e.raw(f"icmp eq i32 {there}, {alive}")
    e.lines += [f"br i1 {whole}, label %{barrier}, label %{stuck}", f"{stuck}:"]
    frames.stop(e, layout.STUCK, "%o")
    e.lines.append(f"{barrier}:")
    frames.set_header(e, wave.AT_BARRIER, "i32", "0")
    after = e.raw("call ptr @choose(ptr %w)")
    jumps.count(e, after)
    frames.stop(e, layout.BARRIER, after)


def _park_active(e: Emitter, place: str) -> None:
    active = frames.header(e, _EXEC)
    e.lines.append(f"call void @park(ptr %w, i32 {active}, i32 {place})")


def _go_to(e: Emitter) -> None:
    """All active lanes go to the record's target."""
    place = frames.field(e, layout.AUX)
    behind = e.raw(f"icmp ugt i32 {place}, {frames.header(e, layout.LOWEST)}")
    yield_, straight = e.labels("yield", "straight")
    e.lines += [f"br i1 {behind}, label %{yield_}, label %{straight}", f"{straight}:"]
    jumps.pay(e, frames.field(e, layout.TARGET, "ptr"))
    e.lines.append(f"{yield_}:")
    _park_active(e, place)
    _schedule(e)


def _where(e: Emitter, negated: bool) -> tuple[str, str, str]:
    """(active lanes, those of them whose predicate in `a` holds, whether there are none)."""
    word = e.raw(f"load i32, ptr {frames.row(e, 'a')}, align 4")
    wanted = e.raw(f"xor i32 {word}, -1") if negated else word
    active = frames.header(e, _EXEC)
    taken = e.raw(f"and i32 {wanted}, {active}")
    return active, taken, e.raw(f"icmp eq i32 {taken}, 0")


def _branch_if(negated: bool) -> Builder:
    """Lanes whose predicate in `a` holds go to the target."""

    def build(e: Emitter) -> None:
        active, taken, none = _where(e, negated)
        e.lines += [f"br i1 {none}, label %fallen, label %some", "fallen:"]
        frames.next_record(e)
        e.lines.append("some:")
        every = e.raw(f"icmp eq i32 {taken}, {active}")
        e.lines += [f"br i1 {every}, label %all, label %split", "all:"]
        _go_to(e)
        e.lines.append("split:")
        rest = e.raw(f"xor i32 {active}, {taken}")
        e.lines.append(f"call void @park(ptr %w, i32 {taken}, i32 {frames.field(e, layout.AUX)})")
        following = jumps.own_place(e, wave.CODE, layout.RECORD.size)
        e.lines.append(f"call void @park(ptr %w, i32 {rest}, i32 {following})")
        _schedule(e)

    return build


def _join(e: Emitter) -> None:
    """Takes along the lanes that wait here."""
    place = jumps.own_place(e, wave.CODE)
    meet = e.raw(f"icmp eq i32 {place}, {frames.header(e, layout.LOWEST)}")
    e.lines += [f"br i1 {meet}, label %merge, label %alone", "alone:"]
    frames.next_record(e)
    e.lines.append("merge:")
    _park_active(e, place)
    e.lines.append("%chosen = call ptr @choose(ptr %w)")
    # A lane that waits further up, which another turn has left behind, goes first.
    follow = e.raw("icmp eq ptr %chosen, %o")
    e.lines += [f"br i1 {follow}, label %together, label %other", "together:"]
    frames.next_record(e)
    e.lines.append("other:")
    jumps.count(e, "%chosen", 0)
    frames.jump(e, "%chosen")


def _warp_sync(e: Emitter) -> None:
    """Waits until the lanes of the masks in `a` are here, or have ended."""
    active, alive = frames.header(e, _EXEC), frames.header(e, wave.ALIVE)
    whole = e.raw(f"icmp eq i32 {active}, {alive}")
    e.lines += [f"br i1 {whole}, label %there, label %look", "there:"]
    frames.next_record(e)
    e.lines.append("look:")
    place = jumps.own_place(e, wave.CODE)
    others = e.raw(f"call i32 @standing_at(ptr %w, i32 {place})")
    here = e.raw(f"or i32 {active}, {others}")
    e.lines.append(f"call void @park(ptr %w, i32 {here}, i32 {place})")
    name = "@llvm.vector.reduce.or.v32i32"
    e.declarations.add(f"declare i32 {name}(<32 x i32>)")
    masks = e.raw(f"load <32 x i32>, ptr {frames.row(e, 'a')}, align 128")
    on = e.raw(f"bitcast i32 {here} to <32 x i1>")
    mine = e.raw(f"select <32 x i1> {on}, <32 x i32> {masks}, <32 x i32> zeroinitializer")
    needed = e.raw(f"and i32 {e.raw(f'call i32 {name}(<32 x i32> {mine})')}, {alive}")
    missing = e.raw(f"and i32 {needed}, {e.raw(f'xor i32 {here}, -1')}")
    complete = e.raw(f"icmp eq i32 {missing}, 0")
    blocked = frames.header(e, wave.BLOCKED)
    freed = e.raw(f"and i32 {blocked}, {e.raw(f'xor i32 {here}, -1')}")
    e.lines += [f"br i1 {complete}, label %complete, label %block", "complete:"]
    frames.set_header(e, wave.BLOCKED, "i32", e.raw(f"or i32 {freed}, {here}"))
    e.lines.append("%ignored = call ptr @choose(ptr %w)")  # for LOWEST
    frames.set_header(e, wave.BLOCKED, "i32", freed)
    frames.set_header(e, _EXEC, "i32", here)
    frames.next_record(e)
    e.lines.append("block:")
    frames.set_header(e, wave.BLOCKED, "i32", e.raw(f"or i32 {freed}, {here}"))
    _schedule(e)


def _barrier(e: Emitter) -> None:
    """A barrier of the block: number in `a`, threads in `b`, kind in the immediate.

    A reducing one takes a predicate in `c` and leaves its result in `d`.
    """
    for offset, slot in ((layout.BARRIER_ID, "a"), (layout.BARRIER_THREADS, "b")):
        word = e.raw(f"load i32, ptr {frames.row(e, slot)}, align 4")
        frames.set_header(e, offset, "i32", word)
    kind = frames.immediate(e)
    frames.set_header(e, layout.BARRIER_KIND, "i32", kind)
    frames.set_header(e, wave.BARRIER_TARGET, "i32", frames.field(e, layout.OPERANDS["d"]))
    value = e.raw(f"load i32, ptr {frames.row(e, 'c')}, align 4")
    active, alive = frames.header(e, _EXEC), frames.header(e, wave.ALIVE)
    came = frames.header(e, wave.AT_BARRIER)
    first = e.raw(f"icmp eq i32 {came}, 0")
    before = e.raw(f"select i1 {first}, i32 0, i32 {frames.header(e, wave.BARRIER_VALUE)}")
    mine = e.raw(f"and i32 {value}, {active}")
    frames.set_header(e, wave.BARRIER_VALUE, "i32", e.raw(f"or i32 {before}, {mine}"))
    whole = e.raw(f"icmp eq i32 {active}, {alive}")
    e.lines += [f"br i1 {whole}, label %all, label %some", "all:"]
    frames.stop(e, layout.BARRIER, e.raw(f"getelementptr i8, ptr %o, i64 {layout.RECORD.size}"))
    e.lines.append("some:")
    _park_active(e, jumps.own_place(e, wave.CODE, layout.RECORD.size))
    frames.set_header(e, wave.AT_BARRIER, "i32", e.raw(f"or i32 {came}, {active}"))
    _schedule(e)


def _exit(e: Emitter) -> None:
    """The active lanes end; lanes that waited for them look again."""
    active, alive = frames.header(e, _EXEC), frames.header(e, wave.ALIVE)
    left = e.raw(f"and i32 {alive}, {e.raw(f'xor i32 {active}, -1')}")
    frames.set_header(e, wave.ALIVE, "i32", left)
    frames.set_header(e, wave.BLOCKED, "i32", "0")
    none = e.raw(f"icmp eq i32 {left}, 0")
    e.lines += [f"br i1 {none}, label %over, label %others", "over:"]
    frames.stop(e, layout.END, "%o")
    e.lines.append("others:")
    _schedule(e)


def _guard(negated: bool) -> Builder:
    """Narrows EXEC to the lanes whose predicate holds; where none does, goes to the target."""

    def build(e: Emitter) -> None:
        active, taken, none = _where(e, negated)
        e.lines += [f"br i1 {none}, label %skip, label %some", "skip:"]
        frames.jump(e, frames.field(e, layout.TARGET, "ptr"))
        e.lines.append("some:")
        frames.set_header(e, layout.SAVED_EXEC, "i32", active)
        frames.set_header(e, _EXEC, "i32", taken)
        frames.next_record(e)

    return build


def _unguard(e: Emitter) -> None:
    frames.set_header(e, _EXEC, "i32", frames.header(e, layout.SAVED_EXEC))
    frames.next_record(e)


def _clock(e: Emitter) -> None:
    """A count that grows with every look at it, in `d`: low word, high word or both by aux."""
    now = Value(e, "i64", frames.header(e, layout.CLOCK, "i64")) + 32
    frames.set_header(e, layout.CLOCK, "i64", now.text)
    shift = e.raw(f"zext i32 {frames.field(e, layout.AUX)} to i64")
    word = e.raw(f"trunc i64 {e.raw(f'lshr i64 {now.text}, {shift}')} to i32")
    frames.broadcast(e, frames.row(e, "d"), word)
    frames.next_record(e)


_BUILDERS: Final[dict[str, Builder]] = {
    "round_rn": control.load_mxcsr(layout.MXCSR32),
    "round_rz": control.load_mxcsr(wave.ROUND_TOWARD_ZERO),
    "round_rm": control.load_mxcsr(wave.ROUND_DOWN),
    "round_rp": control.load_mxcsr(wave.ROUND_UP),
    "unknown": control.stop_here(layout.UNKNOWN),
    "trap": control.stop_here(layout.TRAP),
    "bra": _go_to,
    "bra_if": _branch_if(False),
    "bra_unless": _branch_if(True),
    "join": _join,
    "guard": _guard(False),
    "guard_not": _guard(True),
    "unguard": _unguard,
    "warp_sync": _warp_sync,
    "barrier": _barrier,
    "exit": _exit,
    "clock": _clock,
}
NAMES: Final = tuple(_BUILDERS)
"""The functions of the control module."""

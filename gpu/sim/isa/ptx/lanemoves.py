"""Values between the lanes of a warp: "PTX ISA", sections 9.7.9 (SHFL) and 9.7.13 (VOTE...).

The lanes that a ``.sync`` names have come together when these run, see `flow`.
"""

from __future__ import annotations

from typing import Final

from gpu.sim.isa import frames
from gpu.sim.isa.ptx import rows, wave
from gpu.sim.isa.ptx.memory import gather
from gpu.sim.isa.values import Emitter, Value


def _pick(e: Emitter, slot: str, index: Value) -> Value:
    """Element `index` (0..31) of a row of words, for each lane."""
    base = frames.row(e, slot)
    places = e.raw(f"getelementptr i32, ptr {base}, {e.type('i32')} {index.text}")
    return gather(e, places, "i32")


def _active(e: Emitter) -> Value:
    return frames.splat(e, "i32", frames.header(e, wave.EXEC))


def shuffle(mode: str) -> str:
    """SHFL: the value in `a` of the lane that `b` and the segment in `c` say; `e`: whether it is
    in range.
    """
    e = Emitter(wave.LANES)
    lane = e.lane_ids()
    offset = rows.read(e, "b", "i32") & 31
    control = rows.read(e, "c", "i32")
    limit, segment = control & 31, control.lshr(8) & 31
    last = (lane & segment) | (limit & ~segment)
    if mode == "up":
        wanted = lane - offset
        inside = wanted.icmp("sge", last)
    elif mode == "down":
        wanted = lane + offset
        inside = wanted.icmp("sle", last)
    elif mode == "bfly":
        wanted = lane ^ offset
        inside = wanted.icmp("sle", last)
    else:
        wanted = (lane & segment) | (offset & ~segment)
        inside = wanted.icmp("sle", last)
    index = inside.select(wanted, lane) & 31
    value = _pick(e, "a", index)
    rows.write(e, "d", value)
    rows.write(e, "e", inside)
    frames.next_record(e)
    return rows.function(f"shfl_{mode}", e)


def _among(e: Emitter, slot: str) -> str:
    """The mask of lanes that take part: the first active lane's mask, and active."""
    members = rows.read(e, slot, "i32")
    active = frames.exec_mask(e)
    kind = e.type("i32")
    name = f"@llvm.vector.reduce.or.v{e.lanes}i32"
    e.declarations.add(f"declare i32 {name}({kind})")
    chosen = active.select(members, 0)
    united = e.raw(f"call i32 {name}({kind} {chosen.text})")
    return e.raw(f"and i32 {united}, {frames.header(e, wave.EXEC)}")


def vote(mode: str) -> str:
    """VOTE: over the predicate in `a`, of the members in `b`."""
    e = Emitter(wave.LANES)
    predicate = e.raw(f"load i32, ptr {frames.row(e, 'a')}, align 4")
    there = _among(e, "b")
    votes = e.raw(f"and i32 {predicate}, {there}")
    if mode == "ballot":
        members = rows.read(e, "b", "i32")
        rows.write(e, "d", frames.splat(e, "i32", votes) & members)
    else:
        every = e.raw(f"icmp eq i32 {votes}, {there}")
        some = e.raw(f"icmp ne i32 {votes}, 0")
        none = e.raw(f"xor i1 {some}, true")
        result = {"all": every, "any": some, "uni": e.raw(f"or i1 {every}, {none}")}[mode]
        rows.write(e, "d", frames.splat(e, "i1", result))
    frames.next_record(e)
    return rows.function(f"vote_{mode}", e)


def active_mask() -> str:
    """ACTIVEMASK."""
    e = Emitter(wave.LANES)
    rows.write(e, "d", _active(e))
    frames.next_record(e)
    return rows.function("activemask", e)


_REDUCTIONS: Final = {
    "add": ("add", 0),
    "min.s32": ("smin", 0x7FFFFFFF),
    "min.u32": ("umin", -1),
    "max.s32": ("smax", -(1 << 31)),
    "max.u32": ("umax", 0),
    "and": ("and", -1),
    "or": ("or", 0),
    "xor": ("xor", 0),
}


def reduce(operation: str) -> str:
    """REDUX: of the active lanes' values in `a`."""
    e = Emitter(wave.LANES)
    name, neutral = _REDUCTIONS[operation]
    value = frames.exec_mask(e).select(rows.read(e, "a", "i32"), neutral)
    function = f"@llvm.vector.reduce.{name}.v{e.lanes}i32"
    e.declarations.add(f"declare i32 {function}({e.type('i32')})")
    total = e.raw(f"call i32 {function}({e.type('i32')} {value.text})")
    rows.write(e, "d", frames.splat(e, "i32", total))
    frames.next_record(e)
    return rows.function(f"redux_{operation}", e)


def match(mode: str, kind: str) -> str:
    """MATCH: a mask of the active lanes with the same value in `a`; `e` for ``all``."""
    e = Emitter(wave.LANES)
    value = rows.read(e, "a", kind)
    active = frames.header(e, wave.EXEC)
    result = frames.splat(e, "i32", "0")
    for lane in range(e.lanes):
        one = e.raw(f"extractelement {e.type(kind)} {value.text}, i64 {lane}")
        same = value.eq(frames.splat(e, kind, one))
        mask = e.raw(f"and i32 {rows.mask_of(e, same)}, {active}")
        result = e.lane_ids().eq(lane).select(frames.splat(e, "i32", mask), result)
    if mode == "any":
        rows.write(e, "d", result)
    else:
        every = result.eq(frames.splat(e, "i32", active))
        rows.write(e, "d", every.select(result, 0))
        rows.write(e, "e", every)
    frames.next_record(e)
    return rows.function(f"match_{mode}_{kind}", e)


def elect() -> str:
    """ELECT: the lowest active lane; `d` its number, `e` whether it is this one."""
    e = Emitter(wave.LANES)
    e.declarations.add("declare i32 @llvm.cttz.i32(i32, i1)")
    active = frames.header(e, wave.EXEC)
    first = frames.splat(e, "i32", e.raw(f"call i32 @llvm.cttz.i32(i32 {active}, i1 true)"))
    rows.write(e, "d", first)
    rows.write(e, "e", e.lane_ids().eq(first))
    frames.next_record(e)
    return rows.function("elect", e)

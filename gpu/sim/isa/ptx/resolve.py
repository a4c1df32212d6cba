"""From addresses to host pointers.

Most accesses of a warp are to one word, or to words one behind the other; where those lie in the
range of memory that the record met last (or in shared memory) a few comparisons settle it. What is
not so simple goes through `resolve_lanes`, which looks at lane by lane, finds faults and knows the
windows through which generic addresses lead to shared and local memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpu.sim.isa import frames, layout
from gpu.sim.isa.ptx import rows, wave
from gpu.sim.isa.search import ACCESS, IN_RANGE, SEARCH, each_lane
from gpu.sim.isa.values import Emitter, Value

GLOBAL: Final = 0
GENERIC: Final = 1
SHARED: Final = 2
LOCAL: Final = 3
PARAM: Final = 4
SPACES: Final = {"global": GLOBAL, "const": GLOBAL, "generic": GENERIC, "shared": SHARED}
_ALL: Final = "splat (i1 true)"
_L: Final = layout
_W: Final = wave

# The header of a wave tells of the access that may not be.
_TELL: Final = f"""\
  %address.p = getelementptr i8, ptr %w, i64 {_L.FAULT_ADDRESS}
  store i64 %address, ptr %address.p, align 4
  %lane.p = getelementptr i8, ptr %w, i64 {_L.FAULT_LANE}
  store i32 %lane, ptr %lane.p
  %access.p = getelementptr i8, ptr %w, i64 {_L.FAULT_ACCESS}
  %told = lshr i32 %aux, 8
  store i32 %told, ptr %access.p
  %size.p = getelementptr i8, ptr %w, i64 {_L.FAULT_SIZE}
  %size = and i32 %aux, 255
  store i32 %size, ptr %size.p
"""

RESOLVE: Final = f"""declare i32 @llvm.cttz.i32(i32, i1)
{SEARCH}
define internal i64 @in_own(i64 %base, i64 %limit, i64 %address, i64 %size) {{
  %end = add i64 %address, %size
  %fits = icmp ule i64 %end, %limit
  %straight = icmp uge i64 %end, %size
  %good = and i1 %fits, %straight
  %host = add i64 %base, %address
  %result = select i1 %good, i64 %host, i64 0
  ret i64 %result
}}

define internal i64 @in_shared(ptr %w, i64 %address, i64 %size) {{
  %limit.p = getelementptr i8, ptr %w, i64 {_L.LDS_SIZE}
  %limit.32 = load i32, ptr %limit.p
  %limit = zext i32 %limit.32 to i64
  %base.p = getelementptr i8, ptr %w, i64 {_L.LDS}
  %base = load i64, ptr %base.p
  %host = call i64 @in_own(i64 %base, i64 %limit, i64 %address, i64 %size)
  ret i64 %host
}}

define internal i64 @in_local(ptr %w, i32 %lane, i64 %address, i64 %size) {{
  %limit.p = getelementptr i8, ptr %w, i64 {_L.SCRATCH_SIZE}
  %limit.32 = load i32, ptr %limit.p
  %limit = zext i32 %limit.32 to i64
  %base.p = getelementptr i8, ptr %w, i64 {_L.SCRATCH}
  %first = load i64, ptr %base.p
  %lane.64 = zext i32 %lane to i64
  %before = mul i64 %lane.64, %limit
  %base = add i64 %first, %before
  %host = call i64 @in_own(i64 %base, i64 %limit, i64 %address, i64 %size)
  ret i64 %host
}}

define internal i64 @one_lane(ptr %w, ptr %o, i64 %address, i32 %lane, i32 %aux) {{
entry:
{ACCESS}  %space = lshr i32 %aux, 24
  switch i32 %space, label %bad [ i32 {GLOBAL}, label %global i32 {GENERIC}, label %generic
    i32 {SHARED}, label %shared i32 {LOCAL}, label %local i32 {PARAM}, label %param ]
shared:
  %shared.host = call i64 @in_shared(ptr %w, i64 %address, i64 %size)
  ret i64 %shared.host
local:
  %local.host = call i64 @in_local(ptr %w, i32 %lane, i64 %address, i64 %size)
  ret i64 %local.host
param:
  %param.limit.p = getelementptr i8, ptr %w, i64 {_W.PARAMETER_SIZE}
  %param.limit = load i64, ptr %param.limit.p
  %param.base.p = getelementptr i8, ptr %w, i64 {_W.PARAMETERS}
  %param.base = load i64, ptr %param.base.p
  %param.host = call i64 @in_own(i64 %param.base, i64 %param.limit, i64 %address, i64 %size)
  ret i64 %param.host
generic:
  %sw.p = getelementptr i8, ptr %w, i64 {_W.SHARED_WINDOW}
  %sw = load i64, ptr %sw.p
  %sw.size.p = getelementptr i8, ptr %w, i64 {_W.SHARED_WINDOW_SIZE}
  %sw.size = load i64, ptr %sw.size.p
  %in.sw.at = sub i64 %address, %sw
  %in.sw = icmp ult i64 %in.sw.at, %sw.size
  br i1 %in.sw, label %window.shared, label %not.shared
window.shared:
  %ws.host = call i64 @in_shared(ptr %w, i64 %in.sw.at, i64 %size)
  ret i64 %ws.host
not.shared:
  %lw.p = getelementptr i8, ptr %w, i64 {_W.LOCAL_WINDOW}
  %lw = load i64, ptr %lw.p
  %in.lw.at = sub i64 %address, %lw
  %in.lw = icmp ult i64 %in.lw.at, {_W.LOCAL_WINDOW_SIZE}
  br i1 %in.lw, label %window.local, label %global
window.local:
  %wl.host = call i64 @in_local(ptr %w, i32 %lane, i64 %in.lw.at, i64 %size)
  ret i64 %wl.host
{IN_RANGE}
{each_lane("define i32 @resolve_lanes", "one_lane", wave.WARP, _TELL)}"""


@dataclass(frozen=True)
class Access:
    """How lanes access memory.

    Attributes:
        space: one of `SPACES`, or local or param.
        size: bytes of a lane.
        access: bits of `layout`.
    """

    space: int
    size: int
    access: int

    @property
    def aux(self) -> int:
        """As `resolve_lanes` takes it; the fault tells of all but the size there."""
        return self.size | self.access << 8 | (self.size - 1) << 16 | self.space << 24


def address_of(e: Emitter, kind: str, slot: str = "a") -> Value:
    """The addresses: a register and the immediate."""
    base = rows.read(e, slot, kind)
    immediate = frames.splat(e, "i64", frames.field(e, layout.IMMEDIATE, "i64"))
    if kind == "i32":
        return (base + immediate.to("i32")).to("i64")
    return base + immediate


def any_lane(e: Emitter, condition: Value) -> str:
    """Whether it holds in any lane, active or not."""
    word = rows.mask_of(e, condition)
    return e.raw(f"icmp ne i32 {word}, 0")


def _span(e: Emitter, how: Access) -> tuple[str, str, str, str]:
    """(first address, length, host minus address, whether it is allowed) to try first."""
    if how.space == SHARED:
        length = e.raw(f"zext i32 {frames.header(e, layout.LDS_SIZE)} to i64")
        return "0", length, frames.header(e, layout.LDS, "i64"), "true"
    table = frames.header(e, layout.RANGES, "ptr")
    hint = frames.field(e, layout.HINT, "i64")
    known = e.raw(f"icmp ult i64 {hint}, {frames.header(e, layout.RANGE_COUNT, 'i64')}")
    index = e.raw(f"select i1 {known}, i64 {hint}, i64 0")
    entry = e.raw(f"getelementptr [4 x i64], ptr {table}, i64 {index}")
    first, length, delta, flags = (
        e.raw(f"load i64, ptr {frames.behind(e, entry, 8 * word)}, align 8") for word in range(4)
    )
    allowed = e.raw(f"and i64 {flags}, {how.access}")
    permitted = e.raw(f"icmp eq i64 {allowed}, {how.access}")
    return first, length, delta, e.raw(f"and i1 {permitted}, {known}")


def _fits(e: Emitter, first: str, start: str, length: str, size: int) -> str:
    """Whether `size` bytes at an address lie in a range."""
    at = e.raw(f"sub i64 {first}, {start}")
    room = e.raw(f"call i64 @llvm.usub.sat.i64(i64 {length}, i64 {size - 1})")
    e.declarations.add("declare i64 @llvm.usub.sat.i64(i64, i64)")
    return e.raw(f"icmp ult i64 {at}, {room}")


def fast_paths(e: Emitter, how: Access, addresses: Value) -> tuple[str, str]:
    """Branches to ``row`` and ``same``, where lanes access neighbours or one place, else to
    ``lanes``, where `careful` must follow. Gives the host addresses for ``row`` and ``same``.
    """
    vector = e.type("i64")
    first = e.raw(f"extractelement {vector} {addresses.text}, i64 0")
    full, _ = rows.is_full(e)
    odd = e.raw(f"and i64 {first}, {how.size - 1}")
    even = e.raw(f"icmp eq i64 {odd}, 0")
    start, length, delta, allowed = _span(e, how)
    sane = e.raw(f"and i1 {full}, {e.raw(f'and i1 {even}, {allowed}')}")
    host = e.raw(f"inttoptr i64 {e.raw(f'add i64 {first}, {delta}')} to ptr")
    e.lines += [f"br i1 {sane}, label %try.row, label %lanes", "try.row:"]
    steps = ", ".join(f"i64 {how.size * lane}" for lane in range(e.lanes))
    origin = frames.splat(e, "i64", first)
    scattered = any_lane(e, addresses.ne(origin + Value(e, "i64", f"<{steps}>")))
    e.lines += [f"br i1 {scattered}, label %try.same, label %row.fits", "row.fits:"]
    fits = _fits(e, first, start, length, e.lanes * how.size)
    e.lines += [f"br i1 {fits}, label %row, label %lanes", "try.same:"]
    different = any_lane(e, addresses.ne(origin))
    e.lines += [f"br i1 {different}, label %lanes, label %same.fits", "same.fits:"]
    fits = _fits(e, first, start, length, how.size)
    e.lines.append(f"br i1 {fits}, label %same, label %lanes")
    return host, delta


def careful(e: Emitter, how: Access, addresses: Value) -> str:
    """A host pointer for each lane, as a vector of ``ptr``; inactive lanes have one to nowhere.

    A lane that may not access stops the warp before anything happens.
    """
    vector = e.type("i64")
    scrap = frames.splat(e, "i64", e.raw(f"ptrtoint ptr {frames.place(e, wave.WARP.trash)} to i64"))
    active = frames.exec_mask(e)
    place = frames.place(e, wave.WARP.pointers)
    wanted = e.raw(
        f"select {e.type('i1')} {active.text}, {vector} {addresses.text}, {vector} {scrap.text}"
    )
    found, slow, merged = e.labels("found", "slow", "resolved")
    if how.space in (LOCAL, PARAM):
        quick, host = _own(e, how, addresses)
    else:
        quick, host = _within(e, how, addresses)
    pointers = e.raw(
        f"select {e.type('i1')} {active.text}, {vector} {host.text}, {vector} {scrap.text}"
    )
    e.lines += [f"br i1 {quick}, label %{found}, label %{slow}", f"{slow}:"]
    e.lines.append(f"store {vector} {wanted}, ptr {place}, align 128")
    resolve = frames.header(e, wave.RESOLVE, "ptr")
    lane = e.raw(f"call i32 {resolve}(ptr %w, ptr %o, ptr {place}, i32 {how.aux})")
    good = e.raw(f"icmp slt i32 {lane}, 0")
    again, fault = e.labels("again", "fault")
    e.lines += [f"br i1 {good}, label %{again}, label %{fault}", f"{fault}:"]
    frames.stop(e, layout.FAULT, "%o")
    e.lines.append(f"{again}:")
    resolved = e.raw(f"load {vector}, ptr {place}, align 128")
    e.lines += [f"br label %{merged}", f"{found}:", f"br label %{merged}", f"{merged}:"]
    chosen = e.raw(f"phi {vector} [ {resolved}, %{again} ], [ {pointers}, %{found} ]")
    return e.raw(f"inttoptr {vector} {chosen} to <{e.lanes} x ptr>")


def _misaligned(e: Emitter, how: Access, addresses: Value) -> Value:
    return (addresses & (how.size - 1)).ne(0)


def _good(e: Emitter, bad: Value) -> str:
    """Whether a condition holds in no active lane."""
    word = rows.mask_of(e, bad)
    active = frames.header(e, wave.EXEC)
    return e.raw(f"icmp eq i32 {e.raw(f'and i32 {word}, {active}')}, 0")


def _within(e: Emitter, how: Access, addresses: Value) -> tuple[str, Value]:
    """(whether all lie in the range to try first, where)."""
    start, length, delta, allowed = _span(e, how)
    room = e.raw(f"call i64 @llvm.usub.sat.i64(i64 {length}, i64 {how.size - 1})")
    e.declarations.add("declare i64 @llvm.usub.sat.i64(i64, i64)")
    outside = (addresses - frames.splat(e, "i64", start)).icmp("uge", frames.splat(e, "i64", room))
    good = _good(e, outside | _misaligned(e, how, addresses))
    return e.raw(f"and i1 {good}, {allowed}"), addresses + frames.splat(e, "i64", delta)


def _own(e: Emitter, how: Access, addresses: Value) -> tuple[str, Value]:
    """The same for local memory, of which each lane has its own, and for parameters."""
    if how.space == LOCAL:
        size = e.raw(f"zext i32 {frames.header(e, layout.SCRATCH_SIZE)} to i64")
        base = frames.header(e, layout.SCRATCH, "i64")
    else:
        size = frames.header(e, wave.PARAMETER_SIZE, "i64")
        base = frames.header(e, wave.PARAMETERS, "i64")
    room = e.raw(f"call i64 @llvm.usub.sat.i64(i64 {size}, i64 {how.size - 1})")
    e.declarations.add("declare i64 @llvm.usub.sat.i64(i64, i64)")
    outside = addresses.icmp("uge", frames.splat(e, "i64", room))
    good = _good(e, outside | _misaligned(e, how, addresses))
    host = addresses + frames.splat(e, "i64", base)
    if how.space == LOCAL:
        host = host + e.lane_ids().to("i64") * frames.splat(e, "i64", size)
    return good, host

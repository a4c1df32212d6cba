"""Memory operations: an address becomes a host pointer for each lane, then bytes move.

A *resolve* operation computes addresses, checks them all and leaves host pointers in two rows
(`WaveLayout.pointers`, a u64 a lane); a lane that may not access stops the wave before anything is
read or written. Inactive lanes point at a scrap of memory in the wave, so that the operations
behind need no branches: they touch every pointer. Loads, stores and atomics are the same for
global memory, LDS and scratch, which differ in how they resolve.

The aux word of a resolve is ``bytes | access << 8 | alignment mask << 16 | flat << 24``.
Addresses of scratch are linear within a lane; hardware interleaves dwords of lanes, which only a
debugger can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpu.sim.isa import frames, layout
from gpu.sim.isa.frames import Builder
from gpu.sim.isa.values import Emitter, Value

_SQUARE: Final = 4
_TOGETHER: Final = 16
"""Lanes whose dwords are turned round, and stored, at once."""


def resolve_aux(size: int, access: int, align: int = 1, flat: bool = False) -> int:
    """The aux word of a resolve operation."""
    return size | access << 8 | (align - 1) << 16 | int(flat) << 24


def _immediate(e: Emitter) -> Value:
    return frames.splat(e, "i64", frames.field(e, layout.IMMEDIATE, "i64"))


def _aux_parts(e: Emitter) -> tuple[str, str, str]:
    """(bytes, access, alignment mask) as i32."""
    aux = frames.field(e, layout.AUX)
    size = e.raw(f"and i32 {aux}, 255")
    access = e.raw(f"and i32 {e.raw(f'lshr i32 {aux}, 8')}, 255")
    align = e.raw(f"and i32 {e.raw(f'lshr i32 {aux}, 16')}, 255")
    return size, access, align


def _any_active(e: Emitter, condition: Value) -> tuple[str, str]:
    """(whether it holds in an active lane, the mask of those lanes)."""
    kind = e.wave.mask
    mask = e.raw(f"and {kind} {frames.mask_of(e, condition)}, {frames.active_lanes(e)}")
    return e.raw(f"icmp ne {kind} {mask}, 0"), mask


def _store_pointers(e: Emitter, pointers: Value) -> None:
    scrap = e.raw(f"ptrtoint ptr {frames.place(e, e.wave.trash)} to i64")
    chosen = frames.exec_mask(e).select(pointers, frames.splat(e, "i64", scrap))
    _store_all_pointers(e, chosen)


def _fault(e: Emitter, mask: str, addresses: Value, access: str, size: str) -> None:
    """Stops the wave with the first of the lanes of `mask`."""
    lane = frames.first_lane(e, mask)
    kind = e.type("i64")
    address = e.raw(f"extractelement {kind} {addresses.text}, i32 {lane}")
    frames.set_header(e, layout.FAULT_ADDRESS, "i64", address)
    frames.set_header(e, layout.FAULT_LANE, "i32", lane)
    frames.set_header(e, layout.FAULT_ACCESS, "i32", access)
    frames.set_header(e, layout.FAULT_SIZE, "i32", size)
    frames.stop(e, layout.FAULT, "%o")


def _any_odd(e: Emitter, addresses: Value, align: str) -> str:
    """Whether an address, also of an inactive lane, is misaligned."""
    name = f"@llvm.vector.reduce.or.v{e.lanes}i64"
    e.declarations.add(f"declare i64 {name}({e.type('i64')})")
    united = e.raw(f"call i64 {name}({e.type('i64')} {addresses.text})")
    wide = e.raw(f"zext i32 {align} to i64")
    return e.raw(f"icmp ne i64 {e.raw(f'and i64 {united}, {wide}')}, 0")


def _store_all_pointers(e: Emitter, pointers: Value) -> None:
    where = f"ptr {frames.row(e, 'd')}, align {e.wave.row}"
    e.lines.append(f"store {e.type('i64')} {pointers.text}, {where}")


def _resolve_global(e: Emitter, addresses: Value) -> None:
    """Through the range that this record hit last if all active lanes are in it, else by a search.

    Inactive lanes hold anything, so that they must not decide on a fault: where some are, the
    active ones alone are looked at.
    """
    size, access, align = _aux_parts(e)
    hint = frames.field(e, layout.HINT, "i64")
    known = e.raw(f"icmp ult i64 {hint}, {frames.header(e, layout.RANGE_COUNT, 'i64')}")
    e.lines += [f"br i1 {known}, label %known, label %search", "known:"]
    table = frames.header(e, layout.RANGES, "ptr")
    entry = e.raw(f"getelementptr [4 x i64], ptr {table}, i64 {hint}")
    first, length, delta, flags = (
        e.raw(f"load i64, ptr {frames.behind(e, entry, 8 * word)}, align 8") for word in range(4)
    )
    e.declarations.add("declare i64 @llvm.usub.sat.i64(i64, i64)")
    less = e.raw(f"sub i64 {e.raw(f'zext i32 {size} to i64')}, 1")
    limit = frames.splat(e, "i64", e.raw(f"call i64 @llvm.usub.sat.i64(i64 {length}, i64 {less})"))
    outside = (addresses - frames.splat(e, "i64", first)).icmp("uge", limit)
    allowed = e.raw(f"and i32 {e.raw(f'trunc i64 {flags} to i32')}, {access}")
    forbidden = e.raw(f"icmp ne i32 {allowed}, {access}")
    slow = frames.any_lane(e, outside)
    idle = e.raw(f"icmp ne {e.wave.mask} {frames.active_lanes(e)}, -1")
    for doubt in (_any_odd(e, addresses, align), forbidden, idle):
        slow = e.raw(f"or i1 {slow}, {doubt}")
    pointers = addresses + frames.splat(e, "i64", delta)
    e.lines += [f"br i1 {slow}, label %careful, label %hit", "hit:"]
    _store_all_pointers(e, pointers)
    frames.next_record(e)
    e.lines.append("careful:")
    odd = (addresses & frames.splat(e, "i64", e.raw(f"zext i32 {align} to i64"))).ne(0)
    failing, _ = _any_active(e, outside | odd)
    unsure = e.raw(f"or i1 {failing}, {forbidden}")
    e.lines += [f"br i1 {unsure}, label %search, label %partial", "partial:"]
    _store_pointers(e, pointers)
    frames.next_record(e)
    e.lines.append("search:")
    _store_pointers(e, addresses)
    aux = frames.field(e, layout.AUX)
    rows = frames.row(e, "d")
    lane = e.raw(f"call i32 @slow_resolve(ptr %w, ptr %o, ptr {rows}, i32 {aux})")
    good = e.raw(f"icmp slt i32 {lane}, 0")
    e.lines += [f"br i1 {good}, label %found, label %fault", "found:"]
    frames.next_record(e)
    e.lines.append("fault:")
    kind = e.wave.mask
    wide = lane if kind == "i32" else e.raw(f"zext i32 {lane} to {kind}")
    _fault(e, e.raw(f"shl {kind} 1, {wide}"), addresses, access, size)


def _resolve_vector(e: Emitter) -> None:
    """Address: a 64-bit register and the immediate."""
    _resolve_global(e, frames.read(e, "a", "i64") + _immediate(e))


def _resolve_based(e: Emitter) -> None:
    """Address: a scalar pair, an unsigned 32-bit register and the immediate."""
    base = frames.read(e, "b", "i64")
    _resolve_global(e, base + frames.read(e, "a", "i32").to("i64") + _immediate(e))


def _resolve_bounded(e: Emitter, base: str, limit: str, addresses: Value, stride: str) -> None:
    """Pointers into memory of the wave's own: `limit` bytes, `stride` further for each lane."""
    size, access, align = _aux_parts(e)
    room = e.raw(f"call i32 @llvm.usub.sat.i32(i32 {limit}, i32 {e.raw(f'sub i32 {size}, 1')})")
    e.declarations.add("declare i32 @llvm.usub.sat.i32(i32, i32)")
    bound = frames.splat(e, "i64", e.raw(f"zext i32 {room} to i64"))
    outside = addresses.icmp("uge", bound)
    origin = frames.splat(e, "i64", e.raw(f"ptrtoint ptr {base} to i64"))
    step = frames.splat(e, "i64", e.raw(f"zext i32 {stride} to i64"))
    pointers = addresses + origin
    if stride != "0":
        pointers = pointers + e.lane_ids().to("i64") * step
    doubt = e.raw(f"or i1 {frames.any_lane(e, outside)}, {_any_odd(e, addresses, align)}")
    idle = e.raw(f"icmp ne {e.wave.mask} {frames.active_lanes(e)}, -1")
    e.lines += [f"br i1 {e.raw(f'or i1 {doubt}, {idle}')}, label %careful, label %hit", "hit:"]
    _store_all_pointers(e, pointers)
    frames.next_record(e)
    e.lines.append("careful:")
    odd = (addresses & frames.splat(e, "i64", e.raw(f"zext i32 {align} to i64"))).ne(0)
    bad, mask = _any_active(e, outside | odd)
    e.lines += [f"br i1 {bad}, label %fault, label %partial", "fault:"]
    own = e.raw(f"or i32 {access}, {layout.OWN_MEMORY}")
    _fault(e, mask, addresses, own, size)
    e.lines.append("partial:")
    _store_pointers(e, pointers)
    frames.next_record(e)


def _resolve_lds(e: Emitter) -> None:
    """Address: a 32-bit register and the immediate, modulo 2**32.

    So a register may be below zero: LLVM's ``hasUsableDSOffset``, of all but the oldest GCN.
    """
    offset = frames.splat(e, "i32", frames.field(e, layout.IMMEDIATE))
    addresses = (frames.read(e, "a", "i32") + offset).to("i64")
    base, limit = frames.header(e, layout.LDS, "ptr"), frames.header(e, layout.LDS_SIZE)
    _resolve_bounded(e, base, limit, addresses, "0")


def _resolve_scratch(e: Emitter) -> None:
    """Address: two 32-bit registers, each of which may be a zero, and the immediate."""
    offset = frames.read(e, "a", "i32").to("i64") + frames.read(e, "b", "i32").sext("i64")
    size = frames.header(e, layout.SCRATCH_SIZE)
    base = frames.header(e, layout.SCRATCH, "ptr")
    _resolve_bounded(e, base, size, offset + _immediate(e), size)


def _gather(e: Emitter, kind: str, offset: int) -> Value:
    """A value from each lane's pointer, as i32; `kind` is what memory holds, ``u8`` ``i8`` ..."""
    memory = "i" + kind[1:]
    vector = f"<{e.lanes} x {memory}>"
    rows = frames.row(e, "b")
    value = "poison"
    for lane in range(e.lanes):
        pointer = e.raw(f"load ptr, ptr {frames.behind(e, rows, 8 * lane)}, align 8")
        pointer = frames.behind(e, pointer, offset) if offset else pointer
        item = e.raw(f"load {memory}, ptr {pointer}, align 1")
        value = e.raw(f"insertelement {vector} {value}, {memory} {item}, i64 {lane}")
    loaded = Value(e, memory, value)
    return loaded.sext("i32") if kind[0] == "i" else loaded.to("i32")


def _contiguous(e: Emitter) -> tuple[str, str]:
    """(whether all lanes are active and their dwords lie one behind the other, the first)."""
    rows = frames.row(e, "b")
    pointers = e.value("i64", f"load {e.type('i64')}, ptr {rows}, align {e.wave.row}")
    first = e.raw(f"load i64, ptr {rows}, align 8")
    steps = ", ".join(f"i64 {4 * lane}" for lane in range(e.lanes))
    wanted = frames.splat(e, "i64", first) + Value(e, "i64", f"<{steps}>")
    scattered = frames.any_lane(e, pointers.ne(wanted))
    return e.raw(f"xor i1 {scattered}, true"), e.raw(f"inttoptr i64 {first} to ptr")


def _load_dword(e: Emitter) -> None:
    straight, first = _contiguous(e)
    e.lines += [f"br i1 {straight}, label %row, label %lanes", "row:"]
    whole = e.value("i32", f"load {e.type('i32')}, ptr {first}, align 1")
    frames.store_row(e, frames.row(e, "d"), whole, masked=False)
    frames.next_record(e)
    e.lines.append("lanes:")
    frames.store_row(e, frames.row(e, "d"), _gather(e, "u32", 0))
    frames.next_record(e)


def _shuffled(e: Emitter, x: str, y: str, picked: Sequence[int], width: int = _SQUARE) -> str:
    """Elements of two vectors of `width` dwords, which are counted on from one to the other."""
    kind, mask = f"<{width} x i32>", ", ".join(f"i32 {number}" for number in picked)
    return e.raw(f"shufflevector {kind} {x}, {kind} {y}, <{len(picked)} x i32> <{mask}>")


def _transposed(e: Emitter, rows: Sequence[str]) -> list[str]:
    """The columns of four vectors of four dwords."""
    pairs = (rows[0], rows[1]), (rows[2], rows[3])
    made: list[str] = []
    for interleaved in ((0, 4, 1, 5), (2, 6, 3, 7)):
        low, high = (_shuffled(e, x, y, interleaved) for x, y in pairs)
        made += [_shuffled(e, low, high, half) for half in ((0, 1, 4, 5), (2, 3, 6, 7))]
    return made


def _pointer_of(e: Emitter, rows: str, lane: int) -> str:
    return e.raw(f"load ptr, ptr {frames.behind(e, rows, 8 * lane)}, align 8")


def _load_dwords(count: int) -> Builder:
    """Dwords that lie one behind the other for each lane, by squares of four lanes."""

    def square(e: Emitter, rows: str, first: int) -> list[str]:
        loaded = []
        for lane in range(first, first + _SQUARE):
            pointer = _pointer_of(e, rows, lane)
            found = e.raw(f"load <{count} x i32>, ptr {pointer}, align 1")
            if count < _SQUARE:
                found = _shuffled(
                    e, found, "poison", [*range(count), *[count] * (4 - count)], count
                )
            loaded.append(found)
        return _transposed(e, loaded)

    def build(e: Emitter) -> None:
        rows, target, active = frames.row(e, "b"), frames.row(e, "d"), frames.active_lanes(e)
        kind = f"[{count * e.wave.row} x i8]"
        room = e.raw(f"alloca {kind}, align {e.wave.row}")
        is_full = e.raw(f"icmp eq {e.wave.mask} {active}, -1")
        base = e.raw(f"select i1 {is_full}, ptr {target}, ptr {room}")
        for start in range(0, e.lanes, _TOGETHER):
            squares = [square(e, rows, n) for n in range(start, start + _TOGETHER, _SQUARE)]
            for number, parts in enumerate(list(zip(*squares, strict=True))[:count]):
                low, high = (_shuffled(e, parts[n], parts[n + 1], range(8)) for n in (0, 2))
                whole = _shuffled(e, low, high, range(16), 8)
                place = frames.behind(e, base, number * e.wave.row + 4 * start)
                e.lines.append(f"store <{_TOGETHER} x i32> {whole}, ptr {place}, align 64")
        e.lines += [f"br i1 {is_full}, label %full, label %mixed", "full:"]
        frames.next_record(e)
        e.lines.append("mixed:")
        for number in range(count):
            offset, align = number * e.wave.row, e.wave.row
            place = frames.behind(e, room, offset)
            value = e.value("i32", f"load {e.type('i32')}, ptr {place}, align {align}")
            frames.store_row(e, frames.behind(e, target, offset), value)
        frames.next_record(e)

    return build


def _load_small(kind: str, half: str) -> Builder:
    """A byte or short; `half` says which half of the register it replaces, "" for all of it."""

    def build(e: Emitter) -> None:
        value = _gather(e, kind, 0)
        if half:
            old = frames.read(e, "d", "i32")
            low = half == "low"
            kept = old & (0xFFFF0000 - (1 << 32) if low else 0xFFFF)
            value = kept | (value & 0xFFFF if low else value.shl(16))
        frames.write(e, "d", "i32", value)
        frames.next_record(e)

    return build


def _scatter(e: Emitter, value: Value, offset: int) -> None:
    rows = frames.row(e, "b")
    vector = e.type(value.kind)
    for lane in range(e.lanes):
        pointer = e.raw(f"load ptr, ptr {frames.behind(e, rows, 8 * lane)}, align 8")
        pointer = frames.behind(e, pointer, offset) if offset else pointer
        item = e.raw(f"extractelement {vector} {value.text}, i64 {lane}")
        e.lines.append(f"store {value.kind} {item}, ptr {pointer}, align 1")


def _store_dword(e: Emitter) -> None:
    straight, first = _contiguous(e)
    e.lines += [f"br i1 {straight}, label %row, label %lanes", "row:"]
    whole = frames.read(e, "a", "i32")
    e.lines.append(f"store {e.type('i32')} {whole.text}, ptr {first}, align 1")
    frames.next_record(e)
    e.lines.append("lanes:")
    _scatter(e, frames.read(e, "a", "i32"), 0)
    frames.next_record(e)


def _store_dwords(count: int) -> Builder:
    """Dwords one behind the other for each lane, by squares of four lanes."""

    def build(e: Emitter) -> None:
        rows, source, kind = frames.row(e, "b"), frames.row(e, "a"), f"<{_SQUARE} x i32>"
        for start in range(0, e.lanes, _SQUARE):
            places = [frames.behind(e, source, n * e.wave.row + 4 * start) for n in range(count)]
            held = [e.raw(f"load {kind}, ptr {place}, align 16") for place in places]
            held += held[:1] * (_SQUARE - count)
            for lane, column in enumerate(_transposed(e, held), start):
                words = column if count == _SQUARE else _shuffled(e, column, "poison", range(count))
                pointer = _pointer_of(e, rows, lane)
                e.lines.append(f"store <{count} x i32> {words}, ptr {pointer}, align 1")
        frames.next_record(e)

    return build


def _store_small(kind: str, high: bool) -> Builder:
    def build(e: Emitter) -> None:
        value = frames.read(e, "a", "i32")
        _scatter(e, (value.lshr(16) if high else value).to(kind), 0)
        frames.next_record(e)

    return build


BUILDERS: Final[dict[str, Builder]] = {
    "resolve_vector": _resolve_vector,
    "resolve_based": _resolve_based,
    "resolve_lds": _resolve_lds,
    "resolve_scratch": _resolve_scratch,
    "load_b32": _load_dword,
    "store_b32": _store_dword,
    **{f"load_b{32 * count}": _load_dwords(count) for count in (2, 3, 4)},
    **{f"store_b{32 * count}": _store_dwords(count) for count in (2, 3, 4)},
    **{f"load_{kind}": _load_small(kind, "") for kind in ("u8", "i8", "u16", "i16")},
    **{f"load_d16_{k}": _load_small(k, "low") for k in ("u8", "i8", "u16")},
    **{f"load_d16_hi_{k}": _load_small(k, "high") for k in ("u8", "i8", "u16")},
    **{f"store_b{bits}": _store_small(f"i{bits}", False) for bits in (8, 16)},
    **{f"store_d16_hi_b{bits}": _store_small(f"i{bits}", True) for bits in (8, 16)},
}
"""Operations by name: how each is written."""

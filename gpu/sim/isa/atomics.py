"""Atomics and scalar loads.

Atomics go lane by lane, in the order of lanes; they take pointers that a resolve left (`b`), data
(`a`, for a compare-and-swap the new value, with what is compared in `c`), and leave the old value
in `d`, which is the trash row where the instruction returns none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpu.sim.isa import frames, layout
from gpu.sim.isa.frames import Builder
from gpu.sim.isa.values import Emitter, Value

Update = Callable[[Value, Value], Value]


def _increment(old: Value, data: Value) -> Value:
    return old.icmp("uge", data).select(0, old + 1)


def _decrement(old: Value, data: Value) -> Value:
    return (old.eq(0) | old.icmp("ugt", data)).select(data, old - 1)


def _float_choice(predicate: str) -> Update:
    """The other one where it is a number and compares so, or where the old one is NaN."""

    def build(old: Value, data: Value) -> Value:
        kind = "f32" if old.kind == "i32" else "f64"
        x, y = old.bits(kind), data.bits(kind)
        return (y.fcmp(predicate, x) | (x.is_nan() & ~y.is_nan())).select(data, old)

    return build


def _float_add(old: Value, data: Value) -> Value:
    kind = "f32" if old.kind == "i32" else "f64"
    return (old.bits(kind) + data.bits(kind)).bits()


def _subtract_clamped(old: Value, data: Value) -> Value:
    return old.emitter.call(old.kind, "usub.sat", old, data)


def _subtract_if_larger(old: Value, data: Value) -> Value:
    return old.icmp("uge", data).select(old - data, old)


def _pair_add(old: Value, data: Value) -> Value:
    """Two halves."""
    low, high = (
        (old.lshr(shift).to("i16").bits("f16") + data.lshr(shift).to("i16").bits("f16")).bits()
        for shift in (0, 16)
    )
    return low.to("i32") | high.to("i32").shl(16)


def _brain_add(old: Value, data: Value) -> Value:
    """Two bfloat16, rounded to the nearest even."""
    result = old.like(0)
    for shift in (0, 16):
        total = old.lshr(shift).shl(16).bits("f32") + data.lshr(shift).shl(16).bits("f32")
        pattern = total.bits()
        rounded = (pattern + 0x7FFF + (pattern.lshr(16) & 1)).lshr(16)
        result = result | total.is_nan().select(pattern.lshr(16) | 0x40, rounded).shl(shift)
    return result


PAIRS: Final[dict[str, Update]] = {"pk_add_f16": _pair_add, "pk_add_bf16": _brain_add}
"""Those of two 16-bit floats in a dword."""
UPDATES: Final[dict[str, Update]] = {
    "swap": lambda old, data: data,
    "add": lambda old, data: old + data,
    "sub": lambda old, data: old - data,
    "rsub": lambda old, data: data - old,
    "csub": _subtract_clamped,
    "cond_sub": _subtract_if_larger,
    "smin": lambda old, data: old.smin(data),
    "smax": lambda old, data: old.smax(data),
    "umin": lambda old, data: old.umin(data),
    "umax": lambda old, data: old.umax(data),
    "and": lambda old, data: old & data,
    "or": lambda old, data: old | data,
    "xor": lambda old, data: old ^ data,
    "inc": _increment,
    "dec": _decrement,
    "fmin": _float_choice("olt"),
    "fmax": _float_choice("ogt"),
    "fadd": _float_add,
}
"""What each atomic makes of the old value and the data."""


def _read_lane(e: Emitter, slot: str, lane: str, bits: int) -> Value:
    pointer = e.raw(f"getelementptr i32, ptr {frames.row(e, slot)}, i32 {lane}")
    low = e.value("i32", f"load i32, ptr {pointer}, align 4")
    if bits == 32:
        return low
    high = e.value("i32", f"load i32, ptr {frames.behind(e, pointer)}, align 4")
    return frames.join64(low, high)


def _write_lane(e: Emitter, lane: str, value: Value, row: int = 0) -> None:
    """Writes lane `lane` of the rows that begin `row` rows behind the destination."""
    target = frames.behind(e, frames.row(e, "d"), row * e.wave.row)
    pointer = e.raw(f"getelementptr i32, ptr {target}, i32 {lane}")
    e.lines.append(f"store i32 {value.to('i32').text}, ptr {pointer}, align 4")
    if value.kind == "i64":
        high = value.lshr(32).to("i32")
        e.lines.append(f"store i32 {high.text}, ptr {frames.behind(e, pointer)}, align 4")


def each_lane(step: Callable[[Emitter, str], None]) -> Builder:
    """A loop over the active lanes, each of which takes a step; it ends the function."""

    def build(e: Emitter) -> None:
        active, kind = frames.active_lanes(e), e.wave.mask
        e.lines += ["br label %entry", "entry:", "br label %loop", "loop:"]
        mask = "%mask"
        e.lines.append(f"%mask = phi {kind} [ {active}, %entry ], [ %rest, %one ]")
        e.lines.append(f"%empty = icmp eq {kind} {mask}, 0")
        e.lines += ["br i1 %empty, label %done, label %one", "one:"]
        lane = frames.first_lane(e, mask)
        e.lines.append(f"%rest = and {kind} {mask}, {e.raw(f'sub {kind} {mask}, 1')}")
        step(e, lane)
        e.lines += ["br label %loop", "done:"]
        frames.next_record(e)

    return build


def _pointer(e: Emitter, lane: str, row: int = 0) -> str:
    rows = frames.behind(e, frames.row(e, "b"), row * e.wave.row)
    slot = e.raw(f"getelementptr ptr, ptr {rows}, i32 {lane}")
    return e.raw(f"load ptr, ptr {slot}, align 8")


def _atomic(bits: int, update: Callable[[Emitter, Value, Value, str], Value]) -> Builder:
    def step(e: Emitter, lane: str) -> None:
        pointer = _pointer(e, lane)
        old = e.value(f"i{bits}", f"load i{bits}, ptr {pointer}, align 4")
        new = update(e, old, _read_lane(e, "a", lane, bits), lane)
        e.lines.append(f"store i{bits} {new.text}, ptr {pointer}, align 4")
        _write_lane(e, lane, old)

    return each_lane(step)


def _swap_two(bits: int) -> Builder:
    """`a` and `c` into two places, whose pointers lie one behind the other; both old values."""

    def step(e: Emitter, lane: str) -> None:
        pointers = [_pointer(e, lane, row) for row in (0, 2)]
        kind = f"i{bits}"
        old = [e.value(kind, f"load {kind}, ptr {pointer}, align 4") for pointer in pointers]
        new = [_read_lane(e, slot, lane, bits) for slot in ("a", "c")]
        for pointer, value in zip(pointers, new, strict=True):
            e.lines.append(f"store {kind} {value.text}, ptr {pointer}, align 4")
        for number, value in enumerate(old):
            _write_lane(e, lane, value, number * bits // 32)

    return each_lane(step)


def _plain(update: Update) -> Callable[[Emitter, Value, Value, str], Value]:
    return lambda e, old, data, lane: update(old, data)


def _compare(bits: int, kind: str) -> Callable[[Emitter, Value, Value, str], Value]:
    def update(e: Emitter, old: Value, data: Value, lane: str) -> Value:
        wanted = _read_lane(e, "c", lane, bits)
        same = old.eq(wanted) if not kind else old.bits(kind).fcmp("oeq", wanted.bits(kind))
        return same.select(data, old)

    return update


def _mask_or(bits: int) -> Callable[[Emitter, Value, Value, str], Value]:
    def update(e: Emitter, old: Value, data: Value, lane: str) -> Value:
        return (old & ~data) | _read_lane(e, "c", lane, bits)

    return update


def _scalar_source(e: Emitter, align: int, size: Value) -> str:
    """The host address of ``scalar pair a + immediate + scalar b``; the function goes on there.

    The block is ``entry``; where the wave may not read, it stops.
    """
    base = frames.read(e, "a", "i64")
    immediate = Value(e, "i64", frames.field(e, layout.IMMEDIATE, "i64"))
    address = (base + immediate + frames.read(e, "b", "i32").to("i64")) & -align
    where = f"i64 {address.text}, i32 0, i32 {(size | layout.SCALAR << 8).text}"
    host = e.raw(f"call i64 @resolve_one(ptr %w, ptr %o, {where})")
    bad = e.raw(f"icmp eq i64 {host}, 0")
    e.lines += [f"br i1 {bad}, label %fault, label %entry", "fault:"]
    frames.set_header(e, layout.FAULT_ADDRESS, "i64", address.text)
    frames.set_header(e, layout.FAULT_LANE, "i32", "0")
    frames.set_header(e, layout.FAULT_ACCESS, "i32", str(layout.SCALAR))
    frames.set_header(e, layout.FAULT_SIZE, "i32", size.text)
    frames.stop(e, layout.FAULT, "%o")
    e.lines.append("entry:")
    return e.raw(f"inttoptr i64 {host} to ptr")


def _scalar_load_small(kind: str) -> Builder:
    """A byte or short, ``u8`` ``i16`` ..., as a dword of its value."""
    memory = f"i{kind[1:]}"
    size = int(kind[1:]) // 8

    def build(e: Emitter) -> None:
        source = _scalar_source(e, size, e.const("i32", size))
        found = e.value(memory, f"load {memory}, ptr {source}, align 1")
        word = found.to("i32") if kind[0] == "u" else found.sext("i32")
        frames.broadcast(e, frames.row(e, "d"), word.text)
        frames.next_record(e)

    return build


def _scalar_load(e: Emitter) -> None:
    """`aux` dwords from ``scalar pair a + immediate + scalar b`` into rows from `d` on."""
    count = Value(e, "i32", frames.field(e, layout.AUX))
    source = _scalar_source(e, 4, count.shl(2))
    target = frames.row(e, "d")
    e.lines += ["br label %loop", "loop:"]
    e.lines.append("%index = phi i32 [ 0, %entry ], [ %next, %loop ]")
    word = e.raw(f"load i32, ptr {e.raw(f'getelementptr i32, ptr {source}, i32 %index')}, align 4")
    row = f"[{e.wave.row} x i8]"
    frames.broadcast(e, e.raw(f"getelementptr {row}, ptr {target}, i32 %index"), word)
    e.lines.append("%next = add i32 %index, 1")
    more = e.raw(f"icmp ult i32 %next, {count.text}")
    e.lines += [f"br i1 {more}, label %loop, label %done", "done:"]
    frames.next_record(e)


SCALAR_LOADS: Final[dict[str, Builder]] = {
    "scalar_load": _scalar_load,
    **{f"scalar_load_{kind}": _scalar_load_small(kind) for kind in ("u8", "i8", "u16", "i16")},
}
BUILDERS: Final[dict[str, Builder]] = {
    **{
        f"atomic_{name}_{bits}": _atomic(bits, _plain(update))
        for name, update in UPDATES.items()
        for bits in (32, 64)
    },
    **{f"atomic_{name}_32": _atomic(32, _plain(update)) for name, update in PAIRS.items()},
    **{f"atomic_cmpswap_{bits}": _atomic(bits, _compare(bits, "")) for bits in (32, 64)},
    **{f"atomic_fcmpswap_{bits}": _atomic(bits, _compare(bits, f"f{bits}")) for bits in (32, 64)},
    **{f"atomic_mskor_{bits}": _atomic(bits, _mask_or(bits)) for bits in (32, 64)},
    **{f"atomic_swap_two_{bits}": _swap_two(bits) for bits in (32, 64)},
    **SCALAR_LOADS,
}
"""Operations by name: how each is written. They are functions of scalars."""

"""Atomics: lane by lane, in the order of lanes. "PTX ISA", section 9.7.13, ATOM and RED."""

from __future__ import annotations

from typing import Final

from gpu.sim.isa import frames
from gpu.sim.isa.atomics import UPDATES, Update, each_lane
from gpu.sim.isa.ptx import parts, rows, wave
from gpu.sim.isa.ptx.resolve import Access, address_of, careful
from gpu.sim.isa.ptx.sem_float import arithmetic, smaller
from gpu.sim.isa.ptx.syntax import TYPES
from gpu.sim.isa.values import Emitter, Value, bits_of

_INTEGER: Final[dict[str, Update]] = {
    **{name: UPDATES[name] for name in ("add", "and", "or", "xor", "inc", "dec")},
    "exch": UPDATES["swap"],
    **{f"{name}.{sign}": UPDATES[sign + name] for name in ("min", "max") for sign in "su"},
}


def _float_update(operation: str, kind: str) -> Update:
    """On numbers of 16, 32 or 64 bits, as integers."""
    if kind == "bf16":
        return arithmetic(operation, kind)
    if operation == "add":
        build = arithmetic("add", kind)
    else:
        maximum = operation == "max"
        build = lambda x, y: smaller(x, y, False, maximum)  # noqa: E731
    return lambda old, data: parts.canonical(build(old.bits(kind), data.bits(kind))).bits()


def update_of(operation: str, kind: str) -> Update | None:
    """What an atomic makes of the old value and the data; None where there is no such one."""
    if kind in ("f16x2", "bf16x2"):
        single = kind[:-2]
        if operation != "add":
            return None
        if single == "bf16":
            return parts.on_halves(arithmetic("add", "bf16"), "i16")
        return parts.on_halves(arithmetic("add", "f16"), "f16")
    if kind in ("f16", "bf16", "f32", "f64"):
        return _float_update(operation, kind) if operation in ("add", "min", "max") else None
    if operation in ("min", "max"):
        return _INTEGER[f"{operation}.{'s' if kind[0] == 's' else 'u'}"]
    return _INTEGER.get(operation)


def _element(e: Emitter, slot: str, kind: str, lane: str) -> Value:
    """A lane's value of a register, as an integer."""
    bits = max(32, bits_of(kind))
    place = e.raw(f"getelementptr i{bits}, ptr {frames.row(e, slot)}, i32 {lane}")
    return e.value(f"i{bits}", f"load i{bits}, ptr {place}, align 4").to(kind)


def _set_element(e: Emitter, slot: str, lane: str, value: Value) -> None:
    bits = max(32, bits_of(value.kind))
    place = e.raw(f"getelementptr i{bits}, ptr {frames.row(e, slot)}, i32 {lane}")
    e.lines.append(f"store i{bits} {value.to(f'i{bits}').text}, ptr {place}, align 4")


def resolve(name: str, how: Access, address: str) -> str:
    """The module that leaves a host pointer for each lane at `wave.WARP.pointers`."""
    e = Emitter(wave.LANES)
    pointers = careful(e, how, address_of(e, address))
    place = frames.place(e, wave.WARP.pointers)
    e.lines.append(f"store <{e.lanes} x ptr> {pointers}, ptr {place}, align 128")
    frames.next_record(e)
    return rows.function(name, e)


def atomic(name: str, operation: str, kind: str) -> str:
    """The module of an atomic on a PTX type, through pointers that `resolve` has left.

    Data is in `b`; for CAS what is compared is in `b` and the new value in `c`. The old value goes
    to `d`.
    """
    memory = f"i{TYPES[kind]}"

    def step(e: Emitter, lane: str) -> None:
        place = frames.place(e, wave.WARP.pointers)
        pointer = e.raw(f"load ptr, ptr {e.raw(f'getelementptr ptr, ptr {place}, i32 {lane}')}")
        old = e.value(memory, f"load {memory}, ptr {pointer}, align 1")
        data = _element(e, "b", memory, lane)
        if operation == "cas":
            new = old.eq(data).select(_element(e, "c", memory, lane), old)
        else:
            update = update_of(operation, kind)
            assert update is not None
            new = update(old, data)
        e.lines.append(f"store {memory} {new.text}, ptr {pointer}, align 1")
        _set_element(e, "d", lane, old)

    return frames.joined({name: (each_lane(step), 1)}, wave.WARP)

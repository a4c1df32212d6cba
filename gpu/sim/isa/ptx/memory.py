"""Loads and stores.

A load leaves up to four values in the rows `d`, `e`, `c`, `f`, a store takes them from `b`, `c`,
`e`, `f`; the address is in `a` and the immediate.
"""

from __future__ import annotations

from typing import Final

from gpu.sim.isa import frames, layout
from gpu.sim.isa.ptx import rows, wave
from gpu.sim.isa.ptx.resolve import (
    LOCAL,
    PARAM,
    Access,
    address_of,
    careful,
    fast_paths,
)
from gpu.sim.isa.values import Emitter, Value, bits_of

LOADED: Final = ("d", "e", "c", "f")
STORED: Final = ("b", "c", "e", "f")
_ALL: Final = "splat (i1 true)"


def _memory_kind(kind: str) -> str:
    """``s16`` and ``u16`` as ``i16``."""
    return f"i{kind[1:]}"


def _widened(value: Value, kind: str, register: str) -> Value:
    """What memory holds as a register has it."""
    if value.kind == register:
        return value
    if bits_of(value.kind) > bits_of(register):
        return value.to(register)
    return value.sext(register) if kind[0] == "s" else value.to(register)


def gather(e: Emitter, pointers: str, memory: str) -> Value:
    """A value from each lane's pointer."""
    kind = e.type(memory)
    name = f"@llvm.masked.gather.{e.mangled(memory)}.v{e.lanes}p0"
    types = f"<{e.lanes} x ptr>, i32, {e.type('i1')}, {kind}"
    e.declarations.add(f"declare {kind} {name}({types})")
    arguments = f"<{e.lanes} x ptr> {pointers}, i32 1, {e.type('i1')} {_ALL}, {kind} poison"
    return e.value(memory, f"call {kind} {name}({arguments})")


def scatter(e: Emitter, pointers: str, value: Value) -> None:
    """A value to each lane's pointer, in the order of lanes."""
    kind = e.type(value.kind)
    name = f"@llvm.masked.scatter.{e.mangled(value.kind)}.v{e.lanes}p0"
    types = f"{kind}, <{e.lanes} x ptr>, i32, {e.type('i1')}"
    e.declarations.add(f"declare void {name}({types})")
    arguments = f"{kind} {value.text}, <{e.lanes} x ptr> {pointers}, i32 1, {e.type('i1')} {_ALL}"
    e.lines.append(f"call void {name}({arguments})")


def further(e: Emitter, pointers: str, offset: int) -> str:
    """All pointers, a number of bytes on."""
    if not offset:
        return pointers
    return e.raw(f"getelementptr i8, <{e.lanes} x ptr> {pointers}, i64 {offset}")


def load(space: int, address: str, kind: str, register: str, count: int) -> str:
    """The module of a load; see `load_name`."""
    e = Emitter(wave.LANES)
    memory = _memory_kind(kind)
    size = bits_of(memory) // 8
    how = Access(space, size * count, layout.READ)
    addresses = address_of(e, address)
    if space not in (LOCAL, PARAM) and count == 1:
        host, _ = fast_paths(e, how, addresses)
        e.lines.append("row:")
        row = e.value(memory, f"load {e.type(memory)}, ptr {host}, align 1")
        rows.store_all(e, frames.row(e, "d"), _widened(row, kind, register))
        frames.next_record(e)
        e.lines.append("same:")
        one = e.raw(f"load {memory}, ptr {host}, align 1")
        same = _widened(frames.splat(e, memory, one), kind, register)
        rows.store_all(e, frames.row(e, "d"), same)
        frames.next_record(e)
        e.lines.append("lanes:")
    pointers = careful(e, how, addresses)
    values = [gather(e, further(e, pointers, size * number), memory) for number in range(count)]
    for slot, value in zip(LOADED, values, strict=False):
        rows.write(e, slot, _widened(value, kind, register))
    frames.next_record(e)
    return rows.function(load_name(space, address, kind, register, count), e)


def load_name(space: int, address: str, kind: str, register: str, count: int) -> str:
    """Of a load through `address` ("i32" or "i64") of `count` values of a memory type (``u8``)."""
    return f"ld_{space}_{address}_{kind}_{register}_{count}"


def store(space: int, address: str, kind: str, register: str, count: int) -> str:
    """The module of a store; see `store_name`."""
    e = Emitter(wave.LANES)
    memory = _memory_kind(kind)
    size = bits_of(memory) // 8
    how = Access(space, size * count, layout.WRITE)
    addresses = address_of(e, address)
    if space not in (LOCAL, PARAM) and count == 1:
        host, _ = fast_paths(e, how, addresses)
        e.lines.append("row:")
        whole = rows.read(e, STORED[0], register).to(memory)
        e.lines.append(f"store {e.type(memory)} {whole.text}, ptr {host}, align 1")
        frames.next_record(e)
        e.lines += ["same:", "br label %lanes", "lanes:"]
    pointers = careful(e, how, addresses)
    for number in range(count):
        value = rows.read(e, STORED[number], register).to(memory)
        scatter(e, further(e, pointers, size * number), value)
    frames.next_record(e)
    return rows.function(store_name(space, address, kind, register, count), e)


def store_name(space: int, address: str, kind: str, register: str, count: int) -> str:
    """Of a store; see `load_name`."""
    return f"st_{space}_{address}_{kind}_{register}_{count}"


def parameter(kind: str, register: str) -> str:
    """The module of a load of a kernel's parameter at the immediate, into all lanes."""
    e = Emitter(wave.LANES)
    memory = _memory_kind(kind)
    base = frames.header(e, wave.PARAMETERS, "ptr")
    offset = frames.field(e, layout.IMMEDIATE, "i64")
    place = e.raw(f"getelementptr i8, ptr {base}, i64 {offset}")
    one = e.raw(f"load {memory}, ptr {place}, align 1")
    rows.write(e, "d", _widened(frames.splat(e, memory, one), kind, register))
    frames.next_record(e)
    return rows.function(parameter_name(kind, register), e)


def parameter_name(kind: str, register: str) -> str:
    """Of a load of a parameter."""
    return f"ld_parameter_{kind}_{register}"

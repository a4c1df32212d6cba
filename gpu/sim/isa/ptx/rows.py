"""Reads and writes the rows of a warp, in functions that are being written.

Kinds are those of `gpu/sim/isa/values.py` and ``p``, a predicate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gpu.sim.isa import frames
from gpu.sim.isa.ptx import wave
from gpu.sim.isa.values import Emitter, Value, bits_of

Build = Callable[..., "Value | tuple[Value, ...]"]
SOURCES: Final = ("a", "b", "c", "f")
RESULTS: Final = ("d", "e")
_PLAIN: Final = {"f16": "i16", "f32": "i32", "f64": "i64"}


def rows_of(kind: str) -> int:
    """Rows that a register of a kind takes."""
    return 2 if kind != "p" and bits_of(kind) == 64 else 1


def load(e: Emitter, pointer: str, kind: str) -> Value:
    """A value from its rows at a host pointer."""
    if kind == "p":
        return frames.mask_value(e, e.raw(f"load i32, ptr {pointer}, align 4"))
    width = "i64" if bits_of(kind) == 64 else "i32"
    whole = e.value(width, f"load {e.type(width)}, ptr {pointer}, align {wave.ROW}")
    plain = _PLAIN.get(kind, kind)
    narrow = whole.to(plain) if plain != width else whole
    return narrow.bits(kind)


def read(e: Emitter, slot: str, kind: str) -> Value:
    """A source of a kind."""
    return load(e, frames.row(e, slot), kind)


def is_full(e: Emitter) -> tuple[str, str]:
    """(whether all lanes are active, the mask of those that are)."""
    active = frames.header(e, wave.EXEC)
    return e.raw(f"icmp eq i32 {active}, -1"), active


def store(e: Emitter, pointer: str, value: Value) -> None:
    """Writes a value into its rows in the active lanes."""
    if value.kind == "i1":
        _store_predicate(e, pointer, value)
        return
    plain = value.bits()
    width = "i64" if bits_of(plain.kind) == 64 else "i32"
    whole = plain.to(width)
    where = f", ptr {pointer}, align {wave.ROW}"
    full, active = is_full(e)
    all_on, some_on, done = e.labels("full", "partial", "done")
    kind = e.type(width)
    e.lines += [f"br i1 {full}, label %{all_on}, label %{some_on}", f"{all_on}:"]
    e.lines += [f"store {kind} {whole.text}{where}", f"br label %{done}", f"{some_on}:"]
    # Not a select: LLVM would make a masked store of it, which is slow on many processors.
    mask = frames.mask_value(e, active).sext(width)
    old = e.value(width, f"load {kind}{where}")
    mixed = (whole & mask) | (old & ~mask)
    e.lines += [f"store {kind} {mixed.text}{where}", f"br label %{done}", f"{done}:"]


def store_all(e: Emitter, pointer: str, value: Value) -> None:
    """Writes rows in all lanes, active or not."""
    whole = value.bits().to("i64" if bits_of(value.kind) == 64 else "i32")
    e.lines.append(f"store {e.type(whole.kind)} {whole.text}, ptr {pointer}, align {wave.ROW}")


def _store_predicate(e: Emitter, pointer: str, value: Value) -> None:
    word = e.raw(f"bitcast {e.type('i1')} {value.text} to i32")
    active = frames.header(e, wave.EXEC)
    old = e.raw(f"load i32, ptr {pointer}, align 4")
    kept = e.raw(f"and i32 {old}, {e.raw(f'xor i32 {active}, -1')}")
    new = e.raw(f"or i32 {kept}, {e.raw(f'and i32 {word}, {active}')}")
    e.lines.append(f"store i32 {new}, ptr {pointer}, align 4")


def write(e: Emitter, slot: str, value: Value) -> None:
    """Writes a result."""
    store(e, frames.row(e, slot), value)


def mask_of(e: Emitter, condition: Value) -> str:
    """A word with a bit for each lane where a condition holds."""
    return e.raw(f"bitcast {e.type('i1')} {condition.text} to i32")


def function(name: str, e: Emitter) -> str:
    """The text of a module of one function."""
    return frames.module([(name, e)])


def computing(name: str, sources: Sequence[str], build: Build) -> str:
    """The module of an operation that computes results from sources, lane by lane."""
    e = Emitter(wave.LANES)
    values = [read(e, slot, kind) for slot, kind in zip(SOURCES, sources, strict=False)]
    assert len(values) == len(sources), name
    built = build(*values)
    results = built if isinstance(built, tuple) else (built,)
    for slot, result in zip(RESULTS, results, strict=False):
        write(e, slot, result)
    frames.next_record(e)
    return function(name, e)

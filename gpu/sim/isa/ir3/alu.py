"""What instructions compute, on rows of lanes: native functions made for the operands they have.

A function is made for an operation with the place of each operand: a whole register, the low or the
high half of one (half registers share their place with full ones), and what is done to its sign.
Denormals are flushed and nothing is fused (Mesa 25.0, src/freedreno/ir3/ir3_compiler_nir.c, and
`tu_get_properties` of src/freedreno/vulkan/tu_device.cc for floats of 16 and 32 bits).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from gpu.sim.isa import frames
from gpu.sim.isa.ir3.semantics import (
    OPERATIONS,
    Operation,
    convert,
    rounded_half,
    saturated,
    widened_half,
)
from gpu.sim.isa.ir3.wave import Ir3Wave
from gpu.sim.isa.native import Make
from gpu.sim.isa.values import Emitter, Value

FULL: Final = "w"
LOW: Final = "l"
HIGH: Final = "h"
PREDICATE: Final = "p"
SHARED: Final = "s"
"""Before where in it: a register of the whole wave is written."""
SINGLE: Final = "c"
"""A constant that operations on half floats read: it has 32 bits (Mesa 25.0, ir3_cp.c)."""
_SLOTS: Final = "abc"


class Source(NamedTuple):
    """Where a source is, and what is done to it."""

    place: str
    negated: bool = False
    absolute: bool = False

    @property
    def is_half(self) -> bool:
        """Whether it has 16 bits."""
        return self.place != FULL


def computing(
    name: str, target: str, sources: tuple[Source, ...], saturates: bool, wave: Ir3Wave
) -> tuple[str, Make]:
    """(the native function's name, what writes its module) of an operation.

    Raises KeyError for one that is none.
    """
    operation = OPERATIONS[name]
    widens = target in (FULL, SHARED + FULL) and all(source.is_half for source in sources)
    marks = ["n" * s.negated + "a" * s.absolute for s in sources]
    places = "_".join(s.place + mark for s, mark in zip(sources, marks, strict=True))
    function = f"ir3_{name.replace('.', '_')}{'_to1' * saturates}_{target}_{places}"
    build = partial(_compute, operation, target, sources, saturates, widens)
    return function, partial(_module, function, build, wave)


def converting(
    types: tuple[str, str], rounding: str, target: str, source: str, wave: Ir3Wave
) -> tuple[str, Make]:
    """The same of a move: from one type to another, or of bits where they are one."""
    way = rounding.strip("()")
    function = f"ir3_cov_{types[0]}{types[1]}{way}_{target}_{source}"
    return function, partial(
        _module, function, partial(_convert, types, rounding, target, source), wave
    )


def _module(function: str, build: Callable[[Emitter], None], wave: Ir3Wave) -> str:
    e = Emitter(wave.lanes, wave)
    build(e)
    frames.next_record(e)
    return frames.module([(function, e)])


def _compute(
    operation: Operation,
    target: str,
    sources: tuple[Source, ...],
    saturates: bool,
    widens: bool,
    e: Emitter,
) -> None:
    values = [_operand(e, slot, s, operation) for slot, s in zip(_SLOTS, sources, strict=False)]
    result = operation.build(*values)
    if saturates:
        result = saturated(result)
    if widens:
        result = operation.widened(result)
    _write(e, target, result)


def _convert(types: tuple[str, str], rounding: str, target: str, source: str, e: Emitter) -> None:
    value = _bits(e, "a", source)
    _write(e, target, convert(value, types, rounding))


def _bits(e: Emitter, slot: str, place: str) -> Value:
    """A source's bits: i32, or i16 of a half."""
    row = frames.read(e, slot, "i32")
    if place in (FULL, SINGLE):
        return row
    return (row.lshr(16) if place == HIGH else row).to("i16")


def _operand(e: Emitter, slot: str, source: Source, operation: Operation) -> Value:
    bits = _bits(e, slot, source.place)
    if operation.domain == "float":
        sign = 1 << (15 if bits.kind == "i16" else 31)
        if source.absolute:
            bits = bits & (sign - 1)
        if source.negated:
            bits = bits ^ sign
        if source.place == SINGLE:
            return widened_half(rounded_half(bits.bits("f32")))
        return widened_half(bits) if bits.kind == "i16" else bits.bits("f32")
    if operation.domain == "bits":
        return ~bits if source.negated else bits
    if source.absolute:
        bits = bits.smax(-bits)
    return -bits if source.negated else bits


def _write(e: Emitter, target: str, result: Value) -> None:
    """Writes a float (as f32), an integer, or whether something holds."""
    if target == PREDICATE:
        _write_predicate(e, result if result.kind == "i1" else result.ne(0))
        return
    part = target.removeprefix(SHARED)
    if part == FULL:
        word = result.bits() if result.is_float else result.to("i32")
    else:
        half = rounded_half(result) if result.is_float else result.to("i16")
        wide, old = half.to("i32"), frames.read(e, "d", "i32")
        word = old & 0xFFFF | wide.shl(16) if part == HIGH else old & ~0xFFFF | wide
    if target == part:
        frames.store_row(e, frames.row(e, "d"), word)
    else:
        _write_shared(e, frames.row(e, "d"), word)


def _write_predicate(e: Emitter, holds: Value) -> None:
    """The bits of active lanes; those of others stay."""
    pointer, kind = frames.row(e, "d"), e.wave.mask
    active, old = frames.active_lanes(e), frames.load_mask(e, pointer)
    new = e.raw(f"and {kind} {frames.mask_of(e, holds)}, {active}")
    kept = e.raw(f"and {kind} {old}, {e.raw(f'xor {kind} {active}, -1')}")
    frames.store_mask(e, pointer, e.raw(f"or {kind} {new}, {kept}"))


def _write_shared(e: Emitter, pointer: str, word: Value) -> None:
    """A register of the whole wave gets the value of its first active lane."""
    active = frames.active_lanes(e)
    none = e.raw(f"icmp eq {e.wave.mask} {active}, 0")
    some, done = e.labels("some", "done")
    e.lines += [f"br i1 {none}, label %{done}, label %{some}", f"{some}:"]
    lane = frames.first_lane(e, active)
    one = e.raw(f"extractelement {e.type('i32')} {word.text}, i32 {lane}")
    frames.broadcast(e, pointer, one)
    e.lines += [f"br label %{done}", f"{done}:"]

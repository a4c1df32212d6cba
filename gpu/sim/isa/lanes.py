"""Operations that move values between lanes."""

from __future__ import annotations

from functools import partial
from typing import Final

from gpu.sim.isa import frames, layout
from gpu.sim.isa.frames import Builder
from gpu.sim.isa.values import Emitter, Value

DPP_FETCH_INACTIVE: Final = 1
DPP_BOUND_ZERO: Final = 2
"""Bits of the aux word of `dpp` and `permlane`."""
_ALL: Final = "splat (i1 true)"


def _pick(e: Emitter, slot: str, index: Value) -> Value:
    """Element `index` of a row for each lane."""
    kind = e.type("i32")
    base = frames.row(e, slot)
    places = e.raw(f"getelementptr i32, ptr {base}, {kind} {index.text}")
    pointers = f"<{e.lanes} x ptr>"
    name = f"@llvm.masked.gather.{e.mangled('i32')}.v{e.lanes}p0"
    types = f"{pointers}, i32, {e.type('i1')}, {kind}"
    e.declarations.add(f"declare {kind} {name}({types})")
    arguments = f"{pointers} {places}, i32 4, {e.type('i1')} {_ALL}, {kind} poison"
    return e.value("i32", f"call {kind} {name}({arguments})")


def _is_active(e: Emitter, index: Value) -> Value:
    row, word = e.wave.row, frames.splat(e, "i32", frames.header(e, e.wave.exec))
    for number in range(1, e.wave.words):
        here = index.lshr(5).eq(number)
        word = here.select(
            frames.splat(e, "i32", frames.header(e, e.wave.exec + number * row)), word
        )
    return (word.lshr(index & 31) & 1).ne(0)


def _aux_bit(e: Emitter, bit: int) -> Value:
    return (frames.splat(e, "i32", frames.field(e, layout.AUX)) & bit).ne(0)


def _dpp(e: Emitter) -> None:
    """``d = a[b]``; lanes without a source, or outside of the immediate's mask, leave EXEC."""
    index = frames.read(e, "b", "i32")
    inside = index.icmp("sge", 0)
    index = index & (e.lanes - 1)
    valid = inside & (_is_active(e, index) | _aux_bit(e, DPP_FETCH_INACTIVE))
    value = valid.select(_pick(e, "a", index), 0)
    frames.store_row(e, frames.row(e, "d"), value, masked=False)
    kept = valid | _aux_bit(e, DPP_BOUND_ZERO)
    active, kind = frames.active_lanes(e), e.wave.mask
    frames.set_header(e, layout.SAVED_EXEC, kind, active)
    chosen = frames.field(e, layout.IMMEDIATE, "i64")
    if kind != "i64":
        chosen = e.raw(f"{'trunc' if kind == 'i32' else 'sext'} i64 {chosen} to {kind}")
    both = e.raw(f"and {kind} {frames.mask_of(e, kept)}, {chosen}")
    place = frames.place(e, e.wave.exec)
    frames.store_mask(e, place, e.raw(f"and {kind} {both}, {active}"))
    frames.next_record(e)


def _within(e: Emitter, index: Value, lanes: int) -> Value:
    """A lane among so many that each lane is one of."""
    return (index & lanes - 1) | (e.lane_ids() & -lanes)


def _backward(from_inactive: bool = False, lanes: int = 32) -> Builder:
    """DS_BPERMUTE: ``d = a[(b + immediate) / 4 % 32]`` of 32 lanes, 0 where that is inactive.

    DS_BPERMUTE_FI also fetches from inactive lanes. On CDNA it is of all 64.
    """

    def build(e: Emitter) -> None:
        offset = frames.splat(e, "i32", frames.immediate(e))
        index = _within(e, (frames.read(e, "b", "i32") + offset).lshr(2), lanes)
        value = _pick(e, "a", index)
        frames.write(
            e, "d", "i32", value if from_inactive else _is_active(e, index).select(value, 0)
        )
        frames.next_record(e)

    return build


def _forward(e: Emitter, span: int = 32) -> None:
    """DS_PERMUTE: ``d[(b + immediate) / 4 % 32] = a``; the highest lane wins, others get 0.

    On CDNA it is of all 64.
    """
    kind = e.type("i32")
    room = e.raw(f"alloca {kind}, align {e.wave.row}")
    e.lines.append(f"store {kind} zeroinitializer, ptr {room}, align {e.wave.row}")
    offset = frames.splat(e, "i32", frames.immediate(e))
    index = _within(e, (frames.read(e, "b", "i32") + offset).lshr(2), span)
    data = frames.read(e, "a", "i32")
    active = frames.exec_mask(e)
    for lane in range(e.lanes):
        where = e.raw(f"extractelement {kind} {index.text}, i64 {lane}")
        place = e.raw(f"getelementptr i32, ptr {room}, i32 {where}")
        word = e.raw(f"extractelement {kind} {data.text}, i64 {lane}")
        on = e.raw(f"extractelement {e.type('i1')} {active.text}, i64 {lane}")
        old = e.raw(f"load i32, ptr {place}, align 4")
        e.lines.append(f"store i32 {e.raw(f'select i1 {on}, i32 {word}, i32 {old}')}, ptr {place}")
    result = e.value("i32", f"load {kind}, ptr {room}, align {e.wave.row}")
    frames.write(e, "d", "i32", result)
    frames.next_record(e)


def _permute_row(other_row: bool, own: bool = False) -> Builder:
    """V_PERMLANE16: within 16 lanes (or from the other 16) by 4-bit selectors in `b` and `c`.

    Those of V_PERMLANE16_VAR are each lane's `own`, in `b`.
    """

    def build(e: Emitter) -> None:
        lane = e.lane_ids()
        selector = frames.read(e, "b", "i32")
        if not own:
            selectors = (lane & 8).eq(0).select(selector, frames.read(e, "c", "i32"))
            selector = selectors.lshr((lane & 7).shl(2))
        start = (lane ^ 16 if other_row else lane) & ~15
        index = start | (selector & 15)
        valid = _is_active(e, index) | _aux_bit(e, DPP_FETCH_INACTIVE)
        fallback = _aux_bit(e, DPP_BOUND_ZERO).select(e.const("i32", 0), frames.read(e, "d", "i32"))
        frames.write(e, "d", "i32", valid.select(_pick(e, "a", index), fallback))
        frames.next_record(e)

    return build


def _other_half(e: Emitter) -> None:
    """V_PERMLANE64: from the lane 32 further on or back, also an inactive one."""
    frames.write(e, "d", "i32", _pick(e, "a", e.lane_ids() ^ 32))
    frames.next_record(e)


def _element(e: Emitter, slot: str, lane: str) -> str:
    place = e.raw(f"getelementptr i32, ptr {frames.row(e, slot)}, i32 {lane}")
    return e.raw(f"load i32, ptr {place}, align 4")


def _read_first(e: Emitter) -> None:
    """V_READFIRSTLANE: of the first active lane, of lane 0 where none is."""
    first = frames.first_lane(e, frames.active_lanes(e))
    word = _element(e, "a", e.raw(f"and i32 {first}, {e.lanes - 1}"))
    frames.broadcast(e, frames.row(e, "d"), word)
    frames.next_record(e)


def _read_lane(e: Emitter) -> None:
    lane = e.raw(f"and i32 {_element(e, 'b', '0')}, {e.lanes - 1}")
    frames.broadcast(e, frames.row(e, "d"), _element(e, "a", lane))
    frames.next_record(e)


def _write_lane(e: Emitter) -> None:
    lane = e.raw(f"and i32 {_element(e, 'b', '0')}, {e.lanes - 1}")
    word = _element(e, "a", "0")
    place = e.raw(f"getelementptr i32, ptr {frames.row(e, 'd')}, i32 {lane}")
    e.lines.append(f"store i32 {word}, ptr {place}, align 4")
    frames.next_record(e)


BUILDERS: Final[dict[str, Builder]] = {
    "dpp": _dpp,
    "ds_bpermute_b32": _backward(),
    "ds_bpermute_fi_b32": _backward(from_inactive=True),
    "ds_bpermute_64_b32": _backward(lanes=64),
    "ds_permute_b32": _forward,
    "ds_permute_64_b32": partial(_forward, span=64),
    "v_permlane64_b32": _other_half,
    "v_permlane16_b32": _permute_row(False),
    "v_permlanex16_b32": _permute_row(True),
    "v_permlane16_var_b32": _permute_row(False, own=True),
    "v_permlanex16_var_b32": _permute_row(True, own=True),
    "v_readfirstlane_b32": _read_first,
    "v_readlane_b32": _read_lane,
    "v_writelane_b32": _write_lane,
}
"""Operations by name: how each is written, on rows."""

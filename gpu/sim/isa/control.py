"""Operations of the engine itself: entering, branching, stopping, moving and changing rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpu.sim.isa import frames, jumps, layout
from gpu.sim.isa.frames import Builder
from gpu.sim.isa.layout import WaveLayout
from gpu.sim.isa.values import Emitter, Value

_LDMXCSR: Final = "declare void @llvm.x86.sse.ldmxcsr(ptr)"


def control_module(wave: WaveLayout) -> str:
    """The module with all of them."""
    lanes = {name: wave.lanes if name in _ROWS else 1 for name in _BUILDERS}
    return frames.joined({n: (build, lanes[n]) for n, build in _BUILDERS.items()}, wave)


def load_mxcsr(offset: int) -> Builder:
    """Takes the host's modes of floats from the wave's header."""

    def build(e: Emitter) -> None:
        e.declarations.add(_LDMXCSR)
        e.lines.append(f"call void @llvm.x86.sse.ldmxcsr(ptr {frames.place(e, offset)})")
        frames.next_record(e)

    return build


def _stop_behind(status: int) -> Builder:
    """Stops; the wave goes on behind this record."""

    def build(e: Emitter) -> None:
        following = e.raw(f"getelementptr i8, ptr %o, i64 {layout.RECORD.size}")
        frames.stop(e, status, following)

    return build


def stop_here(status: int) -> Builder:
    """Stops; the wave goes on with this record."""
    return lambda e: frames.stop(e, status, "%o")


def _jump_register(e: Emitter) -> None:
    """Stops with the address to go on at in the header, for jumps through registers."""
    pointer = frames.row(e, "a")
    low = e.raw(f"load i32, ptr {pointer}, align 4")
    high = e.raw(f"load i32, ptr {frames.behind(e, pointer)}, align 4")
    address = frames.join64(Value(e, "i32", low), Value(e, "i32", high))
    frames.set_header(e, layout.FAULT_ADDRESS, "i64", address.text)
    frames.stop(e, layout.JUMP, "%o")


def _take(e: Emitter, taken: str, fallen: str) -> None:
    """Ends `taken` with a jump that counts against the budget, `fallen` with the next record.

    The record's immediate is what the jump adds to COUNT.
    """
    e.lines.append(f"{taken}:")
    target = frames.field(e, layout.TARGET, "ptr")
    jumps.add(e, frames.field(e, layout.IMMEDIATE, "i64"))
    jumps.spend(e, target)
    if fallen:
        e.lines.append(f"{fallen}:")
        frames.next_record(e)


def _branch(read: Callable[[Emitter], Value], wanted: str) -> Builder:
    """Branches where what is read of the wave is zero (`eq`) or is not (`ne`)."""

    def build(e: Emitter) -> None:
        read_value = read(e)
        condition = e.raw(f"icmp {wanted} {read_value.kind} {read_value.text}, 0")
        e.lines.append(f"br i1 {condition}, label %taken, label %fallen")
        _take(e, "taken", "fallen")

    return build


def _scc(e: Emitter) -> Value:
    return Value(e, "i32", frames.header(e, layout.SCC))


def _vcc(e: Emitter) -> Value:
    return Value(e, e.wave.mask, frames.load_mask(e, frames.place(e, e.wave.vcc)))


def _exec(e: Emitter) -> Value:
    return Value(e, e.wave.mask, frames.active_lanes(e))


def _always(e: Emitter) -> None:
    e.lines.append("br label %taken")
    _take(e, "taken", "")


def _copy(e: Emitter) -> None:
    """``d = a`` in all lanes."""
    frames.store_row(e, frames.row(e, "d"), frames.read(e, "a", "i32"), masked=False)
    frames.next_record(e)


def _move(e: Emitter) -> None:
    """``d = a`` in the active lanes."""
    frames.write(e, "d", "i32", frames.read(e, "a", "i32"))
    frames.next_record(e)


def _bits(e: Emitter) -> None:
    """``d = (a & immediate) ^ aux`` in all lanes: the signs of a source."""
    source = frames.read(e, "a", "i32")
    kept = frames.splat(e, "i32", frames.immediate(e))
    flipped = frames.splat(e, "i32", frames.field(e, layout.AUX))
    frames.store_row(e, frames.row(e, "d"), (source & kept) ^ flipped, masked=False)
    frames.next_record(e)


def _high_half(e: Emitter) -> None:
    """``d = a >> 16`` in all lanes."""
    high = frames.read(e, "a", "i32").lshr(16)
    frames.store_row(e, frames.row(e, "d"), high, masked=False)
    frames.next_record(e)


def _merge_high(e: Emitter) -> None:
    """The low half of `a` becomes the high half of `d`, in the active lanes."""
    low = frames.read(e, "d", "i32") & 0xFFFF
    frames.write(e, "d", "i32", low | frames.read(e, "a", "i32").shl(16))
    frames.next_record(e)


def _special(e: Emitter) -> None:
    """The condition bits as numbers: aux 0 is SCC, 1 VCCZ, 2 EXECZ."""
    vcc = e.raw(f"icmp eq {e.wave.mask} {_vcc(e).text}, 0")
    active = e.raw(f"icmp eq {e.wave.mask} {_exec(e).text}, 0")
    which = frames.field(e, layout.AUX)
    scc = frames.header(e, layout.SCC)
    is_vcc = e.raw(f"icmp eq i32 {which}, 1")
    is_scc = e.raw(f"icmp eq i32 {which}, 0")
    zero = e.raw(f"zext i1 {e.raw(f'select i1 {is_vcc}, i1 {vcc}, i1 {active}')} to i32")
    frames.broadcast(e, frames.row(e, "d"), e.raw(f"select i1 {is_scc}, i32 {scc}, i32 {zero}"))
    frames.next_record(e)


def _restore_exec(e: Emitter) -> None:
    """EXEC as it was before `dpp` narrowed it."""
    saved = frames.header(e, layout.SAVED_EXEC, e.wave.mask)
    frames.store_mask(e, frames.place(e, e.wave.exec), saved)
    frames.next_record(e)


def _mode_field(e: Emitter) -> tuple[str, str]:
    """(first bit of the field of MODE that aux names, 32 less its bits)."""
    aux = frames.field(e, layout.AUX)
    first = e.raw(f"and i32 {aux}, 31")
    size = e.raw(f"lshr i32 {aux}, 5")
    return first, e.raw(f"sub i32 31, {e.raw(f'and i32 {size}, 31')}")


def _set_mode(e: Emitter) -> None:
    """Writes a field of MODE (aux: first bit, size - 1 above bit 5) and the host's modes."""
    first, less = _mode_field(e)
    mask = e.raw(f"shl i32 {e.raw(f'lshr i32 -1, {less}')}, {first}")
    source = e.raw(f"load i32, ptr {frames.row(e, 'a')}, align 4")
    new = e.raw(f"shl i32 {source}, {first}")
    old = Value(e, "i32", frames.header(e, layout.MODE))
    wanted = Value(e, "i32", mask)
    mode = (old & ~wanted) | (Value(e, "i32", new) & wanted)
    frames.set_header(e, layout.MODE, "i32", mode.text)
    for place, round_bit, denormal_bit in ((layout.MXCSR32, 0, 4), (layout.MXCSR64, 2, 6)):
        control = _mxcsr(mode.lshr(round_bit) & 3, mode.lshr(denormal_bit) & 3)
        frames.set_header(e, place, "i32", control.text)
    load_mxcsr(layout.MXCSR32)(e)


def _mxcsr(rounding: Value, denormals: Value) -> Value:
    """The host's control word: all exceptions masked; see `mxcsr_of`."""
    direction = (rounding & 1).shl(1) | rounding.lshr(1)
    flush = (~denormals & 1).shl(6) | (~denormals & 2).shl(14)
    return direction.shl(13) | flush | 0x1F80


def mxcsr_of(rounding: int, denormals: int) -> int:
    """The host's control word for fields of MODE (section 3.3.2 of AMD's manual).

    Rounding: nearest, up, down, towards zero; x86 has up and down the other way round. Denormals:
    bit 0 keeps those of sources (else DAZ), bit 1 those of results (else FTZ).
    """
    direction = (rounding & 1) << 1 | rounding >> 1
    return direction << 13 | (~denormals & 1) << 6 | (~denormals & 2) << 14 | 0x1F80


def _get_mode(e: Emitter) -> None:
    """Reads a field of MODE into a scalar register."""
    first, less = _mode_field(e)
    moved = e.raw(f"lshr i32 {frames.header(e, layout.MODE)}, {first}")
    kept = e.raw(f"and i32 {moved}, {e.raw(f'lshr i32 -1, {less}')}")
    frames.broadcast(e, frames.row(e, "d"), kept)
    frames.next_record(e)


_ROWS: Final = frozenset(("copy", "move", "bits", "high_half", "merge_high"))
_BUILDERS: Final[dict[str, Builder]] = {
    "mode32": load_mxcsr(layout.MXCSR32),
    "mode64": load_mxcsr(layout.MXCSR64),
    "end": stop_here(layout.END),
    "barrier": _stop_behind(layout.BARRIER),
    "barrier_signal": _stop_behind(layout.SIGNAL),
    "barrier_wait": _stop_behind(layout.AWAIT),
    "unknown": stop_here(layout.UNKNOWN),
    "jump_register": _jump_register,
    "branch": _always,
    "branch_scc0": _branch(_scc, "eq"),
    "branch_scc1": _branch(_scc, "ne"),
    "branch_vccz": _branch(_vcc, "eq"),
    "branch_vccnz": _branch(_vcc, "ne"),
    "branch_execz": _branch(_exec, "eq"),
    "branch_execnz": _branch(_exec, "ne"),
    "copy": _copy,
    "move": _move,
    "bits": _bits,
    "high_half": _high_half,
    "merge_high": _merge_high,
    "special": _special,
    "set_mode": _set_mode,
    "get_mode": _get_mode,
    "restore_exec": _restore_exec,
}
NAMES: Final = tuple(_BUILDERS)
"""The functions of the control module."""

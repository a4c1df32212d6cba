"""Addresses by a buffer descriptor, of the kind that scratch memory of RDNA2 has.

AMD, "RDNA2 Instruction Set Architecture", section 8.1.5 ("Buffer Addressing") and 8.1.8 ("Buffer
Resource Descriptor"). The dwords of lanes lie side by side, as many as the index stride says.
"""

from __future__ import annotations

from typing import Final

from gpu.sim.isa import frames, layout
from gpu.sim.isa.frames import Builder
from gpu.sim.isa.values import Emitter, Value

_ELEMENT: Final = 4
_UNCHECKED: Final = 2  # OOB_SELECT


def _descriptor(e: Emitter) -> list[Value]:
    """The words of the descriptor whose rows begin at `b`."""
    kind, first = e.type("i32"), frames.row(e, "b")
    places = [frames.behind(e, first, number * e.wave.row) for number in range(4)]
    return [e.value("i32", f"load {kind}, ptr {at}, align {e.wave.row}") for at in places]


def _address(e: Emitter) -> None:
    """Addresses of dwords in the buffer at `b`: offset `a` and the immediate; `c` goes on top.

    The wave stops where the buffer is not swizzled by lane, or its bounds would be checked.
    """
    low, high, records, last = _descriptor(e)
    swizzled = (high.lshr(31) & last.lshr(23) & 1).ne(0)
    unchecked = (last.lshr(28) & 3).eq(_UNCHECKED) & records.ne(0)
    refused = frames.any_lane(e, ~(swizzled & unchecked))
    e.lines += [f"br i1 {refused}, label %refused, label %taken", "refused:"]
    frames.stop(e, layout.UNKNOWN, "%o")
    e.lines.append("taken:")
    offset = frames.read(e, "a", "i32") + frames.splat(e, "i32", frames.immediate(e))
    stride = e.const("i32", 8).shl(last.lshr(21) & 3)
    lane, each = e.lane_ids(), high.lshr(16) & 0x3FFF
    group = lane.lshr((last.lshr(21) & 3) + 3)
    lowest = offset & (_ELEMENT - 1)
    place = ((group * each) + (offset - lowest)) * stride
    place = place + (lane & (stride - 1)) * _ELEMENT + lowest
    base = frames.join64(low, high & 0xFFFF)
    address = base + frames.read(e, "c", "i32").to("i64") + place.to("i64")
    frames.write(e, "d", "i64", address)
    frames.next_record(e)


BUILDERS: Final[dict[str, Builder]] = {"buffer_address": _address}
"""Operations by name: how each is written, on rows."""

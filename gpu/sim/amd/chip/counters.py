"""Performance counters of the shader cores: which events they count, and how packets reach them.

Registers: Linux, ``gc_11_0_0_offset.h`` and ``gc_12_0_0_offset.h``; events: ``soc21_enum.h`` and
``soc24_enum.h``. That a WGP is instance ``wgp << 2``, and that of GFX11's selectors those of even
number are used, is tinygrad's ops_amd.py. Counted is what does not depend on time or caches: waves,
work-items, instructions, conflicts of LDS. Which kinds of vector memory instructions the others
count no header says. All else is refused by name.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu.autogen.amd import pm4_gfx10
from gpu.sim.amd.chip.errors import PacketError
from gpu.sim.amd.chips import Chip
from gpu.sim.executor import Size3
from gpu.sim.isa.tally import KINDS

_UCONFIG: Final = pm4_gfx10.VALUES["SET_UCONFIG_REG"]["START"]
_SEGMENT: Final = 0xA000
"""Where the graphics core's registers of segment 1 begin, in dwords (navi10_ip_offset.h, GC)."""
_NAMES: Final = ("CP_PERFMON_CNTL", "GRBM_GFX_INDEX", "SQ_PERFCOUNTER_CTRL", "SQ_PERFCOUNTER_CTRL2")
_COUNTER: Final = re.compile(r"(SQ|GL2C)_PERFCOUNTER(\d+)_(LO|HI|SELECT)")
_EVENTS: Final = {
    "SQ_INSTS_VALU": "valu",
    "SQ_INSTS_SALU": "salu",
    "SQ_INSTS_SMEM": "smem",
    "SQ_INSTS_LDS": "lds",
    "SQC_LDS_BANK_CONFLICT": "lds_conflicts",
    "SQ_WAVES": "waves",
    "SQ_ITEMS": "items",
}
"""Events that are counted, and as what."""
_RESET, _START, _STOP = 0, 1, 2  # CP_PERFMON_CNTL.PERFMON_STATE; Mesa's V_036020_CP_PERFMON_STATE_*
_SAMPLE: Final = 1 << 10
_EVERYONE: Final = 1 << 31 | 1 << 30 | 1 << 29  # GRBM_GFX_INDEX: all engines, instances, arrays
_COMPUTE: Final = 1 << 6  # SQ_PERFCOUNTER_CTRL.CS_EN

Unit = tuple[int, int, int]
"""A WGP: shader engine, array, number."""


class Counters:
    """Those of one GPU.

    Attributes:
        counting: whether they count now, for queues that want to be counted.
    """

    def __init__(self, chip: Chip, rng: random.Random):
        self._chip, self._rng = chip, rng
        self.counting = False
        self._numbers, self._events = _tables(chip)
        self._values = {**dict.fromkeys(_NAMES, 0), "GRBM_GFX_INDEX": _EVERYONE}
        self._selected: dict[int, str] = {}
        self._now: dict[Unit, Counter[str]] = {}
        self._sampled: dict[Unit, Counter[str]] = {}

    def write(self, number: int, value: int) -> None:
        """A register of SET_UCONFIG_REG, by its dword. Raises PacketError for others."""
        name = self._name(number)
        found = _COUNTER.fullmatch(name)
        if found:
            self._select(name, found[1], int(found[2]), found[3], value)
            return
        self._values[name] = value
        if name == "CP_PERFMON_CNTL":
            self._control(value)

    def read(self, number: int) -> int:
        """A counter of the WGP that GRBM_GFX_INDEX names. Raises PacketError."""
        name = self._name(number)
        found = _COUNTER.fullmatch(name)
        if found is None or found[1] != "SQ" or found[3] != "LO":
            raise PacketError(f"COPY_DATA from {name}: of counters those of SQ are modelled")
        event = self._selected.get(2 * int(found[2]))
        if event is None:
            raise PacketError(f"COPY_DATA from {name}, which counts nothing: set its selector")
        return self._sampled.get(self._unit(), Counter())[_EVENTS[event]] & 0xFFFF_FFFF

    def ended(
        self, groups: Size3, threads: Size3, lanes: int, tally: npt.NDArray[np.uint64]
    ) -> None:
        """A grid has ended whose waves were counted; one WGP, or another, is taken to have run it.

        On hardware many would: whoever sums finds the same.
        """
        counts = Counter({kind: int(count) for kind, count in zip(KINDS, tally, strict=True)})
        counts["waves"] = groups.volume * -(-threads.volume // lanes)
        counts["items"] = groups.volume * threads.volume
        chip = self._chip
        unit = (
            self._rng.randrange(chip.engines),
            self._rng.randrange(chip.arrays),
            self._rng.randrange(chip.cus_per_array // 2),
        )
        self._now.setdefault(unit, Counter()).update(counts)

    def _control(self, value: int) -> None:
        state = value & 0xF
        if state > _STOP or value & ~(0xF | _SAMPLE):
            raise PacketError(f"CP_PERFMON_CNTL {value:#x} is not modelled")
        if state == _RESET:
            self._now.clear()
        self.counting = state == _START and bool(self._values["SQ_PERFCOUNTER_CTRL"] & _COMPUTE)
        if value & _SAMPLE:
            self._sampled = {unit: Counter(counts) for unit, counts in self._now.items()}

    def _select(self, name: str, block: str, index: int, part: str, value: int) -> None:
        if part != "SELECT":
            raise PacketError(f"SET_UCONFIG_REG of {name}: counters are read")
        event = self._events[block].get(value & 0x3FF, f"event {value & 0x3FF:#x}")
        if event not in _EVENTS or value & ~0x3FF:
            raise PacketError(
                f"{name} {value:#x} selects {event}: the model counts"
                f" {', '.join(_EVENTS)}, no time and no caches"
            )
        if index % 2:
            raise PacketError(f"{name}: counter {index // 2} has selector {index - 1}")
        if self._values["GRBM_GFX_INDEX"] != _EVERYONE:
            raise PacketError(f"{name} while GRBM_GFX_INDEX names some: the model selects for all")
        self._selected[index] = event

    def _unit(self) -> Unit:
        index, chip = self._values["GRBM_GFX_INDEX"], self._chip
        unit = index >> 16 & 0xFF, index >> 8 & 0xFF, (index & 0xFF) >> 2
        sizes = chip.engines, chip.arrays, chip.cus_per_array // 2
        there = all(at < size for at, size in zip(unit, sizes, strict=True))
        if index & _EVERYONE or index & 3 or not there:
            raise PacketError(f"a counter is read while GRBM_GFX_INDEX is {index:#x}: name one WGP")
        return unit

    def _name(self, number: int) -> str:
        name = self._numbers.get(number)
        if name is None:
            raise PacketError(
                f"register {number:#x}: of UCONFIG's, user queues reach performance counters"
            )
        return name


def _tables(chip: Chip) -> tuple[dict[int, str], Mapping[str, dict[int, str]]]:
    """Registers by number, and events by block and number; none on chips that are not modelled."""
    if chip.gc[0] == 11:
        from gpu.autogen.amd import counters_soc21 as events
        from gpu.autogen.amd.gc_11_0_0 import REGISTERS
    elif chip.gc[0] == 12:
        from gpu.autogen.amd import counters_soc24 as events  # type: ignore[no-redef]
        from gpu.autogen.amd.gc_12_0_0 import REGISTERS
    else:
        return {}, {}
    names = {
        _SEGMENT + offset: name.removesuffix("_1")
        for name, (segment, offset, _) in REGISTERS.items()
        if segment == 1 and (name.removesuffix("_1") in _NAMES or _COUNTER.fullmatch(name))
    }
    found = {"SQ": events.SQ, "GL2C": events.GL2C}
    return names, {block: {n: name for name, n in found[block].items()} for block in found}


def first_register(offset: int) -> int:
    """The dword of the first register that SET_UCONFIG_REG writes."""
    return _UCONFIG + offset

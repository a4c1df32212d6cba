"""Performance counters: which registers select, start, sample and read them around a launch.

Names are those of rocprof, which are those of the kernel's headers (``soc21_enum.h``,
``soc24_enum.h``) without ``PERF_SEL``. Which registers there are say ``gc_11_0_0_offset.h`` and
``gc_12_0_0_offset.h``. The order of writes, that counters of the shader cores are read of each WGP,
which is instance ``wgp << 2``, that their selectors have even numbers, and that L2 is taken to have
32 channels, are tinygrad's ops_amd.py. Nothing here was tried on a card.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import product
from typing import Final, NamedTuple

from gpu.core.errors import InvalidValue, Unsupported
from gpu.core.register import register_from_table
from gpu.drivers.am.encode.pm4 import packets_of
from gpu.drivers.am.encode.registers import UCONFIG_BASE
from gpu.drivers.am.target import Target
from gpu.hcq.allocator import Stamps
from gpu.hcq.commands import Command
from gpu.hcq.registers import ReadRegister, WriteRegister
from gpu.hcq.symbol import Value, plus

_RESET, _START = 0, 1  # CP_PERFMON_CNTL.PERFMON_STATE; Mesa's V_036020_CP_PERFMON_STATE_*
_CHANNELS: Final = 32
_MOST: Final = {"SQ": 8, "GL2C": 4}
_ALL_VMIDS: Final = 0xFFFF


class _Sample(NamedTuple):
    """A counter: what it counts, its registers from low to high, and where it is read."""

    name: str
    registers: tuple[str, ...]
    places: tuple[Mapping[str, int], ...]


class AmCounting:
    """Counts some events of each launch that it is put around.

    Attributes:
        size: bytes of memory that a launch's counts take.
    """

    def __init__(self, target: Target, names: Sequence[str]):
        """Raises Unsupported for a generation whose events no header lists, InvalidValue."""
        events = events_of(target)
        self._table = target.generation.registers()
        self._start: list[Command] = [
            self._everywhere(),
            self._control(PERFMON_STATE=_RESET),
            self._write("SQ_PERFCOUNTER_CTRL", CS_EN=1),
            self._write("SQ_PERFCOUNTER_CTRL2", FORCE_EN=1, VMID_EN=_ALL_VMIDS),
        ]
        self._samples = self._select(target, events, names)
        words = sum(len(one.places) * len(one.registers) for one in self._samples)
        self.size = 4 * words
        enable = packets_of(target.generation).number("COMPUTE_PERFCOUNT_ENABLE")
        self._start += [WriteRegister(enable, 1), self._control(PERFMON_STATE=_START)]
        self._stop = [
            self._everywhere(),
            self._control(PERFMON_STATE=_RESET),
            WriteRegister(enable, 0),
        ]

    def around(self, address: Value) -> Stamps:
        """What is submitted before and after a launch; its counts go to an address."""
        sample = self._control(PERFMON_STATE=_START, PERFMON_SAMPLE_ENABLE=1)
        after: list[Command] = [self._everywhere(), sample]
        at = 0
        for one in self._samples:
            for place in one.places:
                after.append(self._write("GRBM_GFX_INDEX", **place))
                for register in one.registers:
                    after.append(ReadRegister(self._number(register), plus(address, at)))
                    at += 4
        return Stamps(tuple(self._start), (*after, *self._stop))

    def counts(self, data: bytes) -> dict[str, int]:
        """What the memory holds after the launch: events by name, of the whole GPU."""
        words = iter(struct.unpack(f"<{len(data) // 4}I", data))
        return {
            one.name: sum(
                next(words) << 32 * half for _ in one.places for half in range(len(one.registers))
            )
            for one in self._samples
        }

    def _select(
        self, target: Target, events: Mapping[str, tuple[str, int]], names: Sequence[str]
    ) -> list[_Sample]:
        """Adds the writes that select events."""
        found = []
        used = dict.fromkeys(_MOST, 0)
        for name in dict.fromkeys(names):
            if name not in events:
                near = get_close_matches(name, events) or ["SQ_WAVES"]
                raise InvalidValue(
                    f"counter {name!r}: {target.generation.name} has {len(events)}, such as"
                    f" {', '.join(near)}"
                )
            block, event = events[name]
            index = used[block]
            used[block] += 1
            if index == _MOST[block]:
                raise InvalidValue(
                    f"counter {name}: {block} counts {_MOST[block]} events at a time; ask for the"
                    " rest in another run"
                )
            selector = 2 * index if block == "SQ" else index
            self._start.append(self._write(f"{block}_PERFCOUNTER{selector}_SELECT", PERF_SEL=event))
            parts = ("LO",) if block == "SQ" else ("LO", "HI")
            registers = tuple(f"{block}_PERFCOUNTER{index}_{part}" for part in parts)
            found.append(_Sample(name, registers, _places(target, block)))
        return found

    def _everywhere(self) -> Command:
        bits = ("SE_BROADCAST_WRITES", "SA_BROADCAST_WRITES", "INSTANCE_BROADCAST_WRITES")
        return self._write("GRBM_GFX_INDEX", **dict.fromkeys(bits, 1))

    def _control(self, **fields: int) -> Command:
        name = "CP_PERFMON_CNTL"
        return self._write(name if name in self._table else f"{name}_1", **fields)

    def _write(self, name: str, **fields: int) -> Command:
        bits = [(field, *place) for field, place in self._table[name][2].items()]
        return WriteRegister(self._number(name), register_from_table(name, bits)(**fields).value)

    def _number(self, name: str) -> int:
        segment, offset, _ = self._table[name]
        assert segment == 1, name
        return UCONFIG_BASE + offset


def events_of(target: Target) -> Mapping[str, tuple[str, int]]:
    """What a GPU's counters count: block and number by name. Raises Unsupported."""
    match target.version[0]:
        case 11:
            from gpu.autogen.amd.counters_soc21 import GL2C, SQ
        case 12:
            from gpu.autogen.amd.counters_soc24 import GL2C, SQ
        case _:
            raise Unsupported(
                f"counters of {target.generation.name}: known are those of GFX11 and GFX12, whose"
                " events the kernel's headers list"
            )
    blocks = {"SQ": SQ, "GL2C": GL2C}
    return {name: (block, n) for block, all_ in blocks.items() for name, n in all_.items()}


def _places(target: Target, block: str) -> tuple[Mapping[str, int], ...]:
    """GRBM_GFX_INDEX for each of a block's counters."""
    if block == "GL2C":
        return tuple({"INSTANCE_INDEX": n, **_BROAD} for n in range(_CHANNELS))
    sizes = target.shader_engines, target.arrays, (target.units_per_array + 1) // 2
    return tuple(
        {"SE_INDEX": engine, "SA_INDEX": array, "INSTANCE_INDEX": wgp << 2}
        for engine, array, wgp in product(*map(range, sizes))
    )


_BROAD: Final = {"SE_BROADCAST_WRITES": 1, "SA_BROADCAST_WRITES": 1}

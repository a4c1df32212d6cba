"""A grid under way: workgroups of waves that take turns, whatever their instruction set.

The turns are native (gpu/sim/isa/scheduler.py). Here is what a grid begins with, and what is
seldom: memory that a wave has missed, circles, barriers of a kind of their own, faults.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu.core.errors import DeviceHang
from gpu.sim.isa import layout, scheduler
from gpu.sim.isa.circles import Circle, Code, Found, is_plain_loop, tell
from gpu.sim.isa.layout import WaveLayout
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.isa.waves import Bytes, Wave, aligned_bytes

OnMiss = Callable[[int, int, int], None]
_RUN: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_PLACE: Final = {name: number for number, name in enumerate(scheduler.FIELDS)}
_MOST: Final = (1 << 63) - 1
_WHILE: Final = 1 << 16  # branches between two looks at signals


class GroupId(NamedTuple):
    """A row that differs among workgroups; see `scheduler.ID_FIELDS`."""

    offset: int
    step: int
    wrap: int
    divisor: int = 1
    modulus: int = _MOST
    scale: int = 1


@dataclass(frozen=True)
class Start:
    """What the waves of a grid begin with.

    Attributes:
        wave: where the rows of waves lie.
        groups: workgroups of the grid.
        templates: memory of each wave of a workgroup, as it begins; RESUME is its first record.
        ids: rows that differ among workgroups.
        lds_bytes: memory of a workgroup.
        scratch_bytes: memory of each wave's own.
        scratch: host addresses of that memory for each wave that may be resident; empty for memory
            of the grid's own.
        most_groups: workgroups that may be resident at a time.
    """

    wave: WaveLayout
    groups: int
    templates: npt.NDArray[np.uint8]
    ids: Sequence[GroupId]
    lds_bytes: int = 0
    scratch_bytes: int = 0
    scratch: Sequence[int] = ()
    most_groups: int = scheduler.RESIDENT


def resident_groups(waves: int, groups: int) -> int:
    """How many workgroups of so many waves are resident at a time."""
    return min(max(1, scheduler.RESIDENT // waves), groups)


class LaneGrid(ABC):
    """A grid under way: some of its workgroups are resident, others wait for room.

    Attributes:
        stands: whether no wave got on when it was last run.
    """

    def __init__(
        self,
        run: int,
        code: Code,
        start: Start,
        memory: MemoryMap,
        on_miss: OnMiss | None,
        seed: int,
        asks: bool = False,
    ):
        """Begins a grid.

        Args:
            run: the address of `run_grid`.
            code: the program of its waves.
            start: what they begin with.
            memory: what addresses mean. Changes between two steps are seen.
            on_miss: is asked when a wave accesses what `memory` does not allow, with the address,
                the size and the access (bits of `layout`). It may add to `memory`, or replace parts
                of it; the access is tried again if it is allowed then, else it is a fault.
            seed: decides how waves interleave.
            asks: whether each barrier is a matter of `stopped`.
        """
        self._run = _RUN(run)
        self._code = code
        self._memory = memory
        self._on_miss = on_miss
        self._table: npt.NDArray[np.uint64] | None = None
        self._circles: dict[int, tuple[int, Circle]] = {}
        self.stands = False
        self._waves: dict[int, Wave] = {}
        self._fields = np.zeros(len(scheduler.FIELDS), np.uint64)
        self._view = self._fields.view(np.int64)
        self._address = self._fields.ctypes.data
        self._keep = self._begin(start)
        self._set("random", (seed * 0x9E3779B97F4A7C15 + 1) % (1 << 64) or 1)
        self._set("asks", int(asks))

    def _begin(self, start: Start) -> tuple[object, ...]:
        """Makes room for resident waves; gives what native code points to."""
        count, size = start.templates.shape
        slots = min(resident_groups(count, start.groups), start.most_groups)
        self._waves_per_group = count
        self._arena = aligned_bytes(slots * count * size).reshape(-1, size)
        at = start.templates.ctypes.data
        templates = np.arange(at, at + count * size, size, dtype=np.uint64)
        stride = max(16, -(-start.lds_bytes // 16) * 16)
        lds = aligned_bytes(slots * stride)
        scratch, own = _scratch(start, slots * count)
        ids = np.array([[min(value, _MOST) for value in each] for each in start.ids], np.uint64)
        for name, value in {
            "free": (1 << slots) - 1,
            "groups": min(start.groups, _MOST),
            "waves_per_group": count,
            "waves": self._arena.ctypes.data,
            "wave_size": size,
            "row_size": start.wave.row,
            "templates": templates.ctypes.data,
            "lds": lds.ctypes.data,
            "lds_stride": stride,
            "lds_size": start.lds_bytes,
            "scratch": scratch.ctypes.data if len(scratch) else 0,
            "scratch_size": start.scratch_bytes if own is not None else 0,
            "ids": ids.ctypes.data,
            "id_count": len(ids),
        }.items():
            self._set(name, value)
        return start.templates, templates, lds, scratch, own, ids

    @property
    def instructions(self) -> int:
        """Executed by the waves that have ended, each once for all lanes that take it together."""
        return self._get("instructions")

    @property
    def ended(self) -> bool:
        """Whether all waves have."""
        return not self._get("live") and self._get("next") >= self._get("groups")

    def step(self, budget: int) -> bool:
        """Runs waves until they have used a budget up; True when the whole grid has ended.

        Each branch that a wave takes costs one, and so does a wave's stop on the way: at its end,
        at a barrier, where it misses memory. Raises what an instruction set has for faults; what
        was written before stays.
        """
        self._view[_PLACE["budget"]] = budget
        self.stands = False
        while True:
            self._take_ranges()
            status = self._run(self._address)
            if status == scheduler.SPENT:
                return False
            if status == scheduler.ENDED:
                return True
            if status == scheduler.STANDS:
                self.stands = True
                return False
            number = self._get("wave")
            if status == scheduler.LOOKED:
                self._look(number)
                status = layout.SLICE
            self._stopped(number, self._wave(number), status)

    def finish(self, what: str) -> None:
        """Runs the grid to its end. Raises what `step` does, DeviceHang where no wave gets on."""
        while not self.step(_WHILE):
            if why := self.why_stuck():
                raise DeviceHang(f"{what} ({why})", None, "an end", 0.0)

    def why_stuck(self) -> str:
        """Why no wave gets on unless others write memory; empty where some may.

        Runs waves for a while to find out. Raises what `step` does.
        """
        if not self.stands:
            return ""
        self._set("closed", 0)
        living = self._members(self._get("live"))
        circles = [self._circle(number) for number in living]
        self.step(scheduler.LOOK * sum(2 + 2 * circle.length for circle in circles))
        if not self.stands:
            return ""
        waiting = self._get("waiting")
        return tell(
            (self._where(number), circle, bool(waiting >> number & 1))
            for number, circle in zip(living, circles, strict=True)
        )

    @abstractmethod
    def _stopped(self, number: int, wave: Wave, status: int) -> None:
        """A wave has stopped for what the loop over waves does not know."""

    @abstractmethod
    def _where(self, number: int) -> str:
        """Where a wave is, for messages."""

    @abstractmethod
    def _places(self, wave: Wave) -> list[int]:
        """Where the lanes of a wave are, as its code counts places."""

    @abstractmethod
    def _is_endless(self, wave: Wave) -> bool:
        """Whether no way leads from where a wave is to an end."""

    def _wave(self, number: int) -> Wave:
        found = self._waves.get(number)
        if found is None:
            found = self._waves[number] = Wave(self._arena[number])
        return found

    def _group_of(self, number: int) -> list[int]:
        """The waves of a wave's workgroup that live."""
        count = self._waves_per_group
        first = number // count * count
        return self._members(self._get("live") & ((1 << count) - 1) << first)

    def _members(self, chosen: int) -> list[int]:
        return [number for number in range(len(self._arena)) if chosen >> number & 1]

    def _get(self, field: str) -> int:
        return int(self._fields[_PLACE[field]])

    def _set(self, field: str, value: int) -> None:
        self._fields[_PLACE[field]] = value

    def _mark(self, field: str, number: int, on: bool = True) -> None:
        """Puts a wave into a set, or takes it out."""
        chosen = self._get(field)
        self._set(field, chosen | 1 << number if on else chosen & ~(1 << number))

    def _circle(self, number: int) -> Circle:
        """What is known of where a wave goes round."""
        group = self._wave(number).word(layout.GROUP, "<Q")
        known, circle = self._circles.get(number, (-1, Circle()))
        if known != group:
            circle = Circle()
            self._circles[number] = (group, circle)
        return circle

    def _look(self, number: int) -> None:
        """Whether a wave goes round in a circle."""
        wave, code = self._wave(number), self._code
        found = self._circle(number).look(
            wave.state(),
            lambda: all(is_plain_loop(code, place) for place in self._places(wave)),
            lambda: self._is_endless(wave),
        )
        if found is Found.ENDLESS:
            self._mark("endless", number)
        elif found is Found.CLOSED:
            self._mark("closed", number)
        elif found is not Found.NOTHING:
            self._mark("circling", number, found is Found.CIRCLE)

    def _take_ranges(self) -> None:
        """Tells the waves what addresses mean, if that has changed."""
        table = self._memory.table()
        if table is not self._table:
            self._table = table
            self._set("ranges", table.ctypes.data)
            self._set("range_count", len(table))

    def _fill(self, wave: Wave, access: int) -> bool:
        """Asks the owner of the memory for what a wave has missed; whether it has it now."""
        address, size = wave.word(layout.FAULT_ADDRESS, "<Q"), wave.word(layout.FAULT_SIZE)
        if self._on_miss is None or self._memory.allows(address, size, access):
            return False  # it was there: what is wrong is another thing
        self._on_miss(address, size, access)
        return self._memory.allows(address, size, access)


def _scratch(start: Start, waves: int) -> tuple[npt.NDArray[np.uint64], Bytes | None]:
    """(addresses of the memory of waves' own, it where the grid brings it)."""
    if start.scratch or not start.scratch_bytes:
        return np.array(start.scratch, np.uint64), None
    own = aligned_bytes(waves * start.scratch_bytes)
    return own.ctypes.data + np.arange(waves, dtype=np.uint64) * start.scratch_bytes, own

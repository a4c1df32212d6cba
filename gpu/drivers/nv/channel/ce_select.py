"""Which copy engine copies what: capabilities as the kernel tells them, and a choice by them.

A GPU has several logical copy engines (LCE), each with some of its physical ones (PCE) behind it.
Bits: ctrl2080ce.h of open-gpu-kernel-modules. The order of preference is that of UVM's own channels
(kernel-open/nvidia-uvm/uvm_channel.c, compare_ce_for_channel_type).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpu.autogen.nv import alloc, control
from gpu.hcq.allocator import CopyPlaces

FIRST_COPY: Final = alloc.NV2080_ENGINE_TYPE_COPY0
_NAMES: Final = {
    control.NV2080_CTRL_CE_CAPS_CE_GRCE: "graphics",
    control.NV2080_CTRL_CE_CAPS_CE_SHARED: "shared",
    control.NV2080_CTRL_CE_CAPS_CE_SYSMEM: "system memory",
    control.NV2080_CTRL_CE_CAPS_CE_SYSMEM_READ: "best at reading it",
    control.NV2080_CTRL_CE_CAPS_CE_SYSMEM_WRITE: "best at writing it",
    control.NV2080_CTRL_CE_CAPS_CE_P2P: "peers",
    control.NV2080_CTRL_CE_CAPS_CE_NVLINK_P2P: "peers by NVLink",
}


@dataclass(frozen=True, slots=True)
class CopyEngine:
    """A logical copy engine.

    Attributes:
        engine_type: its NV2080_ENGINE_TYPE.
        caps: the first byte of its capabilities.
        units: physical engines behind it, None where the kernel does not tell.
    """

    engine_type: int
    caps: int
    units: int | None

    def has(self, cap: int) -> bool:
        """Whether it has one of the NV2080_CTRL_CE_CAPS."""
        return bool(self.caps & cap)

    @property
    def graphics(self) -> bool:
        """Whether it runs with the graphics engine, in its channel groups."""
        return self.has(control.NV2080_CTRL_CE_CAPS_CE_GRCE)

    @property
    def usable(self) -> bool:
        """Whether a channel group of its own may copy with it, and write signals."""
        system = self.has(control.NV2080_CTRL_CE_CAPS_CE_SYSMEM)
        return system and not self.graphics and self.units != 0

    def __str__(self) -> str:
        known = "unknown units" if self.units is None else f"{self.units} units"
        names = [name for cap, name in _NAMES.items() if self.has(cap)]
        return f"copy engine {self.engine_type - FIRST_COPY}: {', '.join((known, *names))}"


@dataclass(frozen=True, slots=True)
class CopyChoice:
    """The engines for copies to the device, from it, and within it; some may be the same."""

    to_device: CopyEngine
    from_device: CopyEngine
    within: CopyEngine

    @property
    def engines(self) -> tuple[CopyEngine, ...]:
        """Those that are chosen, each once."""
        return tuple(dict.fromkeys((self.to_device, self.from_device, self.within)))

    @property
    def places(self) -> CopyPlaces:
        """Which of `engines` each kind of copy has."""
        wanted = (self.to_device, self.from_device, self.within)
        to_device, from_device, within = map(self.engines.index, wanted)
        return CopyPlaces(to_device, from_device, within)

    def __str__(self) -> str:
        numbers = (self.to_device, self.from_device, self.within)
        texts = (str(engine.engine_type - FIRST_COPY) for engine in numbers)
        return "to the device {}, from it {}, within it {}".format(*texts)


def choose_copy_engines(engines: Sequence[CopyEngine]) -> CopyChoice | None:
    """The engines for each kind of copy; None where all belong to graphics or reach no host.

    Reads and writes of system memory prefer an engine that is better at them, and leave NVLink to
    peers; copies within the device prefer the most physical engines. Where that decides nothing,
    the engine that has the least to do already is taken, and one that shares no physical engine.
    """
    usable = [engine for engine in engines if engine.usable]
    if not usable:
        return None
    reads = control.NV2080_CTRL_CE_CAPS_CE_SYSMEM_READ
    writes = control.NV2080_CTRL_CE_CAPS_CE_SYSMEM_WRITE
    to_device = min(usable, key=lambda each: _for_system(each, reads, ()))
    from_device = min(usable, key=lambda each: _for_system(each, writes, (to_device,)))
    within = min(usable, key=lambda each: _within(each, (to_device, from_device)))
    return CopyChoice(to_device, from_device, within)


_Rank = tuple[int, int, int, bool, int]


def _for_system(engine: CopyEngine, better: int, taken: tuple[CopyEngine, ...]) -> _Rank:
    """The less, the better for copies from or to system memory."""
    nvlink = engine.has(control.NV2080_CTRL_CE_CAPS_CE_NVLINK_P2P)
    return (not engine.has(better), nvlink, *_by_default(engine, taken))


def _within(engine: CopyEngine, taken: tuple[CopyEngine, ...]) -> _Rank:
    """The less, the better for copies within the device."""
    nvlink = engine.has(control.NV2080_CTRL_CE_CAPS_CE_NVLINK_P2P)
    return (-(engine.units or 0), nvlink, *_by_default(engine, taken))


def _by_default(engine: CopyEngine, taken: tuple[CopyEngine, ...]) -> tuple[int, bool, int]:
    shared = engine.has(control.NV2080_CTRL_CE_CAPS_CE_SHARED)
    return taken.count(engine), shared, engine.engine_type

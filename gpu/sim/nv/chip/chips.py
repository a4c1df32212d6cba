"""Chips that can be modelled: their classes, engines and sizes.

Class lists are those of g_gpu_class_list.c of open-gpu-kernel-modules 580.142, device numbers those
of g_nv_name_released.h. Boards: GeForce RTX 3090 (ga102), RTX 4090 (ad102), H200 SXM (gh100), RTX
5090 (gb202). Which units are fused off on one board is a guess that adds up to its SM count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpu.core.errors import Unsupported
from gpu.sim.nv.chip import method_tables as methods
from gpu.sim.nv.chip import qmd_fields
from gpu.sim.nv.chip.copyunits import GA10X, GB202, GH100, CopyUnit

_GIB: Final = 1 << 30
HOPPER_COMPUTE: Final = 0xCBC0
_COMMON: Final = (0xC361, 0xC461, 0xC561, 0xC36F, 0xC46F, 0xC56F)  # usermode pages, channels


@dataclass(frozen=True, slots=True)
class Chip:
    """One kind of GPU.

    Attributes:
        sm_version: as GR_GET_INFO tells it, major in bits 15:8.
        litter_gpcs, litter_tpcs: GPCs, and TPCs of a GPC, of the design; an SM pair is a TPC.
        tpcs: TPCs of each GPC of the board.
        warps: of an SM.
        carveouts: what may be shared memory of an SM, in KiB; the last of it may be one block's.
        compute, copy, channel: the newest classes.
        classes: further classes of the chip besides those that every chip has.
        copy_engines: logical engines that are present.
        qmd_major, qmd_text: which QMDs the compute class takes.
        compute_methods, copy_methods: tables of `method_tables`.
        window_bits: shared-memory windows are aligned to and as long as 1 << window_bits.
    """

    name: str
    board: str
    device_id: int
    sm_version: int
    litter_gpcs: int
    litter_tpcs: int
    tpcs: tuple[int, ...]
    warps: int
    carveouts: tuple[int, ...]
    vram_size: int
    bar1_size: int
    compute: int
    copy: int
    channel: int
    graphics: int
    classes: tuple[int, ...]
    copy_engines: tuple[CopyUnit, ...]
    qmd_major: int
    qmd_text: str
    compute_methods: str
    copy_methods: str
    window_bits: int

    @property
    def sms(self) -> int:
        """Streaming multiprocessors of the board."""
        return 2 * sum(self.tpcs)

    @property
    def va_limit(self) -> int:
        """What addresses end at: format 3 of page tables has 57 bits (kern_gmmu_gm107.c)."""
        return 1 << (49 if self.qmd_major == 3 else 57)

    def copy_engine(self, index: int) -> CopyUnit | None:
        """The copy engine of a number, if it is present."""
        return next((unit for unit in self.copy_engines if unit.index == index), None)


_SMALL: Final = (0, 8, 16, 32, 64, 100)
_LARGE: Final = (0, 8, 16, 32, 64, 100, 132, 164, 196, 228)

CHIPS: Final = {
    chip.name: chip
    for chip in (
        Chip(
            name="ga102", board="NVIDIA GeForce RTX 3090", device_id=0x2204, sm_version=0x806,
            litter_gpcs=7, litter_tpcs=6, tpcs=(6, 6, 6, 6, 6, 6, 5), warps=48,
            carveouts=_SMALL, vram_size=24 * _GIB, bar1_size=_GIB >> 2,
            compute=0xC7C0, copy=0xC7B5, channel=0xC56F, graphics=0xC797, classes=_COMMON,
            copy_engines=GA10X,
            qmd_major=3, qmd_text=qmd_fields.QMD_V3, window_bits=24,
            compute_methods=methods.COMPUTE_AMPERE, copy_methods=methods.COPY_AMPERE,
        ),
        Chip(
            name="ad102", board="NVIDIA GeForce RTX 4090", device_id=0x2684, sm_version=0x809,
            litter_gpcs=12, litter_tpcs=6, tpcs=(6,) * 9 + (5, 5), warps=48,
            carveouts=_SMALL, vram_size=24 * _GIB, bar1_size=32 * _GIB,
            compute=0xC9C0, copy=0xC7B5, channel=0xC56F, graphics=0xC997, classes=_COMMON,
            copy_engines=GA10X,
            qmd_major=3, qmd_text=qmd_fields.QMD_V3, window_bits=24,
            compute_methods=methods.COMPUTE_AMPERE, copy_methods=methods.COPY_AMPERE,
        ),
        Chip(
            name="gh100", board="NVIDIA H200", device_id=0x2335, sm_version=0x900,
            litter_gpcs=8, litter_tpcs=9, tpcs=(9, 8, 8, 8, 9, 8, 8, 8), warps=64,
            carveouts=_LARGE, vram_size=141 * _GIB, bar1_size=256 * _GIB,
            compute=HOPPER_COMPUTE, copy=0xC8B5, channel=0xC86F, graphics=0xCB97,
            classes=(*_COMMON, 0xC661, 0xC86F),
            copy_engines=GH100,
            qmd_major=4, qmd_text=qmd_fields.QMD_V4, window_bits=32,
            compute_methods=methods.COMPUTE_HOPPER, copy_methods=methods.COPY_HOPPER,
        ),
        Chip(
            name="gb202", board="NVIDIA GeForce RTX 5090", device_id=0x2B85, sm_version=0xC00,
            litter_gpcs=12, litter_tpcs=8, tpcs=(8,) * 8 + (7,) * 3, warps=48,
            carveouts=_SMALL, vram_size=32 * _GIB, bar1_size=32 * _GIB,
            compute=0xCEC0, copy=0xCAB5, channel=0xCA6F, graphics=0xCE97,
            classes=(*_COMMON, 0xC661, 0xC761, 0xC86F, 0xC96F, 0xCA6F),
            copy_engines=GB202,
            qmd_major=5, qmd_text=qmd_fields.QMD_V5, window_bits=32,
            compute_methods=methods.COMPUTE_BLACKWELL, copy_methods=methods.COPY_BLACKWELL,
        ),
    )
}  # fmt: skip


def find_chip(name: str) -> Chip:
    """The chip of a name such as "gh100". Raises Unsupported."""
    if name not in CHIPS:
        raise Unsupported(f"no model of {name}: there are {', '.join(CHIPS)}")
    return CHIPS[name]

"""Chips that can be modelled: what the kernel exports of them, and which packets they take.

Numbers are those of retail boards: gfx1030, 1100 and 1201 as their topology shows them (Radeon RX
6900 XT, 7900 XTX, 9070 XT), gfx942 an MI300X as one device, the others by AMD's product pages
and amdgpu's tables (kfd_device.c, amdgpu_discovery.c, sdma_v5_2.c). Rules that derive one number
from another are in `gpu.sim.amd.kfd.topology`.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from gpu.core.errors import Unsupported

_GIB: Final = 1 << 30


class Chip(NamedTuple):
    """One kind of GPU.

    Attributes:
        version: gfx_target_version, MMmmss in decimal.
        gc, sdma: versions of the graphics core and of the copy engine, as (major, minor, revision).
        engines, arrays, cus_per_array: shader engines of one XCC, arrays of an engine, the most
            compute units of an array.
        cus: compute units in use, of all XCCs.
        simds_per_cu, waves_per_simd, wave_size: as in the topology.
        sdma_queues, sdma_reserved: queues of one copy engine, and how many the kernel keeps
            (kfd_device.c `kfd_device_info_set_sdma_info`).
        cp_queues: hardware queues for compute that the kernel leaves to processes.
        vram_bits: width of the memory bus.
        sh_base: first segment of the graphics core's registers, to which SET_SH_REG's belong
            (0x1260 makes COMPUTE_PGM_LO 0x2e0c, as does 0x2000 on GFX9).
        sdma_doorbells: first doorbell index of each copy engine (amdgpu_doorbell.h).
        mes: whether the firmware scheduler is MES.
        integrated: whether it is part of a processor, with memory of the machine's own; `vram_size`
            is then what the firmware sets aside.
        lds_kib: local memory of a compute unit, and of a workgroup at most.
    """

    name: str
    version: int
    device_id: int
    gc: tuple[int, int, int]
    sdma: tuple[int, int, int]
    engines: int
    arrays: int
    cus_per_array: int
    cus: int
    simds_per_cu: int
    waves_per_simd: int
    wave_size: int
    xccs: int
    sdma_engines: int
    xgmi_engines: int
    sdma_queues: int
    sdma_reserved: int
    cp_queues: int
    vram_size: int
    vram_bits: int
    engine_mhz: int
    memory_mhz: int
    sh_base: int
    sdma_doorbells: tuple[int, ...]
    mes: bool
    family: int
    asic_name: str = "ip discovery"
    integrated: bool = False
    lds_kib: int = 64

    @property
    def pm4(self) -> Literal["gfx9", "gfx10"]:
        """Which packet layouts the packet processor takes."""
        return "gfx9" if self.gc[0] == 9 else "gfx10"

    @property
    def lds_granule(self) -> int:
        """Bytes that RSRC2's GRANULATED_LDS_SIZE counts (LLVM's guide, "compute_pgm_rsrc2")."""
        return 1280 if self.lds_kib > 64 else 512

    @property
    def sdma_through_l2(self) -> bool:
        """From GFX10 on the copy engine sits behind the graphics core's L2 (sdma_v5_0.c); U."""
        return self.gc[0] >= 10


_NAVI_DOORBELLS: Final = (0x100, 0x10A, 0x114, 0x11E)

CHIPS: Final = {
    chip.name: chip
    for chip in (
        Chip(
            *("gfx1100", 110000, 0x744C, (11, 0, 0), (6, 0, 0), 6, 2, 8, 96, 2, 16, 32, 1),
            *(2, 0, 8, 2, 8, 24 * _GIB, 384, 2482, 1249, 0x1260, _NAVI_DOORBELLS, True, 145),
        ),
        Chip(  # RX 7800 XT
            *("gfx1101", 110001, 0x747E, (11, 0, 3), (6, 0, 3), 3, 2, 10, 60, 2, 16, 32, 1),
            *(2, 0, 8, 2, 8, 16 * _GIB, 256, 2430, 1218, 0x1260, _NAVI_DOORBELLS, True, 145),
        ),
        Chip(  # RX 7600
            *("gfx1102", 110002, 0x7480, (11, 0, 2), (6, 0, 2), 2, 2, 8, 32, 2, 16, 32, 1),
            *(2, 0, 8, 2, 8, 8 * _GIB, 128, 2655, 1124, 0x1260, _NAVI_DOORBELLS, True, 145),
        ),
        Chip(  # Radeon 780M
            *("gfx1103", 110003, 0x15BF, (11, 0, 1), (6, 0, 1), 1, 2, 6, 12, 2, 16, 32, 1),
            *(1, 0, 8, 2, 8, 4 * _GIB, 128, 2700, 2800, 0x1260, _NAVI_DOORBELLS, True, 148),
            integrated=True,
        ),
        Chip(  # Radeon 890M
            *("gfx1150", 110500, 0x150E, (11, 5, 0), (6, 1, 0), 1, 2, 8, 16, 2, 16, 32, 1),
            *(1, 0, 8, 2, 8, 4 * _GIB, 128, 2900, 2800, 0x1260, _NAVI_DOORBELLS, True, 150),
            integrated=True,
        ),
        Chip(  # Radeon 8060S
            *("gfx1151", 110501, 0x1586, (11, 5, 1), (6, 1, 1), 2, 2, 10, 40, 2, 16, 32, 1),
            *(1, 0, 8, 2, 8, 16 * _GIB, 256, 2900, 1000, 0x1260, _NAVI_DOORBELLS, True, 150),
            integrated=True,
        ),
        Chip(  # Radeon 860M
            *("gfx1152", 110502, 0x1114, (11, 5, 2), (6, 1, 2), 1, 2, 4, 8, 2, 16, 32, 1),
            *(1, 0, 8, 2, 8, 4 * _GIB, 128, 2800, 2800, 0x1260, _NAVI_DOORBELLS, True, 150),
            integrated=True,
        ),
        Chip(  # Radeon 840M, or its successor: the device's number is a guess. U
            *("gfx1153", 110503, 0x1902, (11, 5, 3), (6, 1, 3), 1, 2, 2, 4, 2, 16, 32, 1),
            *(1, 0, 8, 2, 8, 4 * _GIB, 128, 2800, 2800, 0x1260, _NAVI_DOORBELLS, True, 150),
            integrated=True,
        ),
        Chip(
            *("gfx1030", 100300, 0x73BF, (10, 3, 0), (5, 2, 0), 4, 2, 10, 80, 2, 16, 32, 1),
            *(4, 0, 8, 0, 24, 16 * _GIB, 256, 2660, 1000, 0x1260, _NAVI_DOORBELLS, False, 143),
            "sienna_cichlid",
        ),
        Chip(  # RX 6700 XT
            *("gfx1031", 100301, 0x73DF, (10, 3, 2), (5, 2, 2), 2, 2, 10, 40, 2, 16, 32, 1),
            *(2, 0, 8, 0, 24, 12 * _GIB, 192, 2581, 1000, 0x1260, _NAVI_DOORBELLS, False, 143),
            "navy_flounder",
        ),
        Chip(  # RX 6600 XT
            *("gfx1032", 100302, 0x73FF, (10, 3, 4), (5, 2, 4), 2, 2, 8, 32, 2, 16, 32, 1),
            *(2, 0, 8, 0, 24, 8 * _GIB, 128, 2589, 1000, 0x1260, _NAVI_DOORBELLS, False, 143),
            "dimgrey_cavefish",
        ),
        Chip(  # Van Gogh, of the Steam Deck
            *("gfx1033", 100303, 0x163F, (10, 3, 1), (5, 2, 1), 1, 1, 8, 8, 2, 16, 32, 1),
            *(1, 0, 2, 0, 24, _GIB, 128, 1600, 2750, 0x1260, _NAVI_DOORBELLS, False, 144),
            "vangogh",
            integrated=True,
        ),
        Chip(  # RX 6500 XT
            *("gfx1034", 100304, 0x743F, (10, 3, 5), (5, 2, 5), 1, 2, 8, 16, 2, 16, 32, 1),
            *(1, 0, 8, 0, 24, 4 * _GIB, 64, 2815, 1124, 0x1260, _NAVI_DOORBELLS, False, 143),
            "beige_goby",
        ),
        Chip(  # Radeon 680M
            *("gfx1035", 100305, 0x1681, (10, 3, 3), (5, 2, 3), 1, 2, 6, 12, 2, 16, 32, 1),
            *(1, 0, 2, 0, 24, 4 * _GIB, 128, 2400, 2400, 0x1260, _NAVI_DOORBELLS, False, 146),
            "yellow_carp",
            integrated=True,
        ),
        Chip(  # Raphael
            *("gfx1036", 100306, 0x164E, (10, 3, 6), (5, 2, 6), 1, 1, 2, 2, 2, 16, 32, 1),
            *(1, 0, 2, 0, 24, _GIB // 2, 128, 2200, 2400, 0x1260, _NAVI_DOORBELLS, False, 149),
            integrated=True,
        ),
        Chip(  # RX 9060 XT
            *("gfx1200", 120000, 0x7590, (12, 0, 0), (7, 0, 0), 2, 2, 8, 32, 2, 16, 32, 1),
            *(2, 0, 8, 2, 8, 16 * _GIB, 128, 2780, 1258, 0x1260, _NAVI_DOORBELLS, True, 152),
        ),
        Chip(
            *("gfx1201", 120001, 0x7550, (12, 0, 1), (7, 0, 1), 4, 2, 8, 64, 2, 16, 32, 1),
            *(2, 0, 8, 2, 8, 16 * _GIB, 256, 2520, 1258, 0x1260, _NAVI_DOORBELLS, True, 152),
        ),
        Chip(
            *("gfx942", 90402, 0x74A1, (9, 4, 3), (4, 4, 2), 4, 1, 10, 304, 4, 8, 64, 8),
            *(2, 14, 8, 0, 24, 192 * _GIB, 8192, 2100, 1300, 0x2000),
            *(tuple(0x100 + 10 * i for i in range(16)), False, 141),
        ),
        Chip(  # MI350X: how many compute units an array has at most is a guess. U
            *("gfx950", 90500, 0x75A0, (9, 5, 0), (4, 4, 5), 4, 1, 9, 256, 4, 8, 64, 8),
            *(2, 14, 8, 0, 24, 288 * _GIB, 8192, 2200, 2000, 0x2000),
            *(tuple(0x100 + 10 * i for i in range(16)), False, 141),
            lds_kib=160,
        ),
    )
}


def find_chip(name: str) -> Chip:
    """The chip of a name such as "gfx1100". Raises Unsupported."""
    if name not in CHIPS:
        raise Unsupported(f"no model of {name}: there are {', '.join(CHIPS)}")
    return CHIPS[name]

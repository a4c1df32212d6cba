"""The topology as KFD prints it into sysfs, line for line, and the numbers derived for it.

Formats, order of lines and sums are those of Linux 6.12 kfd_topology.c (`node_show`, `mem_show`,
`kfd_cache_show`, `iolink_show`, `kfd_generate_gpu_id`), the context sizes those of kfd_queue.c
`kfd_queue_ctx_save_restore_size`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from gpu.core.bits import align_up
from gpu.sim.amd.chips import Chip
from gpu.sim.tree import FileTree

ROOT: Final = "/sys/devices/virtual/kfd/kfd/topology"
HOST_MEMORY: Final = 64 << 30
AMD_VENDOR: Final = 0x1002
_CPU_CORES: Final = 16
_CPU_MHZ: Final = 4500
_PAGE: Final = 4096
Properties = Sequence[tuple[str, int]]


@dataclass(frozen=True)
class Board:
    """A GPU in its slot: what tells two of the same kind apart.

    Attributes:
        node: number in the topology; node 0 is the CPU.
        taken: ids of the boards before it, which its own must differ from.
    """

    chip: Chip
    node: int
    taken: tuple[int, ...] = ()

    @property
    def minor(self) -> int:
        """Of /dev/dri/renderD<minor>."""
        return 127 + self.node

    @property
    def bus(self) -> int:
        """PCI bus; the device is 0 and the function 0."""
        return 3 * self.node

    @property
    def unique_id(self) -> int:
        """The board's serial number."""
        return 0x5EED_0000_0000_0000 + self.node

    @cached_property
    def gpu_id(self) -> int:
        """What KFD calls it: a CRC-16 over where and what it is, made unique."""
        size = self.chip.vram_size
        words = [0, AMD_VENDOR | 0x0E3B << 16, 0, self.chip.device_id, self.bus]
        words += [size & 0xFFFFFFFF, size >> 32, self.chip.xccs << 16]
        found = crc16(struct.pack("<8I", *words)) or 1
        while found in self.taken:
            found = (found + 1) & 0xFFFF or 1
        return found

    @cached_property
    def context(self) -> ContextSizes:
        """What a queue's context save area must hold."""
        return context_sizes(self.chip)


class ContextSizes(NamedTuple):
    """Bytes that the kernel wants for saving waves, per XCC; `area` is for all of them."""

    control_stack: int
    save_area: int
    debug: int
    eop: int
    area: int


def context_sizes(chip: Chip) -> ContextSizes:
    """The sizes that CREATE_QUEUE checks (kfd_queue.c, Linux 6.12)."""
    version = chip.version
    cus = chip.cus // chip.xccs
    if version < 100100:
        waves = min(cus * 40, chip.engines * 512)
    else:
        waves = cus * 32
    vgprs = 0x40000
    if version // 100 * 100 == 90400 or version in (90010, 90008, 90500):
        vgprs = 0x80000
    elif version in (110000, 110001, 110501, 120000, 120001):
        vgprs = 0x60000
    per_cu = (
        vgprs + 0x4000 + (chip.lds_kib << 10) + 0x1000
    )  # registers of both kinds, LDS, hardware state
    stack = align_up(40 + waves * (12 if version >= 100100 else 8) + 8, _PAGE)
    if version // 10000 == 10:
        stack = min(stack, 0x7000)
    save = stack + align_up(cus * per_cu, _PAGE)
    debug = align_up(waves * 32, 64)
    return ContextSizes(stack, save, debug, 4096, align_up((save + debug) * chip.xccs, _PAGE))


def crc16(data: bytes) -> int:
    """The kernel's CRC-16 (lib/crc16.c): polynomial 0x8005 reflected, starting from 0."""
    value = 0
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0xA001 if value & 1 else 0)
    return value


def add_topology(tree: FileTree, boards: Sequence[Board]) -> None:
    """Adds the whole tree for a machine with one CPU node and some GPUs."""
    tree.add(f"{ROOT}/generation_id", f"{1 + len(boards)}\n")
    tree.add(
        f"{ROOT}/system_properties", _lines((f"platform_{n}", 0) for n in ("oem", "id", "rev"))
    )
    links = [_link(0, board.node, board) for board in boards]
    _add_node(tree, 0, 0, "", _cpu_properties(len(links)), _system_bank(), [], links)
    for board in boards:
        back = [_link(board.node, 0, board)]
        caches = _caches(board.chip)
        props = _gpu_properties(board, len(caches))
        name = board.chip.asic_name
        _add_node(tree, board.node, board.gpu_id, name, props, _local_bank(board), caches, back)


def _add_node(
    tree: FileTree,
    number: int,
    gpu_id: int,
    name: str,
    properties: Properties,
    bank: Properties,
    caches: Sequence[str],
    links: Sequence[Properties],
) -> None:
    folder = f"{ROOT}/nodes/{number}"
    tree.add(f"{folder}/gpu_id", f"{gpu_id}\n")
    tree.add(f"{folder}/name", f"{name}\n")
    tree.add(f"{folder}/properties", _lines(properties))
    tree.add(f"{folder}/mem_banks/0/properties", _lines(bank))
    for i, text in enumerate(caches):
        tree.add(f"{folder}/caches/{i}/properties", text)
    for i, link in enumerate(links):
        tree.add(f"{folder}/io_links/{i}/properties", _lines(link))


def _cpu_properties(links: int) -> Properties:
    zero = dict.fromkeys(_NODE_LINES, 0)
    zero |= {"cpu_cores_count": _CPU_CORES, "mem_banks_count": 1, "io_links_count": links}
    return [*zero.items(), ("max_engine_clk_ccompute", _CPU_MHZ)]


def _gpu_properties(board: Board, caches: int) -> Properties:
    chip = board.chip
    values = dict.fromkeys(_NODE_LINES, 0)
    values |= {
        "simd_count": chip.cus * chip.simds_per_cu,
        "mem_banks_count": 1,
        "caches_count": caches,
        "io_links_count": 1,
        "simd_id_base": 0x80000000 + 0x1000 * board.node,
        "max_waves_per_simd": chip.waves_per_simd,
        "lds_size_in_kb": chip.lds_kib,
        "num_gws": 64,
        "wave_front_size": chip.wave_size,
        "array_count": chip.engines * chip.arrays * chip.xccs,
        "simd_arrays_per_engine": chip.arrays,
        "cu_per_simd_array": chip.cus_per_array,
        "simd_per_cu": chip.simds_per_cu,
        "max_slots_scratch_cu": 32,
        "gfx_target_version": chip.version,
        "vendor_id": AMD_VENDOR,
        "device_id": chip.device_id,
        "location_id": board.bus << 8,
        "drm_render_minor": board.minor,
        "num_sdma_engines": chip.sdma_engines,
        "num_sdma_xgmi_engines": chip.xgmi_engines,
        "num_sdma_queues_per_engine": chip.sdma_queues - chip.sdma_reserved,
        "num_cp_queues": chip.cp_queues,
        "cwsr_size": board.context.save_area,
        "ctl_stack_size": board.context.control_stack,
    }
    return [
        *values.items(),
        ("max_engine_clk_fcompute", chip.engine_mhz),
        ("local_mem_size", 0),
        ("fw_version", 550),
        ("capability", _capability(chip)),
        ("debug_prop", _debug_properties(chip)),
        ("sdma_fw_version", 19),
        ("unique_id", board.unique_id),
        ("num_xcc", chip.xccs),
        ("max_engine_clk_ccompute", _CPU_MHZ),
    ]


_NODE_LINES: Final = (
    *("cpu_cores_count", "simd_count", "mem_banks_count", "caches_count", "io_links_count"),
    *("p2p_links_count", "cpu_core_id_base", "simd_id_base", "max_waves_per_simd"),
    *("lds_size_in_kb", "gds_size_in_kb", "num_gws", "wave_front_size", "array_count"),
    *("simd_arrays_per_engine", "cu_per_simd_array", "simd_per_cu", "max_slots_scratch_cu"),
    *("gfx_target_version", "vendor_id", "device_id", "location_id", "domain"),
    *("drm_render_minor", "hive_id", "num_sdma_engines", "num_sdma_xgmi_engines"),
    *("num_sdma_queues_per_engine", "num_cp_queues", "cwsr_size", "ctl_stack_size"),
)


def _capability(chip: Chip) -> int:
    """HSA_CAP_* of kfd_sysfs.h as `kfd_topology_set_capabilities` sets them.

    Without SVMAPI_SUPPORTED: this kernel is built without shared virtual memory.
    """
    watch_points = 1 << 7 | 2 << 8  # supported; log2 of four of them
    doorbells = 2 << 12
    debugging = 1 << 15 | 1 << 16 | 1 << 17 | 1 << 29
    precise = 1 << 18 if chip.gc[0] == 9 else 1 << 30 if chip.gc[0] == 12 else 0
    return watch_points | doorbells | debugging | precise


def _debug_properties(chip: Chip) -> int:
    high = 30 if chip.gc in ((9, 4, 3), (9, 5, 0)) else 29
    dispatch_info_always_valid = 1 << 10
    return 7 | high << 4 | dispatch_info_always_valid


def _system_bank() -> Properties:
    return [
        *(("heap_type", 0), ("size_in_bytes", HOST_MEMORY)),
        *(("flags", 0), ("width", 64), ("mem_clk_max", 0)),
    ]


def _local_bank(board: Board) -> Properties:
    chip = board.chip
    return [
        *(("heap_type", 1), ("size_in_bytes", chip.vram_size)),  # 1: all of it behind the PCI BAR
        *(("flags", 0), ("width", chip.vram_bits), ("mem_clk_max", chip.memory_mhz)),
    ]


def _link(start: int, end: int, board: Board) -> Properties:
    """A PCI Express link between a CPU node and a GPU."""
    values = {"type": 2, "version_major": 0, "version_minor": 0, "node_from": start}
    values |= {"node_to": end, "weight": 20, "min_latency": 0, "max_latency": 0}
    values |= {"min_bandwidth": 312, "max_bandwidth": 31504, "recommended_transfer_size": 0}
    values |= {"recommended_sdma_engine_id_mask": 0, "flags": 1}
    return list(values.items())


def _caches(chip: Chip) -> list[str]:
    """One vector cache a compute unit, one scalar cache for two, one L2 for all."""
    data, instruction, simd = 1, 2, 8
    texts = []
    for first in range(chip.cus):
        texts.append(_cache(first, 1, 16, 128, data | simd, 1))
    for first in range(0, chip.cus, 2):
        texts.append(_cache(first, 1, 32, 64, instruction | simd, 2))
        texts.append(_cache(first, 1, 16, 64, data | simd, 2))
    texts.append(_cache(0, 2, 6144, 128, data | simd, chip.cus))
    return texts


def _cache(first: int, level: int, kib: int, line: int, kind: int, sharers: int) -> str:
    values = {"processor_id_low": 0x80000000 + 4 * first, "level": level, "size": kib}
    values |= {"cache_line_size": line, "cache_lines_per_tag": 1, "association": 0}
    values |= {"latency": 0, "type": kind}
    siblings = ["1"] * sharers + ["0"] * (-sharers % 32)
    return _lines(values.items()) + f"sibling_map {','.join(siblings)}\n"


def _lines(properties: Iterable[tuple[str, int]]) -> str:
    return "".join(f"{name} {value}\n" for name, value in properties)

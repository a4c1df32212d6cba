"""The files of a GPU's PCI device in sysfs, with the discovery tree of amdgpu.

Formats: Linux 6.12 amdgpu_discovery.c (`ip_hw_instance_attr_show`), drivers/pci/pci-sysfs.c.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from gpu.sim.amd.chips import Chip
from gpu.sim.amd.kfd.topology import AMD_VENDOR, Board
from gpu.sim.tree import FileTree

# Hardware ids of include/soc15_hw_ip.h.
_GC, _SDMA0 = 11, 42
_HARDWARE_IDS: Final = {"NBIF": 108, "MMHUB": 34, "OSSSYS": 40, "HDP": 41, "MP0": 255, "MP1": 1}
# Versions of the blocks beside the graphics core, in that order. Linux has register headers of
# those of gfx942 and gfx1201 (mmhub_1_8_0, nbif_6_3_1, ...); U: no card's own table was seen, and
# the last numbers of gfx103x's, of gfx115x's and of MP0 and MP1 are not sure.
_VERSIONS: Final = {
    "gfx1030": ((3, 3, 0), (2, 1, 0), (5, 0, 3), (5, 0, 3), (11, 0, 7), (11, 0, 7)),
    "gfx1031": ((3, 3, 1), (2, 1, 1), (5, 0, 3), (5, 0, 3), (11, 0, 11), (11, 0, 11)),
    "gfx1032": ((3, 3, 2), (2, 1, 2), (5, 0, 3), (5, 0, 3), (11, 0, 12), (11, 0, 12)),
    "gfx1033": ((7, 2, 0), (2, 3, 0), (5, 2, 0), (5, 2, 0), (11, 5, 0), (11, 5, 0)),
    "gfx1034": ((3, 3, 3), (2, 1, 2), (5, 0, 3), (5, 0, 3), (11, 0, 13), (11, 0, 13)),
    "gfx1035": ((7, 2, 1), (2, 4, 0), (5, 2, 1), (5, 2, 1), (13, 0, 3), (13, 0, 3)),
    "gfx1036": ((7, 3, 0), (2, 4, 1), (5, 2, 1), (5, 2, 1), (13, 0, 5), (13, 0, 5)),
    "gfx1100": ((4, 3, 0), (3, 0, 0), (6, 0, 0), (6, 0, 0), (13, 0, 0), (13, 0, 0)),
    "gfx1101": ((4, 3, 0), (3, 0, 0), (6, 0, 0), (6, 0, 0), (13, 0, 10), (13, 0, 10)),
    "gfx1102": ((4, 3, 0), (3, 0, 2), (6, 0, 2), (6, 0, 0), (13, 0, 7), (13, 0, 7)),
    "gfx1103": ((7, 7, 0), (3, 0, 1), (6, 0, 1), (5, 2, 1), (13, 0, 4), (13, 0, 4)),
    "gfx1150": ((7, 11, 0), (3, 3, 0), (6, 1, 0), (6, 1, 0), (14, 0, 0), (14, 0, 0)),
    "gfx1151": ((7, 11, 1), (3, 3, 1), (6, 1, 0), (6, 1, 0), (14, 0, 1), (14, 0, 1)),
    "gfx1152": ((7, 11, 2), (3, 3, 2), (6, 1, 0), (6, 1, 0), (14, 0, 4), (14, 0, 4)),
    "gfx1153": ((7, 11, 3), (3, 3, 2), (6, 1, 0), (6, 1, 0), (14, 0, 5), (14, 0, 5)),
    "gfx1200": ((6, 3, 1), (4, 1, 0), (7, 0, 0), (7, 0, 0), (14, 0, 2), (14, 0, 2)),
    "gfx1201": ((6, 3, 1), (4, 1, 0), (7, 0, 0), (7, 0, 0), (14, 0, 3), (14, 0, 3)),
    "gfx942": ((7, 9, 0), (1, 8, 0), (4, 4, 2), (4, 4, 2), (13, 0, 6), (13, 0, 6)),
    "gfx950": ((7, 9, 1), (1, 8, 1), (4, 4, 5), (4, 4, 5), (13, 0, 12), (13, 0, 12)),
}
_MICROCONTROLLERS: Final = (0x16000, 0xDC0000, 0xE00000, 0xE40000, 0x0243FC00)
# Register segments of sienna_cichlid_ip_offset.h; that those of other chips are the same is a
# guess: their tables are on the cards alone. U.
_BASES: Final = {
    "NBIF": (0x0, 0x14, 0xD20, 0x10400, 0x0241B000),
    "MMHUB": (0x1A000, 0x02408800),
    "OSSSYS": (0x10A0, 0x0240A000),
    "HDP": (0xF20, 0x0240A400),
    "MP0": _MICROCONTROLLERS,
    "MP1": _MICROCONTROLLERS,
}


def add_pci_files(tree: FileTree, board: Board, vram_used: Callable[[], int]) -> None:
    """Adds /sys/class/drm/renderD<minor>/device/."""
    folder = f"/sys/class/drm/renderD{board.minor}/device"
    size = board.chip.vram_size
    for name, text in (
        ("vendor", f"{AMD_VENDOR:#06x}"),
        ("device", f"{board.chip.device_id:#06x}"),
        ("subsystem_vendor", f"{AMD_VENDOR:#06x}"),
        ("subsystem_device", "0x0e3b"),
        ("revision", "0xc8"),
        ("class", "0x030000"),
        ("unique_id", f"{board.unique_id:016x}"),
        ("mem_info_vram_total", str(size)),
        ("mem_info_vis_vram_total", str(size)),
        ("current_link_width", "16"),
        ("numa_node", "-1"),
        ("uevent", _uevent(board)),
    ):
        tree.add(f"{folder}/{name}", f"{text}\n")
    tree.add(f"{folder}/mem_info_vram_used", partial(_number, vram_used))
    _add_discovery(tree, f"{folder}/ip_discovery", board.chip)


def _number(read: Callable[[], int]) -> bytes:
    return f"{read()}\n".encode()


def _uevent(board: Board) -> str:
    ids = f"PCI_ID={AMD_VENDOR:04X}:{board.chip.device_id:04X}"
    return f"DRIVER=amdgpu\n{ids}\nPCI_SLOT_NAME=0000:{board.bus:02x}:00.0"


def _add_discovery(tree: FileTree, folder: str, chip: Chip) -> None:
    gc_bases = (chip.sh_base, 0xA000, 0x02402C00)
    blocks: list[tuple[str, int, tuple[int, int, int], tuple[int, ...]]] = []
    blocks += [("GC", _GC, chip.gc, gc_bases)] * chip.xccs
    blocks.append(("SDMA0", _SDMA0, chip.sdma, gc_bases))
    for (name, number), version in zip(_HARDWARE_IDS.items(), _VERSIONS[chip.name], strict=True):
        blocks.append((name, number, version, _BASES[name]))
    tree.add(f"{folder}/die/num_dies", "1\n")
    tree.add(f"{folder}/die/0/num_ips", f"{len(blocks)}\n")
    seen: dict[int, int] = {}
    for name, hw_id, version, bases in blocks:
        instance = seen.get(hw_id, 0)
        seen[hw_id] = instance + 1
        for alias in (name, str(hw_id)):
            _add_block(tree, f"{folder}/die/0/{alias}/{instance}", hw_id, instance, version, bases)


def _add_block(
    tree: FileTree,
    folder: str,
    hw_id: int,
    instance: int,
    version: tuple[int, int, int],
    bases: tuple[int, ...],
) -> None:
    major, minor, revision = version
    numbers = {"hw_id": hw_id, "num_instance": instance, "major": major, "minor": minor}
    numbers |= {"revision": revision, "num_base_addresses": len(bases)}
    for name, value in numbers.items():
        tree.add(f"{folder}/{name}", f"{value}\n")
    tree.add(f"{folder}/harvest", "0x0\n")
    tree.add(f"{folder}/base_addr", "".join(f"0x{base:08X}\n" for base in bases))

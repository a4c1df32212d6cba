"""Cards that can be modelled: their place on PCI, and the versions of their blocks.

Identities and sizes are those of retail cards (`lspci`, R); which block has which version is what
amdgpu_discovery.c of Linux 6.12 and AMD's table of "dGPU asic info" list. Base addresses are
those that `sienna_cichlid_ip_offset.h` has for the chip before (U for these); a driver must take
them from the discovery table, so `moved` makes tables with others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from gpu.core.errors import Unsupported
from gpu.core.pci import PciIds
from gpu.sim.amd.chips import Chip, find_chip

_MIB, _GIB = 1 << 20, 1 << 30


class Block(NamedTuple):
    """One instance of an IP block.

    Attributes:
        name: as amdgpu_discovery.c calls it.
        hw_id: soc15_hw_ip.h.
        version: major, minor, revision.
        table: the module of `gpu.autogen.amd` that has its registers; empty where none are known.
        bases: where its segments begin, in dwords.
    """

    name: str
    hw_id: int
    instance: int
    version: tuple[int, int, int]
    table: str
    bases: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """A card.

    Attributes:
        chip: what is on it.
        ids, bar_size: as PCI sees it; the size is that of BAR 0.
        blocks: what its discovery table lists.
        harvested: instances that are there and do not work, as (hw_id, instance).
        reset_ns: how long nothing answers after a mode1 reset.
    """

    chip: Chip
    ids: PciIds
    bar_size: int
    blocks: tuple[Block, ...]
    harvested: tuple[tuple[int, int], ...] = ()
    reset_ns: int = 500_000_000

    def block(self, name: str, instance: int = 0) -> Block:
        """A block by its name. Raises KeyError."""
        for block in self.blocks:
            if (block.name, block.instance) == (name, instance):
                return block
        raise KeyError(name)

    @property
    def is_gfx12(self) -> bool:
        """Whether it is of the later of the two generations."""
        return self.chip.gc[0] == 12

    def moved(self, by: int) -> Board:
        """The same with segments of memory hubs, queues and interrupts elsewhere, in dwords."""
        names = ("GC", "SDMA0", "SDMA1")
        blocks = tuple(
            block._replace(bases=(*(base + by for base in block.bases[:2]), *block.bases[2:]))
            if block.name in names
            else block
            for block in self.blocks
        )
        return replace(self, blocks=blocks)


_MP: Final = (0x16000, 0xDC0000, 0xE00000, 0xE40000, 0x0243FC00)
# MP1's second segment holds 14.0's mailbox, which is where 13.0's is in the first (U).
_MP14: Final = (0x16000, 0x16200, 0xE00000, 0xE40000, 0x0243FC00)
_GC: Final = (0x1260, 0xA000, 0x1C000, 0x02402C00)
_BASES: Final = {
    "GC": (11, _GC),
    "HDP": (41, (0xF20, 0x0240A400)),
    "SDMA0": (42, _GC),
    "SDMA1": (43, _GC),
    "MMHUB": (34, (0x1A000, 0x02408800)),
    "NBIF": (108, (0x0, 0x14, 0xD20, 0x10400, 0x0241B000, 0x04040000)),
    "MP0": (255, _MP),
    "MP1": (1, _MP),
    "OSSSYS": (40, (0x10A0, 0x0240A000)),
    "ATHUB": (35, (0xC00, 0x02408C00)),
    "DF": (46, (0x7000, 0x0240B800)),
    "SMUIO": (4, (0x16800, 0x16A00, 0x440000, 0x02401000)),
    "THM": (2, (0x16600, 0x02400C00)),
    "UMC": (150, (0x14000, 0x02425800)),
    "VCN": (12, (0x7800, 0x7E00, 0x02403000)),
}
_TABLES: Final = {
    ("GC", (11, 0, 0)): "gc_11_0_0",
    ("GC", (11, 0, 2)): "gc_11_0_0",  # gfxhub_v3_0.c has both
    ("GC", (11, 0, 3)): "gc_11_0_3",  # gfxhub_v3_0_3.c
    ("GC", (12, 0, 0)): "gc_12_0_0",
    ("GC", (12, 0, 1)): "gc_12_0_0",
    ("MMHUB", (3, 0, 0)): "mmhub_3_0_0",
    ("MMHUB", (3, 0, 2)): "mmhub_3_0_2",
    ("MMHUB", (4, 1, 0)): "mmhub_4_1_0",
    ("NBIF", (4, 3, 0)): "nbio_4_3_0",
    ("NBIF", (6, 3, 1)): "nbif_6_3_1",
    ("HDP", (6, 0, 0)): "hdp_6_0_0",
    ("HDP", (7, 0, 0)): "hdp_7_0_0",
    ("OSSSYS", (6, 0, 0)): "osssys_6_0_0",
    ("OSSSYS", (7, 0, 0)): "osssys_7_0_0",
}


def _blocks(
    gc: tuple[int, int, int],
    sdma: tuple[int, int, int],
    mmhub: tuple[int, int, int],
    mp: tuple[int, int, int],
) -> tuple[Block, ...]:
    old = gc[0] == 11
    versions = {
        "GC": gc,
        "SDMA0": sdma,
        "SDMA1": sdma,
        "MMHUB": mmhub,
        "MP0": mp,
        "MP1": mp,
        "HDP": (6, 0, 0) if old else (7, 0, 0),
        "NBIF": (4, 3, 0) if old else (6, 3, 1),
        "OSSSYS": (6, 0, 0) if old else (7, 0, 0),
        "ATHUB": (3, 0, 0) if old else (4, 1, 0),
        "DF": (4, 3, 0) if old else (4, 15, 0),
        "SMUIO": (13, 0, 6) if old else (14, 0, 2),
        "THM": (13, 0, 6) if old else (14, 0, 2),
        "UMC": (8, 10, 0) if old else (8, 14, 0),
        "VCN": (4, 0, 0) if old else (5, 0, 0),
    }
    blocks = []
    for name, version in versions.items():
        hw_id, bases = _BASES[name]
        table = _TABLES.get((name, version), "")
        if name in ("MP0", "MP1"):
            table = "mp_13_0_0" if version[0] == 13 else "mp_14_0_2"
            bases = _MP if version[0] == 13 else _MP14
        blocks.append(Block(name, hw_id, 0, version, table, bases))
    vcn = next(block for block in blocks if block.name == "VCN")
    return (*blocks, vcn._replace(instance=1, bases=(0x7B00, 0x12000, 0x02445000)))


def _board(
    name: str,
    revision: int,
    bar_size: int,
    mmhub: tuple[int, int, int],
    mp: tuple[int, int, int],
    harvested: tuple[tuple[int, int], ...] = (),
) -> Board:
    chip = find_chip(name)
    ids = PciIds(0x1002, chip.device_id, 0x1002, 0x0E3B, revision, 0x030000)
    blocks = _blocks(chip.gc, chip.sdma, mmhub, mp)
    quiet = 500_000_000 if chip.gc[0] == 11 else 1_000_000_000  # smu_v14_0_2_ppt.c waits longer
    return Board(chip, ids, bar_size, blocks, harvested, quiet)


_OLD, _NEW = (3, 0, 0), (4, 1, 0)
BOARDS: Final = {
    board.chip.name: board
    for board in (
        _board("gfx1100", 0xC8, 32 * _GIB, _OLD, (13, 0, 0)),
        _board("gfx1101", 0xC8, 16 * _GIB, _OLD, (13, 0, 10)),
        _board("gfx1102", 0xCF, 8 * _GIB, (3, 0, 2), (13, 0, 7), harvested=((12, 1),)),
        _board("gfx1200", 0xC0, 16 * _GIB, _NEW, (14, 0, 2), harvested=((12, 1),)),
        _board("gfx1201", 0xC0, 16 * _GIB, _NEW, (14, 0, 3)),
    )
}


def find_board(name: str) -> Board:
    """The card with a chip. Raises Unsupported."""
    if name not in BOARDS:
        raise Unsupported(f"no model of a card with {name}: there are {', '.join(BOARDS)}")
    return BOARDS[name]

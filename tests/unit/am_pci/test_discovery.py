"""The table of a chip's blocks: what it says, and that no damage of it goes unseen or crashes."""

from __future__ import annotations

import random

import pytest

from gpu.core.errors import FormatError, Unsupported
from gpu.drivers.am.pci.discovery import SIZE, HwId, parse_discovery
from gpu.drivers.am.pci.ip.claim import check_core
from unit.am_pci import tables


def test_blocks_are_as_written() -> None:
    found = parse_discovery(tables.make([tables.gfx1100()]))
    assert [(b.hw_id, b.version, b.bases) for b in found.blocks] == [
        (ip.hw_id, ip.version, ip.bases) for ip in tables.gfx1100()
    ]
    assert str(found.block(HwId.GC)) == "GC[0] 11.0.0"
    assert found.shape is not None
    assert (found.shape.shader_engines, found.shape.arrays, found.shape.compute_units) == (6, 2, 8)
    assert (found.shape.scratch_waves, found.shape.lds_size) == (32, 64)


@pytest.mark.parametrize("version, wide", [(1, False), (2, False), (3, False), (4, True)])
def test_versions_of_the_table(version: int, wide: bool) -> None:
    high = 0x12_4000_0000 if wide else 0
    ip = tables.Ip(tables.GC, (12, 0, 1), (high | 0x1260, 0xA000), variant=3, sub=5)
    (found,) = parse_discovery(tables.make([[ip]], version=version, wide=wide)).blocks
    assert found.bases == (0x1260, 0xA000)  # of wide ones Linux keeps 30 bits
    assert (found.variant, found.sub_revision) == ((3, 5) if version >= 3 else (0, 0))


def test_harvested_blocks_are_left_out() -> None:
    data = tables.make([tables.gfx1100()], harvest=[(tables.SDMA1, 0), (tables.GC, 3)])
    found = parse_discovery(data)
    assert tables.SDMA1 not in {block.hw_id for block in found.blocks}
    assert [block.hw_id for block in found.harvested] == [tables.SDMA1]
    with pytest.raises(Unsupported, match=r"SDMA1\[0\]"):
        found.block(HwId.SDMA1)


def test_several_dies_and_instances() -> None:
    second = [tables.Ip(tables.SDMA0, (6, 0, 0), instance=2), tables.Ip(999, (1, 2, 3), ())]
    found = parse_discovery(tables.make([tables.gfx1100(), second]))
    assert found.block(HwId.SDMA0, 2).bases == (0x1000,)
    assert str(found.blocks[-1]) == "block 999[0] 1.2.3"


def test_each_changed_byte_is_seen() -> None:
    data = tables.make([tables.gfx1100()], harvest=[(tables.SDMA1, 0)])
    for at in (*range(4), *range(8, len(data))):
        changed = bytearray(data)
        changed[at] ^= 0x41
        with pytest.raises(FormatError):
            parse_discovery(bytes(changed))


def test_each_cut_is_seen() -> None:
    data = tables.make([tables.gfx1100()])
    for size in range(len(data)):
        with pytest.raises(FormatError):
            parse_discovery(data[:size])


def test_damage_with_right_sums_never_does_anything_else_than_raise() -> None:
    """Numbers, places and sizes that lead anywhere, in tables whose sums fit."""
    draw = random.Random(5)
    data = tables.make([tables.gfx1100()], harvest=[(tables.SDMA1, 0)])
    told = set()
    for _ in range(4000):
        rest = bytearray(data[12:])
        for _ in range(draw.randint(1, 4)):
            rest[draw.randrange(len(rest))] = draw.choice((0, 1, 0x7F, 0xFF, draw.randrange(256)))
        for number in range(6):  # the sums of what is where the changed list now says
            place = int.from_bytes(rest[8 * number : 8 * number + 2], "little") - 12
            if number == 0 and 0 <= place < len(rest) - 8:
                size = int.from_bytes(rest[place + 6 : place + 8], "little")
                total = sum(rest[place : place + size]) & 0xFFFF
                rest[2:4] = total.to_bytes(2, "little")
        try:
            parse_discovery(tables.whole(bytes(rest)))
        except FormatError as error:
            told.add(error.message.split(" of ")[0][:30])
    assert len(told) > 5  # it got to many of the checks


def test_noise_is_no_table() -> None:
    draw = random.Random(6)
    for _ in range(2000):
        noise = draw.randbytes(draw.randrange(SIZE))
        with pytest.raises(FormatError):
            parse_discovery(noise)
        with pytest.raises(FormatError):
            parse_discovery(b"\x07\x14\x21\x28" + noise)


@pytest.mark.parametrize(
    "version, reason",
    [
        ((11, 0, 1), "part of a processor"),
        ((11, 5, 1), "part of a processor"),
        ((10, 3, 0), "table that only Linux makes"),
        ((9, 4, 3), "hive"),
        ((9, 5, 0), "hive"),
    ],
)
def test_chips_that_are_left_to_the_kernel(version: tuple[int, int, int], reason: str) -> None:
    found = parse_discovery(tables.make([[tables.Ip(tables.GC, version)]]))
    with pytest.raises(Unsupported, match=f"{reason}.*DEV=KFD"):
        check_core(found.block(HwId.GC))

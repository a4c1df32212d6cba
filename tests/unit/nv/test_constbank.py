"""Constant bank 0 against offsets written down a second time."""

from __future__ import annotations

import struct

import pytest

from gpu.core.errors import InvalidValue, Unsupported
from gpu.drivers.nv.encode.cbank0 import build_bank0
from gpu.hcq.symbol import Symbol

GRID, BLOCK = (7, 8, 9), (32, 2, 3)
PARAMETERS = bytes(range(1, 21))
SHARED_WINDOW, LOCAL_WINDOW = 0x7294_0000_0000, 0x7293_0000_0000
STACK_TOP = 0x00FF_FDC0
ONE = struct.unpack("<I", struct.pack("<f", 1.0))[0]

# fmt: off
AMPERE = {
    0x0: 32, 0x4: 2, 0x8: 3, 0xC: 7, 0x10: 8, 0x14: 9,
    0x1C: SHARED_WINDOW >> 32, 0x24: LOCAL_WINDOW >> 32, 0x28: STACK_TOP, 0x2C: 256, 0x114: 0x900,
}
HOPPER = AMPERE | {
    0x144: 1, 0x148: 1, 0x14C: 1, 0x150: ONE, 0x154: ONE, 0x158: ONE,
    0x15C: 7, 0x160: 8, 0x164: 9, 0x188: 1,
}
BLACKWELL = {
    0x360: 32, 0x364: 2, 0x368: 3, 0x370: 7, 0x374: 8, 0x378: 9,
    0x2F4: SHARED_WINDOW >> 32, 0x2FC: LOCAL_WINDOW >> 32, 0x37C: STACK_TOP,
    0x2AC: 256, 0x16C: 0x900, 0x2A0: 1, 0x2A4: 1, 0x2A8: 1, 0x2B0: ONE, 0x2B4: ONE, 0x2B8: ONE,
    0x2C0: 7, 0x2C4: 8, 0x2C8: 9, 0x2CC: 1,
}
# fmt: on
WORDS = {80: AMPERE, 86: AMPERE, 89: AMPERE, 90: HOPPER, 100: BLACKWELL, 120: BLACKWELL}
BASES = {80: 0x160, 86: 0x160, 89: 0x160, 90: 0x210, 100: 0x380, 120: 0x380}


def words(data: bytes) -> dict[int, int]:
    """The words that are not zero, by offset."""
    found = struct.unpack(f"<{len(data) // 4}I", data)
    return {4 * index: word for index, word in enumerate(found) if word}


@pytest.mark.parametrize("sm", WORDS)
def test_every_word(sm: int) -> None:
    bank = build_bank0(sm, PARAMETERS, GRID, BLOCK, shared=0x900, dynamic_shared=256)
    assert bank.parameters == BASES[sm]
    assert bank.data[BASES[sm] :] == PARAMETERS
    assert words(bank.data[: BASES[sm]]) == WORDS[sm]
    assert not bank.patches


@pytest.mark.parametrize("sm", [86, 90, 120])
def test_a_grid_of_symbols(sm: int) -> None:
    x, z = Symbol("x"), Symbol("z")
    bank = build_bank0(sm, PARAMETERS, (x, 8, z), BLOCK, shared=0x900, dynamic_shared=256)
    data = bytearray(bank.data)
    for patch in bank.patches:
        patch.apply(data, {x: 7, z: 9}[patch.symbol])
    assert words(bytes(data[: BASES[sm]])) == WORDS[sm]


def test_clusters() -> None:
    bank = build_bank0(90, b"", (8, 8, 9), BLOCK, shared=1024, cluster=(4, 2, 1))
    found = words(bank.data)
    assert found[0x140] == 1
    assert [found[at] for at in (0x144, 0x148, 0x14C, 0x188)] == [4, 2, 1, 8]
    assert [found[at] for at in (0x15C, 0x160, 0x164)] == [2, 4, 9]
    assert struct.unpack_from("<fff", bank.data, 0x150) == (0.25, 0.5, 1.0)
    with pytest.raises(Unsupported, match="clusters of 4 in a grid with the symbol 'x'"):
        build_bank0(90, b"", (Symbol("x"), 8, 9), BLOCK, shared=1024, cluster=(4, 1, 1))
    with pytest.raises(Unsupported, match="sm_86"):
        build_bank0(86, b"", GRID, BLOCK, shared=1024, cluster=(1, 1, 1))


def test_limits() -> None:
    room = 65536 - 0x210
    assert len(build_bank0(90, bytes(room), GRID, BLOCK, shared=1024).data) == 65536
    with pytest.raises(InvalidValue, match=str(room)):
        build_bank0(90, bytes(room + 1), GRID, BLOCK, shared=1024)
    with pytest.raises(Unsupported, match="sm_75"):
        build_bank0(75, b"", GRID, BLOCK, shared=1024)

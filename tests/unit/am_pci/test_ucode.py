"""Firmware files: pieces are found, damage is told with the field, and nothing else happens."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from gpu.core.errors import FormatError, Unsupported
from gpu.core.pci import PciIds
from gpu.drivers.am.firmware import WANTED, firmware_of
from gpu.drivers.am.pci import ucode
from unit.am_pci import images

START = 0x7_0000_0000_3000
FILES: dict[str, tuple[Callable[[str, bytes], object], bytes]] = {
    "secure": (ucode.parse_secure, images.secure([(1, b"s" * 99), (3, b"k" * 40), (4, b"t" * 8)])),
    "secure 2.1": (ucode.parse_secure, images.secure([(1, b"s" * 9), (3, b"k")], 1, 1)),
    "core": (ucode.parse_core, images.core(b"c" * 64, b"d" * 32, START)),
    "rlc 2.1": (ucode.parse_rlc, images.rlc(1, {"gpm": b"g" * 5}, b"code")),
    "rlc 2.2": (ucode.parse_rlc, images.rlc(2, {"iram": b"i" * 6, "dram": b"d" * 7}, b"code")),
    "rlc 2.3": (ucode.parse_rlc, images.rlc(3, {"cntl": b"c", "p": b"p" * 3, "v": b"v"}, b"code")),
    "imu": (ucode.parse_imu, images.imu(b"i" * 16, b"d" * 8)),
    "sdma 2": (ucode.parse_sdma, images.sdma(b"x" * 20, b"y" * 12)),
    "sdma 3": (ucode.parse_sdma, images.sdma_one(b"z" * 24)),
    "smu": (ucode.parse_smu, images.smu(b"m" * 50)),
}


def test_pieces() -> None:
    secure = ucode.parse_secure("s", FILES["secure"][1])
    assert secure.parts == {1: b"s" * 99, 3: b"k" * 40, 4: b"t" * 8}
    assert ucode.parse_secure("s", FILES["secure 2.1"][1]).parts == {1: b"s" * 9}
    core = ucode.parse_core("c", FILES["core"][1])
    assert (core.code, core.stack, core.start) == (b"c" * 64, b"d" * 32, START)
    # GFX_FW_TYPE_*: 20 GPM list, 22 control list, 26 IRAM, 48 DRAM, 25 P, 7 V, 8 G
    listed = {
        name: [(p.type, p.data) for p in ucode.parse_rlc("r", FILES[name][1])]
        for name in ("rlc 2.1", "rlc 2.2", "rlc 2.3")
    }
    assert listed["rlc 2.1"] == [(20, b"g" * 5), (8, b"code")]
    assert listed["rlc 2.2"] == [(26, b"i" * 6), (48, b"d" * 7), (8, b"code")]
    assert listed["rlc 2.3"] == [(22, b"c"), (25, b"p" * 3), (7, b"v"), (8, b"code")]
    imu = ucode.parse_imu("i", FILES["imu"][1])
    assert [(p.type, p.data) for p in imu] == [(68, b"i" * 16), (69, b"d" * 8)]
    two = ucode.parse_sdma("d", FILES["sdma 2"][1])
    assert [(p.type, p.data) for p in two] == [(71, b"x" * 20), (72, b"y" * 12)]
    (one,) = ucode.parse_sdma("d", FILES["sdma 3"][1])
    assert (one.type, one.data) == (71, b"z" * 24)
    smu = ucode.parse_smu("m", FILES["smu"][1])
    assert (smu.type, smu.data) == (18, b"m" * 50)


@pytest.mark.parametrize("kind", FILES)
def test_every_cut_is_told(kind: str) -> None:
    parse, data = FILES[kind]
    for size in range(len(data)):
        with pytest.raises(FormatError, match="name of it"):
            parse("name of it", data[:size])
    with pytest.raises(FormatError, match="its header says"):
        parse("name of it", data + b"\0")


@pytest.mark.parametrize("kind", FILES)
def test_hostile_headers_only_raise(kind: str) -> None:
    parse, data = FILES[kind]
    draw = random.Random(kind)
    refused = 0
    for _ in range(1500):
        changed = bytearray(data)
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(0, len(data) - 4)
            value = draw.choice(
                (0, 1, 0xFFFF_FFFF, 0x8000_0000, len(data), draw.randrange(1 << 32))
            )
            changed[at : at + 4] = value.to_bytes(4, "little")
        try:
            found = parse("it", bytes(changed))
        except FormatError:
            refused += 1
            continue
        pieces = found if isinstance(found, list) else [found]
        assert len(repr(pieces)) < 20 * len(data)  # nothing is larger than the file
    assert refused > 100


@pytest.mark.parametrize("kind", ["core", "imu", "smu", "sdma 2", "rlc 2.1", "secure"])
def test_other_versions_are_refused(kind: str) -> None:
    parse, data = FILES[kind]
    changed = data[:8] + b"\x09\x00\x05\x00" + data[12:]
    with pytest.raises(FormatError, match=r"version 9\.5"):
        parse("it", changed)


def card(device: int, revision: int) -> PciIds:
    return PciIds(0x1002, device, 0x1002, 0x0E3B, revision, 0x030000)


VERSIONS = {
    "gfx1100": ((11, 0, 0), (6, 0, 0), (13, 0, 0), (13, 0, 0)),
    "gfx1201": ((12, 0, 1), (7, 0, 1), (14, 0, 3), (14, 0, 3)),
}


@pytest.mark.parametrize(
    "chip, pci_device, revision, changed",
    [
        ("gfx1100", 0x744C, 0xC8, {}),
        ("gfx1100", 0x744C, 0xCE, {"rlc": "_1"}),
        (
            "gfx1100",
            0x744B,
            0x00,
            {"rlc": "_kicker", "imu": "_kicker", "secure": "_kicker", "smu": "_kicker"},
        ),
        ("gfx1100", 0x744B, 0x01, {}),
        ("gfx1201", 0x7550, 0xC0, {}),
        (
            "gfx1201",
            0x7551,
            0xC8,
            {"rlc": "_kicker", "imu": "_kicker", "secure": "_kicker", "smu": "_kicker"},
        ),
    ],
)
def test_variants_go_by_device_and_revision(
    chip: str, pci_device: int, revision: int, changed: dict[str, str]
) -> None:
    gc, sdma, mp0, mp1 = VERSIONS[chip]
    found = firmware_of(card(pci_device, revision), gc=gc, sdma=sdma, mp0=mp0, mp1=mp1)
    core = "gc_" + "_".join(map(str, gc))
    plain = {
        "secure": "psp_" + "_".join(map(str, mp0)) + "_sos",
        "smu": "smu_" + "_".join(map(str, mp1)),
        "sdma": "sdma_" + "_".join(map(str, sdma)),
        "mec": f"{core}_mec",
        "imu": f"{core}_imu",
        "rlc": f"{core}_rlc",
    }
    for part, name in plain.items():
        wanted = getattr(found, part)
        assert wanted.name == f"amdgpu/{name}{changed.get(part, '')}.bin"
        assert wanted.hashes
    assert (found.pfp is None) == (found.me is None) == (chip == "gfx1100")


def test_files_of_no_known_package_are_refused() -> None:
    with pytest.raises(Unsupported, match=r"gc_11_0_1.*DEV=KFD|psp_13_0_4.*DEV=KFD"):
        firmware_of(card(0x15BF, 0), gc=(11, 0, 1), sdma=(6, 0, 1), mp0=(13, 0, 4), mp1=(13, 0, 4))


def test_the_table_is_of_hashes() -> None:
    assert len({wanted.name for wanted in WANTED}) == len(WANTED) > 40
    for wanted in WANTED:
        assert wanted.hashes and all(len(h) == 64 and int(h, 16) >= 0 for h in wanted.hashes)

"""A made-up ROM in the true formats: images, BIT, FWSEC; and what is wrong with others."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest

from gpu.core.errors import FormatError, GpuError, Unsupported
from gpu.drivers.boot import BootTimeout
from gpu.drivers.nv.pci import vbios
from gpu.drivers.nv.pci.chips import GA10X
from gpu.drivers.nv.pci.falcon import Falcon
from gpu.drivers.nv.pci.images import FalconCode, parse_falcon
from unit.nv_pci import made

IMEM, DMEM, INTERFACE, MAPPER, COMMAND, SIGNATURE = 0x300, 0x400, 0x40, 0x60, 0x100, 0x180


def image(size: int, kind: int, last: bool, extended: int = 0, body: bytes = b"") -> bytearray:
    """An image of whole blocks; ``extended`` is its true number of blocks, in NPDE."""
    data = bytearray(size * 512)
    struct.pack_into("<H", data, 0, 0xAA55)
    struct.pack_into("<H", data, 0x18, 0x20)
    struct.pack_into("<4s6xH", data, 0x20, b"PCIR", 0x18)
    whole = size if not extended else 1
    struct.pack_into("<HxxBB", data, 0x30, whole, kind, 0x80 if last and not extended else 0)
    if extended:
        struct.pack_into("<4sHHHB", data, 0x40, b"NPDE", 0x100, 12, extended, 0x80 if last else 0)
    data[0x60 : 0x60 + len(body)] = body
    return data


def fwsec(rng: random.Random, versions: int, count: int) -> bytes:
    """FWSEC's description, signatures, code and data."""
    size = 44 + 384 * count
    desc = struct.pack(
        *("<9IHBBHH", 1 | 3 << 8 | size << 16, IMEM + DMEM, SIGNATURE, INTERFACE, 0, IMEM, 0, 0),
        *(DMEM, 0x400, 9, count, versions, 0),
    )
    dmem = bytearray(rng.randbytes(DMEM))
    dmem[INTERFACE : INTERFACE + 20] = struct.pack("<4B4I", 1, 4, 8, 2, 1, 0, 4, MAPPER)
    mapper = (0x50414D44, 3, 64, COMMAND, 44, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    dmem[MAPPER : MAPPER + 64] = struct.pack("<IHH13I", *mapper)
    return desc + rng.randbytes(384 * count) + rng.randbytes(IMEM) + bytes(dmem)


def rom(
    ifr: int = 0, gap: int = 2, versions: int = 0b1010, count: int = 2, spoil: int = -1
) -> bytes:
    """A ROM whose FWSEC is in the second image of NVIDIA's, with EFI's between."""
    rng = random.Random(7)
    base_size = 3
    table_at = base_size * 512 + 0x80  # as if EFI's image were not there
    desc_at = table_at + 0x40
    tokens = struct.pack("<BBHHBBHH", 0x42, 2, 4, 0x200, 0x70, 2, 4, 0x204)
    head = struct.pack("<H4sHBBB", 0xB8FF, b"BIT\0", 0x100, 12, 6, 2)
    bit = head + bytes([-sum(head) & 0xFF])
    base = image(base_size, 0, False)
    base[0x100:0x106] = b"\xff\xb8BIT\0"  # a mark with another sum
    base[0x108] = 12
    base[0x1B0 : 0x1B0 + 24] = bit + tokens
    struct.pack_into("<I", base, 0x204, table_at)
    efi = image(gap, 3, False) if gap else bytearray()
    last = image(10, 0xE0, True, extended=10)
    entries = struct.pack("<BBI", 0x01, 7, 0) + struct.pack("<BBI", 0x85, 7, desc_at)
    last[0x80:0x86] = bytes((1, 6, 6, 2, 3, 44))
    last[0x86 : 0x86 + 12] = entries
    body = fwsec(rng, versions, count)
    last[0xC0 : 0xC0 + len(body)] = body
    data = bytes(base + efi + last)
    if ifr in (1, 2):
        data = (
            struct.pack("<4sBBHIII", b"NVGI", 0, ifr, 0x10, 0, 0, 0x400)[:0x18].ljust(0x400, b"\0")
            + data
        )
        data = data[:0x14] + struct.pack("<I", 0x400) + data[0x18:]
    elif ifr == 3:
        head = struct.pack("<4sBBHI", b"NVGI", 0, 3, 0, 0x20).ljust(0x20, b"\0")
        head += struct.pack("<I", 0x100)
        head = head.ljust(0x1100, b"\0") + struct.pack("<4sII", b"RFRD", 0, 0x1200)
        data = head.ljust(0x1200, b"\0") + data
    if spoil >= 0:
        data = data[:spoil] + bytes([data[spoil] ^ 0xFF]) + data[spoil + 1 :]
    return data


def words(data: bytes) -> Callable[[int], int]:
    padded = data.ljust(1 << 20, b"\xff")
    return lambda at: int.from_bytes(padded[at : at + 4], "little")


@pytest.mark.parametrize("ifr", (0, 1, 2, 3))
@pytest.mark.parametrize("gap", (0, 2))
def test_fwsec_is_found_behind_ifr_and_other_images(ifr: int, gap: int) -> None:
    """IFR's header and NPDE are honoured; a BIT with a wrong sum is passed by."""
    found = vbios.read_vbios(words(rom(ifr, gap)))
    assert found.gap == gap * 512 and len(found.data) == (13 + gap) * 512
    code = vbios.find_fwsec(found).code
    assert (code.code, code.data) == ((0, IMEM), (IMEM, DMEM))
    assert (code.engine_mask, code.ucode_id, code.versions) == (0x400, 9, 0b1010)
    assert len(code.signatures) == 2 and code.patch == IMEM + SIGNATURE
    body = rom(0, gap)
    assert code.image[: IMEM + DMEM] == body[body.index(code.image[:16]) :][: IMEM + DMEM]


@pytest.mark.parametrize("command", (vbios.FRTS, vbios.SB))
def test_a_command_is_put_into_the_data(command: int) -> None:
    """With its arguments where the mapper says, and nothing else changed."""
    found = vbios.find_fwsec(vbios.read_vbios(words(rom())))
    code = vbios.with_command(found, command, 0x5_FF00_0000)
    dmem = code.image[IMEM : IMEM + DMEM]
    assert struct.unpack_from("<I", dmem, MAPPER + 44)[0] == command
    argument = struct.pack("<IIQII", 1, 24, 0, 0, 2)
    if command == vbios.FRTS:
        argument += struct.pack("<5I", 1, 20, 0x5FF000, 0x100, 2)
    assert dmem[COMMAND:].startswith(argument)
    before = found.code.image
    changed = [at for at, (a, b) in enumerate(zip(before, code.image, strict=True)) if a != b]
    allowed = {
        *range(IMEM + MAPPER + 44, IMEM + MAPPER + 48),
        *range(IMEM + COMMAND, IMEM + COMMAND + len(argument)),
    }
    assert set(changed) <= allowed


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (bytes(4096), "neither an image nor an IFR header"),
        (rom(spoil=0x20), "image at 0x0: no PCI data at 0x20"),
        (rom(spoil=0x1BB), "no BIT whose head has the sum 0"),
        (rom(versions=7), "SignatureVersions"),
        (rom(count=0), "SignatureCount"),
        (rom(ifr=3, spoil=0x1100), "no ROM directory"),
        (rom(ifr=3, spoil=5), "IFR header of version 252"),
    ],
)
def test_a_rom_that_is_wrong_is_named(data: bytes, what: str) -> None:
    """By what it is, and where."""
    with pytest.raises(FormatError, match=what):
        vbios.find_fwsec(vbios.read_vbios(words(data)))


def test_damaged_roms_are_format_errors_and_nothing_outside_is_read() -> None:
    """Any byte changed: read, or refused; in bounded work."""
    rng = random.Random(3)
    refused = 0
    whole = rom(3)
    for _ in range(120):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 3))):
            at = rng.choice((rng.randrange(0x30), 0x1100 + rng.randrange(0x400)))
            data[at] = rng.choice((0, 0xFF, rng.randrange(256)))
        seen: set[int] = set()

        def word(at: int, data: bytes = bytes(data), seen: set[int] = seen) -> int:
            assert 0 <= at <= (1 << 20) - 4 and at not in seen
            seen.add(at)
            return words_at(data, at)

        try:
            found = vbios.find_fwsec(vbios.read_vbios(word))
            vbios.with_command(found, vbios.FRTS, 1 << 30)
        except FormatError:
            refused += 1
        except GpuError as error:
            raise AssertionError(str(error)) from error
    assert refused > 10


def words_at(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4].ljust(4, b"\xff"), "little")


# The engine that runs it

GSP = 0x110000


def engine() -> tuple[Falcon, made.FakeFunction]:
    """An engine that clears its memories when it is reset, and halts at once when started."""
    card, function = made.make_card(GA10X)
    function.values.update({GSP + 0xF4: 0x80000400, GSP + 0x118: 2, GSP + 0x100: 0x10})
    function.writes.update({GSP + 0x118: lambda value: None, GSP + 0x100: lambda value: None})
    return Falcon(card, card.registers.gsp, "FUSE_GSP_UCODE_VERSION"), function


@pytest.mark.parametrize(("fuse", "index"), [(0b11, None), (0b1, 0), (0b111, 1), (0b1111, None)])
def test_the_signature_is_that_of_the_fuse(fuse: int, index: int | None) -> None:
    """Versions 1 and 3 are there; another fuse version is refused by number."""
    falcon, function = engine()
    code = vbios.find_fwsec(vbios.read_vbios(words(rom()))).code
    function.values[0x8241C0 + 4 * 8] = fuse
    if index is None:
        with pytest.raises(Unsupported, match=f"fuse version {fuse.bit_length()}"):
            falcon.run(code, "FWSEC", None)
        return
    falcon.run(code, "FWSEC", None)
    loaded = function.memory[-1].window.load(0, len(code.image))
    assert loaded[code.patch :][:384] == code.signatures[index]
    assert loaded[: code.patch] == code.image[: code.patch]


def test_code_is_loaded_and_run_in_the_engines_order() -> None:
    """IMEM secure, DMEM, the boot ROM's words, BOOTVEC, then start."""
    falcon, function = engine()
    data, _ = made.falcon_file(random.Random(6), 1)
    code = vbios_code(data)
    falcon.reset()
    function.log.clear()
    function.values[0x11_0040] = 0
    assert falcon.run(code, "booter_load", (0x11, 0x22)) == 0x11
    names = [(hex(at - GSP), value) for at, value in function.log if value is not None]
    commands = [value for at, value in names if at == "0x118"]
    assert commands == [0x600 | 1 << 4 | 1 << 2] * 3 + [0x600] * 3
    order = [at for at, _ in names]
    assert order.index("0x104") < order.index("0x100") and order[-1] == "0x100"
    for name, value in (("0x1210", 0x10), ("0x119c", 1), ("0x1198", 3), ("0x1180", 1)):
        assert (name, value) in names and order.index(name) < order.index("0x100")
    base = next(value for at, value in names if at == "0x110")
    assert base == function.memory[-1].pieces[0].address >> 8 & 0xFFFFFFFF


def vbios_code(data: bytes) -> FalconCode:
    return parse_falcon(data, "booter_load")


def test_a_reset_waits_until_memories_are_cleared() -> None:
    """Bounded; and an engine that is locked is not cleared."""
    falcon, function = engine()
    for value in (0x80001400, 0xBADF4120):
        function.values[GSP + 0xF4] = value
        with pytest.raises(BootTimeout, match=r"GSP\.FALCON_HWCFG2 is .*MEM_SCRUBBING 0"):
            falcon.reset()


def test_a_core_that_does_not_halt_and_dma_that_is_full_are_timeouts() -> None:
    """Each named."""
    falcon, function = engine()
    code = vbios_code(made.falcon_file(random.Random(6), 1)[0])
    function.values[GSP + 0x100] = 0
    with pytest.raises(BootTimeout, match=r"GSP\.FALCON_CPUCTL is .*HALTED"):
        falcon.run(code, "booter_load", None)
    function.values[GSP + 0x118] = 1
    with pytest.raises(BootTimeout, match=r"GSP\.FALCON_DMATRFCMD is 0x1, wanted FULL 0"):
        falcon.run(code, "booter_load", None)

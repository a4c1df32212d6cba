"""Reading cubins written by `unit.nv.cubins`, and damaged ones."""

from __future__ import annotations

import random
import struct

import pytest

from gpu.core.errors import FormatError, GpuError, InvalidIndex, InvalidValue, Unsupported
from gpu.drivers.nv.code.cubin import Cubin, Kernel
from unit.nv.cubins import ALLOC, EXEC, FUNC, NOBITS, WRITE, CubinWriter, half, simple, sized

ADDRESS = 0x1_2345_6000
ALL = pytest.mark.parametrize("sm", [80, 86, 89, 90, 100, 120])


def one(writer: CubinWriter) -> Kernel:
    (kernel,) = Cubin(writer.data()).kernels.values()
    return kernel


@ALL
@pytest.mark.parametrize("old", [False, True])
def test_kernels_have_what_is_theirs(sm: int, old: bool) -> None:
    cubin = Cubin(simple(sm, old=old).data())
    assert cubin.sm == sm
    assert list(cubin.kernels) == ["first", "second"]
    first, second = cubin.kernel("first"), cubin.kernel("second")
    assert (first.registers, second.registers) == (16, 40)
    assert (first.size, second.size) == (256, 512)
    assert [tuple(p) for p in first.parameters] == [(0, 0, 8), (1, 8, 4)]
    assert (first.parameter_size, second.parameter_size) == (12, 0)
    assert first.parameter_base == {80: 0x160, 86: 0x160, 89: 0x160, 90: 0x210}.get(sm, 0x380)
    assert (first.shared, second.shared) == (0x440, 0x400)
    assert [(b.number, b.size) for b in first.banks] == [(2, 24), (3, 64), (4, 16)]
    assert [(b.number, b.size) for b in second.banks] == [(3, 64), (4, 16)]
    assert (first.stack, first.local_size()) == (24, 608)
    assert second.local_size() == 0
    with pytest.raises(InvalidIndex, match="no kernel 'third'; there are first, second"):
        cubin.kernel("third")


@ALL
def test_the_image(sm: int) -> None:
    cubin = Cubin(simple(sm).data())
    first, second = cubin.kernel("first"), cubin.kernel("second")
    image = cubin.link(ADDRESS)
    assert first.offset % 256 == second.offset % 256 == 0
    assert len(image) == cubin.image.data_size == second.offset + second.size
    assert image[second.offset : second.offset + 512] == bytes(range(256)) * 2
    places = {bank.number: bank.offset for bank in first.banks}
    assert image[places[2] : places[2] + 24] == b"\x22" * 24
    assert image[places[3] : places[3] + 64] == bytes(range(64))
    zeros = cubin.image.offsets[4]
    assert zeros >= cubin.image.data_size + 4096  # instructions are fetched ahead
    assert cubin.image.size == zeros + 4096
    assert cubin.variables["counter"] == zeros + 8
    assert cubin.variables["table"] == places[3]


def test_relocations() -> None:
    cubin = Cubin(simple().data())
    image = cubin.link(ADDRESS)
    first = cubin.kernel("first")
    bank4 = next(bank for bank in first.banks if bank.number == 4)
    assert struct.unpack_from("<2Q", image, bank4.offset) == (
        ADDRESS + cubin.variables["counter"] + 16,
        0,
    )
    numbers = ADDRESS + cubin.variables["numbers"] + 4
    assert struct.unpack_from("<3I", image, first.offset + 0x10) == (0, numbers & 0xFFFF_FFFF, 0)
    assert struct.unpack_from("<3I", image, first.offset + 0x20) == (0, numbers >> 32, 0)


def test_addends_in_place() -> None:
    writer = CubinWriter(86)
    bank = writer.section(".nv.constant4", struct.pack("<QQ", 0, 24), align=8)
    text = writer.kernel("k", code=bytes(0x14) + b"\x01" + bytes(235))
    symbol = writer.symbol("here", bank, 8)
    writer.relocate_implicit(bank, 8, 2, symbol)
    assert struct.unpack_from("<Q", Cubin(writer.data()).link(ADDRESS), 8) == (ADDRESS + 32,)
    writer.relocate_implicit(text, 0x10, 0x38, symbol)
    with pytest.raises(Unsupported, match="addend 0x1 in an instruction"):
        Cubin(writer.data()).link(ADDRESS)


@pytest.mark.parametrize(
    ("kind", "low", "high"), [(0x3A, 34, None), (0x4B, 34, 10), (0x72, 34, 10)]
)
def test_calls(kind: int, low: int, high: int | None) -> None:
    """An instruction's bits from 34 on hold the target in words, or all but 8 bits of it."""
    writer = CubinWriter()
    call = 0x00EA0F0003C0000000000000000079 << 8 | 0x43
    text = writer.kernel("k", code=bytes(0x20) + call.to_bytes(16, "little") + bytes(208))
    function = writer.section(".text.f", bytes(128), flags=ALLOC | EXEC, align=128)
    writer.relocate(text, 0x20, kind, writer.symbol("f", function, 0x44))
    cubin = Cubin(writer.data())
    image = cubin.link(ADDRESS)
    at = cubin.kernel("k").offset + 0x20
    target = ADDRESS + cubin.image.offsets[function] + 0x44
    word = int.from_bytes(image[at : at + 16], "little")
    field = word >> low & (1 << 47) - 1
    if high is None:
        assert field << 2 == target
    else:
        assert field << high | (word >> 16 & 0xFF) << 2 == target
    assert word & 0xFFFF == 0x7943 and word >> 82 == call >> 82


@pytest.mark.parametrize(
    ("offset", "kind", "error", "message"),
    [
        (0x10, 0x4C, Unsupported, r"relocation 0x4c at \.text\.k\+0x10 to 'f'"),
        (248, 0x4B, FormatError, r"at \.text\.k\+0xf8 to 'f' is outside of it, of 0x100 bytes"),
        (249, 2, FormatError, r"at \.text\.k\+0xf9 to 'f' is outside of it, of 0x100 bytes"),
        (1 << 63, 0x38, FormatError, "is outside of it"),
    ],
)
def test_relocations_that_are_refused(
    offset: int, kind: int, error: type[GpuError], message: str
) -> None:
    writer = CubinWriter()
    text = writer.kernel("k")
    writer.relocate(text, offset, kind, writer.symbol("f", text))
    with pytest.raises(error, match=message):
        Cubin(writer.data()).link(ADDRESS)


def test_symbols_from_outside() -> None:
    writer = CubinWriter()
    bank = writer.section(".nv.constant4", bytes(16), align=8)
    writer.kernel("k")
    writer.relocate(bank, 0, 2, writer.symbol("vprintf", 0, type=FUNC))
    writer.relocate(bank, 8, 2, writer.symbol("perhaps", 0, binding=2), 5)
    cubin = Cubin(writer.data())
    with pytest.raises(Unsupported, match=r"\.nv\.constant4\+0x0 to 'vprintf': nothing here"):
        cubin.link(ADDRESS)
    assert struct.unpack_from("<2Q", cubin.link(ADDRESS, {"vprintf": 0x77})) == (0x77, 5)
    with pytest.raises(InvalidValue, match="0x1234"):
        cubin.link(0x1234)


def test_symbols_in_what_is_not_loaded() -> None:
    writer = CubinWriter()
    text = writer.kernel("k", shared=0x500)
    shared = next(i for i, s in enumerate(writer.sections) if s.name == ".nv.shared.k")
    writer.relocate(text, 0x10, 0x38, writer.symbol("tile", shared))
    with pytest.raises(Unsupported, match="no section that is loaded"):
        Cubin(writer.data()).link(ADDRESS)


def test_barriers() -> None:
    writer = CubinWriter()
    writer.kernel("k", records=half(0x4C, 0x10, form=2))
    assert one(writer).barriers == 16
    older = CubinWriter(80, old=True)
    older.kernel("k", flags=3 << 20)  # CUDA 12
    assert one(older).barriers == 3


def test_what_a_kernel_was_compiled_for() -> None:
    writer = CubinWriter()
    records = sized(0x05, 128, 2, 1) + sized(0x3D, 2, 2, 1) + sized(0x10, 64, 4, 1)
    writer.kernel("k", records=records)
    kernel = one(writer)
    assert (kernel.max_threads, kernel.required_block, kernel.cluster) == (
        256,
        (64, 4, 1),
        (2, 2, 1),
    )


def test_a_stack_that_nobody_knows() -> None:
    writer = CubinWriter()
    writer.kernel("k", stack=0xFFFF_FFFF)
    kernel = one(writer)
    with pytest.raises(InvalidValue, match="k recurses"):
        kernel.local_size()
    assert kernel.local_size(1000) == 1600


@pytest.mark.parametrize(("sm", "own", "shared"), [(86, 0x30, 0x430), (90, 0x430, 0x430)])
def test_reserved_shared_memory(sm: int, own: int, shared: int) -> None:
    writer = CubinWriter(sm)
    writer.kernel("k", shared=own)
    assert one(writer).shared == shared


def test_what_is_ignored() -> None:
    writer = CubinWriter(120)
    writer.kernel("k")
    writer.section(".nv.merc.nv.global.init", b"1" * 8, type=0x7000_0008)
    writer.section(".nv.shared.reserved.0", type=NOBITS, flags=ALLOC | WRITE, size=64)
    writer.section(".debug_frame", b"1" * 8, flags=0)
    cubin = Cubin(writer.data())
    assert set(cubin.kernels) == {"k"}
    assert len(cubin.image.offsets) == 1


def refuse(writer: CubinWriter, error: type[GpuError], message: str) -> None:
    with pytest.raises(error, match=message):
        Cubin(writer.data())


def test_sections_that_are_refused() -> None:
    writer = simple()
    writer.section(".nv.uft", b"12")
    refuse(writer, Unsupported, r"section \d+, '\.nv\.uft', is to be loaded")
    writer = simple()
    writer.section(".nv.constant3", b"12")
    refuse(writer, FormatError, r"two sections are called \.nv\.constant3")
    writer = CubinWriter()
    writer.kernel("k")
    writer.section(".nv.constant9", b"12")
    refuse(writer, FormatError, r"\.nv\.constant9 of 0x2 bytes")
    writer = CubinWriter()
    writer.kernel("k")
    writer.section(".nv.shared.k", type=NOBITS, flags=ALLOC | WRITE, size=64, info=2)
    refuse(writer, FormatError, r"\.nv\.shared\.k belongs to section 2, not to \.text\.k")
    for size, align in ((1 << 62, 4), (16, 1 << 20)):
        writer = CubinWriter()
        writer.section(".nv.global", type=NOBITS, flags=ALLOC | WRITE, size=size, align=align)
        refuse(writer, FormatError, r"\.nv\.global")
    writer = CubinWriter()
    writer.section(".nv.global", b"12", flags=ALLOC | WRITE)
    refuse(writer, FormatError, r"\.nv\.global has bytes")
    writer = CubinWriter()
    writer.section(".text.k", type=NOBITS, flags=ALLOC | EXEC, size=256)
    refuse(writer, FormatError, "it has bytes")


def test_attributes_that_are_refused() -> None:
    writer = CubinWriter()
    writer.kernel("k", records=half(0x17, 4, form=4))
    refuse(writer, FormatError, r"\.nv\.info\.k: the record at 0x0 has form 4 and 0x4 bytes")
    writer = CubinWriter()
    writer.kernel("k", records=half(0x17, 4, form=9))
    refuse(writer, FormatError, "form 9")
    writer = CubinWriter()
    writer.kernel("k", records=sized(0x0A, 2, 0x210 | 4 << 16))
    refuse(writer, FormatError, "bytes of bank 0: 0x4 bytes")
    writer = CubinWriter()
    writer.kernel("k", records=sized(0x0A, 2, 0x220))
    refuse(writer, Unsupported, "begin at 0x220 of bank 0; for sm_90 only 0x210 is known")
    writer = CubinWriter()
    writer.kernel("k", registers=300)
    refuse(writer, FormatError, "300 registers")
    writer = CubinWriter()
    writer.kernel("k")
    writer.info = b""
    refuse(writer, FormatError, "no REGCOUNT and no MIN_STACK_SIZE of k")


@pytest.mark.parametrize(
    ("at", "new", "error", "message"),
    [
        (0, b"\x50\xed\x55\xba", FormatError, "fat binary"),
        (7, b"\x00", Unsupported, "ABI 0x0"),
        (16, b"\x01", FormatError, "type 1"),
        (18, b"\x3e", FormatError, "machine 62"),
        (49, b"\x4b", Unsupported, "sm_75"),
    ],
)
def test_headers_that_are_refused(at: int, new: bytes, error: type[GpuError], message: str) -> None:
    data = bytearray(simple().data())
    data[at : at + len(new)] = new
    with pytest.raises(error, match=message):
        Cubin(bytes(data))


def read(data: bytes) -> None:
    """Reads it to the end, or raises what is raised on purpose."""
    try:
        cubin = Cubin(data)
        if cubin.image.data_size < 1 << 24:
            cubin.link(ADDRESS)
        _ = cubin.variables
        for kernel in cubin.kernels.values():
            kernel.local_size(stack=64)
    except GpuError:
        pass


@pytest.mark.parametrize("sm", [86, 90, 120])
def test_truncated_files(sm: int) -> None:
    data = simple(sm).data()
    for size in range(0, len(data), 7):
        read(data[:size])


@pytest.mark.parametrize("seed", range(8))
def test_damaged_files(seed: int) -> None:
    """Bytes and words replaced at random, also by those that are likely to be wrong by little."""
    draw = random.Random(seed)
    whole = simple(draw.choice([80, 90, 120]), old=bool(seed & 1)).data()
    table = struct.unpack_from("<Q", whole, 40)[0]
    for _ in range(1000):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            start = draw.choice([0, table])  # headers are where damage matters most
            at = draw.randrange(start, len(data) - 8)
            width = draw.choice([1, 2, 4, 8])
            value = draw.choice([0, 1, len(data), 1 << 31, (1 << 64) - 1, draw.getrandbits(64)])
            data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "little")
        read(bytes(data))

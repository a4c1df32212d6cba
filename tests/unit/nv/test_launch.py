"""Launches and copies: set-up, methods, descriptors and banks as encoders put them together."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from gpu.autogen.nv import classes as ids
from gpu.core.errors import InvalidType, InvalidValue, Unsupported
from gpu.drivers.nv.code.cubin import Cubin
from gpu.drivers.nv.encode import ce as copyengine
from gpu.drivers.nv.encode.compute import ComputeEncoder, CopyEncoder
from gpu.drivers.nv.encode.launch import (
    LoadedKernel,
    Target,
    kernel_bank0,
    kernel_qmd,
    set_local_memory,
    set_up_compute,
    size_local_memory,
)
from gpu.drivers.nv.encode.methods.compute import PcasAction
from gpu.drivers.nv.encode.pushbuf import Pushbuffer, gp_entry
from gpu.drivers.nv.encode.qmd import ConstantBuffer, DecodedQmd, decode_qmd
from gpu.drivers.nv.fault.pushbuf_text import bound_classes, decode_gp_entries, decode_pushbuffer
from gpu.drivers.nv.rm.chip import GraphicsInfo
from gpu.drivers.nv.rm.classes import GENERATIONS
from gpu.hcq import commands as hcq
from gpu.hcq.args import ArgumentLayout, KernelArguments
from gpu.hcq.commands import SymbolicSignal
from gpu.hcq.encoder import Encoded
from gpu.hcq.link import link
from gpu.hcq.nulldevice import open_null
from gpu.hcq.program import HCQProgram
from gpu.hcq.symbol import IMAGE, Symbol, Value, segment_address
from unit.nv.cubins import CubinWriter, sized

HOPPER = GENERATIONS[ids.HOPPER_COMPUTE_A]
H200 = GraphicsInfo(0x900, 64, 8, 9, 2, (9,) * 7 + (3,))
TARGET = Target.of(HOPPER, H200)
IMAGE_AT = 0x50_0000_0000
LAYOUT = ArgumentLayout(1, "I")
SIGNAL = SymbolicSignal(Symbol("signal"))
SIGNAL_AT = 0xF_0000_1230


def words(push: Pushbuffer | bytes) -> list[int]:
    data = bytes(push.data) if isinstance(push, Pushbuffer) else push
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def loaded(**changes: int) -> LoadedKernel:
    writer = CubinWriter()
    writer.section(".nv.constant3", bytes(64))
    writer.kernel("k", parameters=[(0, 8), (8, 4)], shared=0x500, registers=24)
    return LoadedKernel(Cubin(writer.data()).kernel("k"), IMAGE_AT, **changes)


@pytest.fixture
def program() -> HCQProgram:
    device = open_null({"compute": ComputeEncoder(TARGET), "copy": CopyEncoder(TARGET)})
    return HCQProgram(device, "k", None, LAYOUT, info=loaded())


def arguments(pointer: Value = 0x66_0000_0000, number: Value = 7) -> KernelArguments:
    return KernelArguments(LAYOUT, (pointer,), (number,))


def test_the_target_of_a_device() -> None:
    assert (TARGET.sm, TARGET.sass_version, TARGET.signal_bits) == (90, 0x90, 64)
    assert TARGET.action is PcasAction.INVALIDATE_PREFETCH_COPY_SCHEDULE
    ga100 = Target.of(GENERATIONS[ids.AMPERE_COMPUTE_A], replace(H200, sm_version=0x800))
    assert (ga100.sm, ga100.sass_version, ga100.signal_bits) == (80, 0x80, 32)
    ada = Target.of(GENERATIONS[ids.ADA_COMPUTE_A], replace(H200, sm_version=0x809))
    assert (ada.sm, ada.sass_version) == (89, 0x89)
    assert ada.action is PcasAction.INVALIDATE_COPY_SCHEDULE


def test_setting_up_compute() -> None:
    # fmt: off
    assert words(set_up_compute(TARGET)) == [
        0x2001_2000, 0xCBC0,
        0x2001_20A6, 0,             # SKED caches
        0x2001_2509, 0,             # samplers
        0x2001_2091, 0,             # texture headers
        0x2002_20A8, 0x7294, 0,     # shared window
        0x2002_21EC, 0x7293, 0,     # local window
        0x2001_25A6, 0x1011,        # shader caches
    ]
    # fmt: on
    blackwell = Target.of(GENERATIONS[ids.BLACKWELL_COMPUTE_B], replace(H200, sm_version=0xC00))
    assert 0x2001_20A6 not in words(set_up_compute(blackwell))


def test_local_memory() -> None:
    local = size_local_memory(0x240, H200)
    assert (local.per_thread, local.per_tpc, local.units) == (0x240, 0x24_0000, 72)
    assert local.total == 0xA20_0000
    small = size_local_memory(1, H200)
    assert (small.per_thread, small.per_tpc) == (32, 0x400 * 64 * 2)
    # fmt: off
    assert words(set_local_memory(TARGET, local, 0x12_3454_0000)) == [
        0x2001_001E, 1,
        0x2002_21E4, 0x12, 0x3454_0000,
        0x2003_20B9, 0, 0x24_0000, 72,
    ]
    # fmt: on
    with pytest.raises(InvalidValue, match="0x10000: give a multiple of 131072"):
        set_local_memory(TARGET, local, 0x10000)


def test_shared_memory_adds_up() -> None:
    assert loaded().shared == 0x500
    assert loaded(dynamic_shared=1).shared == 0x580
    with pytest.raises(InvalidValue, match="sm_90 has at most"):
        bank = ConstantBuffer(0, 0, 16)
        kernel_qmd(TARGET, loaded(dynamic_shared=227 << 10), bank, (1, 1, 1), (1, 1, 1))


def test_what_the_kernel_was_compiled_for_is_checked() -> None:
    writer = CubinWriter()
    writer.kernel("fixed", records=sized(0x10, 64, 1, 1))
    writer.kernel("bounded", records=sized(0x05, 128, 1, 1))
    cubin = Cubin(writer.data())
    bank = ConstantBuffer(0, 0, 16)
    for name, block, message in (
        ("fixed", (32, 1, 1), r"blocks of \(32, 1, 1\): it was compiled for \(64, 1, 1\)"),
        ("bounded", (129, 1, 1), "129 threads a block: it was compiled for at most 128"),
    ):
        kernel = LoadedKernel(cubin.kernel(name), IMAGE_AT)
        with pytest.raises(InvalidValue, match=message):
            kernel_qmd(TARGET, kernel, bank, (1, 1, 1), block)
    for size in (11, 17):
        with pytest.raises(InvalidValue, match=f"{size} bytes of parameters for k, which takes 12"):
            kernel_bank0(TARGET, loaded(), bytes(size), (1, 1, 1), (1, 1, 1))


def resolved(encoded: Encoded, **extra: int) -> tuple[tuple[bytes, ...], dict[int, int]]:
    """All segments with symbols put in, and where each lies."""
    places = {index: 0x40_0000_0000 + 0x10000 * index for index in range(len(encoded.segments))}
    values = {segment_address(index): place for index, place in places.items()}
    named = {patch.symbol.name: patch.symbol for patch in encoded.patches}
    values |= {named[name]: value for name, value in extra.items()}
    return encoded.resolve(values), places


def field(qmd: DecodedQmd, name: str, index: int | None = None) -> int:
    return qmd.fields.get(qmd.layout.span(name, index).name, 0)


def test_a_launch_is_a_pushbuffer_a_bank_and_a_descriptor(program: HCQProgram) -> None:
    command = hcq.Launch(program, arguments(), (5, 6, 7), (64, 2, 1))
    encoded = ComputeEncoder(TARGET).encode([command])
    assert [s.kind for s in encoded.segments] == ["pushbuf", "kernarg", "qmd"]
    assert [s.placement for s in encoded.segments] == ["memory"] * 3
    assert [s.align for s in encoded.segments] == [4, 256, 256]
    (push, bank0, qmd), places = resolved(encoded)
    assert words(push) == [
        *(0x2001_25A6, 0x1011),
        *(0x2001_20AD, places[2] >> 8, 0x2001_20B0, 10),
    ]
    assert encoded.segments[1].arguments == 0x210
    assert struct.unpack_from("<QI", bank0, 0x210) == (0x66_0000_0000, 7)
    assert struct.unpack_from("<6I", bank0) == (64, 2, 1, 5, 6, 7)
    decoded = decode_qmd(qmd)
    assert field(decoded, "PROGRAM_ADDRESS_UPPER") == 0x50
    assert field(decoded, "CONSTANT_BUFFER_ADDR_LOWER", 0) == places[1] >> 6 & 0xFFFF_FFFF
    assert field(decoded, "CONSTANT_BUFFER_ADDR_UPPER", 0) == places[1] >> 38
    assert field(decoded, "CONSTANT_BUFFER_SIZE", 0) == 0x220 >> 4
    assert field(decoded, "CONSTANT_BUFFER_ADDR_LOWER", 3) == IMAGE_AT >> 6 & 0xFFFF_FFFF
    assert field(decoded, "SHARED_MEMORY_SIZE") == 0x500
    assert field(decoded, "REGISTER_COUNT") == 24


def test_symbols_of_a_launch(program: HCQProgram) -> None:
    width, pointer, number = Symbol("width"), Symbol("pointer"), Symbol("number")
    late = hcq.Launch(program, arguments(pointer, number), (width, 6, 7), (64, 2, 1))
    fixed = hcq.Launch(program, arguments(), (5, 6, 7), (64, 2, 1))
    encoder = ComputeEncoder(TARGET)
    segments, _ = resolved(encoder.encode([late]), width=5, pointer=0x66_0000_0000, number=7)
    assert segments == resolved(encoder.encode([fixed]))[0]


def names(data: bytes) -> list[str]:
    """The methods of a pushbuffer, without headers, with what they write."""
    lines = decode_pushbuffer(data, bound_classes(HOPPER.compute, HOPPER.dma))
    return [line.text.strip() for line in lines if line.text.startswith("  ")]


@pytest.mark.parametrize(("chaining", "action"), [("copied", 3), ("scheduled", 1)])
def test_launches_are_chained(program: HCQProgram, chaining: str, action: int) -> None:
    """Each descriptor names the next, up to one before another command; the first is sent."""
    launch, signal = hcq.Launch(program, arguments(), (1, 1, 1), (1, 1, 1)), hcq.Signal(SIGNAL, 3)
    target = Target.of(HOPPER, H200, chaining)
    encoded = ComputeEncoder(target).encode([launch, launch, launch, signal, launch, launch])
    segments, places = resolved(encoded, signal=SIGNAL_AT)
    sent = [name for name in names(segments[0]) if name.startswith(("SEND_PCAS_A", "WAIT_FOR"))]
    assert sent == [
        f"SEND_PCAS_A(QMD_ADDRESS_SHIFTED8={places[2] >> 8:#x})",
        "WAIT_FOR_IDLE(V=0)",
        f"SEND_PCAS_A(QMD_ADDRESS_SHIFTED8={places[8] >> 8:#x})",
    ]
    for number, follower in ((2, 4), (4, 6), (6, None), (8, 10), (10, None)):
        qmd = decode_qmd(segments[number])
        there = follower is not None
        assert field(qmd, "DEPENDENT_QMD_ENABLE", 0) == there
        assert field(qmd, "DEPENDENT_QMD_ACTION", 0) == there * action
        assert field(qmd, "DEPENDENT_QMD_PREFETCH", 0) == (there and action == 1)
        assert field(qmd, "DEPENDENT_QMD_POINTER", 0) == (places[follower] >> 8 if follower else 0)
        assert field(qmd, "CWD_MEMBAR_TYPE") and field(qmd, "INVALIDATE_SHADER_DATA_CACHE")


def test_without_chaining_launches_wait_in_the_front_end(program: HCQProgram) -> None:
    launch = hcq.Launch(program, arguments(), (1, 1, 1), (1, 1, 1))
    encoder = ComputeEncoder(Target.of(HOPPER, H200, "none"))
    encoded = encoder.encode([launch, launch, hcq.Signal(SIGNAL, 3)])
    (push, *_), _ = resolved(encoded, signal=SIGNAL_AT)
    found = [name.partition("(")[0] for name in names(push)]
    assert found[:6] == [
        "INVALIDATE_SHADER_CACHES_NO_WFI",
        *("SEND_PCAS_A", "SEND_SIGNALING_PCAS2_B", "WAIT_FOR_IDLE"),
        *("SEND_PCAS_A", "SEND_SIGNALING_PCAS2_B"),
    ]
    assert "RELEASE_WFI=1" in names(push)[-1]


def test_other_commands_of_both_queues() -> None:
    shared: list[hcq.Command] = [
        hcq.Wait(SIGNAL, 5),
        hcq.WriteMem(0x1000, struct.pack("<2I", 8, 9)),
        hcq.PollMem(0x2000, 4, op=">="),
        hcq.Barrier(),
        hcq.Timestamp(SIGNAL),
    ]
    for encoder in (ComputeEncoder(TARGET), CopyEncoder(TARGET)):
        (push,), _ = resolved(encoder.encode(shared), signal=SIGNAL_AT)
        executes = [name for name in names(push) if name.startswith("SEM_EXECUTE")]
        assert "OPERATION=ACQ_STRICT_GEQ" in executes[0]
        assert "PAYLOAD_SIZE=1" in executes[0]
        assert [("RELEASE_WFI=1" in e, "OPERATION=RELEASE" in e) for e in executes[1:3]] == [
            (True, True),
            (False, True),
        ]
        assert "PAYLOAD_SIZE=0" in executes[3]
    assert names(push)[-1].startswith("LAUNCH_DMA(DATA_TRANSFER_TYPE=NONE, FLUSH_ENABLE=1")
    assert "SEMAPHORE_TYPE=FOUR_WORDS" in names(push)[-1]


def test_what_queues_refuse(program: HCQProgram) -> None:
    launch = hcq.Launch(program, arguments(), (1, 1, 1), (1, 1, 1))
    compute, copy = ComputeEncoder(TARGET), CopyEncoder(TARGET)
    for encoder, command, message in (
        (compute, hcq.Copy(0, 16, 4), "give them to a copy queue"),
        (copy, launch, "k on a copy queue"),
        (compute, hcq.PollMem(0, 1, op="<"), "polling with <"),
        (compute, hcq.PollMem(0, 1, mask=1), "mask 0x1"),
    ):
        with pytest.raises(Unsupported, match=message):
            encoder.encode([command])
    with pytest.raises(InvalidValue, match="writing 3 bytes"):
        compute.encode([hcq.WriteMem(0, b"123")])
    other_device = open_null({"compute": compute})
    with pytest.raises(InvalidType, match="k is a program of NULL: launch it there"):
        other_device.submit(other_device.channel("compute"), [launch])
    other = KernelArguments(ArgumentLayout(0, "II"), (), (1, 2))
    with pytest.raises(InvalidValue, match=r"parameters are at \[\(0, 8\), \(8, 4\)\]"):
        compute.encode([replace(launch, args=other)])


def test_the_ring_gets_an_entry(program: HCQProgram) -> None:
    encoder = ComputeEncoder(TARGET)
    command = hcq.Launch(program, arguments(), (1, 1, 1), (1, 1, 1))
    linked = link(encoder.encode([command, hcq.Signal(SIGNAL, 3)]), encoder)
    placed = linked.put_in({IMAGE: 0x12_3456_7800, SIGNAL.address: SIGNAL_AT})
    assert not placed.symbols()
    assert placed.ring == struct.pack("<Q", gp_entry(0x12_3456_7800, 12))
    assert placed.image_align == 256
    assert all(line.text == "control entry NOP" for line in decode_gp_entries(encoder.filler(24)))
    for size in (0, 6):
        with pytest.raises(InvalidValue):
            encoder.call(IMAGE, 0, size)


def test_submitting_to_a_device_that_does_nothing(program: HCQProgram) -> None:
    buffer = program.device.allocator.alloc(4096)
    for number in range(300):
        program(buffer, vals=[number], grid=(number + 1, 1, 1))
    program.device.synchronize()


def copied(items: list[object]) -> list[int]:
    push = Pushbuffer(copy=HOPPER.dma)
    push.write(*items)  # type: ignore[arg-type]
    return words(push)


def test_copying() -> None:
    # fmt: off
    assert copied([*copyengine.copy_linear(0x12_0000_0004, 0x34_0000_0008, 0x555)]) == [
        0x2004_8100, 0x34, 8, 0x12, 4,
        0x2002_8106, 0x555, 1,
        0x2001_80C0, 0x182,
    ]
    # fmt: on
    size = (1 << 31) + 5
    found = copied([*copyengine.copy_linear(0x1_0000_0000, 0x9_0000_0000, size)])
    assert found[6:8] == [1 << 31, 1]
    assert found[11:15] == [9, 1 << 31, 1, 1 << 31]
    assert found[16:18] == [5, 1]
    for dst, src, count in ((0, 0, 0), (-1, 0, 1), (0, (1 << 49) - 3, 4)):
        with pytest.raises(InvalidValue):
            copyengine.copy_linear(dst, src, count)


def test_copies_of_symbols() -> None:
    dst, src, size = Symbol("dst"), Symbol("src"), Symbol("size")
    encoder = CopyEncoder(TARGET)
    late = encoder.encode([hcq.Copy(dst, src, size)])
    fixed = encoder.encode([hcq.Copy(0x12_0000_0004, 0x34_0000_0008, 0x555)])
    assert (
        resolved(late, dst=0x12_0000_0004, src=0x34_0000_0008, size=0x555)[0]
        == (resolved(fixed)[0])
    )


@pytest.mark.parametrize(("width", "pattern"), [(1, 0xAB), (2, 0xABCD), (4, 0xDEAD_BEEF)])
def test_filling(width: int, pattern: int) -> None:
    # fmt: off
    assert copied([*copyengine.fill(0x12_0000_0100, pattern, width, 64)]) == [
        0x2001_81C0, pattern,
        0x2001_81C2, 4 | 6 << 4 | 6 << 8 | 6 << 12 | (width - 1) << 16,
        0x2002_8102, 0x12, 0x100,
        0x2002_8106, 64 // width, 1,
        0x2001_80C0, 0x582,
    ]
    # fmt: on


def test_fills_that_are_refused() -> None:
    for dst, pattern, width, size in (
        (0, 1, 3, 6),
        (0, 0x100, 1, 4),
        (0, 1, 4, 6),
        (2, 1, 4, 8),
        (0, 1, 4, 0),
    ):
        with pytest.raises(InvalidValue):
            copyengine.fill(dst, pattern, width, size)


def test_semaphores_of_copy_engines() -> None:
    # fmt: off
    assert copied([*copyengine.semaphore(0x12_0000_0010, 0x3_0000_0004, timestamp=True)]) == [
        0x2004_8090, 0x12, 0x10, 4, 3, 0x2001_80C0, 0x0800_0014,
    ]
    assert copied([*copyengine.semaphore(0x12_0000_0014, 4, bits=32)]) == [
        0x2003_8090, 0x12, 0x14, 4, 0x2001_80C0, 0x0C,
    ]
    # fmt: on
    ga100 = Pushbuffer(copy=ids.AMPERE_DMA_COPY_A)
    with pytest.raises(Unsupported, match="SET_SEMAPHORE_PAYLOAD_UPPER"):
        ga100.write(*copyengine.semaphore(0x10, 4))
    for address, payload, bits in ((8, 1 << 32, 32), (4, 1, 64), (8, 1, 16)):
        with pytest.raises(InvalidValue):
            copyengine.semaphore(address, payload, bits=bits)

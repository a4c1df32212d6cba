"""Commands as packets: launches with their registers and arguments, and what replays patch."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpu.core.errors import InvalidType, InvalidValue, Unsupported
from gpu.drivers.am.code.metadata import KernelArgument
from gpu.drivers.am.code.object import read_code_object
from gpu.drivers.am.decode.aql import decode_aql
from gpu.drivers.am.decode.pm4 import decode_pm4
from gpu.drivers.am.encode.aql_encoder import AqlEncoder
from gpu.drivers.am.encode.dispatch import AmProgram, LoadedKernel, dispatch_state
from gpu.drivers.am.encode.kernarg import build_kernarg
from gpu.drivers.am.encode.pm4_encoder import Pm4Encoder
from gpu.drivers.am.encode.sdma import SdmaEncoder
from gpu.drivers.am.encode.tmpring import (
    Scratch,
    ScratchSize,
    resource_descriptor,
    scratch_size,
    tmpring_size,
)
from gpu.drivers.am.target import Target, Version, Wake
from gpu.drivers.listing import Line
from gpu.hcq.args import ArgumentLayout
from gpu.hcq.commands import (
    Barrier,
    Command,
    Copy,
    Launch,
    PollMem,
    Signal,
    Timestamp,
    Wait,
    WriteMem,
)
from gpu.hcq.device import HCQDevice
from gpu.hcq.encoder import Encoded, Encoder
from gpu.hcq.graph import GraphCopy, GraphLaunch, HCQGraph
from gpu.hcq.nulldevice import NullQueue, open_null
from gpu.hcq.signal import OWN_TIMELINE
from gpu.hcq.symbol import TIMELINE_ADDRESS, TIMELINE_VALUE, GpuVA, Symbol, segment_address
from unit.am.code_objects import ADD, CURIOUS, HUNGRY, code_object

TARGET = Target(
    (11, 0, 0), (6, 0, 0), shader_engines=6, compute_units=96, scratch_waves=32,
)  # fmt: skip
BODIES = {"add": ADD, "hungry": HUNGRY, "curious": CURIOUS}
ONE = (1, 1, 1)
IMAGE = 0x7F00_0000_0000
KERNARGS = 0x7E00_0000_0000
WAKE = Wake(GpuVA(0x7D00_0000_0008), 5)


class At:
    def __init__(self, address: int):
        self.address = address


def null() -> HCQDevice:
    encoders: dict[str, Encoder] = {"compute": Pm4Encoder(TARGET), "copy": SdmaEncoder(TARGET)}
    return open_null(encoders, ring_size=1 << 16, capacity=1 << 24)


def program(
    device: HCQDevice,
    name: str,
    *,
    scratch: Scratch | None = None,
    cpu: str = "gfx1100",
    dynamic_lds: int = 0,
) -> AmProgram:
    found = read_code_object(code_object(BODIES[name], cpu))
    return AmProgram(device, LoadedKernel(found.kernels[name], IMAGE, scratch, dynamic_lds))


def resolve(encoded: Encoded, more: Mapping[Symbol, int] | None = None) -> tuple[bytes, ...]:
    """All segments, kernarg segments from KERNARGS on, 4 KiB apart."""
    segments = {segment_address(i): KERNARGS + 0x1000 * i for i in range(len(encoded.segments))}
    own = {TIMELINE_ADDRESS: 0x5000, TIMELINE_VALUE: 9}
    return encoded.resolve({**segments, **own, **(more or {})})


def names(data: bytes) -> list[str]:
    texts = [line.text for line in decode_pm4(data, TARGET.generation)]
    return [text.partition(",")[0] for text in texts if not text.startswith("  ")]


def registers(data: bytes, target: Target = TARGET) -> dict[str, int]:
    """What compute registers have at the end, by name."""
    found = {}
    for line in decode_pm4(data, target.generation):
        name = line.text.strip().partition(" ")[0].partition(":")[0]
        if name.startswith("COMPUTE_"):
            found[name] = line.number
    return found


def value(lines: Sequence[Line], name: str) -> int:
    return next(line.number for line in lines if line.text.strip().startswith(f"{name} "))


# PM4


def test_a_launch_sets_all_that_the_kernel_needs() -> None:
    device = null()
    prog = program(device, "add")
    args = prog.arguments(Symbol("out"), Symbol("in"), vals=(7,))
    launch = Launch(prog, args, (4, 3, 2), (64, 2, 1))
    encoded = Pm4Encoder(TARGET).encode([launch])
    out, source = args.patches[0].symbol, args.patches[1].symbol
    ring, kernarg = resolve(encoded, {out: 0x1234_5678_9000, source: 0x1111_2222_3000})
    assert kernarg == struct.pack("<QQII", 0x1234_5678_9000, 0x1111_2222_3000, 7, 0)
    entry = IMAGE + 0x1000
    loaded = prog.info
    assert isinstance(loaded, LoadedKernel)
    rsrc1 = loaded.kernel.descriptor.rsrc1.value
    rsrc2 = loaded.kernel.descriptor.rsrc2.value
    found = registers(ring)
    assert found["COMPUTE_PGM_LO"] | found["COMPUTE_PGM_HI"] << 32 == entry >> 8
    assert found["COMPUTE_PGM_RSRC1"] == rsrc1 | 1 << 20  # PRIV, as GFX11 needs
    assert found["COMPUTE_PGM_RSRC2"] == rsrc2
    assert found["COMPUTE_TMPRING_SIZE"] == 0
    assert found["COMPUTE_USER_DATA_0"] | found["COMPUTE_USER_DATA_1"] << 32 == KERNARGS + 0x1000
    assert [found[f"COMPUTE_NUM_THREAD_{axis}"] for axis in "XYZ"] == [64, 2, 1]
    assert found["COMPUTE_DISPATCH_INITIATOR"] == 0x8005
    lines = decode_pm4(ring, TARGET.generation)
    assert [value(lines, f"GROUPS_{axis}") for axis in "XYZ"] == [4, 3, 2]
    assert names(ring)[-2:] == ["DISPATCH_DIRECT", "EVENT_WRITE"]


def test_the_order_of_commands_and_of_caches() -> None:
    device = null()
    prog = program(device, "add")
    launch = Launch(prog, prog.arguments(Symbol("a"), Symbol("b"), vals=(7,)), (1, 1, 1), (1, 1, 1))
    commands: list[Command] = [
        *(Wait(At(0x1000), 3), launch, launch, Signal(At(0x1000), 4)),
        *(PollMem(0x2000, 1, 0xF, "<"), launch, Barrier(), launch, Timestamp(At(0x1000))),
        *(WriteMem(0x3000, b"abcd"), Signal(OWN_TIMELINE, TIMELINE_VALUE)),
    ]
    encoded = Pm4Encoder(TARGET, WAKE).encode(commands)
    values = {p.symbol: 0x9000 for p in encoded.patches if p.segment and p.width == 8}
    ring = resolve(encoded, values)[0]
    found = [name for name in names(ring) if name != "SET_SH_REG"]
    one = ["ACQUIRE_MEM", "DISPATCH_DIRECT", "EVENT_WRITE"]
    assert found == [
        *("WAIT_REG_MEM", *one, *one, "RELEASE_MEM", "WAIT_REG_MEM", *one),
        *(*one, "RELEASE_MEM", "WRITE_DATA", "RELEASE_MEM", "RELEASE_MEM"),
    ]
    controls = [
        line.number
        for line in decode_pm4(ring, TARGET.generation)
        if line.text.strip().startswith("CacheControl")
    ]
    # All at first and after what lets others be seen; between launches what the units hold.
    assert controls == [0xC3B1, 0x380, 0xC3B1, 0xC3B1]


def test_copies_and_large_values_are_refused() -> None:
    encoder = Pm4Encoder(TARGET)
    with pytest.raises(Unsupported, match="copy queue"):
        encoder.encode([Copy(0, 0x10000, 1 << 14)])
    for wrong in (Copy(0, 0x1000, 6), Copy(0, 0x1000, Symbol("n")), Copy(2, 0x1000, 4)):
        with pytest.raises(Unsupported, match="copy queue"):
            encoder.encode([wrong])
    with pytest.raises(InvalidValue, match="32 bits"):
        encoder.encode([Signal(At(0x1000), 1 << 32)])
    with pytest.raises(Unsupported, match="AQL"):
        Pm4Encoder(Target((9, 4, 2), (4, 4, 2), xccs=8))


def test_a_few_words_are_copied_by_compute_queues() -> None:
    encoded = Pm4Encoder(TARGET).encode([Copy(0x1008, 0x2000, 20), Copy(0x3004, 0x1008, 8)])
    lines = decode_pm4(encoded.segments[0].data, TARGET.generation)
    moved: list[tuple[int, int, int]] = []
    for at, line in enumerate(lines):
        if line.text == "COPY_DATA":
            control, src, _, dst, _ = (one.number for one in lines[at + 1 : at + 6])
            moved.append((src, dst, 8 if control & 1 << 16 else 4))
    assert moved == [
        *((0x2000, 0x1008, 8), (0x2008, 0x1010, 8), (0x2010, 0x1018, 4)),
        *((0x1008, 0x3004, 4), (0x100C, 0x3008, 4)),
    ]
    controls = [line.number for line in lines if "CacheControl" in line.text]
    assert controls == [0xC3B1, 0x380]


def test_an_aql_packet_for_who_reads_it() -> None:
    device = null()
    prog = program(device, "curious")
    groups = Symbol("groups")
    launch = Launch(prog, prog.arguments(Symbol("out")), (groups, 2, 1), (32, 2, 1))
    encoded = Pm4Encoder(TARGET).encode([launch])
    out = launch.args.patches[0].symbol
    ring, memory = resolve(encoded, {out: 0x1234_0000_0000, groups: 5})
    assert encoded.segments[1].arguments == 64
    lines = decode_aql(memory[:64], TARGET.generation)
    assert value(lines, "grid_size_x") == 5 * 32
    assert value(lines, "grid_size_y") == 4
    assert value(lines, "workgroup_size_x") == 32
    assert value(lines, "kernarg_address") == KERNARGS + 0x1000 + 64
    assert struct.unpack_from("<Q", memory, 64) == (0x1234_0000_0000,)
    found = registers(ring)
    # First the packet, then the arguments: the order of LLVM's guide.
    users = [found[f"COMPUTE_USER_DATA_{i}"] for i in range(4)]
    start = KERNARGS + 0x1000
    assert users == [start & 0xFFFF_FFFF, start >> 32, start + 64 & 0xFFFF_FFFF, start >> 32]
    assert value(decode_pm4(ring, TARGET.generation), "GROUPS_X") == 5


def test_lds_and_scratch_memory() -> None:
    device = null()
    size = scratch_size(TARGET, 260)
    scratch = Scratch(GpuVA(0x7C00_0000_0000), size)
    prog = program(device, "hungry", scratch=scratch, dynamic_lds=1000)
    launch = Launch(prog, prog.arguments(Symbol("out"), vals=(1,)), (1, 1, 1), (1, 1, 1))
    encoded = Pm4Encoder(TARGET).encode([launch])
    found = registers(resolve(encoded, {launch.args.patches[0].symbol: 0})[0])
    assert found["COMPUTE_PGM_RSRC2"] >> 15 & 0x1FF == -(-(1200 + 1000) // 512)
    low, high = (found[f"COMPUTE_DISPATCH_SCRATCH_BASE_{part}"] for part in ("LO", "HI"))
    assert low | high << 32 == 0x7C00_0000_0000 >> 8
    # 260 bytes of 64 lanes are 65 units of 256; 96 * 32 waves, by 6 engines.
    assert found["COMPUTE_TMPRING_SIZE"] == 65 << 12 | 512
    assert size == ScratchSize(260 * 64, 96 * 32, 260 * 64 * 96 * 32)
    with pytest.raises(InvalidValue, match="scratch memory"):
        Pm4Encoder(TARGET).encode([Launch(program(device, "hungry"), launch.args, ONE, ONE)])


def test_scratch_memory_of_older_chips() -> None:
    old = Target((10, 3, 0), (5, 2, 0), shader_engines=4, compute_units=80)
    assert scratch_size(old, 20).per_wave == 2048  # of 1 KiB
    assert tmpring_size(old, scratch_size(old, 20)) == 2 << 12 | 80 * 32
    device = null()
    for target, cpu in ((old, "gfx1030"), (Target((9, 0, 10), (4, 4, 2)), "gfx90a")):
        scratch = Scratch(GpuVA(0x7C00_1234_5600), scratch_size(target, 260))
        prog = program(device, "hungry", scratch=scratch, cpu=cpu)
        args = prog.arguments(Symbol("out"), vals=(1,))
        encoded = Pm4Encoder(target).encode([Launch(prog, args, (1, 1, 1), (1, 1, 1))])
        found = registers(resolve(encoded, {p.symbol: 0 for p in args.patches})[0], target)
        user = [found[f"COMPUTE_USER_DATA_{index}"] for index in range(8)]
        # Swizzled; as many bytes as all waves have; selects X to W, 32 bits, by lanes of a wave.
        last = 0x21C1_4FAC if cpu == "gfx1030" else 0x00EA_4FAC
        assert user[:4] == [0x1234_5600, 0x8000_7C00, scratch.size.total, last]
        assert user[6:] == [0x1234_5600, 0x7C00]
        assert found["COMPUTE_TMPRING_SIZE"] >> 12 == 17  # of 1 KiB
        assert "COMPUTE_DISPATCH_SCRATCH_BASE_LO" not in found
        add = program(device, "add", cpu=cpu)
        args = add.arguments(Symbol("a"), Symbol("b"), vals=(1,))
        encoded = Pm4Encoder(target).encode([Launch(add, args, (1, 1, 1), (1, 1, 1))])
        lines = decode_pm4(
            resolve(encoded, {p.symbol: 0 for p in args.patches})[0], target.generation
        )
        # Four SGPRs of a descriptor and none of scratch, two of arguments, two of scratch again.
        assert value(lines, "COMPUTE_USER_DATA_4") == KERNARGS + 0x1000 & 0xFFFF_FFFF
    large = scratch_size(old, 40_000)  # so that fewer waves run at once
    assert large.waves == 0xFFFF_FFFF // (2500 * 1024) < 80 * 32
    assert tmpring_size(old, large) == 2500 << 12 | large.waves // 4 * 4
    with pytest.raises(InvalidValue, match="at most"):
        scratch_size(TARGET, 1 << 20)


@pytest.mark.parametrize(
    ("version", "high", "last"),
    [
        ((9, 4, 2), 0x8000_7C00, 0x00EA_4FAC),
        ((9, 5, 0), 0x8000_7C00, 0x00EA_4FAC),
        ((10, 3, 0), 0x8000_7C00, 0x21E1_4FAC),
        # Swizzling has two bits from here on; bit 24 of the last word is compression's on GFX12.
        ((11, 0, 0), 0x4000_7C00, 0x20E1_4FAC),
        ((11, 5, 1), 0x4000_7C00, 0x20E1_4FAC),
        ((12, 0, 1), 0x4000_7C00, 0x20E1_4FAC),
    ],
)
def test_what_aql_queues_are_told_of_scratch_memory(version: Version, high: int, last: int) -> None:
    target = Target(version, (6, 0, 0), compute_units=16)
    scratch = Scratch(GpuVA(0x7C00_1234_5600), scratch_size(target, 260))
    words = resource_descriptor(target, scratch, False)
    assert words == (0x1234_5600, high, scratch.size.total, last)


@pytest.mark.parametrize("dies", [1, 4, 8])
@pytest.mark.parametrize("engines", [3, 4, 7])
@pytest.mark.parametrize("version", [(9, 4, 2), (10, 3, 0)])
def test_engines_have_as_many_waves_each(version: Version, engines: int, dies: int) -> None:
    """ROCr asserts it, in `AqlQueue::FillComputeTmpRingSize`: also where the field is full."""
    for units in (20, 38, 400):
        target = Target(
            *(version, (4, 4, 2)), engines * dies, units * dies, scratch_waves=32, xccs=dies
        )
        waves = tmpring_size(target, scratch_size(target, 100)) & 0xFFF
        assert waves % engines == 0 and 0 <= min(units * 32, 0xFFF) - waves < engines


def test_hidden_arguments_have_the_sizes_of_the_launch() -> None:
    device = null()
    found = read_code_object(code_object(ADD, plain=False)).kernels["add"]
    prog = AmProgram(device, LoadedKernel(found, IMAGE))
    groups = Symbol("groups")
    launch = Launch(
        prog, prog.arguments(Symbol("a"), Symbol("b"), vals=(7,)), (groups, 3, 2), (8, 4, 2)
    )
    # By PM4 the kernel would be told of a queue that there is not.
    with pytest.raises(Unsupported, match="queue"):
        Pm4Encoder(TARGET).encode([launch])
    encoded = AqlEncoder(TARGET).encode([launch])
    values = {p.symbol: 1 for p in launch.args.patches}
    memory = resolve(encoded, {**values, groups: 70_000})[1]
    assert len(memory) == 280
    assert struct.unpack_from("<3I6H", memory, 24) == (70_000, 3, 2, 8, 4, 2, 0, 0, 0)
    assert struct.unpack_from("<H", memory, 24 + 64) == (3,)
    lds = KernelArgument("", 24, 4, "hidden_dynamic_lds_size")
    metadata = found.metadata._replace(arguments=(*found.metadata.arguments[:3], lds))
    data = build_kernarg(metadata, launch.args, launch.grid, launch.block, 96).data
    assert struct.unpack_from("<I", data, 24) == (96,)


def test_hidden_arguments_that_are_not_known() -> None:
    device = null()
    found = read_code_object(code_object(ADD)).kernels["add"]
    for kind, size in (("hidden_shiny", 8), ("hidden_group_size_x", 3), ("hidden_grid_dims", 4)):
        hidden = KernelArgument("", 24, size, kind)
        arguments = (*found.metadata.arguments, hidden)
        metadata = found.metadata._replace(arguments=arguments, kernarg_size=32)
        prog = AmProgram(device, LoadedKernel(replace(found, metadata=metadata), IMAGE))
        launch = Launch(prog, prog.arguments(Symbol("a"), Symbol("b"), vals=(7,)), ONE, ONE)
        with pytest.raises(Unsupported, match=kind):
            Pm4Encoder(TARGET).encode([launch])


def test_launches_that_do_not_fit_the_kernel() -> None:
    device = null()
    prog = program(device, "add")
    args = prog.arguments(Symbol("a"), Symbol("b"), vals=(1,))
    with pytest.raises(InvalidValue, match="compiled for at most 256"):
        Pm4Encoder(TARGET).encode([Launch(prog, args, (1, 1, 1), (257, 1, 1))])
    loaded = prog.info
    assert isinstance(loaded, LoadedKernel)
    with pytest.raises(InvalidValue, match="metadata"):
        AmProgram(device, loaded, layout=ArgumentLayout(3))
    with pytest.raises(InvalidValue, match="multiple of 256"):
        dispatch_state(TARGET, LoadedKernel(loaded.kernel, IMAGE + 4))
    with pytest.raises(InvalidValue, match="LDS"):
        dispatch_state(TARGET, LoadedKernel(loaded.kernel, IMAGE, dynamic_lds=65 << 10))
    for other in (Pm4Encoder, AqlEncoder):
        with pytest.raises(InvalidValue, match=r"compiled for 11\.0\.0"):
            other(Target((12, 0, 0), (7, 0, 0))).encode([Launch(prog, args, ONE, ONE)])
    stranger = null()
    with pytest.raises(InvalidType, match="add is a program of NULL: launch it there"):
        stranger.submit(stranger.channel("compute"), [Launch(prog, args, ONE, ONE)])


def test_calls_and_filler() -> None:
    target = Symbol("target")
    encoder = Pm4Encoder(TARGET)
    encoded = encoder.call(target, 0x40, 0x100)
    (data,) = encoded.resolve({target: 0x7F12_3456_7000})
    assert struct.unpack("<4I", data) == (0xC002_3F00, 0x3456_7040, 0x7F12, 0x0080_0040)
    assert encoder.filler(4) == struct.pack("<I", 0xFFFF_1000)
    assert len(encoder.filler(1 << 17)) == 1 << 17
    for wrong in (lambda: encoder.call(target, 0, 6), lambda: encoder.filler(3)):
        with pytest.raises(InvalidValue):
            wrong()


# On a device


def _memory(device: HCQDevice, address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)  # the null device's addresses are the host's


def _ring(device: HCQDevice, kind: str = "compute") -> bytes:
    queue = device.channel(kind).port
    assert isinstance(queue, NullQueue)
    return _memory(device, queue.memory.address, queue.ring_size)


def test_eager_launches_put_arguments_into_fresh_memory() -> None:
    with null() as device:
        prog = program(device, "add")
        a, b = (device.allocator.alloc(4096) for _ in range(2))
        size = 0
        for number in range(3):
            prog(a, b, vals=(number,), grid=(2, 1, 1), block=(64, 1, 1))
        ring = _ring(device)
        lines = decode_pm4(ring, TARGET.generation)
        starts = [n for n, line in enumerate(lines) if line.text.startswith("DISPATCH_DIRECT")]
        assert len(starts) == 3
        size = lines[starts[1]].offset - lines[starts[0]].offset
        kernargs = []
        for number in range(3):
            found = registers(ring[number * size : (number + 1) * size])
            address = found["COMPUTE_USER_DATA_0"] | found["COMPUTE_USER_DATA_1"] << 32
            assert _memory(device, address, 20) == struct.pack("<QQI", a.address, b.address, number)
            kernargs.append(address)
        assert len(set(kernargs)) == 3
        device.synchronize()


def test_replays_of_a_graph_only_patch() -> None:
    with null() as device:
        prog = program(device, "add")
        inputs = [[device.allocator.alloc(4096) for _ in range(2)] for _ in range(5)]
        own = device.allocator.alloc(4096)
        items = [
            GraphLaunch(prog, (own, inputs[0][0]), (7,)),
            GraphLaunch(prog, (inputs[0][1], own), (8,)),
        ]
        graph = HCQGraph(device, items, inputs[0])
        parts = [instance[0] for instance in graph._instances._instances]
        before = [_image(part) for part in parts]
        for turn, given in enumerate(inputs):
            graph(*given)
            part = parts[turn % 2]
            image = _image(part)
            assert _arguments(image) == [
                (own.address, given[0].address, 7),
                (given[1].address, own.address, 8),
            ]
            if turn >= 2:
                # Two addresses, and the value that the timeline reaches: nothing else has changed.
                assert len(_differences(before[turn % 2], image)) <= 3
            before[turn % 2] = image
            device.synchronize()
        graph.close()


def _image(part: Any) -> bytes:
    window = part.allocation.memory.window
    return bytes(window.load(0, window.size))


def _arguments(image: bytes) -> list[tuple[int, ...]]:
    """Of each launch: the PM4 words come first, and name where they are."""
    pm4 = image[: image.index(struct.pack("<I", 0xC006_4900)) + 32]
    found = []
    start = 0
    lines = decode_pm4(pm4, TARGET.generation)
    for line in lines:
        if line.text.startswith("DISPATCH_DIRECT"):
            regs = registers(pm4[start : line.offset])
            address = regs["COMPUTE_USER_DATA_0"] | regs["COMPUTE_USER_DATA_1"] << 32
            found.append(struct.unpack("<QQI", ctypes.string_at(address, 20)))
            start = line.offset
    return found


def _differences(before: bytes, after: bytes) -> set[int]:
    """Where 8 bytes differ."""
    return {at & ~7 for at in range(len(before)) if before[at] != after[at]}


def test_values_given_late_may_be_negative() -> None:
    with null() as device:
        prog = program(device, "add")
        a, b = (device.allocator.alloc(4096) for _ in range(2))
        number, groups = Symbol("number"), Symbol("groups")
        queue = device.queue().exec(prog, prog.arguments(a, b, vals=(number,)), (groups, 1, 1), ONE)
        bound = queue.bind(device)
        bound.submit({number: -2, groups: 5})
        image = _image(bound._instances._instances[0][0])
        assert _arguments(image) == [(a.address, b.address, 0xFFFF_FFFE)]
        assert value(decode_pm4(image, TARGET.generation), "GROUPS_X") == 5
        bound.close()


def test_large_graphs_patch_what_has_changed() -> None:
    with null() as device:
        prog = program(device, "add")
        first, second, third = ([device.allocator.alloc(4096) for _ in range(2)] for _ in range(3))
        own = device.allocator.alloc(4096)
        items = [GraphLaunch(prog, (own, first[n % 2]), (n,)) for n in range(100)]
        graph = HCQGraph(device, items, first)
        parts = [instance[0] for instance in graph._instances._instances]

        def check(part: Any, inputs: Sequence[Any]) -> None:
            wanted = [(own.address, inputs[n % 2].address, n) for n in range(100)]
            assert _arguments(_image(part)) == wanted

        for inputs in (first, second, first, [first[0], second[1]], third):
            graph(*inputs)
            check(parts[0], inputs)
            graph(*inputs)
            check(parts[1], inputs)
            device.synchronize()
        # Interrupted after the first of two: what was there before comes back whole.
        apply, calls = parts[0]._changed[1].apply, []

        def interrupted() -> None:
            calls.append(None)
            if len(calls) == 1:
                raise KeyboardInterrupt
            apply()

        parts[0]._changed[1].apply = interrupted
        with pytest.raises(KeyboardInterrupt):
            graph(*first)
        for part in (parts[1], parts[0]):  # the one that was claimed in vain comes last
            graph(*third)
            check(part, third)
        graph.close()


def test_graphs_use_the_copy_queue_too() -> None:
    with null() as device:
        prog = program(device, "add")
        a, b, c = (device.allocator.alloc(4096) for _ in range(3))
        graph = HCQGraph(device, [GraphLaunch(prog, (a, b), (1,)), GraphCopy(c, a)])
        for _ in range(3):
            graph()
            device.synchronize()
        graph.close()
        assert _ring(device, "copy")[:4] == struct.pack("<I", 0x0001_0000)


# AQL


def test_aql_submissions() -> None:
    device = null()
    prog = program(device, "add")
    args = prog.arguments(Symbol("a"), Symbol("b"), vals=(7,))
    launch = Launch(prog, args, (4, 3, 2), (64, 1, 1))
    commands: list[Command] = [
        *(Wait(At(0x1000), 3), Barrier(), launch, launch, Timestamp(At(0x1000))),
        Signal(OWN_TIMELINE, TIMELINE_VALUE),
    ]
    encoded = AqlEncoder(TARGET, WAKE).encode(commands)
    assert [s.kind for s in encoded.segments] == ["aql", "ib", "kernarg", "kernarg", "ib"]
    segments = resolve(encoded, {p.symbol: 0x9000 for p in args.patches})
    ring = segments[0]
    assert len(ring) == 4 * 64
    # vendor 0, dispatch 2, barrier 0x100, acquire 3 << 9, release 3 << 11.
    headers = [struct.unpack_from("<H", ring, 64 * n)[0] for n in range(4)]
    assert headers == [0x100, 0x100 | 2 | 2 << 9 | 1 << 11, 0x100 | 2 | 1 << 9 | 1 << 11, 0x100]
    packet = ring[64:128]
    assert struct.unpack_from("<2x4H2x3I2I", packet) == (3, 64, 1, 1, 4 * 64, 3, 2, 0, 0)
    kernel_object, kernarg = struct.unpack_from("<2Q", packet, 0x20)
    assert kernel_object == IMAGE + 0x2000
    assert kernarg == KERNARGS + 0x2000
    assert packet[0x30:] == bytes(16)
    # The format of amd_aql_pm4_ib.
    words = len(segments[1]) // 4
    place = KERNARGS + 0x1000
    call = (0xC002_3F00, place & 0xFFFF_FFFF, place >> 32, words | 1 << 23, 0xA)
    assert struct.unpack_from("<2H5I", ring) == (0x100, 1, *call)
    assert ring[24:64] == bytes(40)
    assert names(segments[1]) == ["WAIT_REG_MEM"]
    assert names(segments[4]) == ["RELEASE_MEM"] * 3


def test_aql_in_the_ring_only() -> None:
    encoder = AqlEncoder(TARGET)
    assert encoder.filler(128) == (struct.pack("<H", 3) + bytes(62)) * 2
    with pytest.raises(InvalidValue):
        encoder.filler(32)
    with pytest.raises(Unsupported):
        encoder.call(Symbol("x"), 0, 64)
    with pytest.raises(Unsupported, match="copy queue"):
        encoder.encode([Copy(0, 0x10000, 1 << 14)])


def test_several_dies() -> None:
    """What writes is for the first die; launches write back the L2 of each; scratch is shared."""
    target = Target((9, 4, 2), (4, 4, 2), shader_engines=32, compute_units=304, xccs=8)
    prog = program(null(), "add", cpu="gfx942")
    args = prog.arguments(0x1000, 0x2000, vals=(1,))
    wait, write, copy = Wait(At(0x3000), 1), WriteMem(0x4000, bytes(8)), Copy(0x5000, 0x6000, 8)
    encoded = AqlEncoder(target).encode([Launch(prog, args, ONE, ONE), wait, write, copy])
    ring, _, words = resolve(encoded)
    assert struct.unpack_from("<H", ring)[0] == 0x100 | 2 | 2 << 9 | 2 << 11
    kinds = ["WAIT_REG_MEM", "PRED_EXEC", "WRITE_DATA", "ACQUIRE_MEM", "PRED_EXEC", "COPY_DATA"]
    assert names(words) == kinds
    # Header and words of WRITE_DATA with two words, and of COPY_DATA.
    masks = [struct.unpack_from("<2I", words, at)[1] for at in (28, 28 + 8 + 24 + 28)]
    assert masks == [1 << 24 | 6, 1 << 24 | 6]
    size = scratch_size(target, 16)
    assert size.total == 1024 * 304 * 32 and tmpring_size(target, size) == 1 << 12 | 304 * 32 // 8
    scratch = Scratch(GpuVA(0x7C00_0000_0000), size)
    assert resource_descriptor(target, scratch, False)[2] == size.total // 8


def test_aql_garbage_is_shown_whole() -> None:
    data = bytes(range(256)) + b"\2\5" + bytes(100)
    lines = decode_aql(data, TARGET.generation)
    shown = b"".join(
        line.number.to_bytes(line.size, "little") for line in lines if line.offset < 64
    )
    assert shown == data[:64]
    assert "not known" in lines[0].text
    assert lines[-1].text.startswith("no packet")

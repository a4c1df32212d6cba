"""Dispatches: what registers and loaded state make of them, and what may not be so."""

from __future__ import annotations

import errno
import struct
from typing import Any

import pytest

from gpu.core.window import MemoryWindow
from gpu.sim.executor import Size3
from gpu.sim.kgsl.chip.launch import Buffer
from gpu.sim.kgsl.world import KgslWorld
from sim.kgsl.conftest import Make
from sim.kgsl.raw_kgsl import (
    CODE,
    CONSTANTS,
    CS_SHADER,
    CS_STATE,
    CS_TEX,
    DROP_UCHE,
    FLUSH,
    INVALIDATE_CMD,
    PAGE,
    UAV,
    UBO,
    WRITE_BACK,
    Doubles,
    Kernel,
    RawKgsl,
    fails,
    halves,
    load,
    load_inline,
    operation,
    registers,
)

LPAC = {0xA9C2: 0x00FC_FCC0, 0xA9C3: 0xFC, 0xB9D0: 1}


def kernel(user: RawKgsl, **options: Any) -> Kernel:
    more = dict(options.pop("more", {}))
    if user.world.gpus[0].chip.lpac:
        more = LPAC | more
    return Kernel(user.alloc(PAGE).address, more=more, **options)


def refused(user: RawKgsl, words: list[int], message: str) -> None:
    debug, context = user.world.debug, user.new_context()
    stamp = user.run(words, wait=False, context=context)
    with fails(errno.EDEADLK):
        user.wait(stamp, context=context)
    assert message in debug.violations[-1], debug.violations[-1]
    user.destroy(context)


@pytest.mark.parametrize("chip", ["a618", "a630", "a640", "a660", "a690"])
def test_a_dispatch(make: Make, doubles: Doubles, chip: str) -> None:
    world = make(chip=chip, executor=doubles)
    user = RawKgsl(world.process)
    wide = {0xB998: 0xFC | 1 << 9} | ({0xA9C3: 0xFC | 1 << 9} if chip > "a65" else {})
    made = kernel(user, groups=(3, 2, 1), block=(8, 4, 2), wide=1, full=9, more=wide)
    user.run(made.words())
    assert not world.debug.violations
    (launch,) = doubles.launches
    assert (launch.chip, launch.code, launch.code_size) == (chip, made.code, 128)
    assert (launch.groups, launch.block, launch.lanes) == (Size3(3, 2, 1), Size3(8, 4, 2), 128)
    assert (launch.full, launch.half, launch.merged, launch.branches) == (9, 0, True, 2)
    assert (launch.group_at, launch.thread_at, launch.shared_bytes) == (192, 0, 2048)
    assert launch.constants == struct.pack("<4I", 1, 2, 3, 4) + b"\xa5\xb1\xa5\xb1" * 12
    assert world.counts.kernels == 1 and world.counts.instructions == 7
    assert launch.private is None and launch.ubos == launch.uavs == ()


NEEDED = [
    *("SP_CS_CTRL_REG0", "SP_CS_CTRL_REG1", "SP_CS_OBJ_FIRST_EXEC_OFFSET", "SP_CS_OBJ_START"),
    *("SP_CS_OBJ_START", "SP_CS_PVT_MEM_PARAM", "SP_CS_CONFIG", "SP_CS_INSTRLEN"),
    *("SP_MODE_CONTROL", "HLSQ_CS_CNTL", "HLSQ_CS_NDRANGE_0", "HLSQ_CS_NDRANGE_6"),
    *("HLSQ_CS_CNTL_0", "HLSQ_CS_CNTL_1", "HLSQ_CS_KERNEL_GROUP_Z"),
]
OFFSETS = [
    *(0xA9B0, 0xA9B1, 0xA9B3, 0xA9B4, 0xA9B5, 0xA9B6, 0xA9BB, 0xA9BC, 0xAB00, 0xB987, 0xB990),
    *(0xB996, 0xB997, 0xB998, 0xB99B),
]


@pytest.mark.parametrize(("name", "offset"), list(zip(NEEDED, OFFSETS, strict=True)))
def test_registers_that_a_dispatch_needs(user: RawKgsl, name: str, offset: int) -> None:
    refused(user, kernel(user, leave=(offset,)).words(), f"a dispatch without {name}:")


@pytest.mark.parametrize("offset", LPAC)
def test_registers_that_chips_with_lpac_need(make: Make, doubles: Doubles, offset: int) -> None:
    user = RawKgsl(make(chip="a660", executor=doubles).process)
    words = kernel(user, leave=(offset,)).words()
    refused(user, words, "a dispatch without")
    user.run(kernel(user).words())
    if offset != 0xB9D0:
        user.run(kernel(user, more={offset: 0x00FC_FCC4 if offset == 0xA9C2 else 0xF8}).words())
        assert f"SP_CS_CNTL_{offset - 0xA9C2} and HLSQ_CS_CNTL_{offset - 0xA9C2} differ" in str(
            user.world.debug.violations[-1]
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": (1024, 2, 1)}, "workgroups of 2048 threads; 1024 are the most"),
        ({"groups": (0, 1, 1)}, "0 x 64 threads in X; there are 1 to 4294967295"),
        ({"groups": (1 << 26, 1, 1), "more": {0xB991: 0}}, "67108864 x 64 threads in X"),
        ({"more": {0xB994: 8}}, "grids with an offset are not modelled"),
        ({"full": 49}, "49 registers of a thread; 48 are the most"),
        ({"full": 25, "block": (512, 1, 1)}, "512 threads of 25 registers are more than the 12288"),
        ({"constants": 256}, "256 constants in a RAM for 128: CONSTANTRAMMODE"),
        ({"config": 1 << 8 | 1}, "SP_CS_CONFIG has BINDLESS_TEX"),
        ({"more": {0xA9BC: 0}}, "SP_CS_INSTRLEN is 0"),
        ({"more": {0xA9B4: 64}}, "no multiple of 128"),
        ({"shared": 31 | 1 << 5}, None),
        ({"config": 1 << 8 | 1 << 9}, "has NTEX for textures 0, which is not loaded"),
        ({"config": 1 << 8 | 1 << 17}, "has NSAMP for samplers 0, which is not loaded"),
        ({"config": 1 << 8 | 1 << 22}, "has NIBO for uavs 0, which is not loaded"),
    ],
)
def test_dispatches_that_cannot_begin(
    user: RawKgsl, options: dict[str, Any], message: str | None
) -> None:
    words = kernel(user, **options).words()
    if message is None:
        user.run(words)
    else:
        refused(user, words, message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"more": {0xB991: 100}}, "HLSQ_CS_NDRANGE_1 says 100 threads in X, the dispatch has 2"),
        ({"more": {0xB99A: 0}}, "HLSQ_CS_KERNEL_GROUP_Y is 0"),
        ({"more": {0xB990: 63 << 2}}, "KERNELDIM 0"),
        ({"more": {0xB998: 0xFC | 1 << 9}}, "THREADSIZE of SP_CS_CTRL_REG0 and of HLSQ_CS_CNTL_1"),
        ({"config": 0}, "SP_CS_CONFIG lacks ENABLED"),
        ({"more": {0xB987: 1}}, "HLSQ_CS_CNTL lacks ENABLED"),
        ({"more": {0xA9BC: 2}}, "1 units of code were loaded by CP_LOAD_STATE6 of 2"),
        ({"more": {0xA9BC: 1 << 20}}, "which are not all mapped"),
        ({"more": {0xB987: 1 << 8}}, "constants up to 1 were loaded, and HLSQ_CS_CNTL has 0"),
    ],
)
def test_dispatches_that_are_noticed(
    user: RawKgsl, doubles: Doubles, options: dict[str, Any], message: str
) -> None:
    user.run(kernel(user, **options).words())
    assert any(message in each for each in user.world.debug.violations), user.world.debug.violations
    assert len(doubles.launches) == 1


# State.


def test_what_others_loaded_is_cleared_first(user: RawKgsl, world: KgslWorld) -> None:
    words = kernel(user).words()
    user.run(words)
    assert not world.debug.violations
    begin = len(operation("SET_MARKER", 8))
    user.run(words[:begin] + words[begin + 2 :])
    assert "what other contexts have loaded was not cleared" in world.debug.violations[0]


def test_what_was_just_loaded_is_not_cleared(user: RawKgsl, world: KgslWorld) -> None:
    made = kernel(user)
    words = (
        made.state(1, 2, 3, 4)
        + registers(INVALIDATE_CMD, CS_STATE)
        + operation("EXEC_CS", 0, 2, 1, 1)
    )
    user.run(words)
    said = " ".join(world.debug.violations)
    assert "clears code" in said and "clears constants" in said and "0 units of code" in said


def test_loads_happen_at_the_dispatch(user: RawKgsl, doubles: Doubles, world: KgslWorld) -> None:
    """They read memory as it is then, through UCHE."""
    source = user.alloc(PAGE)
    source.host.store(0, struct.pack("<4I", 9, 9, 9, 9))
    made = kernel(user)
    words = made.state(1, 2, 3, 4) + load(CONSTANTS, CS_SHADER, source.address, 1, first=2)
    words += operation("MEM_WRITE", *halves(source.address), 5) + operation("WAIT_MEM_WRITES")
    user.run(words + operation("EXEC_CS", 0, 2, 1, 1))
    assert doubles.launches[0].constants[32:48] == struct.pack("<4I", 5, 9, 9, 9)
    assert not world.debug.violations
    words = made.state(1, 2, 3, 4) + load(CONSTANTS, CS_SHADER, source.address, 1, first=2)
    words += operation("MEM_WRITE", *halves(source.address), 6)
    user.run(operation("EVENT", DROP_UCHE) + words + operation("EXEC_CS", 0, 2, 1, 1))
    assert "CP_WAIT_MEM_WRITES comes in between" in world.debug.violations[-1]


def test_state_lasts_until_it_is_cleared(user: RawKgsl, doubles: Doubles) -> None:
    again = operation("EXEC_CS", 0, 2, 1, 1)
    user.run(kernel(user).words() + again)
    first, second = doubles.launches
    assert first == second


def test_what_is_cleared_is_gone(user: RawKgsl, doubles: Doubles, world: KgslWorld) -> None:
    made = kernel(user)
    again = registers(INVALIDATE_CMD, CS_STATE) + load(CODE, CS_SHADER, made.code, 1)
    user.run(made.words() + again + operation("EXEC_CS", 0, 2, 1, 1))
    first, second = doubles.launches
    assert first.constants[:4] == b"\1\0\0\0" and second.constants[:4] == b"\xa5\xb1\xa5\xb1"
    assert not world.debug.violations


def test_descriptors(user: RawKgsl, doubles: Doubles, world: KgslWorld) -> None:
    buffer = user.alloc(PAGE)
    low, high = halves(buffer.address)
    uav = [0, 1000 | 3 << 15, 4 << 29, 0, low, high, *[0] * 10]
    image = [0, 64 | 64 << 15, 1 << 29, 0, low, high, *[0] * 10]
    made = kernel(user, config=1 << 8 | 2 << 22 | 1 << 9 | 1 << 17)
    words = made.state(1, 2, 3, 4)
    words += load_inline(UBO, CS_SHADER, 1, low, high | 16 << 17)
    words += load_inline(UAV, CS_SHADER, 2, *uav, *image)
    words += load_inline(CONSTANTS, CS_TEX, 1, *image) + load_inline(CODE, CS_TEX, 1, 1, 2, 3, 4)
    user.run(words + operation("EXEC_CS", 0, 2, 1, 1))
    (launch,) = doubles.launches
    assert launch.ubos == (Buffer(buffer.address, 256),)
    assert launch.uavs == (Buffer(buffer.address, 4 * (1000 + (3 << 15))), Buffer(0, 0))
    assert launch.textures == (struct.pack("<16I", *image),)
    assert launch.samplers == (struct.pack("<4I", 1, 2, 3, 4),)
    assert not world.debug.violations


def test_loads_that_are_refused(user: RawKgsl, world: KgslWorld) -> None:
    item = user.alloc(PAGE)
    inline = load_inline(CONSTANTS, CS_SHADER, 2, 1, 2, 3, 4)
    refused(user, inline, "4 dwords inline, 8 were announced")
    refused(user, operation("LOAD_FRAG", 0, 0), "of 2 dwords; it has 3")
    refused(user, load(CODE, 8, item.address, 1), "only compute is modelled")
    geometry = load(CODE, CS_SHADER, item.address, 1)[1:]
    refused(user, operation("LOAD_GEOM", *geometry), "compute has CP_LOAD_STATE6_FRAG")
    refused(user, load(CODE, CS_SHADER, item.address, 0), "loads no unit of code")
    refused(user, load(CODE, CS_SHADER, item.address + 2, 1), "address")
    head = CONSTANTS << 14 | 3 << 16 | CS_SHADER << 18 | 1 << 22
    refused(user, operation("LOAD_FRAG", head, 0, 0), "from source 3")
    plain = CONSTANTS << 14 | CS_SHADER << 18 | 1 << 22
    user.run(operation("LOAD", plain, 4, 0, 1, 2, 3, 4))
    assert "inline has an address" in world.debug.violations[-1]


# Memory of threads.


def test_private_memory(make: Make, doubles: Doubles) -> None:
    world = make(executor=doubles)
    user = RawKgsl(world.process)
    per_core = 2 * 512 * 128 * 16
    memory = user.alloc(2 * per_core, mapped=False)
    good = kernel(user, private=(2, memory.address, per_core // PAGE))
    user.run(good.words())
    assert doubles.launches[0].private == (memory.address, 1024, per_core)
    assert not world.debug.violations
    refused(user, kernel(user, private=(2, memory.address, 1)).words(), "TOTALPVTMEMSIZE")
    for offset in (0xA9B7, 0xA9B9, 0xA9BD):
        small = kernel(user, private=(2, memory.address, per_core // PAGE), leave=(offset,))
        refused(user, small.words(), "a dispatch without SP_CS_PVT_MEM_")
    user.run(kernel(user, private=(2, memory.address + (1 << 30), per_core // PAGE)).words())
    assert "private memory, 2 times 0x200000 bytes" in world.debug.violations[-1]


def test_sizes_in_memory(user: RawKgsl, doubles: Doubles, world: KgslWorld) -> None:
    sizes = user.alloc(PAGE)
    sizes.host.store(0, struct.pack("<3I", 4, 1, 1))
    made = kernel(user, groups=(4, 1, 1))
    body = (0, *halves(sizes.address), 63 << 2)
    user.run(made.state(1, 2, 3, 4) + operation("EXEC_INDIRECT", *body))
    assert doubles.launches[0].groups == (4, 1, 1) and not world.debug.violations
    write = operation("MEM_WRITE", *halves(sizes.address), 4) + operation("WAIT_MEM_WRITES")
    user.run(
        made.state(1, 2, 3, 4)
        + write
        + operation("WAIT_FOR_ME")
        + operation("EXEC_INDIRECT", *body)
    )
    assert not world.debug.violations
    user.run(made.state(1, 2, 3, 4) + write + operation("EXEC_INDIRECT", *body))
    assert "CP_WAIT_FOR_ME comes before the sizes are read" in world.debug.violations[-1]
    user.run(made.state(1, 2, 3, 4) + operation("EXEC_INDIRECT", *body[:3], 31 << 2))
    assert "give workgroups different sizes" in world.debug.violations[-1]


def test_a_machine_without_an_executor(make: Make) -> None:
    user = RawKgsl(make().process)
    refused(user, kernel(user).words(), "this machine has no executor")


# Order, and caches.


def test_a_grid_runs_beside_packets(make: Make, doubles: Doubles) -> None:
    """A packet behind a dispatch does not wait for it, unless it says so."""
    seen = set()
    for seed in range(12):
        world = make(seed=seed, executor=doubles)
        user = RawKgsl(world.process)
        out, flag = user.alloc(PAGE), user.alloc(PAGE)
        doubles.writes, doubles.steps = [(flag.address, struct.pack("<I", 1))], 2
        copy = operation("MEM_TO_MEM", 0, *halves(out.address), *halves(flag.address))
        user.run(kernel(user).words() + copy)
        seen.add(out.host.read(0, 4))
        flush = operation("EVENT", FLUSH, *halves(out.address + 8), 1)
        user.run(kernel(user).words() + flush + operation("WAIT_FOR_IDLE") + copy)
        assert out.host.read(0, 4) == 1
    assert seen == {0, 1}


def test_registers_without_a_context(user: RawKgsl, doubles: Doubles, world: KgslWorld) -> None:
    doubles.steps = 10_000
    words = kernel(user).words()
    stamp = user.run(words + registers(0xB600, 0), wait=False)
    with fails(errno.ETIMEDOUT):
        user.wait(stamp, 0x1)
    assert "TPL1_DBG_ECO_CNTL is written while a grid runs" in world.debug.violations[-1]
    doubles.steps, count = 1, len(world.debug.violations)
    user.run(words + operation("WAIT_FOR_IDLE") + registers(0xB600, 0))
    assert len(world.debug.violations) == count


@pytest.mark.parametrize(("mode", "read"), [("check", 1), ("oldest", 0), ("none", 1)])
def test_the_command_processor_reads_behind_uche(
    make: Make, doubles: Doubles, mode: str, read: int
) -> None:
    world = make(coherence=mode, executor=doubles)
    user = RawKgsl(world.process)
    out, flag = user.alloc(PAGE), user.alloc(PAGE)
    doubles.writes = [(flag.address, struct.pack("<I", 1))]
    copy = operation("MEM_TO_MEM", 0, *halves(out.address), *halves(flag.address))
    wait = operation("WAIT_FOR_IDLE")
    user.run(kernel(user).words() + wait + copy)
    assert out.host.read(0, 4) == read and flag.host.read(0, 4) == 1  # flushed at the end
    assert len(world.debug.violations) == (mode == "check")
    flush = operation("EVENT", FLUSH, *halves(out.address + 8), 1)
    user.run(kernel(user).words() + flush + wait + copy)
    assert out.host.read(0, 4) == 1 and len(world.debug.violations) == (mode == "check")


@pytest.mark.parametrize(("mode", "read"), [("check", 2), ("oldest", 1), ("none", 2)])
def test_uche_holds_what_it_has_read(make: Make, doubles: Doubles, mode: str, read: int) -> None:
    world = make(coherence=mode, executor=doubles)
    user = RawKgsl(world.process)
    item = user.alloc(PAGE)
    doubles.reads = [(item.address, 4)]
    drop = operation("EVENT", DROP_UCHE)
    for value in (1, 2):
        item.host.write(0, 4, value)
        user.run(kernel(user).words())
    assert doubles.seen == [struct.pack("<I", 1), struct.pack("<I", read)]
    count = len(world.debug.violations)
    assert count == (mode == "check")
    item.host.write(0, 4, 3)
    user.run(drop + kernel(user).words())
    assert doubles.seen[-1] == struct.pack("<I", 3) and len(world.debug.violations) == count


@pytest.mark.parametrize(("mode", "read"), [("check", 2), ("oldest", 1), ("none", 2)])
def test_code_is_held_until_its_state_is_cleared(
    make: Make, doubles: Doubles, mode: str, read: int
) -> None:
    world = make(coherence=mode, executor=doubles)
    user = RawKgsl(world.process)
    made = kernel(user)
    doubles.code_reads = [(made.code, 4)]
    number = user.get_info(made.code)[1]
    window = MemoryWindow(user.map(number, PAGE), PAGE)
    window.write(0, 4, 1)
    words = made.words()
    user.run(words)
    window.write(0, 4, 2)
    drop = operation("EVENT", DROP_UCHE)
    begin = len(operation("SET_MARKER", 8))
    without = words[:begin] + words[begin + 2 :]
    user.run(drop + without)
    assert doubles.seen[-1] == struct.pack("<I", read)
    if mode == "check":
        assert "code holds an old copy" in world.debug.violations[-1]
    user.run(drop + words)
    assert doubles.seen[-1] == struct.pack("<I", 2)


def test_kernels_read_what_the_cpu_has_cleaned(user: RawKgsl, doubles: Doubles) -> None:
    item = user.alloc(PAGE, WRITE_BACK)
    doubles.reads = [(item.address, 4)]
    item.host.write(0, 4, 4)
    user.run(kernel(user).words())
    assert "GPUOBJ_SYNC must clean them" in user.world.debug.violations[-1]

"""Launches: the executor's seam, order, windows, caches."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from gpu.sim.linecaches import Mode
from gpu.sim.nv.chip.launch import KernelFault, KernelMemory, Launch
from sim.nv.bench import (
    BANK,
    PROGRAM,
    QMD,
    RELEASE,
    SCRATCH,
    Bench,
    Kernel,
    Machine,
    add_one,
    bench,
)
from sim.nv.methods import LOCAL_WINDOW, SHARED_WINDOW, inc, launch, release
from sim.nv.numbers import OK
from sim.nv.qmds import SASS, plain
from sim.nv.raw_nv import PAGE, RawNv


def test_a_grid_runs(each_bench: Bench) -> None:
    each_bench.run(each_bench.qmd(1 << 40 | 9))
    assert not each_bench.user.violations
    assert each_bench.read() == 2
    host = each_bench.area.host
    assert host.read(RELEASE, 8) == 1 << 40 | 9 and host.read(RELEASE + 8, 8) > 0


def test_the_executor_is_told_everything(each_bench: Bench) -> None:
    qmd = each_bench.qmd().set(grid_x=70_000, grid_y=3, grid_z=2, block_x=8, block_y=4, block_z=2)
    qmd.set(registers=40, barriers=16, bank_size=0x500 >> 4)
    each_bench.run(qmd)
    (told,) = each_bench.machine.launches
    assert told.program == each_bench.at(PROGRAM) and told.qmd_address == each_bench.at(QMD)
    assert (*told.grid, *told.block, *told.cluster) == (70_000, 3, 2, 8, 4, 2, 1, 1, 1)
    assert (told.registers, told.barriers, told.shared_bytes) == (40, 16, 1024)
    assert told.banks[0] == (each_bench.at(BANK), 0x500) and told.banks[1:] == (None,) * 7
    assert (told.shared_window, told.local_window) == (SHARED_WINDOW, LOCAL_WINDOW)
    assert told.sass_version == SASS[each_bench.user.chip]
    assert told.qmd == qmd.data


def test_windows_must_be_set(user: RawNv) -> None:
    area = user.buffer(64 << 10, local=True)
    area.host.store(QMD, plain("gh100", area.va, area.va + BANK).data)
    user.ring.submit(*inc(1, 0, 0xCBC0), *launch(area.va + QMD))
    user.run()
    assert user.ring.error()[0] == 13 and "window" in user.violations[0]


@pytest.mark.parametrize("method", [0x2A0, 0x7B0])
def test_windows_lie_apart(hopper: Bench, method: int) -> None:
    taken = hopper.area.va & ~((1 << 32) - 1)
    low = taken if method == 0x2A0 else hopper.area.va & ~((1 << 24) - 1)
    hopper.user.ring.submit(*inc(1, method, low >> 32, low & 0xFFFFFFFF))
    hopper.run(hopper.qmd())
    assert "overlaps" in hopper.user.violations[0]


def test_hoppers_shared_window_is_4_gib(hopper: Bench) -> None:
    hopper.user.ring.submit(*inc(1, 0x2A0, 0x7294, 1 << 24))
    hopper.run(hopper.qmd())
    assert "0x729401000000" in hopper.user.violations[0]
    ampere = bench("ga102")
    ampere.user.ring.submit(*inc(1, 0x2A0, 0x7294, 1 << 24))
    ampere.run(ampere.qmd())
    assert not ampere.user.violations
    ampere.user.world.close()


@pytest.mark.parametrize("method", [0x2A0, 0x7B0])
def test_windows_lie_below_49_bits(hopper: Bench, method: int) -> None:
    hopper.user.ring.submit(*inc(1, method, 1 << 17, 0))
    hopper.run(hopper.qmd())
    assert hopper.user.ring.error()[0] == 13 and "0x2000000000000" in hopper.user.violations[0]


def test_local_memory_needs_its_address(hopper: Bench) -> None:
    hopper.user.ring.submit(*inc(1, 0x2E4, 1, 0, 0xFF))
    hopper.run(hopper.qmd().set(high=16))
    assert hopper.user.ring.error()[0] == 13 and "at 0x0 are set" in hopper.user.violations[0]


def test_local_memory() -> None:
    made = bench("gh100")
    need = 0x240 * 32 // 0x200 * 0x200 * 64 * 2
    per_tpc = (need + 0x7FFF) & ~0x7FFF
    slm = made.user.buffer(per_tpc * 72 + PAGE & ~(PAGE - 1), local=True, cpu=False)
    setting = inc(1, 0x790, slm.va >> 32, slm.va & 0xFFFFFFFF)
    made.user.ring.submit(*setting, *inc(1, 0x2E4, 0, per_tpc, 0xFF))
    made.run(made.qmd().set(high=0x240))
    told = made.machine.launches[0]
    assert (told.local_high, told.local_memory, told.local_per_tpc) == (0x240, slm.va, per_tpc)
    made.user.ring.submit(*inc(1, 0x2E4, 0, per_tpc - 0x8000, 0xFF))
    made.run(made.qmd().set(high=0x240))
    assert made.user.ring.error()[0] == 13
    made.user.world.close()


def test_local_memory_must_be_mapped_whole(hopper: Bench) -> None:
    setting = inc(1, 0x790, hopper.area.va >> 32, hopper.area.va & 0xFFFFFFFF)
    hopper.user.ring.submit(*setting, *inc(1, 0x2E4, 0, 0x10_0000, 0xFF))
    hopper.run(hopper.qmd().set(high=16))
    assert hopper.user.ring.error()[0] == 31


@pytest.mark.parametrize(
    "words",
    [
        inc(1, 0x2C0, 2),  # an action before SEND_PCAS_A
        inc(1, 0x318, 0, 0),  # an inline QMD
        inc(1, 0x1B00, 0, 8, 1, 0),  # a report of four words, misaligned
        inc(1, 0x1B00, 0, 16, 1, 1),  # a report that is no release
    ],
)
def test_methods_that_are_refused(hopper: Bench, words: list[int]) -> None:
    hopper.user.ring.submit(*words)
    hopper.user.run()
    assert hopper.user.ring.error()[0] == 69


def test_without_an_executor_a_launch_is_refused(user: RawNv) -> None:
    made = Bench(user, Machine(add_one))
    made.run(made.qmd())
    assert user.ring.error()[0] == 13 and "executor" in user.violations[0]


@pytest.mark.parametrize("action", [2, 3, 9, 0xA])
def test_actions_that_schedule(hopper: Bench, action: int) -> None:
    hopper.run(hopper.qmd(), action=action)
    assert hopper.read() == 2


@pytest.mark.parametrize("action", [0, 1, 8])
def test_actions_that_do_not(hopper: Bench, action: int) -> None:
    hopper.run(hopper.qmd(), action=action)
    assert hopper.read() == 0 and not hopper.user.violations


@pytest.mark.parametrize("action", [6, 7, 0xB, 0xC, 0xD])
def test_actions_that_are_not_modelled(hopper: Bench, action: int) -> None:
    hopper.run(hopper.qmd(), action=action)
    assert hopper.user.ring.error()[0] == 69


def test_dependent_qmds(each_bench: Bench) -> None:
    second = each_bench.qmd(2)
    each_bench.area.host.store(QMD + 512, second.data)
    first = each_bench.qmd(1).set(next=1, action=1, next_at=each_bench.at(QMD + 512) >> 8)
    first.set(membar=1)
    each_bench.run(first)
    assert each_bench.read() == 4 and each_bench.area.host.read(RELEASE, 4) == 2


def test_dependents_may_be_read_early() -> None:
    """One that is prefetched and changes then must be read anew by the action that says so."""
    for prefetch, action, stale in ((0, 1, False), (1, 1, True), (1, 3, False)):
        made = bench("gh100", slices=40)
        made.area.host.store(QMD + 512, made.qmd(2).data)
        first = made.qmd(1).set(next=1, action=action, next_at=made.at(QMD + 512) >> 8, membar=1)
        made.start(first.set(prefetch=prefetch))
        while not made.machine.launches:
            made.user.world.work()
        made.area.host.store(QMD + 512, made.qmd(3).data)
        made.user.run()
        assert made.area.host.read(RELEASE, 4) == 3
        assert bool(made.user.violations) is stale
        made.user.world.close()


def test_dependents_need_a_barrier(hopper: Bench) -> None:
    hopper.area.host.store(QMD + 512, hopper.qmd(2).data)
    hopper.run(hopper.qmd(1).set(next=1, action=1, next_at=hopper.at(QMD + 512) >> 8))
    assert "without CWD_MEMBAR_TYPE" in hopper.user.violations[0]


def test_grids_go_on_beside_the_channel() -> None:
    """A release without RELEASE_WFI may come first; one with it, and WAIT_FOR_IDLE, may not."""

    def first(idle: bool, seed: int) -> bool:
        made = bench("gh100", seed=seed, slices=40)
        made.start(made.qmd(5))
        s = made.user.buffer()
        made.user.ring.submit(*release(s.va, 1, idle=idle))
        while not s.host.read(0, 4):
            made.user.world.work()
        done = made.area.host.read(RELEASE, 4) == 5
        made.user.world.close()
        return done

    assert {first(True, seed) for seed in range(8)} == {True}
    assert False in {first(False, seed) for seed in range(8)}


@pytest.mark.parametrize("method", [(1, 0x110), (0, 0x78), (1, 0x21C)])
def test_methods_that_wait_for_grids(method: tuple[int, int]) -> None:
    """WAIT_FOR_IDLE, the host's WFI, and INVALIDATE_SHADER_CACHES, which includes one."""
    for seed in range(6):
        made = bench("gh100", seed=seed, slices=40)
        s = made.user.buffer()
        made.start(made.qmd(5))
        made.user.ring.submit(*inc(*method, 0), *release(s.va, 1, idle=False))
        while not s.host.read(0, 4):
            made.user.world.work()
        assert made.area.host.read(RELEASE, 4) == 5
        made.user.world.close()


def test_report_semaphores(hopper: Bench) -> None:
    s = hopper.user.buffer()
    hopper.user.ring.submit(*inc(1, 0x1B00, s.va >> 32, s.va & 0xFFFFFFFF, 7, 1 << 28))
    hopper.user.ring.submit(*inc(1, 0x1B00, s.va >> 32, s.va + 16 & 0xFFFFFFFF, 8, 0))
    hopper.user.run()
    assert s.host.read(0, 8) == 7 and s.host.read(16, 4) == 8 and s.host.read(24, 8)


def test_the_newer_report_semaphores(hopper: Bench) -> None:
    s = hopper.user.buffer()
    low, high = s.va & 0xFFFFFFFF, s.va >> 32
    for at, payload, execute in ((0, (7, 0), 1 << 3), (16, (8, 9), 1 << 12), (8, (3, 4), 2 << 3)):
        hopper.user.ring.submit(*inc(1, 0x158, *payload, low + at, high), *inc(1, 0x168, execute))
    hopper.user.run()
    words = [s.host.read(4 * i, 4) for i in range(6)]
    assert words == [7, 0, 3, 0, 8, 9] and s.host.read(24, 8) and not hopper.user.violations


@pytest.mark.parametrize(
    ("execute", "offset"),
    [(1, 0), (3 << 3, 0), (1 << 6, 0), (1 << 3 | 1 << 12, 0), (0, 8), (1 << 3, 2)],
)
def test_newer_report_semaphores_that_are_refused(hopper: Bench, execute: int, offset: int) -> None:
    s = hopper.user.buffer()
    words = inc(1, 0x158, 1, 0, s.va + offset & 0xFFFFFFFF, s.va >> 32) + inc(1, 0x168, execute)
    hopper.user.ring.submit(*words)
    hopper.user.run()
    assert hopper.user.ring.error()[0] == 69


def inline(target: int, length: int, lines: int, pitch: int, execute: int) -> list[int]:
    where = (target >> 32, target & 0xFFFFFFFF)
    return inc(1, 0x180, length, lines, *where, pitch) + inc(1, 0x1B0, execute)


def test_inline_data(each_bench: Bench) -> None:
    host, user = each_bench.area.host, each_bench.user
    words = inline(each_bench.at(SCRATCH + 1), 6, 1, 0, 1)
    user.ring.submit(*words, *inc(1, 0x1B4, 0x04030201), *inc(1, 0x1B4, 0xFFFF0605))
    semaphore = inc(1, 0x1DC, each_bench.at(RELEASE) >> 32, each_bench.at(RELEASE) & 0xFFFFFFFF, 5)
    words = semaphore + inline(each_bench.at(SCRATCH + 64), 4, 2, 32, 1 | 2 << 4)
    user.ring.submit(*words, 3 << 29 | 2 << 16 | 1 << 13 | 0x1B4 >> 2, 11, 12)
    user.run()
    assert host.load(SCRATCH, 8) == bytes([0, 1, 2, 3, 4, 5, 6, 0])
    assert (host.read(SCRATCH + 64, 4), host.read(SCRATCH + 96, 4)) == (11, 12)
    assert host.read(RELEASE, 4) == 5 and host.read(RELEASE + 8, 8) and not user.violations


INLINE: dict[str, tuple[int, Callable[[int], list[int]]]] = {
    "block linear": (69, lambda at: inline(at, 4, 1, 0, 0)),
    "reduction": (69, lambda at: inline(at, 4, 1, 0, 3)),
    "nothing": (69, lambda at: inline(at, 0, 1, 0, 1)),
    "no lines": (69, lambda at: inline(at, 4, 0, 0, 1)),
    "odd lines": (69, lambda at: inline(at, 6, 2, 8, 1)),
    "data without a launch": (69, lambda at: inc(1, 0x1B4, 1)),
    "more data than wanted": (69, lambda at: inline(at, 4, 1, 0, 1) + inc(1, 0x1B4, 1) * 2),
    "another method within": (69, lambda at: inline(at, 4, 1, 0, 1) + inc(1, 0x110, 0)),
    "misaligned semaphore": (
        69,
        lambda at: inc(1, 0x1DC, 0, 8) + inline(at, 4, 1, 0, 1 | 2 << 4) + inc(1, 0x1B4, 1),
    ),
    "nowhere": (31, lambda at: inline(0x1000, 4, 1, 0, 1) + inc(1, 0x1B4, 1)),
}


@pytest.mark.parametrize("name", INLINE)
def test_inline_data_that_is_refused(hopper: Bench, name: str) -> None:
    number, words = INLINE[name]
    hopper.user.ring.submit(*words(hopper.at(SCRATCH)))
    hopper.user.run()
    assert hopper.user.ring.error()[0] == number


# What kernels do wrong.


def read_beyond_the_bank(launch: Launch, memory: KernelMemory) -> None:
    memory.constant(0, 1020, 8)


def read_a_bank_that_is_not_valid(launch: Launch, memory: KernelMemory) -> None:
    memory.constant(3, 0, 4)


def read_the_shared_window(launch: Launch, memory: KernelMemory) -> None:
    memory.load(SHARED_WINDOW + 64, 4)


def read_the_local_window(launch: Launch, memory: KernelMemory) -> None:
    memory.store(LOCAL_WINDOW, b"1234")


def trap(launch: Launch, memory: KernelMemory) -> None:
    raise KernelFault("illegal instruction", pc=launch.program + 0x40, warp_error=0x4)


@pytest.mark.parametrize(
    "kernel",
    [
        *(read_beyond_the_bank, read_a_bank_that_is_not_valid, read_the_shared_window),
        *(read_the_local_window, trap),
    ],
)
def test_kernels_that_stop_an_sm(kernel: Kernel) -> None:
    made = bench("gh100", kernel)
    debugger = open_debugger(made)
    made.run(made.qmd())
    assert made.user.ring.error() == (13, 1, 0xFFFF)
    states = bytearray(4824)
    struct.pack_into("<II", states, 0, made.user.ring.handle, 100)
    assert made.user.control(debugger, 0x83DE030C, states) == OK
    code = struct.unpack_from("<I", states, 8 + 4)[0]
    pc = struct.unpack_from("<Q", states, 8 + 32)[0]
    assert code == (0x4 if kernel is trap else 0x10)
    assert pc == (made.at(PROGRAM) + 0x40 if kernel is trap else 0)
    assert states[4812] == 0
    made.user.world.close()


def open_debugger(made: Bench) -> int:
    params = struct.pack("<III", 0, made.user.client, made.user.objects["compute"])
    return made.user.alloc(0x83DE, bytearray(params), parent=made.user.device)


def write_nowhere(launch: Launch, memory: KernelMemory) -> None:
    memory.store(0x12_3456, b"1234")


def test_the_debugger_tells_the_mmu_fault() -> None:
    made = bench("gh100", write_nowhere)
    debugger = open_debugger(made)
    made.run(made.qmd())
    assert made.user.ring.error()[0] == 31
    faults = bytearray(72)
    assert made.user.control(debugger, 0x83DE0328, faults) == OK
    assert struct.unpack_from("<QII", faults) == (0x123000, 2, 1)  # PTE, a write
    assert faults[64] == 1
    states = bytearray(4824)
    struct.pack_into("<I", states, 4, 32)
    struct.pack_into("<I", states, 4820, 100)
    assert made.user.control(debugger, 0x83DE030C, states) == OK and states[4812] == 1
    for count, start in ((33, 100), (101, 0), (0, 0)):  # an H200 has 132, a call takes 100
        struct.pack_into("<I", states, 4, count)
        struct.pack_into("<I", states, 4820, start)
        assert made.user.control(debugger, 0x83DE030C, states) == 0x1F
    assert made.user.control(debugger, 0x83DE0310, bytearray(8)) == OK
    assert made.user.control(debugger, 0x83DE0328, faults) == OK and faults[64] == 0
    made.user.world.close()


# Caches.


def test_a_bank_that_changed_needs_an_invalidate(hopper: Bench) -> None:
    hopper.run(hopper.qmd())
    hopper.area.host.write(BANK + 0x210, 8, hopper.at(SCRATCH + 8))
    hopper.run(hopper.qmd().set(bank_new=0))
    assert "constant holds" in hopper.user.violations[0]
    hopper.area.host.write(BANK + 0x210, 8, hopper.at(SCRATCH + 16))
    before = len(hopper.user.violations)
    hopper.run(hopper.qmd())  # with the bank's bit
    hopper.area.host.write(BANK + 0x210, 8, hopper.at(SCRATCH + 24))
    hopper.run(hopper.qmd().set(bank_new=0, constant_new=1))
    hopper.area.host.write(BANK + 0x210, 8, hopper.at(SCRATCH + 32))
    hopper.user.ring.submit(*inc(1, 0x1698, 1 << 12))
    hopper.run(hopper.qmd().set(bank_new=0))
    assert len(hopper.user.violations) == before
    assert hopper.read(SCRATCH + 32) == 2


def test_caches_forget_memory_that_was_freed(hopper: Bench) -> None:
    user = hopper.user
    for value in range(3):  # the pages are the same each time
        bank = user.buffer(4096, local=True)
        bank.host.write(0x210, 8, hopper.at(SCRATCH + 8 * value))
        hopper.run(hopper.qmd().set(bank_new=0).pair("bank", bank.va >> 6))
        assert user.free_range(bank.va, 4096) == OK and user.free(bank.handle) == OK
    assert not user.violations
    assert [hopper.read(SCRATCH + 8 * value) for value in range(3)] == [2, 2, 2]


def test_data_that_the_cpu_changed_needs_an_invalidate(hopper: Bench) -> None:
    hopper.run(hopper.qmd())
    hopper.area.host.write(SCRATCH, 4, 100)
    hopper.run(hopper.qmd().set(data_new=0))
    assert "data holds" in hopper.user.violations[0]
    hopper.area.host.write(SCRATCH, 4, 200)
    hopper.run(hopper.qmd())
    assert hopper.read() == 202 and len(hopper.user.violations) == 1


def test_a_qmd_that_changed_needs_an_invalidating_action(hopper: Bench) -> None:
    hopper.run(hopper.qmd(1))
    hopper.run(hopper.qmd(2), action=3)
    assert not hopper.user.violations
    hopper.run(hopper.qmd(3), action=9)
    assert "sked holds" in hopper.user.violations[0]
    hopper.user.ring.submit(*inc(1, 0x298, 0))
    hopper.run(hopper.qmd(4), action=9)
    assert len(hopper.user.violations) == 1 and hopper.area.host.read(RELEASE, 4) == 4


def fetch(launch: Launch, memory: KernelMemory) -> None:
    memory.store(launch.banks[0].address - BANK + SCRATCH, memory.code.read(launch.program, 4))  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", ["check", "oldest", "none"])
def test_code_that_changed(mode: Mode) -> None:
    made = bench("gh100", fetch, coherence=mode)
    seen = []
    for value, new in ((1, 0), (2, 0), (3, 1)):
        made.area.host.write(PROGRAM, 4, value)
        made.run(made.qmd(value).set(code_new=new))
        seen.append(made.read())
    assert seen == ([1, 1, 3] if mode == "oldest" else [1, 2, 3])
    assert len(made.user.violations) == (mode == "check")
    made.user.world.close()

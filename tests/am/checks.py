"""What a device behind KFD does beyond the conformance suite, as checks of a `KfdTarget`.

Each is a test, and finds mistakes that `am.mutations` puts in.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from am.kernels import LAYOUTS, code_object
from am.kfd_target import KfdTarget, open_device
from gpu.core import hostmem
from gpu.core.errors import DeviceHang, DeviceLost, GpuError, GpuFault, Unsupported
from gpu.drivers.am.device import AmDevice, reads
from gpu.drivers.am.kfd.port import open_kfd
from gpu.drivers.am.kfd.process import session_of
from gpu.drivers.am.queue import QueueKind
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.conformance.kit import WORDS, Ints, download, numbers, peek, system, upload
from gpu.hcq.ports import MemoryKind
from gpu.transport.world import World

PAGE = 4096


def same(found: object, wanted: object) -> None:
    """Raise AssertionError unless both are equal."""
    assert np.array_equal(np.asarray(found), np.asarray(wanted)), f"{found} is not {wanted}"


@contextmanager
def raises(kind: type[GpuError], *words: str) -> Iterator[None]:
    """The block raises such an error, whose text has all words."""
    try:
        yield
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{error} does not have {missing}"
        return
    raise AssertionError(f"{kind.__name__} expected, nothing was raised")


def writes_through_the_bar(target: KfdTarget) -> None:
    """What the host stores to device memory is what the next copy reads."""
    with open_device(target) as device:
        seen = device.allocator.alloc(4 * WORDS, MemoryKind.VISIBLE)
        for seed in range(4):
            assert seen.window is not None
            seen.window.store(0, numbers(seed).tobytes())
            same(download(device, seen), numbers(seed))


def code_comes_and_goes(target: KfdTarget) -> None:
    """Code in the place of other code is what runs."""
    with open_device(target) as device:
        out, one = upload(device, numbers(0)), upload(device, np.ones(WORDS, np.int32))
        wanted = numbers(0)
        for number in range(6):
            if number % 2:
                fill = target.program(device, "fill")
                fill(out, vals=(number, WORDS))
                wanted[:] = number
                del fill
            else:
                add = target.program(device, "add")
                add(out, out, one, vals=(WORDS,))
                wanted += 1
                del add
            same(download(device, out), wanted)
            gc.collect()


def system_memory_is_coherent(target: KfdTarget) -> None:
    """Kernels read what the host wrote to system memory, and the host what they wrote."""
    with open_device(target) as device:
        add = target.program(device, "add")
        a, b, out = (system(device, numbers(seed)) for seed in range(3))
        for seed in range(3):
            for buffer, values in ((a, numbers(seed)), (b, numbers(seed + 7))):
                assert buffer.window is not None
                buffer.window.store(0, values.tobytes())
            add(out, a, b, vals=(WORDS,))
            device.synchronize()
            same(peek(out), numbers(seed) + numbers(seed + 7))


def faults_name_buffers(target: KfdTarget) -> None:
    """A fault tells page, buffer and offset. An old kernel takes the GPU from the process."""
    target.sim.interface = 17  # of Linux 6.12
    session_of(target.world.os).kfd.version = (1, 17)
    device = open_device(target, 0)
    buffer = device.allocator.alloc(3 * PAGE)
    device.synchronize()
    hole = hostmem.reserve(16 * PAGE)
    point = device.queue("copy").copy(hole + 5 * PAGE + 8, buffer, 4).submit(device)
    with raises(GpuFault, f"{hole + 5 * PAGE:#x}", "is not mapped"):
        device.wait(point)
    hostmem.release(hole, 16 * PAGE)
    memory = device.port.memory
    assert memory.describe(buffer.address + 9) == (
        f"0x9 into 0x3000 bytes of device memory at {buffer.address:#x}"
    )
    with raises(DeviceLost, "is not mapped"):
        device.synchronize()
    device.close()
    with raises(DeviceLost, "new processes only"):
        open_device(target, 0)
    other = target.sim.new_process()
    with open_kfd(World(other.os, target.sim.waiter)) as fresh:
        same(download(fresh, upload(fresh, numbers(1))), numbers(1))


def code_is_read_only(target: KfdTarget) -> None:
    """A kernel that writes to code faults, with the reason."""
    with open_device(target) as device:
        fill, victim = target.program(device, "fill"), target.program(device, "add")
        assert victim.code is not None
        view = HCQBuffer(victim.code.allocation, 0, PAGE)
        fill(view, vals=(1, 1))
        with raises(GpuFault, "is read-only", "0x0 into", "of code at"):
            device.synchronize()


def freed_memory_is_named(target: KfdTarget) -> None:
    """A late access is told apart from a stray one."""
    with open_device(target) as device:
        device.channel("copy")  # takes no addresses any more
        memory = device.allocate(PAGE, MemoryKind.VRAM)
        address = memory.address
        device.release(memory)
        point = device.queue("copy").copy(address, address, 4).submit(device)
        with raises(GpuFault, "which was freed"):
            device.wait(point)


def queues_wake_the_host(target: KfdTarget) -> None:
    """A wait sleeps in the kernel, and the end of a submission wakes it, not the time."""
    target.kernels.steps = 400
    outcomes: list[bool] = []
    with open_device(target) as device:
        session = session_of(target.world.os)
        sleep = session.sleep

        def noted(*args: object) -> bool:
            outcomes.append(sleep(*args))  # type: ignore[arg-type]
            return outcomes[-1]

        session.sleep = noted  # type: ignore[method-assign]
        fill, out = target.program(device, "fill"), upload(device, numbers(0))
        device.synchronize()
        for act in (
            lambda: fill(out, vals=(3, WORDS)),
            lambda: device.queue("copy").submit(device),
            lambda: device.queue("copy", 1).submit(device),
        ):
            outcomes.clear()
            act()
            device.synchronize()
            assert outcomes[-1:] == [True], f"sleeps ended by an event: {outcomes}"
        session.sleep = sleep  # type: ignore[method-assign]


def events_are_given_back(target: KfdTarget) -> None:
    """A closed device leaves no event behind: the next gets the same number."""
    seen = set()
    for _ in range(4):
        with open_device(target) as device:
            seen.add(device.port.waiter.event.number)
    assert len(seen) == 1, f"numbers of events: {seen}"


def clocks_agree(target: KfdTarget) -> None:
    """Ticks at the rate that is told are nanoseconds of the world's clock."""
    with open_device(target) as device:
        port, waiter = device.port, target.sim.waiter
        before, start = port.clock(), waiter.now_ns()
        for _ in range(200):
            device.queue().submit(device)
            device.synchronize()
        passed = (port.clock() - before) / port.clock_hz * 1e9
        real = waiter.now_ns() - start
        assert real > 0 and abs(passed - real) < 0.1 * real, f"{passed} of {real} ns"


def unaligned_arrays(target: KfdTarget) -> None:
    """Arrays of the host that share pages, and cross them, are used in place."""
    with open_device(target) as device:
        block = np.zeros(4 * PAGE // 4, np.int32)
        at = -(block.ctypes.data // 4) % (PAGE // 4) + PAGE // 4 - WORDS // 2
        first, second = block[at : at + WORDS], block[at + WORDS : at + 2 * WORDS]
        maps = [device.allocator.map_host(array) for array in (first, second)]
        first[:], second[:] = numbers(1), numbers(2)
        same(download_from(device, maps[0]), numbers(1))
        device.allocator.copy(maps[1], maps[0])
        device.synchronize()
        same(second, numbers(1))
        maps[0].free()
        same(download_from(device, maps[1]), numbers(1))


def download_from(device: AmDevice, mapped: HCQBuffer) -> Ints:
    """What the device sees of memory of the host."""
    copy = device.allocator.alloc(mapped.size)
    device.allocator.copy(copy, mapped)
    return download(device, copy)


def peers_end(target: KfdTarget) -> None:
    """After the last unmapping a peer faults; before it does not."""
    with open_device(target) as owner, open_device(target) as peer:
        there, here = upload(owner, numbers(1)), upload(peer, numbers(0))
        owner.synchronize()
        there.map_to(peer)
        peer.allocator.copy(here, there)
        same(download(peer, here), numbers(1))
        there.unmap_from(peer)
        peer.queue("copy").copy(here, there.address, 4).submit(peer)
        with raises(GpuFault):
            peer.synchronize()


def one_gpu_twice(target: KfdTarget) -> None:
    """Two devices of one GPU share its page tables, and map each other's memory at no cost."""
    with open_device(target, 0) as first, open_device(target, 0) as second:
        there, here = upload(first, numbers(1)), upload(second, numbers(0))
        first.synchronize()
        for _ in range(2):
            there.map_to(second)
            second.allocator.copy(here, there)
            same(download(second, here), numbers(1))
            there.unmap_from(second)
        same(download(first, there), numbers(1))


def stuck_queues_are_let_go(target: KfdTarget) -> None:
    """Closing a device whose queue waits for a signal for ever does not end the GPU."""
    device = open_device(target)
    never = device.signal()
    point = device.queue().wait(never, 5).signal(never, 6).submit(device)
    with raises(DeviceHang):
        device.wait(point)
    device.close()
    assert target.sim.debug.faults == []


def resets_are_told(target: KfdTarget) -> None:
    """When the kernel resets the GPU, all its devices are lost, and say why."""
    first, second = open_device(target, 0), open_device(target, 0)
    word = system(first, np.zeros(1, np.int32))
    point = first.queue().poll(word.address, 1).submit(first)
    with raises(DeviceHang):
        first.wait(point)
    with raises(DeviceHang):
        first.close()  # nobody knows what would end a poll
    never = second.signal()
    point = second.queue().wait(never, 1).submit(second)
    with raises(DeviceLost, "reset"):
        second.wait(point)
    second.close()


def second_queues_have_no_scratch(target: KfdTarget) -> None:
    """Kernels with scratch memory run where it is theirs alone."""
    with open_device(target) as device:
        code = code_object("fill", device.target.version, private_size=64)
        fill, out = device.load(code, "fill", LAYOUTS["fill"]), upload(device, numbers(0))
        fill(out, vals=(2, WORDS))
        same(download(device, out), np.full(WORDS, 2, np.int32))
        seen = target.kernels.seen[-1]
        scratch = device.scratch(64)
        assert (seen.scratch_base, seen.tmpring != 0) == (scratch.address, True), seen
        args = fill.arguments(out, vals=(3, WORDS))
        queue = device.queue("compute", 1).exec(fill, args, (1, 1, 1), (1, 1, 1))
        if reads(device.channel("compute", 1), QueueKind.AQL):  # has its own
            device.wait(queue.submit(device))
            assert target.kernels.seen[-1].scratch_base not in (0, scratch.address)
            return
        with raises(Unsupported, "compute queue 0"):
            queue.submit(device)


def allocations_leave_nothing(target: KfdTarget) -> None:
    """Many allocations and their ends leave memory, mappings and descriptors as they were."""
    with open_device(target) as device:
        memory = device.port.memory
        kinds = (MemoryKind.VRAM, MemoryKind.SYSTEM, MemoryKind.VISIBLE)
        device.release(device.allocate(PAGE, MemoryKind.VISIBLE))
        gc.collect()

        def held() -> tuple[int, ...]:
            gc.collect()
            return (memory.in_use, target.sim.gpus[0].vram_used, *target.resources())

        *before, maps = held()
        for number in range(target.repeats):
            device.release(device.allocate(PAGE << number % 11, kinds[number % 3]))
        *after, maps_after = held()
        assert before == after, f"{before} became {after}"
        # Mappings of Python's own memory come and go.
        assert maps_after < maps + 20, f"{maps} mappings became {maps_after}"


def opening_again(target: KfdTarget) -> None:
    """Opening and closing a GPU again and again leaves nothing, and keeps working."""

    def use(times: int) -> tuple[int, ...]:
        for number in range(times):
            with open_device(target, number % 2, small=True) as device:
                if number % 50 == 0:
                    same(download(device, upload(device, numbers(number))), numbers(number))
        gc.collect()
        return target.resources()

    use(2)
    before = use(4)
    descriptors, maps = use(target.repeats // 40)
    # Mappings of Python's own memory come and go.
    assert descriptors == before[0] and maps < before[1] + 40, f"{before} became {maps}"


Check = Callable[[KfdTarget], None]
CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        writes_through_the_bar,
        code_comes_and_goes,
        system_memory_is_coherent,
        faults_name_buffers,
        code_is_read_only,
        freed_memory_is_named,
        queues_wake_the_host,
        events_are_given_back,
        clocks_agree,
        unaligned_arrays,
        peers_end,
        one_gpu_twice,
        stuck_queues_are_let_go,
        resets_are_told,
        second_queues_have_no_scratch,
        allocations_leave_nothing,
        opening_again,
    )
}

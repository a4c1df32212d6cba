"""Checks of single commands and of order: copies, signals, waits, timestamps, rings, timelines."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np

from gpu.core.errors import DeviceHang, InvalidValue
from gpu.hcq.conformance.kit import (
    WORDS,
    Check,
    Target,
    download,
    expect,
    expect_equal,
    expect_raises,
    numbers,
    peek,
    place,
    queues_that_copy,
    system,
    upload,
)
from gpu.hcq.device import HCQDevice
from gpu.hcq.profile import Profiler
from gpu.hcq.program import HCQProgram

_MANY: Final = 600


def copies(target: Target) -> None:
    """Bytes arrive as they were sent, at odd sizes and offsets, and nowhere else."""
    with target.open() as device:
        for size in (1, 3, 64, 255, 4099):
            data = np.random.default_rng(size).bytes(size + 32)
            first, second = (device.allocator.alloc(size + 32) for _ in range(2))
            device.allocator.copy_in(first, data)
            device.allocator.copy_in(second, bytes(size + 32))
            device.allocator.copy(second.view(16, size), first.view(7, size))
            wanted = bytes(16) + data[7 : 7 + size] + bytes(16)
            found = device.allocator.copy_out(second)
            expect(found == wanted, f"copy of {size} bytes between odd offsets differs")


def memory_commands(target: Target) -> None:
    """Inline writes arrive; a poll goes on only when its masked word compares."""
    with target.open() as device:
        word, out = system(device, np.zeros(2, np.int32)), system(device, np.zeros(3, np.int32))
        data = np.array([1, -2, 3], np.int32)
        queue = device.queue().poll(word.address, 0x30, 0xF0).write(out.address, data.tobytes())
        point = queue.submit(device)
        expect_raises(DeviceHang, "a poll", lambda: device.wait(point, 0.01))
        expect_equal(peek(out), np.zeros(3, np.int32), "words behind a poll that is not satisfied")
        beside = place(device, "compute", 1)
        if beside == ("compute", 0):  # which waits
            assert word.window is not None
            word.window.write(0, 4, 0x37)
        else:
            device.queue(*beside).write(word.address, b"\x37\0\0\0").submit(device)
        device.wait(point)
        expect_equal(peek(out), data, "words behind a poll")


def signals_and_waits(target: Target) -> None:
    """A queue goes on when a signal is at least the value that it waits for, and not before."""
    with target.open() as device:
        go, done = device.signal(), device.signal(7)
        source, out = system(device, numbers(1)), system(device, numbers(2))
        copier = device.queue(*place(device, "copy"))
        queue = copier.wait(go, 3).copy(out, source, out.size).signal(done, 9)
        point = queue.submit(device)
        for value in (0, 2):
            go.set(value)
            expect_raises(DeviceHang, "waiting behind a wait", lambda: device.wait(point, 0.01))
            expect_equal(peek(out), numbers(2), f"a copy that waits for 3, at {value}")
        go.set(4)
        device.wait_signal(done, 9)
        expect_equal(peek(out), numbers(1), "a copy that waited for 3, at 4")
        expect(done.value == 9, f"a signal of 9 gave {done.value}")


def signals_come_last(target: Target) -> None:
    """What was before a signal is done, and visible to the host, when the signal is there."""
    with target.open() as device:
        done = device.signal()
        places = queues_that_copy(device, ("compute", 0), ("compute", 1))
        for number in range(1, 30):
            source, out = system(device, numbers(number)), system(device, numbers(0))
            where = places[number % len(places)]
            queue = device.queue(*where).copy(out, source, out.size).signal(done, number)
            queue.submit(device)
            device.wait_signal(done, number)
            expect_equal(peek(out), numbers(number), "a copy that a signal says is done")


def queues_wait_for_each_other(target: Target) -> None:
    """A chain of copies that changes queues at every step, ordered by signals alone."""
    with target.open() as device:
        step = device.signal()
        buffers = [system(device, numbers(n)) for n in range(31)]
        places = queues_that_copy(device, ("compute", 0), ("compute", 1), ("copy", 1))[:3]
        for first, where in reversed(list(enumerate(places))):  # the last steps first
            queue = device.queue(*where)
            for number in range(first, 30, len(places)):
                queue.wait(step, number).memory_barrier()
                queue.copy(buffers[number + 1], buffers[number], buffers[0].size)
                queue.signal(step, number + 1)
            queue.submit(device)
        device.wait_signal(step, 30)
        expect_equal(peek(buffers[30]), numbers(0), "the end of a chain over several queues")


def launches(target: Target) -> None:
    """Programs get their arguments, and see what those before them wrote."""
    with target.open() as device:
        add, fill = (target.program(device, name) for name in ("add", "fill"))
        a, b, out = (upload(device, numbers(n)) for n in range(3))
        add(out, a, b, vals=(WORDS,))
        add(out, out, a, vals=(WORDS // 2,))
        fill(a, vals=(-5, 3))
        seconds = add(b, a, out, vals=(WORDS,), wait=True)
        wanted = numbers(0) + numbers(1)
        wanted[: WORDS // 2] += numbers(0)[: WORDS // 2]
        expect_equal(download(device, out), wanted, "a sum of sums")
        changed = numbers(0)
        changed[:3] = -5
        expect_equal(download(device, b), wanted + changed, "a sum of what was just written")
        expect(seconds is not None and seconds >= 0, f"a launch took {seconds} s")
        expect_raises(InvalidValue, "too few buffers", lambda: add(a, b, vals=(1, 2)))
        expect_raises(InvalidValue, "a value too large", lambda: fill(a, vals=(1 << 31, 1)))


def _count_up(device: HCQDevice, add: HCQProgram, times: int) -> None:
    """Add one, again and again, alternating between queues in order now and then."""
    one = upload(device, np.ones(WORDS, np.int32))
    counts = [upload(device, np.zeros(WORDS, np.int32)) for _ in range(2)]
    now = 0
    for number in range(times):
        add(counts[now], counts[now], one, vals=(WORDS,))
        if number % 7 == 0:
            device.allocator.copy(counts[1 - now], counts[now])
            now = 1 - now
    wanted = np.full(WORDS, times, np.int32)
    expect_equal(download(device, counts[now]), wanted, f"{times} launches that add one")


def submissions_in_order(target: Target) -> None:
    """Launches and copies submitted in order run in order, whatever queues they are on."""
    with target.open() as device:
        _count_up(device, target.program(device, "add"), 60)


def rings_wrap(target: Target) -> None:
    """Rings and command memory go round many times without being overwritten too early."""
    with target.open(small=True) as device:
        _count_up(device, target.program(device, "add"), _MANY)


def arguments_live_long_enough(target: Target) -> None:
    """Arguments of launches that did not run yet are not overwritten by later ones."""
    with target.open(small=True) as device:
        fill, go = target.program(device, "fill"), device.signal()
        out = [upload(device, numbers(0)) for _ in range(40)]
        blocked = device.queue().wait(go, 1).submit(device)
        for number, buffer in enumerate(out):
            fill(buffer, vals=(number, WORDS))
            if number == 10:  # then there may be no room without going on
                go.set(1)
        device.wait(blocked)
        for number, buffer in enumerate(out):
            wanted = np.full(WORDS, number, np.int32)
            expect_equal(download(device, buffer), wanted, f"fill number {number}")


def timelines_wrap(target: Target) -> None:
    """Work goes on where the value of a timeline outgrows what the device compares."""
    with target.open(near_wrap=True, small=True) as device:
        _count_up(device, target.program(device, "add"), 60)
        go, out = device.signal(), system(device, numbers(0))
        for number in range(25):
            value = number + 1
            queue = device.queue(*place(device, "compute", 1)).wait(go, value)
            point = queue.write(out.address, b"done").submit(device)
            expect_raises(DeviceHang, "a blocked queue", partial(device.wait, point, 0.01))
            go.set(value)
            device.wait(point)
            expect(point.channel.timeline.passed(point.value), "what was waited for has passed")


def timestamps(target: Target) -> None:
    """Timestamps grow along a queue, and fall between the clock readings around them."""
    with target.open() as device:
        stamps = [device.signal(number) for number in range(5, 8)]
        before = device.port.clock()
        queue = device.queue()
        for stamp in stamps:
            queue.timestamp(stamp).memory_barrier()
        device.wait(queue.submit(device))
        ticks = [stamp.timestamp for stamp in stamps]
        found = [before, *ticks, device.port.clock()]
        expect(found == sorted(found), f"clock, three timestamps, clock: {found} is not sorted")
        values = [stamp.value for stamp in stamps]
        expect(values == [5, 6, 7], f"timestamps changed signals' values to {values}")


def profiles(target: Target) -> None:
    """Records of commands in order do not overlap, and have a length."""
    with target.open() as device:
        add, profiler = target.program(device, "add"), Profiler(device, device.port.waiter.now_ns)
        a, b = (upload(device, numbers(n)) for n in range(2))
        places = [device.channel("compute"), device.channel(*place(device, "compute", 1))]
        for number in range(6):
            queue = device.queue().exec(
                add, add.arguments(b, a, b, vals=(WORDS,)), (1, 1, 1), (1, 1, 1)
            )
            profiler.submit(f"add {number}", places[number % 2], queue.commands)
        records = profiler.collect()
        expect(
            [record.name for record in records] == [f"add {n}" for n in range(6)],
            f"names of records: {[record.name for record in records]}",
        )
        for first, second in pairwise(records):
            expect(first.start_ns < first.end_ns <= second.start_ns, f"{first} before {second}")


CHECKS: Final[tuple[Check, ...]] = (
    copies,
    memory_commands,
    signals_and_waits,
    signals_come_last,
    queues_wait_for_each_other,
    launches,
    submissions_in_order,
    rings_wrap,
    arguments_live_long_enough,
    timelines_wrap,
    timestamps,
    profiles,
)

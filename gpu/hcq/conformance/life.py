"""Checks of what happens to a device: faults, timeouts, threads, fork, interrupts, closing."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Final

import numpy as np

from gpu.core.errors import DeviceHang, DeviceLost, GpuFault
from gpu.hcq.conformance.kit import (
    WORDS,
    Check,
    ConformanceError,
    Target,
    download,
    expect,
    expect_equal,
    expect_raises,
    numbers,
    place,
    upload,
)
from gpu.hcq.device import HCQDevice

_NOWHERE: Final = 0x1000  # never mapped on any device
_OPENED: Final = 3
_TRIES: Final = 4


def faults(target: Target) -> None:
    """A bad address is a `GpuFault` that tells it; the device is lost then, others go on."""
    with target.open() as device, target.open() as other:
        buffer = upload(device, numbers(0))
        point = device.queue(*place(device, "copy")).copy(_NOWHERE, buffer, 4).submit(device)
        fault = expect_raises(GpuFault, "a copy to nowhere", lambda: device.wait(point))
        assert isinstance(fault, GpuFault)
        expect(
            fault.address is None or fault.address >> 12 == _NOWHERE >> 12,
            f"the fault tells address {fault.address}, not {_NOWHERE:#x}",
        )
        for action in (device.synchronize, lambda: device.queue().submit(device), device.signal):
            expect_raises(DeviceLost, "using a device after a fault", action)
        expect_equal(download(other, upload(other, numbers(1))), numbers(1), "another device")


def timeouts(target: Target) -> None:
    """Waiting for what does not come is a `DeviceHang`; the device goes on when it comes."""
    with target.open() as device:
        go = device.signal()
        point = device.queue().wait(go, 1).submit(device)
        error = expect_raises(DeviceHang, "a wait without end", lambda: device.wait(point, 0.02))
        expect("compute queue 0" in str(error), f"a timeout does not name the queue: {error}")
        go.set(1)
        device.wait(point)
        expect_raises(DeviceHang, "a signal", lambda: device.wait_signal(go, 2, 0.02))
        expect_equal(download(device, upload(device, numbers(0))), numbers(0), "work after that")


def threads(target: Target) -> None:
    """Two threads use a device at once."""
    with target.open(small=True) as device:
        add = target.program(device, "add")
        errors: list[BaseException] = []

        def work(seed: int) -> None:
            try:
                a, b = upload(device, numbers(seed)), upload(device, numbers(seed + 10))
                for _ in range(60):
                    add(b, a, b, vals=(WORDS,))
                wanted = 60 * numbers(seed) + numbers(seed + 10)
                expect_equal(download(device, b), wanted, f"sums of thread {seed}")
            except BaseException as error:
                errors.append(error)

        workers = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if errors:
            raise errors[0]


def forks(target: Target) -> None:
    """In a forked child every handle raises `DeviceLost`; the parent notices nothing."""
    with target.open() as device:
        add, a = target.program(device, "add"), upload(device, numbers(1))
        flag = device.signal()
        add(a, a, a, vals=(WORDS,))
        uses: list[Callable[[], object]] = [
            lambda: add(a, a, a, vals=(WORDS,)),
            lambda: download(device, a),
            lambda: device.allocator.alloc(64),
            lambda: flag.value,
            lambda: flag.set(1),
            lambda: device.queue().submit(device),
            device.synchronize,
            device.signal,
        ]
        child = os.fork()
        if child == 0:
            os._exit(_use_in_child(device, uses))
        _, status = os.waitpid(child, 0)
        failed = os.waitstatus_to_exitcode(status)
        expect(failed == 0, f"use number {failed} in a forked child did not raise DeviceLost")
        expect_equal(download(device, a), 2 * numbers(1), "the parent after a fork")


def _use_in_child(device: HCQDevice, uses: list[Callable[[], object]]) -> int:
    """The number, from 1, of the first use that does not raise `DeviceLost`; 0 if all do."""
    try:
        for number, use in enumerate(uses, 1):
            try:
                use()
            except DeviceLost as error:
                if "forked" in str(error):
                    continue
            return number
        device.close()
        gc.collect()
    except BaseException:  # whatever it is, the child must not run on as a second parent
        return 100
    return 0


def collections(target: Target) -> None:
    """Finalizers may run anywhere, also while a submission holds the lock."""
    with target.open(small=True) as device:
        add, one = target.program(device, "add"), upload(device, np.ones(WORDS, np.int32))
        count, kept = upload(device, np.zeros(WORDS, np.int32)), gc.get_threshold()
        gc.set_threshold(1, 1, 1)
        try:
            for _ in range(40):
                cycle: list[Any] = [device.allocator.alloc(4 * WORDS)]
                cycle.append(cycle)
                add(count, count, one, vals=(WORDS,))
                del cycle
                device.allocator.copy_in(one, np.ones(WORDS, np.int32).tobytes())
        finally:
            gc.set_threshold(*kept)
        wanted = np.full(WORDS, 40, np.int32)
        expect_equal(download(device, count), wanted, "launches among garbage collections")


def _take_signals() -> None:
    """Where handlers of signals that have come run: from Python 3.12 on no call in C is one."""


def interrupts(target: Target) -> None:
    """An interrupt at any point leaves a launch submitted or not, and the device usable."""
    if threading.current_thread() is not threading.main_thread():
        raise ConformanceError("interrupts come to the main thread: run this check there")
    with target.open(small=True) as device:
        add, one = target.program(device, "add"), upload(device, np.ones(WORDS, np.int32))
        count = upload(device, np.zeros(WORDS, np.int32))
        timeline = device.channel("compute").timeline

        model = device.port.waiter.spin_ns == 0

        fired = False

        def interrupt(_: int, frame: FrameType | None) -> None:
            nonlocal fired
            while model and frame is not None:  # what a model runs is not ours to interrupt
                if frame.f_code.co_name == "idle":
                    signal.setitimer(signal.ITIMER_REAL, 0.0001)
                    return
                frame = frame.f_back
            fired = True
            raise KeyboardInterrupt

        def ctrl_c(_: int, frame: FrameType | None) -> None:
            """As if it had been Ctrl-C: whoever puts that off puts this off."""
            handler = signal.getsignal(signal.SIGINT)
            assert callable(handler), "it was set below"
            handler(signal.SIGINT, frame)

        def launch_on() -> None:
            """What a handler raises on a jump back of a loop passes by `finally` in Python 3.13."""
            while not fired:  # Python drops an exception that comes within a finalizer
                add(count, count, one, vals=(WORDS,))
                if (timeline.submitted - before) % 8 == 0:
                    device.synchronize()

        device.synchronize()
        before, previous = timeline.submitted, signal.signal(signal.SIGALRM, ctrl_c)
        as_ever = signal.signal(signal.SIGINT, interrupt)
        try:
            for number in range(20):
                fired = False
                with suppress(KeyboardInterrupt):
                    try:
                        signal.setitimer(signal.ITIMER_REAL, 0.001 + 0.0001 * number)
                        launch_on()
                    finally:  # also where it ended otherwise: none may come outside of this block
                        signal.setitimer(signal.ITIMER_REAL, 0)
                        _take_signals()
        finally:
            signal.signal(signal.SIGALRM, previous)
            signal.signal(signal.SIGINT, as_ever)
        launched = timeline.submitted - before
        expect(launched > 0, "nothing was submitted between interrupts")
        wanted = np.full(WORDS, launched, np.int32)
        expect_equal(download(device, count), wanted, f"{launched} launches among interrupts")


def closing(target: Target) -> None:
    """Opening and closing leaves nothing behind, and what is closed says so."""

    def use() -> None:
        with target.open() as device:
            buffers = [upload(device, numbers(n)) for n in range(3)]
            queue = device.queue(*place(device, "copy"))
            bound = queue.copy(buffers[0], buffers[1], 4).bind(device)
            device.wait(bound.submit())
            buffers.pop().free()
        device.close()
        expect_raises(DeviceLost, "a closed device", lambda: download(device, buffers[0]))

    use()
    for _ in range(_TRIES):  # what else there is in the process may come and go meanwhile
        gc.collect()
        before = target.resources()
        for _ in range(_OPENED):
            use()
        gc.collect()
        after = target.resources()
        if before == after:
            return
    raise ConformanceError(f"{_OPENED} devices, closed again, left {before} as {after}")


CHECKS: Final[tuple[Check, ...]] = (
    faults,
    timeouts,
    threads,
    forks,
    collections,
    interrupts,
    closing,
)

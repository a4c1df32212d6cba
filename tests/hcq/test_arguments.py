"""What is passed to command queues by mistake is refused by its name; numpy's integers work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from gpu.core.errors import GpuError, InvalidIndex, InvalidType, InvalidValue
from gpu.hcq.args import ArgumentLayout
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.device import HCQDevice
from gpu.hcq.hostdevice import HostPort
from gpu.hcq.program import HCQProgram
from gpu.hcq.queue import HWQueue
from gpu.hcq.signal import Signal

NO_NUMBERS = (1.5, None, True, "8", [8], b"x", float("nan"), np.float32(8), np.array([8, 8]))
NO_BUFFERS = (1.5, None, 4096, "x", b"x")
NO_SIZES = (None, 1, 1.5)
HUGE = 1 << 70


class Parts(NamedTuple):
    """A device with a program that adds a number to the first word of a buffer."""

    device: HCQDevice
    program: HCQProgram
    buffer: HCQBuffer
    signal: Signal

    def queue(self) -> HWQueue:
        return self.device.queue()


@pytest.fixture
def parts() -> Iterator[Parts]:
    port = HostPort(seed=1)

    def add(memory: Any, grid: Any, block: Any, out: int, n: int) -> None:
        np.frombuffer(memory.view(out, 4), np.uint32)[:] += n * grid[0] * block[0]

    layout = ArgumentLayout(pointers=1, scalars=["I"])
    with HCQDevice(port) as device:
        program = HCQProgram(device, "add", None, layout, info=port.kernel(add, layout))
        buffer = device.allocator.alloc(64)
        device.allocator.copy_in(buffer, bytes(64))
        yield Parts(device, program, buffer, device.signal())


Call = Callable[[Parts, Any], object]
NUMBERS: dict[str, Call] = {
    "size of an allocation": lambda p, v: p.device.allocator.alloc(v),
    "offset of a view": lambda p, v: p.buffer.view(v, 8),
    "size of a view": lambda p, v: p.buffer.view(8, v),
    "size of a copy": lambda p, v: p.queue().copy(p.buffer, p.buffer, v),
    "grid of add": lambda p, v: p.program(p.buffer, vals=(1,), grid=(2, v, 1)),
    "grid of add ": lambda p, v: p.program(p.buffer, vals=(1,), grid=(2, v, 1), wait=True),
    "block of add": lambda p, v: p.program(p.buffer, vals=(1,), block=(2, v, 1)),
    "index of a queue": lambda p, v: p.device.queue("compute", v),
    "number of buffers": lambda p, v: ArgumentLayout(v),
    "mask of a poll": lambda p, v: p.queue().poll(p.buffer.address, 1, v),
    "value that is polled for": lambda p, v: p.queue().poll(p.buffer.address, v),
    "an address": lambda p, v: p.queue().copy(v, p.buffer, 8),
    "an address ": lambda p, v: p.queue().write(v, b"abcd"),
    "value of a signal": lambda p, v: p.queue().wait(p.signal, v),
    "value of a signal ": lambda p, v: p.queue().signal(p.signal, v),
    "value of a signal  ": lambda p, v: p.device.signal(v),
    "value of a signal   ": lambda p, v: p.signal.set(v),
    "value of a signal    ": lambda p, v: p.device.wait_signal(p.signal, v, timeout=0),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_whole_and_in_range(parts: Parts, name: str) -> None:
    call, told = NUMBERS[name], name.strip()
    for value in NO_NUMBERS:
        with pytest.raises(InvalidType, match=f"{told} .*must be an int"):
            call(parts, value)
    for value in (-1, HUGE):
        with pytest.raises(GpuError):
            call(parts, value)


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.int32])
def test_numpys_integers_are_numbers(parts: Parts, kind: Callable[[int], Any]) -> None:
    device, program, buffer, signal = parts
    program(buffer, vals=(kind(3),), grid=(kind(2), 1, 1), block=(kind(5), 1, 1))
    program(buffer, vals=np.array([3]), grid=[2, 1, 1], block=np.array([5, 1, 1]), wait=True)  # type: ignore[arg-type]
    args = program.arguments(buffer, vals=(kind(3),))
    other = device.allocator.alloc(kind(64))
    queue = parts.queue().exec(program, args, (kind(2), 1, 1), (kind(5), 1, 1))
    queue.copy(other, buffer, kind(64)).signal(signal, kind(8)).wait(signal, kind(8)).submit(device)
    device.wait_signal(signal, kind(8), timeout=np.float32(5))
    part = other.view(kind(0), kind(4))
    assert np.frombuffer(device.allocator.copy_out(part), np.uint32)[0] == 90
    signal.set(kind(9))
    assert device.queue("compute", kind(0)) and signal.value == 9
    assert ArgumentLayout(kind(1), "I").size == 16


@pytest.mark.parametrize("value", NO_BUFFERS, ids=repr)
def test_buffers_are_buffers(parts: Parts, value: Any) -> None:
    allocator = parts.device.allocator
    calls: list[Callable[[], object]] = [
        lambda: allocator.copy_in(value, bytes(64)),
        lambda: allocator.copy_out(value),
        lambda: allocator.copy(parts.buffer, value),
        lambda: allocator.copy(value, parts.buffer),
        lambda: parts.program(value, vals=(1,)),
    ]
    for call in calls:
        with pytest.raises(InvalidType, match="must be a buffer"):
            call()


@pytest.mark.parametrize("value", NO_SIZES, ids=repr)
def test_sizes_of_launches_are_three(parts: Parts, value: Any) -> None:
    for sizes in ({"grid": value}, {"block": value}):
        for wait in (False, True):
            with pytest.raises(InvalidType, match="of add must be three sizes"):
                parts.program(parts.buffer, vals=(1,), wait=wait, **sizes)
            with pytest.raises(InvalidValue, match="give three sizes"):
                parts.program(parts.buffer, vals=(1,), wait=wait, grid=(1, 2))  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="grid of add is 4294967296: give 1 to 4294967295"):
        parts.program(parts.buffer, vals=(1,), grid=(1 << 32, 1, 1))


def test_values_of_kernels_fit(parts: Parts) -> None:
    for value in (1.5, -1, None, HUGE, "8", [8]):
        for wait in (False, True):
            with pytest.raises(InvalidValue, match="do not fit the formats 'QI'"):
                parts.program(parts.buffer, vals=(value,), wait=wait)  # type: ignore[arg-type]
    for vals in NO_SIZES:
        for wait in (False, True):
            with pytest.raises(InvalidType, match="vals of add must be a sequence"):
                parts.program(parts.buffer, vals=vals, wait=wait)  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [None, 8, 1.5, "abcd", [1]], ids=repr)
def test_what_is_written_is_bytes(parts: Parts, data: Any) -> None:
    with pytest.raises(InvalidType, match="must be a buffer of bytes"):
        parts.queue().write(parts.buffer.address, data)
    with pytest.raises(InvalidType, match="must be a buffer of bytes"):
        parts.device.allocator.copy_in(parts.buffer, data)
    with pytest.raises(InvalidType, match="give a numpy array"):
        parts.device.allocator.map_host(data)


def test_other_kinds_of_things_are_told_apart(parts: Parts) -> None:
    device, program, buffer, _ = parts
    anything: Any = 1.5
    args = program.arguments(buffer, vals=(1,))
    wrong: list[tuple[type[GpuError], str, Callable[[], object]]] = [
        (InvalidType, "is no signal", lambda: parts.queue().wait(anything, 1)),
        (InvalidType, "is no signal", lambda: parts.queue().signal(anything, 1)),
        (InvalidType, "is no signal", lambda: parts.queue().timestamp(anything)),
        (InvalidType, "is no command", lambda: parts.queue().add(anything)),
        (InvalidType, "no program", lambda: HWQueue().exec(anything, args, (1, 1, 1), (1, 1, 1))),
        (InvalidValue, "made by", lambda: HWQueue().exec(program, anything, (1, 1, 1), (1, 1, 1))),
        (InvalidValue, "one of ==", lambda: parts.queue().poll(buffer.address, 0, op=anything)),
        (InvalidType, "one of MemoryKind", lambda: device.allocator.alloc(8, anything)),
        (InvalidType, "kind of queue", lambda: device.queue(anything)),
        (InvalidIndex, "no render queue", lambda: device.queue("render")),
        (InvalidType, "what submit", lambda: device.wait(anything)),
        (InvalidType, "formats as of struct", lambda: ArgumentLayout(1, anything)),
        (InvalidValue, "argument format 7", lambda: ArgumentLayout(1, [anything and 7])),
    ]
    for error, told, call in wrong:
        with pytest.raises(error, match=told):
            call()


@pytest.mark.parametrize("timeout", ["8", [8], True, b"x"], ids=repr)
def test_timeouts_are_seconds(parts: Parts, timeout: Any) -> None:
    point = parts.queue().signal(parts.signal, 1).submit(parts.device)
    device = parts.device
    calls: list[Callable[[Any], object]] = [
        device.synchronize,
        lambda t: device.wait(point, t),
        lambda t: device.wait_signal(parts.signal, 1, t),
    ]
    for call in calls:
        with pytest.raises(InvalidType, match="timeout must be seconds"):
            call(timeout)
        for length in (-1, float("nan"), float("inf")):
            with pytest.raises(InvalidValue, match="give a finite number from 0 up"):
                call(length)
        for good in (None, 5, np.float32(5), np.int64(5)):
            call(good)

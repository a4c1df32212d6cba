"""Illegal calls and provoked faults through the driver: what the kernel driver answers, typed.

The model answers a call with the status that open-gpu-kernel-modules 580.142 gives, and a fault
with its number in the error notifier; the driver raises its error with that.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from types import CodeType

import pytest

from gpu.core.errors import GpuFault, OutOfMemory, RmError
from gpu.drivers.nv.device import RmDevice
from gpu.hcq.conformance.kit import WORDS, numbers, system, upload
from gpu.sim.nv.world import NvSimWorld
from gpu.transport.world import World
from nv.illegal import CALLS
from nv.kernels import LAYOUTS, WRITTEN, PythonKernels, cubin
from nv.ports import Opened
from sim.nv.methods import acquire, inc, launch, release
from sim.nv.qmds import plain

NOWHERE = 0x10_0000
BEHIND = 1 << 20  # words behind a buffer, where nothing is
LEAST = 50


@pytest.fixture
def opened() -> Iterator[Opened]:
    made = Opened()
    yield made
    made.close()


@pytest.mark.parametrize("name", CALLS)
def test_illegal_calls(opened: Opened, name: str) -> None:
    status, act = CALLS[name]
    with pytest.raises(OutOfMemory if status == "NO_MEMORY" else RmError) as caught:
        act(opened)
    if isinstance(caught.value, RmError):
        assert caught.value.name == f"NV_ERR_{status}"


class Rigged:
    """A device of the driver's, and a way past its encoders: words and entries by hand."""

    def __init__(self) -> None:
        self.sim = NvSimWorld(seed=9, chip="gh100", executor=PythonKernels())
        self.device = RmDevice.open(World(self.sim.os, self.sim.waiter))
        self.channel = self.device.port.gpu.compute_queue
        self.area = system(self.device, numbers(0, 8 << 10))
        self.semaphore = self.area.address + 0x3000
        code = cubin(90, "fill")
        self.fill = self.device.load(code, "fill", LAYOUTS["fill"], written=WRITTEN)
        self.out = upload(self.device, numbers(1))
        self.work()  # sets the class and its windows
        self.device.synchronize()

    def work(self) -> None:
        self.fill(self.out, vals=(7, WORDS))

    def enter(self, entry: int) -> None:
        """One entry of the ring, and the doorbell."""
        at = self.channel.put()
        self.channel.ring.write(8 * at, 8, entry)
        self.channel.set_put((at + 1) % self.channel.entries)
        self.channel.ring_doorbell()
        self.sim.run_until_idle()  # before the driver, which does not know, writes its next entry

    def submit(self, words: list[int]) -> None:
        self._store(0, struct.pack(f"<{len(words)}I", *words))
        self.enter(self.area.address | len(words) << 42)

    def launch(self, before: Sequence[int] = (), **fields: int) -> None:
        """A descriptor with some fields changed, behind other words."""
        qmd = plain("gh100", self.area.address + 0x2000, self.area.address + 0x2000)
        self._store(0x1000, qmd.set(**fields).data)
        self.submit([*before, *launch(self.area.address + 0x1000)])

    def _store(self, offset: int, data: bytes) -> None:
        window = self.area.window
        assert window is not None
        window.store(offset, data)

    def close(self) -> None:
        self.device.close()
        self.sim.close()


@pytest.fixture
def rigged() -> Iterator[Rigged]:
    made = Rigged()
    yield made
    made.close()


Breaks = dict[str, tuple[int, Callable[[Rigged], object]]]

# Numbers are those of nverror.h; what each engine refuses is in dev_pbdma.ref.txt of open-gpu-doc
# and in the headers of the classes.
HOST: Breaks = {
    "an opcode that no header has": (32, lambda r: r.submit([2 << 29 | 1 << 16, 0])),
    "a reserved bit of a header": (32, lambda r: r.submit([1 << 29 | 1 << 16 | 1 << 12, 0])),
    "a method that the host has not": (32, lambda r: r.submit(inc(0, 0x10, 1))),
    "the illegal method": (32, lambda r: r.submit(inc(0, 0x4, 1))),
    "a release off its word": (32, lambda r: r.submit(release(r.semaphore + 2, 1))),
    "a time stamp off its place": (
        32,
        lambda r: r.submit(release(r.semaphore + 8, 1, stamp=True)),
    ),
    "unknown bits of a semaphore": (32, lambda r: r.submit(inc(0, 0x6C, 1 << 8))),
    "an unknown memory operation": (32, lambda r: r.submit(inc(0, 0x34, 3 << 27))),
    "the illegal entry": (32, lambda r: r.enter(1 << 32)),
    "an entry with a reserved bit": (32, lambda r: r.enter(r.area.address | 1 << 42 | 1 << 40)),
    "an entry to nowhere": (31, lambda r: r.enter(NOWHERE | 1 << 42)),
    "a release to nowhere": (31, lambda r: r.submit(release(NOWHERE, 1))),
    "an acquire from nowhere": (31, lambda r: r.submit(acquire(NOWHERE, 1))),
    "a method before SET_OBJECT": (69, lambda r: r.submit(inc(2, 0x100, 0))),
    "an object that the channel has not": (69, lambda r: r.submit(inc(1, 0, 0xA140))),
    "a class of another chip": (69, lambda r: r.submit(inc(1, 0, 0xC6C0))),
    "a method of another chip": (69, lambda r: r.submit(inc(1, 0x270, 1))),
}
# clcbc0.h and clcbc0qmd.h of open-gpu-doc
LAUNCHES: Breaks = {
    "a descriptor that is not mapped": (31, lambda r: r.submit(launch(NOWHERE))),
    "a program that is not mapped": (31, lambda r: r.launch(program=NOWHERE, program_high=0)),
    "a bank that is not mapped": (31, lambda r: r.launch(bank=NOWHERE >> 6, bank_high=0)),
    "a descriptor of another version": (13, lambda r: r.launch(major=3)),
    "a grid without blocks": (13, lambda r: r.launch(grid_y=0)),
    "a block of too many threads": (13, lambda r: r.launch(block_x=1024, block_y=2)),
    "more registers than there are": (13, lambda r: r.launch(registers=128, block_x=1024)),
    "too many barriers": (13, lambda r: r.launch(barriers=17)),
    "a carve-out that is none": (13, lambda r: r.launch(min=2, target=2)),
    "more shared memory than the carve-out": (13, lambda r: r.launch(shared=16 << 10)),
    "a bank beyond 64 KiB": (13, lambda r: r.launch(bank_size=(64 << 10) + 16 >> 4)),
    "code of another chip": (13, lambda r: r.launch(sass=0x75)),
    "local memory that is not there": (13, lambda r: r.launch(high=1 << 20)),
    "a window over memory": (
        13,
        lambda r: r.launch(before=inc(1, 0x2A0, r.area.address >> 32, 0)),
    ),
    "a store to nowhere": (31, lambda r: r.fill(r.out, vals=(7, BEHIND))),
    "a copy from nowhere": (
        31,
        lambda r: r.device.queue("copy").copy(r.out, NOWHERE, 4).submit(r.device),
    ),
}
FAULTS: Breaks = {**HOST, **LAUNCHES}


@pytest.mark.parametrize("name", FAULTS)
def test_provoked_faults(rigged: Rigged, name: str) -> None:
    number, act = FAULTS[name]
    act(rigged)
    rigged.work()
    with pytest.raises(GpuFault, match=rf"Xid {number}\b"):
        rigged.device.synchronize()
    rigged.device.recover()
    rigged.work()
    rigged.device.synchronize()


def test_how_many_they_are() -> None:
    """Rows whose code is the same, and whose answer is, count once."""

    def distinct(answer: object, code: CodeType) -> tuple[object, ...]:
        inner = [c.co_code if isinstance(c, CodeType) else c for c in code.co_consts]
        return answer, code.co_code, code.co_names, *map(repr, inner)

    calls = {distinct(status, act.__code__) for status, act in CALLS.values()}
    faults = {distinct(number, act.__code__) for number, act in FAULTS.values()}
    assert len(calls) == len(CALLS) >= LEAST
    assert len(faults) == len(FAULTS) and len(calls) + len(faults) >= 2 * LEAST

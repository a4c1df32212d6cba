"""Faults on purpose: each is told as a typed error, and the same process goes on behind it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from gpu.core.errors import DeviceHang, GpuError, GpuFault
from gpu.drivers.nv.channel.channel import GpfifoChannel
from gpu.drivers.nv.device import RmDevice
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.conformance.kit import WORDS, download, expect_equal, numbers, system, upload
from gpu.hcq.graph import GraphLaunch, HCQGraph
from gpu.hcq.program import HCQProgram
from gpu.hcq.symbol import Symbol
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.state import DUMP, describe_state
from tools.hw_acceptance.steplog import StepFailed
from tools.hw_acceptance.suites.supervise import run_checks, supervise
from tools.hw_acceptance.suites.target import FolderTarget

_NOWHERE: Final = 0x1000  # an address where nothing is ever mapped
_BEHIND: Final = 64 << 20  # bytes behind a buffer: no allocation's rounding reaches so far
_SPIN_NS: Final = 1_500_000_000
_SPIN_ROUNDS: Final = 20_000  # of the model, whose clock stands still within a kernel
_IMPATIENT: Final = 0.2  # seconds
_LIMIT: Final = 20.0
_SIMULATED: Final = 120.0


class Rig:
    """A device with work that is known to be right, and what it held before a fault."""

    def __init__(self, context: Context, target: FolderTarget, device: RmDevice):
        self.context = context
        self.device = device
        device.channel("compute", 1)  # is open too, so that its notifier is told
        self.load: Callable[[str], HCQProgram] = lambda name: target.program(device, name)
        self.fill, self.add = self.load("fill"), self.load("add")
        self.a, self.b, self.out = (upload(device, numbers(seed)) for seed in range(3))
        self._graph = HCQGraph(
            device, [GraphLaunch(self.add, (self.out, self.a, self.b), (WORDS,))]
        )

    def fault(self, what: str, pattern: str = "") -> None:
        """Takes the fault of what was submitted, goes on, and works. Raises as steps do."""
        found = self._expect(what)
        self.context.log.fact(what, str(found))
        if not re.search(pattern, str(found)):
            raise StepFailed(f"{what}: {str(found)!r} does not have {pattern!r}")
        rung = self.device.recover()
        self.context.log.fact(f"{what}, then made anew", rung.value if rung else "nothing")
        self.works(what)

    def works(self, what: str) -> None:
        """Memory is as before, programs and graphs run, on both compute queues."""
        device = self.device
        expect_equal(download(device, self.a), numbers(0), f"memory after {what}")
        self._graph()
        wanted = numbers(0) + numbers(1)
        expect_equal(download(device, self.out), wanted, f"a graph after {what}")
        self.fill(self.out, vals=(7, WORDS))
        expect_equal(download(device, self.out), 0 * wanted + 7, f"a launch after {what}")
        args = self.add.arguments(self.out, self.a, self.b, vals=(WORDS,))
        queue = device.queue("compute", 1).exec(self.add, args, (1, 1, 1), (1, 1, 1))
        device.wait(queue.submit(device))
        expect_equal(download(device, self.out), wanted, f"the second queue after {what}")

    def submit_at(self, program: HCQProgram, address: int, *vals: int) -> None:
        """Launches a program whose only buffer is at an address of nobody's."""
        place = Symbol("out")
        args = program.arguments(place, vals=vals)
        bound = self.device.queue().exec(program, args, (1, 1, 1), (1, 1, 1)).bind(self.device)
        bound.submit({place: address})

    def tell_state(self, name: str) -> None:
        """Writes down what is known of all channels, after the check of a name failed."""
        lines = describe_state(self.device.port.gpu, self._channels(), self.context.log)
        self.context.log.dump(f"{name.replace(' ', '-')}-{DUMP}", "\n".join(lines) + "\n")

    def _expect(self, what: str) -> GpuFault:
        try:
            self.device.synchronize()
        except GpuFault as fault:
            told = {channel.name: channel.fault() for channel in self._channels()}
            codes = {name: found.number if found else None for name, found in told.items()}
            self.context.log.fact(f"{what}: what notifiers say", codes)
            return fault
        raise StepFailed(f"{what} is no fault")

    def _channels(self) -> list[GpfifoChannel]:
        return list(self.device.port.gpu.channels)


def provoke(context: Context) -> None:
    """All of them, a line for each. Raises StepFailed."""
    limit = _SIMULATED if context.simulation is not None else _LIMIT
    supervise(context, f"{__name__}:run_part", list(_faults(context)), limit)


def run_part(context: Context) -> None:
    """Those that the option names, in this process."""
    run_checks(context, _faults(context))


def _faults(context: Context) -> dict[str, Callable[[], None]]:
    """By name, in the order in which they are provoked: the harmless ones first."""

    @contextmanager
    def rig() -> Iterator[Rig]:
        target = FolderTarget(context)
        with target.open() as device:
            yield Rig(context, target, device)

    def check(name: str, run: Callable[[Rig], None]) -> Callable[[], None]:
        def go() -> None:
            with rig() as made:
                try:
                    run(made)
                except GpuError:
                    made.tell_state(name)
                    raise
            with rig() as made:  # a device that is opened behind it works as well
                made.works("opening anew")

        return go

    runs = {
        "a spinning kernel": _spinning,
        "a pointer to nowhere": _nowhere,
        "a pointer behind its buffer": _behind,
        "a copy from nowhere": _copy,
        "a misaligned pointer": _misaligned,
        "a trap": _trap,
        "three faults in a row": _again,
        "a fault on the second queue": _second_queue,
    }
    return {name: check(name, run) for name, run in runs.items()}


def _nowhere(rig: Rig) -> None:
    rig.submit_at(rig.fill, _NOWHERE, 7, WORDS)
    rig.fault("a store to nowhere", r"fill")


def _behind(rig: Rig) -> None:
    rig.submit_at(rig.fill, rig.out.address + _BEHIND, 7, WORDS)
    rig.fault("a store behind all buffers", r"fill")


def _copy(rig: Rig) -> None:
    rig.device.queue("copy").copy(rig.out, _NOWHERE, 4).submit(rig.device)
    rig.fault("a copy from nowhere")


def _misaligned(rig: Rig) -> None:
    rig.submit_at(rig.fill, rig.out.address + 1, 7, WORDS)
    rig.fault("a misaligned store", r"fill|stopped")


def _trap(rig: Rig) -> None:
    trap = rig.load("trap")
    trap()
    rig.fault("a trap")


def _again(rig: Rig) -> None:
    for number in range(3):
        rig.submit_at(rig.fill, _NOWHERE + (number << 12), 7, WORDS)
        rig.fault(f"fault number {number}")


def _second_queue(rig: Rig) -> None:
    place = Symbol("out")
    args = rig.fill.arguments(place, vals=(7, WORDS))
    queue = rig.device.queue("compute", 1).exec(rig.fill, args, (1, 1, 1), (1, 1, 1))
    queue.bind(rig.device).submit({place: _NOWHERE})
    rig.fault("a fault of the second queue", r"compute queue 1")


def _spinning(rig: Rig) -> None:
    """Waiting for it is a hang that leaves the device usable; told to stop, it ends."""
    spin = rig.load("spin")
    stop, rounds = (system(rig.device, numbers(0, 1) * 0) for _ in range(2))
    simulated = rig.context.simulation is not None
    most = _SPIN_ROUNDS if simulated else (1 << 64) - 1
    spin(stop, rounds, vals=(_SPIN_NS, most))
    try:
        rig.device.synchronize(_IMPATIENT)
    except DeviceHang as hang:
        rig.context.log.fact("waiting for a spinning kernel", str(hang))
    else:
        if not simulated:
            raise StepFailed(f"a kernel of {_SPIN_NS} ns was waited for in {_IMPATIENT} s")
    _stop(stop)
    rig.device.synchronize()
    rig.context.log.fact("rounds of the spinning kernel", int(download(rig.device, rounds)[0]))
    rig.works("a spinning kernel")


def _stop(flag: HCQBuffer) -> None:
    window = flag.window
    assert window is not None, "system memory is seen by the host"
    window.write(0, 4, 1)

"""Faults on purpose: each is told as a typed error, and the same process goes on behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from gpu.core.errors import DeviceHang, GpuError
from gpu.drivers.nv.channel.channel import GpfifoChannel
from gpu.drivers.nv.device import RmDevice
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.conformance.kit import WORDS, download, numbers, system
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.faults.rig import NOWHERE, Rig
from tools.hw_acceptance.state import describe_state
from tools.hw_acceptance.steplog import StepFailed
from tools.hw_acceptance.suites.supervise import run_checks, supervise
from tools.hw_acceptance.suites.target import FolderTarget

_BEHIND: Final = 64 << 20  # bytes behind a buffer: no allocation's rounding reaches so far
_SPIN_NS: Final = 1_500_000_000
_SPIN_ROUNDS: Final = 20_000  # of the model, whose clock stands still within a kernel
_IMPATIENT: Final = 0.2  # seconds
_LIMIT: Final = 20.0
_SIMULATED: Final = 120.0


class NvRig(Rig):
    """A rig that tells what channels and their notifiers say."""

    device: RmDevice

    def describe(self) -> Iterator[str]:
        """All that is known of all channels."""
        yield from describe_state(self.device.port.gpu, self._channels(), self.context.log)

    def tell_fault(self, what: str) -> None:
        """The numbers in notifiers."""
        told = {channel.name: channel.fault() for channel in self._channels()}
        codes = {name: found.number if found else None for name, found in told.items()}
        self.context.log.fact(f"{what}: what notifiers say", codes)

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
    def rig() -> Iterator[NvRig]:
        target = FolderTarget(context)
        with target.open() as device:
            yield NvRig(context, target, device)

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
    rig.submit_at(rig.fill, NOWHERE, 7, WORDS)
    rig.fault("a store to nowhere", r"fill")


def _behind(rig: Rig) -> None:
    rig.submit_at(rig.fill, rig.out.address + _BEHIND, 7, WORDS)
    rig.fault("a store behind all buffers", r"fill")


def _copy(rig: Rig) -> None:
    rig.device.queue("copy").copy(rig.out, NOWHERE, 4).submit(rig.device)
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
        rig.submit_at(rig.fill, NOWHERE + (number << 12), 7, WORDS)
        rig.fault(f"fault number {number}")


def _second_queue(rig: Rig) -> None:
    rig.submit_at(rig.fill, NOWHERE, 7, WORDS, queue=1)
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

"""Faults and hangs on purpose: each is told as a typed error, and the same process goes on.

Each has a process of its own. Before interface 1.19 KFD keeps a process that had a memory fault
from its GPU; `recover` then has to say so, and the process of the next fault shows that the GPU
works.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from gpu.core.errors import DeviceHang, DeviceLost, GpuError
from gpu.drivers.am.device import AmDevice
from gpu.drivers.am.encode.dispatch import LoadedKernel
from gpu.drivers.am.kfd.ioctls import HAS_CONTEXTS
from gpu.drivers.am.kfd.process import session_of
from gpu.drivers.device import Rung
from gpu.hcq.conformance.kit import WORDS, download, numbers, system, upload
from tools.hw_acceptance.amd.target import AmTarget, port_of
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.environment import read
from tools.hw_acceptance.faults.rig import NOWHERE, Rig
from tools.hw_acceptance.model import RISKED
from tools.hw_acceptance.steplog import StepFailed, Unavailable
from tools.hw_acceptance.suites import conformance as suite
from tools.hw_acceptance.suites.supervise import run_checks, supervise

_BEHIND: Final = 64 << 20  # bytes behind a buffer: no allocation's rounding reaches so far
_FREED: Final = 8 << 20
_SPINS: Final = 20_000_000  # some ten seconds, if nobody said stop
_SIMULATED_SPINS: Final = 20_000
_IMPATIENT: Final = 0.2  # seconds
_LIMIT: Final = 30.0
_SIMULATED: Final = 120.0


class AmRig(Rig):
    """A rig that knows what a hang and an old kernel make of `recover`."""

    device: AmDevice

    def fault(self, what: str, pattern: str = "") -> None:
        """As `Rig.fault`; below interface 1.19 the device stays lost, and says so."""
        if port_of(self.device).link.session.kfd.version >= HAS_CONTEXTS:
            super().fault(what, pattern)
            return
        found = self.expect(what)
        self.context.log.fact(what, str(found))
        try:
            self.device.recover()
        except DeviceLost as lost:
            self.context.log.fact(f"{what}, then", str(lost))
        else:
            raise StepFailed(f"{what}: recover() did what this kernel does not allow")

    def hang(self, what: str, rung: Rung | None) -> None:
        """What was submitted hangs; `recover` makes so much anew, and all works again."""
        try:
            self.device.synchronize(_IMPATIENT)
        except DeviceHang as found:
            self.context.log.fact(what, str(found))
        else:
            raise StepFailed(f"{what} was no hang")
        made = self.device.recover()
        self.context.log.fact(f"{what}, then made anew", made.value if made else "nothing")
        if made is not rung:
            raise StepFailed(f"{what}: {made} was made anew, and {rung} was to be")
        self.works(what)


def provoke(context: Context) -> None:
    """All of them, a line and a process for each.

    Raises StepFailed, Unavailable for a card that shows a picture, unless that is risked.
    """
    check_dark(context, Path("/sys/class/drm"))
    limit = _SIMULATED if context.simulation is not None else _LIMIT
    supervise(context, f"{__name__}:run_part", list(FAULTS), limit, alone=True)


def check_dark(context: Context, drm: Path) -> None:
    """Raises Unavailable where the card lights a screen, unless ``--risk-display`` was given.

    ``drm`` is sysfs's folder of cards and connectors.
    """
    if context.simulation is not None or RISKED in context.options:
        return
    place = session_of(context.world.os).gpus[0].pci_address
    lit = [
        each.name
        for each in sorted(drm.glob("card*-*"))
        if read(str(each / "enabled")).strip() == "enabled" and place in each.resolve().parts
    ]
    if lit:
        raise Unavailable(
            f"the card lights {', '.join(lit)}, which a reset takes away: stop the desktop and log"
            " in from elsewhere, or give --risk-display"
        )


def conformance(context: Context) -> None:
    """That of faults: others go on.

    Raises Unavailable on one GPU, whose devices share faults, and as `check_dark`.
    """
    check_dark(context, Path("/sys/class/drm"))
    gpus = session_of(context.world.os).gpus
    if len(gpus) < 2:
        raise Unavailable(f"{len(gpus)} GPU: devices of one share its faults")
    suite.faults(context)


def run_part(context: Context) -> None:
    """Those that the option names, in this process."""
    run_checks(context, {name: partial(_run, context, run) for name, run in FAULTS.items()})


def _run(context: Context, run: Callable[[AmRig], None]) -> None:
    target = AmTarget(context)
    device = target.open()
    with device:
        rig = AmRig(context, target, device)
        rig.works("opening")  # whatever the fault before this one was
        run(rig)


def _nowhere(rig: AmRig) -> None:
    rig.submit_at(rig.fill, NOWHERE, 7, WORDS)
    rig.fault("a store to nowhere", r"fill \(argument 0 is 0x1000\)")


def _behind(rig: AmRig) -> None:
    rig.submit_at(rig.fill, _free_address(rig.out.address + _BEHIND), 7, WORDS)
    rig.fault("a store behind all buffers", r"bytes behind .*fill")


def _free_address(address: int) -> int:
    """From there on the first at which this process, whose addresses are the GPU's, has nothing."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    taken = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    for first, end in sorted(taken):
        if first < address + 4 * WORDS and address < end:
            address = end + _BEHIND
    return address


def _freed(rig: AmRig) -> None:
    """Memory that went back to the kernel, as what is cached would not fault."""
    held = rig.device.allocator.alloc(_FREED)
    address = held.address
    held.free()
    rig.device.synchronize()
    rig.device.allocator.free_cache()
    rig.submit_at(rig.fill, address, 7, WORDS)
    rig.fault("a store to freed memory", r"which was freed.*fill")


def _code(rig: AmRig) -> None:
    loaded = rig.fill.info
    assert isinstance(loaded, LoadedKernel)
    rig.submit_at(rig.fill, loaded.code, 7, WORDS)
    rig.fault("a store to code", r"read-only.*fill")


def _copy(rig: AmRig) -> None:
    rig.device.queue("copy").copy(rig.out, NOWHERE, 4).submit(rig.device)
    rig.fault("a copy from nowhere")


def _copied_to(rig: AmRig) -> None:
    rig.device.queue("copy").copy(NOWHERE, rig.a, 4).submit(rig.device)
    rig.fault("a copy to nowhere")


def _again(rig: AmRig) -> None:
    if port_of(rig.device).link.session.kfd.version < HAS_CONTEXTS:
        rig.context.log.fact("faults in a row", "this kernel allows a process one")
        return
    for number in range(3):
        rig.submit_at(rig.fill, NOWHERE + (number << 12), 7, WORDS)
        rig.fault(f"fault number {number}")


def _second_queue(rig: AmRig) -> None:
    rig.submit_at(rig.fill, NOWHERE, 7, WORDS, queue=1)
    rig.fault("a fault of the second queue", r"fill")


def _spinning(rig: AmRig) -> None:
    """Waiting for it is a hang that leaves the device usable; told to stop, it ends."""
    spin, device = rig.load("spin"), rig.device
    stop, rounds = system(device, 0 * numbers(0, 1)), upload(device, 0 * numbers(0, 2))
    simulated = rig.context.simulation is not None
    spin(stop, rounds, vals=(_SIMULATED_SPINS if simulated else _SPINS,))
    try:
        device.synchronize(_IMPATIENT)
    except DeviceHang as hang:
        rig.context.log.fact("waiting for a spinning kernel", str(hang))
    else:
        if not simulated:
            raise StepFailed(f"{_SPINS} rounds were waited for in {_IMPATIENT} s")
    assert stop.window is not None, "system memory is seen by the host"
    stop.window.write(0, 4, 1)
    device.synchronize()
    rig.context.log.fact("rounds of the spinning kernel", int(download(device, rounds)[0]))
    rig.works("a spinning kernel")


def _endless(rig: AmRig) -> None:
    rig.load("endless")()
    rig.hang("an endless kernel", Rung.QUEUES)


def _unmet(rig: AmRig) -> None:
    """Of a signal of the device's: recovering satisfies it before the queue is taken off."""
    signal = rig.device.signal()
    rig.device.queue().wait(signal, 1).submit(rig.device)
    rig.hang("a wait for what never comes", Rung.QUEUES)


def _unmet_copy(rig: AmRig) -> None:
    signal = rig.device.signal()
    rig.device.queue("copy").wait(signal, 1).submit(rig.device)
    rig.hang("a copy queue's wait for what never comes", Rung.QUEUES)


def _closed(rig: AmRig) -> None:
    """Closing lets a queue go on that waits for a signal; the next process finds the GPU well."""
    rig.device.queue().wait(rig.device.signal(), 1).submit(rig.device)
    try:
        rig.device.close()
    except GpuError as error:
        raise StepFailed(f"closing while a queue waits: {error}") from error


FAULTS: Final[dict[str, Callable[[AmRig], None]]] = {
    "a spinning kernel": _spinning,
    "a pointer to nowhere": _nowhere,
    "a pointer behind its buffer": _behind,
    "a pointer to freed memory": _freed,
    "a store to code": _code,
    "a copy from nowhere": _copy,
    "a copy to nowhere": _copied_to,
    "three faults in a row": _again,
    "a fault on the second queue": _second_queue,
    "an endless kernel": _endless,
    "an unmet wait": _unmet,
    "an unmet wait of a copy queue": _unmet_copy,
    "closing while a queue waits": _closed,
}
"""By name, in the order in which they are provoked: the harmless ones first."""

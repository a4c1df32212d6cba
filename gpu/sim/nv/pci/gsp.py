"""GSP: the processor's registers, and its life from FSP's order to a halt.

FSP locks GSP's registers to itself, puts the FMC there and starts it: the driver sees 0xBADF41xx,
then a lockdown (HWCFG2 bit 13) in which the mailbox holds the address of the boot parameters, then
either an error in the mailbox or RISC-V at work (kernel_gsp_gh100.c). Error codes of the FMC are
nowhere published: the model has one for all that it finds wrong (U).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import Final

from gpu.sim.nv.pci.fmc import boot
from gpu.sim.nv.pci.fsp import Cot
from gpu.sim.nv.pci.images import Known
from gpu.sim.nv.pci.registers import LOCKED, Refused
from gpu.sim.nv.pci.silicon import Halt, Silicon
from gpu.sim.nv.pci.wprmeta import Booted

BASE, END = 0x110000, 0x114000
FMC_ERROR: Final = 0x31
SUSPENDED: Final = 0x80000000
_MAILBOX, _OS, _HWCFG2, _ENGINE = 0x110040, 0x110080, 0x1100F4, 0x1103C0
_QUEUE_HEAD, _CPUCTL, _BCR_CTRL = 0x110C00, 0x111388, 0x111668
_QUEUES: Final = 8
_RISCV, _LOCKDOWN = 1 << 10, 1 << 13
_HALTED, _ACTIVE = 1 << 4, 1 << 7
_DEASSERTED: Final = 2 << 8
_LOAD_NS, _FMC_NS, _RM_NS, _SUSPEND_NS = 3_000_000, 4_000_000, 30_000_000, 5_000_000
_IN_LOCKDOWN: Final = (_MAILBOX, _MAILBOX + 4, _HWCFG2)


class State(Enum):
    """Whose GSP is."""

    FSPS = auto()
    LOCKED_DOWN = auto()
    RUNNING = auto()
    HALTED = auto()


class Gsp:
    """The processor.

    Attributes:
        state: whose it is.
        on_start: RM starts, with what the FMC has found.
        on_doorbell: the driver has rung.
    """

    def __init__(self, chip: Silicon, known: Known):
        self._chip = chip
        self._known = known
        self.state = State.FSPS
        self._halted = False
        self.on_start: Callable[[Booted], None] = lambda booted: None
        self.on_doorbell: Callable[[], None] = lambda: None
        regs = chip.regs
        for number in range(2):
            name, address = f"NV_PGSP_FALCON_MAILBOX{number}", _MAILBOX + 4 * number
            regs.add(name, address, write=self._no_mail)
        regs.add("NV_PGSP_FALCON_OS", _OS, write=self._set_os)
        regs.add("NV_PGSP_FALCON_HWCFG2", _HWCFG2, read=self._hwcfg2, writable=False)
        regs.add("NV_PGSP_FALCON_ENGINE", _ENGINE, _DEASSERTED, write=self._no_reset)
        for index in range(_QUEUES):
            head = _QUEUE_HEAD + 8 * index
            regs.add(f"NV_PGSP_QUEUE_HEAD({index})", head, write=partial(self._ring, index))
        regs.add("NV_PRISCV_RISCV_CPUCTL", _CPUCTL, read=self._cpuctl, write=self._no_start)
        regs.add("NV_PRISCV_RISCV_BCR_CTRL", _BCR_CTRL, LOCKED, writable=False)

    def is_locked(self, address: int) -> bool:
        """Whether the driver is kept from a register."""
        is_doorbell = _QUEUE_HEAD <= address < _QUEUE_HEAD + 8 * _QUEUES
        if not BASE <= address < END or is_doorbell or self.state is State.RUNNING:
            return False
        return self.state is State.FSPS or (
            self.state is State.LOCKED_DOWN and address not in _IN_LOCKDOWN
        )

    def reset(self) -> None:
        """FSP has it again."""
        self.state, self._halted = State.FSPS, False

    def boot(self, cot: Cot) -> None:
        """FSP has found the FMC good, and starts it."""
        self.state, self._halted = State.FSPS, False
        self._chip.later.after(_LOAD_NS, "load the FMC", partial(self._loaded, cot))

    def halt(self) -> None:
        """The processor stops; its registers can be read."""
        self.state, self._halted = State.HALTED, True

    def suspend(self) -> None:
        """RM has shut down: libos stops, then the FMC takes WPR2 away."""
        self._chip.later.after(_SUSPEND_NS, "suspend libos", self._suspended)

    def _suspended(self) -> None:
        self._chip.regs.set("NV_PGSP_FALCON_MAILBOX0", SUSPENDED)
        self._chip.later.after(_FMC_NS, "shut down", self._shut_down)

    def _shut_down(self) -> None:
        self._chip.wpr2 = range(0)
        self.halt()

    def _loaded(self, cot: Cot) -> None:
        self.state = State.LOCKED_DOWN
        self._set_mailboxes(cot.arguments)
        self._chip.later.after(_FMC_NS, "run the FMC", partial(self._run_fmc, cot))

    def _run_fmc(self, cot: Cot) -> None:
        self._set_mailboxes(0)
        try:
            booted = boot(self._chip, self._known, cot.arguments)
        except Halt as why:
            self._chip.violation(f"FMC: {why}")
            self._set_mailboxes(FMC_ERROR)
            self._halted = True
            return
        self._chip.wpr2 = booted.wpr2
        self.state = State.RUNNING
        self._chip.later.after(_RM_NS, "start RM", partial(self.on_start, booted))

    def _set_mailboxes(self, value: int) -> None:
        self._chip.regs.set("NV_PGSP_FALCON_MAILBOX0", value)
        self._chip.regs.set("NV_PGSP_FALCON_MAILBOX1", value >> 32)

    def _hwcfg2(self) -> int:
        return _RISCV | _LOCKDOWN * (self.state is State.LOCKED_DOWN)

    def _cpuctl(self) -> int:
        return _HALTED if self._halted else _ACTIVE * (self.state is State.RUNNING)

    def _set_os(self, value: int) -> None:
        if value != self._known.app_version:
            raise Refused(f"the bootloader's version is {self._known.app_version:#x}")
        self._chip.regs.set("NV_PGSP_FALCON_OS", value)

    def _no_mail(self, value: int) -> None:
        raise Refused("what GSP is told comes by FSP")

    def _no_reset(self, value: int) -> None:
        raise Refused("FSP resets GSP")

    def _no_start(self, value: int) -> None:
        raise Refused("FSP starts GSP")

    def _ring(self, index: int, value: int) -> None:
        if index or value:
            raise Refused(f"queue {index}, {value:#x}: the doorbell of the one queue is a 0")
        if self.state is State.HALTED:
            raise Refused("GSP was shut down")
        if self.state is State.RUNNING:  # before, it is lost: RM looks into the queue as it starts
            self.on_doorbell()

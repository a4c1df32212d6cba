"""What devices of all drivers share: kernels by where they lie, and going on after faults."""

from __future__ import annotations

import enum
from typing import Generic, TypeVar
from weakref import WeakSet

from gpu.core.crashfiles import CrashFolder
from gpu.core.errors import DeviceError, DeviceHang, DeviceLost, GpuFault
from gpu.core.log import get_logger
from gpu.drivers.scene import Disassemble, Scene
from gpu.hcq.allocation import Allocation
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.device import HCQDevice
from gpu.hcq.ports import Memory
from gpu.hcq.program import HCQProgram

_log = get_logger(__name__)
K = TypeVar("K")
P = TypeVar("P", bound=HCQProgram)


class Rung(enum.Enum):
    """What is made anew to go on after a fault or a hang; the value is what messages call it."""

    QUEUES = "queues"
    ADDRESS_SPACE = "queues and page tables"
    PROCESSOR = "queues and the processor that reads them"


class DriverDevice(HCQDevice, Generic[K]):
    """An `HCQDevice` that knows its kernels, each a ``K``, can be recovered, and reports failures.

    Attributes:
        kernels: by the memory of their code. Made before queues are opened, as what follows.
        programs: those that are loaded.
        scene: what it was at when it failed.
        crashes: where reports go; None for nowhere.
        disassemble: makes text of code for them, where there is something that does.
    """

    kernels: dict[Memory, K]
    programs: WeakSet[HCQProgram]
    scene: Scene
    crashes: CrashFolder | None = None
    disassemble: Disassemble | None = None
    _reported: tuple[tuple[int, ...], str] = ((), "")

    def report_to(self, crashes: CrashFolder | None, disassemble: Disassemble | None) -> None:
        """Write a report of each failure from now on."""
        self.crashes, self.disassemble = crashes, disassemble

    def under_way(self) -> str:
        """Launches that have not ended, the oldest first."""
        return self.scene.under_way()

    def failed(self, error: DeviceError) -> None:
        """As `HCQDevice.failed`: says what helps, writes a report, and adds where it is.

        A hang that is met again has one report.
        """
        if isinstance(error, DeviceHang):
            error.add("recover() makes the device usable again")
        if self.crashes is None or not self.scene.is_there:
            return
        lines = [channel.timeline for channel in self.channels()]
        now = tuple(number for line in lines for number in (line.submitted, line.reached()))
        if self._reported[0] != now:
            self._reported = (now, self._report(error, self.crashes))
        error.add(self._reported[1])

    def _report(self, error: DeviceError, crashes: CrashFolder) -> str:
        from gpu.drivers.autopsy import Autopsy, keep  # once something failed

        autopsy = Autopsy(
            self.scene, self.channels(), list(self.programs), list(self.kernels), self.disassemble
        )
        return keep(crashes, autopsy.report(error), self.scene.evidence())

    def put_code(self, memory: Memory, image: bytes, kernel: K) -> HCQBuffer:
        """Store code in memory that the host reaches, which goes when the buffer does."""
        buffer = HCQBuffer(Allocation(memory, self, reusable=False), 0, memory.size)
        assert memory.window is not None, "code is written by the host"
        memory.window.store(0, image)
        self.kernels[memory] = kernel
        return buffer

    def loaded(self, program: P) -> P:
        """A program that was loaded, which reports know from now on."""
        self.programs.add(program)
        return program

    def release(self, memory: Memory) -> None:
        """As `HCQDevice.release`."""
        self.kernels.pop(memory, None)
        super().release(memory)

    def recover(self) -> Rung | None:
        """Makes the device usable again after a fault or a hang; None where there was none.

        What was submitted and not done is dropped, and what it would have written is undefined;
        otherwise memory, programs, graphs and signals are as before. No other thread may use the
        device meanwhile. Returns what was made anew. Raises DeviceLost where that does not help.
        """
        self.forked()
        if self._closed or isinstance(self._error, DeviceLost):
            self.check_usable()
        return self._recover()

    def _recover(self) -> Rung | None:
        """`recover` of a device that is not lost; vendors know how."""
        raise NotImplementedError

    def _has_ended(self) -> bool:
        """Whether all that was submitted is done."""
        lines = [channel.timeline for channel in self.channels()]
        return all(line.passed(line.submitted) for line in lines)

    def _ended(self) -> DeviceError | None:
        """Waits for the queues: a hang, or the first refusal of what was freed to go back.

        None where all is well, and where a fault or a loss that was told before has stopped them.
        """
        refused: DeviceError | None = None
        for _ in range(2):  # a refusal says nothing of the queues
            try:
                self.synchronize()
            except DeviceHang as hang:
                return hang
            except (GpuFault, DeviceLost) as error:
                _log.info("closing %s, which cannot be waited for: %s", self.name, error)
                break
            except DeviceError as error:
                refused = refused or error
        return refused

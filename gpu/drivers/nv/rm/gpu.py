"""An open NVIDIA GPU: memory, compute queues and copy queues, and what is told of their faults.

Who opened it, through the kernel driver or on a bare card, nobody needs to know any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpu.core.errors import DeviceError, DeviceLost, GpuFault, OutOfMemory
from gpu.core.wait import Waiter
from gpu.drivers.bringup import StepReport
from gpu.drivers.cleanup import Undo
from gpu.drivers.nv.channel.all import GpuChannels, GpuQueues
from gpu.drivers.nv.channel.channel import ChannelFault, GpfifoChannel, read_time
from gpu.drivers.nv.channel.ground import GpuMemory, GpuObjects, Place, Session
from gpu.drivers.nv.fault.sm_errors import FaultDetails, read_details
from gpu.drivers.nv.memory import NvMemory
from gpu.drivers.nv.rm.chip import GraphicsInfo
from gpu.drivers.nv.rm.classes import Generation
from gpu.drivers.questions import Outcome, Variants
from gpu.hcq.allocator import CopyPlaces
from gpu.hcq.ports import Memory, MemoryKind

Explain = Callable[[Sequence[GpfifoChannel], FaultDetails | None], str]


@dataclass(frozen=True, slots=True)
class OpenReport:
    """How an opening went: its steps with their calls, and what became of open questions.

    ``closing`` is what failed while all was closed again, if it was.
    """

    steps: tuple[StepReport, ...]
    outcomes: tuple[Outcome, ...]
    closing: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{number:2} {step}" for number, step in enumerate(self.steps, 1)]
        return "\n".join([*lines, *(f"   {each}" for each in (*self.outcomes, *self.closing))])


class NvDevice:
    """An open GPU. Closing it gives everything back, in the reverse of the opening.

    Attributes:
        name: generation and PCI address, for messages.
        session: who speaks to RM for it.
        card: where it is.
        classes: the classes of its generation.
        units: how large it is.
        uuid: the 16 bytes by which RM knows it.
        memory: allocates, in whole pages.
        queues: opens more channels, and all anew.
        variants: answers of open questions.
        compute_queue: channel of the compute class.
        copy_queues: channels of the copy class; none if the device gave none.
        copy_places: which of them copies what.
        more_queues: compute queues beyond the first.
        explain: says what more is known of a fault of these channels, for its message.
        report: how the opening went.
    """

    def __init__(
        self,
        session: Session,
        card: Place,
        gpu: GpuObjects,
        memory: GpuMemory,
        queues: GpuChannels,
        opened: GpuQueues,
        variants: Variants,
        report: OpenReport,
        undo: Undo,
    ):
        self.session = session
        self.card = card
        self.classes: Generation = gpu.classes
        self.units: GraphicsInfo = gpu.units
        self.uuid = memory.uuid
        self.memory: NvMemory = memory.port
        self.queues = queues
        self.variants = variants
        self.explain: Explain = lambda channels, details: "open the device anew"
        self.use(opened)
        self.report = report
        self.name = f"NVIDIA {self.classes.name} at {card.pci_address}"
        self.waiter: Waiter = session.waiter
        self.device = gpu.device
        self.subdevice = gpu.subdevice
        self._usermode = gpu.usermode
        self._undo = undo

    def use(self, queues: GpuQueues) -> None:
        """Takes other queues from here on."""
        self.compute_queue: GpfifoChannel = queues.compute
        self.copy_queues: tuple[GpfifoChannel, ...] = queues.copies.channels
        self.copy_places: CopyPlaces = queues.copies.places
        self.more_queues: tuple[GpfifoChannel, ...] = ()
        self._debugger = queues.debugger

    def open_compute(self) -> GpfifoChannel:
        """Another compute queue. Raises as opening the GPU does."""
        self.more_queues += (self.queues.open_compute(1 + len(self.more_queues)),)
        return self.more_queues[-1]

    @property
    def sm(self) -> int:
        """The architecture number that compilers take, 90 for sm_90."""
        return self.units.sm(self.classes)

    @property
    def channels(self) -> tuple[GpfifoChannel, ...]:
        """Those of all its queues that are open."""
        return (self.compute_queue, *self.copy_queues, *self.more_queues)

    def alloc(self, size: int, kind: MemoryKind, *, name: str = "buffer") -> Memory:
        """Memory with ``.address`` and, where the host sees it, ``.window``.

        Raises as `MemoryPort.allocate` does, DeviceLost in a forked child.
        """
        self.check_process()
        return self.memory.allocate(size, kind, name=name)

    def free(self, memory: Memory) -> None:
        """Gives memory back; the GPU must not use it any more."""
        self.check_process()
        self.memory.free(memory)

    def clock(self) -> int:
        """The GPU's clock in nanoseconds."""
        self.check_process()
        return read_time(self._usermode)

    def failed(self) -> dict[GpfifoChannel, ChannelFault]:
        """Channels that failed, with what RM wrote. Raises DeviceLost in a forked child."""
        self.check_process()
        self.session.attend()
        return self.noted()

    def noted(self) -> dict[GpfifoChannel, ChannelFault]:
        """The same, with RM left alone, which may be what is gone."""
        found = {channel: channel.fault() for channel in self.channels}
        return {channel: fault for channel, fault in found.items() if fault is not None}

    def fault_details(self) -> FaultDetails | None:
        """What SMs and MMU tell after a fault; None where no debugger could be attached.

        Raises as `RmObject.control` does.
        """
        self.check_process()
        if self._debugger is None:
            return None
        return read_details(self._debugger, self.compute_queue.object, self.units.sms)

    def check(self) -> None:
        """Raises GpuFault, with all that is told, if a channel has failed.

        Raises DeviceLost in a forked child, and where the whole GPU has.
        """
        failed = self.failed()
        if failed:
            self.check_not_lost()
            text, details = self.tell(list(failed.values()))
            address = details.address if details is not None else None
            why = self.explain(list(failed), details)
            raise GpuFault(f"{self.name}: {'; '.join(filter(None, (text, why)))}", address)

    def check_not_lost(self) -> None:
        """Raises DeviceLost where a channel failed of what is the end of the whole GPU."""
        for fault in self.failed().values():
            if fault.loss:
                raise DeviceLost(f"{self.name}: {fault}; {fault.loss}")

    def tell(self, faults: Sequence[ChannelFault]) -> tuple[str, FaultDetails | None]:
        """Faults in words, with the details that could be read, and where addresses are."""
        told = [*map(str, faults), *(f"firmware: {text}" for text in self.session.heard())]
        details = None
        try:
            details = self.fault_details()
        except (DeviceError, OutOfMemory) as error:  # the fault is worth more than its details
            told.append(f"its details could not be read: {error.message}")
        else:
            if details is not None:
                told.append(str(details))
                told.append(self._place_of(details.address))
        return "; ".join(each for each in told if each), details

    def _place_of(self, address: int | None) -> str:
        """Where an address is, in words; empty where nothing is known of it."""
        extent = self.memory.extents.nearest(address) if address is not None else None
        if address is None or extent is None:
            return ""
        return f"{address:#x} is {extent.place_of(address)}"

    def check_process(self) -> None:
        """Raises DeviceLost in a process that was forked off the one that opened the device."""
        if self.session.client.is_forked:
            raise DeviceLost(f"{self.name} was opened before this process forked: open it anew")

    def close(self) -> None:
        """Gives everything back; the GPU must be idle. Again, or in a forked child, does nothing.

        All is tried before an error is raised.
        """
        if self.session.client.is_forked:
            self._undo.take()
        self._undo.close()

    def __enter__(self) -> NvDevice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self.name}, sm_{self.sm}, driver {self.session.version}>"

"""A GPU under its command queues, without a kernel driver: the card booted, its queues, its faults.

Opening, in order: the function is taken, the steps of `STEPS` are walked, an address space begins,
queues open. `PciPort.close` undoes all of it; the card is left as its firmware runs on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Unpack

from gpu.core.bits import is_power_of_two
from gpu.core.errors import (
    DeviceError,
    DeviceLost,
    GpuFault,
    HwTimeout,
    InvalidValue,
    Unsupported,
)
from gpu.core.firmware import load as load_firmware
from gpu.core.log import get_logger
from gpu.core.pci import PciAddress
from gpu.core.wait import PatientWaiter, Waiter
from gpu.core.window import MemoryWindow
from gpu.drivers.am.device import AmDevice
from gpu.drivers.am.encode.pm4 import packets_of
from gpu.drivers.am.encode.pm4_encoder import Pm4Encoder
from gpu.drivers.am.encode.sdma import SdmaEncoder
from gpu.drivers.am.pci import hqd
from gpu.drivers.am.pci.chip import Chip
from gpu.drivers.am.pci.discovery import HwId
from gpu.drivers.am.pci.entries import Access
from gpu.drivers.am.pci.ip import gfx, ih, sdma
from gpu.drivers.am.pci.ip.gmc import Hub, hubs_of
from gpu.drivers.am.pci.memory import Allocation, FlushedWindow, PciMemory
from gpu.drivers.am.pci.steps import STEPS
from gpu.drivers.am.pci.wiper import Wiper
from gpu.drivers.am.queue import READ_POINTER, WRITE_POINTER, AmQueue, QueueKind, prepare
from gpu.drivers.am.target import Target
from gpu.drivers.boot import BootTimeout, Done, walk
from gpu.drivers.card import Load, cards_of, choose_card
from gpu.drivers.cleanup import Undo
from gpu.drivers.device import Rung
from gpu.hcq.device import DeviceOptions
from gpu.hcq.encoder import Encoder
from gpu.hcq.far import FarRing
from gpu.hcq.hostring import HostRing
from gpu.transport.missing import NO_PCI_GPU
from gpu.transport.world import World

USER_VMID: Final = 8  # the first that Linux's compute driver has
_CLOCK_HZ: Final = 100e6  # of GOLDEN_TSC_COUNT and of RELEASE_MEM (T)
_DOORBELL: Final = 8
_EOP_SIZE: Final = 4096
_POINTERS: Final = 4096
_QUEUE_SECONDS: Final = 2.0
_RUN_OUT: Final = 3
_MILLISECOND: Final = 1_000_000
AMD: Final = 0x1002
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Which queues a device gets; sizes of rings are bytes, powers of two from 4096 up.

    Attributes:
        compute_queues: how many; they take PM4.
        copy_queues: likewise, and fewer where there are fewer engines.
    """

    compute_queues: int = 2
    copy_queues: int = 2
    compute_ring: int = 1 << 20
    copy_ring: int = 1 << 18

    def __post_init__(self) -> None:
        if not 1 <= self.compute_queues <= hqd.MOST_QUEUES or self.copy_queues < 1:
            raise InvalidValue(
                f"{self.compute_queues} compute queues and {self.copy_queues} copy queues: 1 to"
                f" {hqd.MOST_QUEUES} and at least 1 are there"
            )


class HostPath:
    """The `gpu.drivers.am.queue.HostDataPath` of a card: empties it before each doorbell.

    The store to the flush register and that to the doorbell arrive in this order. Where the rings
    themselves are in video memory each store to them does so (`gpu.drivers.am.pci.memory`).
    """

    def __init__(self, chip: Chip):
        self._chip = chip
        self.is_needed = isinstance(chip.doorbells, MemoryWindow)

    def flush(self) -> None:
        """Push out what the host stored in video memory."""
        self._chip.post_flush()


class PciPort:
    """The `gpu.drivers.am.port.AmPort` of a card that this process has booted. See `bring_up`.

    Attributes:
        chip: the card.
        explain: says what more is known of a fault at an address, for its message.
    """

    signal_bits: int = 32
    clock_hz: float = _CLOCK_HZ

    def __init__(self, chip: Chip, options: QueueOptions):
        """``chip`` is booted; what is opened here `close` gives back."""
        self.chip = chip
        self.name = chip.name
        self.waiter: Waiter = PatientWaiter(chip.waiter)
        self.target = target_of(chip)
        self.explain: Callable[[int], str] = lambda address: ""
        engines = sdma.engines_of(chip)
        has_wiper = chip.is_far and engines > 1
        self.queue_counts: Mapping[str, int] = {
            "compute": options.compute_queues,
            "copy": min(options.copy_queues, engines - has_wiper),
        }
        self._options = options
        self._fault: tuple[str, int] | None = None
        self._lost = ""
        self._taken: Rung | None = None
        self._hubs = hubs_of(chip)
        vmid = 0 if chip.gc[0] >= 12 else USER_VMID
        self.memory = PciMemory(chip, self._hubs[0], vmid)
        self._path = HostPath(chip)
        self._interrupts = ih.Ring(chip)
        self._encoder: Encoder = Pm4Encoder(self.target)
        self._copier = SdmaEncoder(self.target)
        self._queues = Undo()
        self._open_now: list[AmQueue] = []
        self._closed = False
        self._own = Undo()
        if has_wiper:
            queue = self._open_copy(engines - 1, Wiper.RING)
            self._own.add(queue.close)
            self.memory.wiper = Wiper(chip, self.target.sdma, self.memory, queue)

    # Queues

    def open_queue(self, kind: str, index: int) -> AmQueue:
        """As `DevicePort.open_queue`."""
        if kind == "copy":
            queue = self._open_copy(index, self._options.copy_ring)
        else:
            queue = self._open_compute(index)
        self._queues.add(queue.close)
        self._open_now.append(queue)
        return queue

    def _begin(self, name: str) -> None:
        """Waits of what follows are of this name, and have their bound."""
        self.chip.begin(name, self.chip.waiter.now_ns() + round(_QUEUE_SECONDS * 1e9))

    def _open_compute(self, index: int) -> AmQueue:
        with Undo() as undo:
            ring, pointers = self._hold_ring(self._options.compute_ring, undo)
            eop = self.memory.hold_video(_EOP_SIZE, Access.READ | Access.WRITE, "a queue's ends")
            undo.add(self.memory.drop, eop)
            prepare(QueueKind.PM4, ring.window, pointers.window, 0, 0)
            slot = hqd.ComputeRing(
                index=index,
                vmid=self.memory.vmid,
                ring=ring.address,
                size=ring.size,
                read_pointer=pointers.address + READ_POINTER,
                # Linux has it read only when a queue comes back (CP_PQ_WPTR_POLL_CNTL1 in
                # hqd_load_v11): over USB the doorbell alone tells it, which saves a transfer.
                write_pointer=0 if self.chip.is_far else pointers.address + WRITE_POINTER,
                eop=eop.address,
                eop_size=_EOP_SIZE,
            )
            place = self.chip.place(f"MQD {index}", hqd.MQD_SIZE)
            undo.add(self._unload, slot)
            self._begin(f"opening compute queue {index}")
            hqd.load(self.chip, slot, place)
            host = self._host_ring(QueueKind.PM4, ring, pointers, slot.doorbell)
            return AmQueue(
                *(QueueKind.PM4, self._encoder, ring.window, pointers.window),
                *(host, self._path, undo.take()),
            )

    def _unload(self, slot: hqd.ComputeRing) -> None:
        if not self._lost:
            self._begin(f"closing compute queue {slot.index}")
            try:
                hqd.unload(self.chip, slot)
            except BootTimeout as error:
                _log.warning("%s: its compute processor is reset: %s", self.name, error.message)
                self._begin("resetting the compute processor")
                gfx.reset_compute(self.chip)
                hqd.unload(self.chip, slot)  # finds nothing there
                self._taken = Rung.PROCESSOR

    def _open_copy(self, index: int, size: int) -> AmQueue:
        with Undo() as undo:
            ring, pointers = self._hold_ring(size, undo)
            prepare(QueueKind.SDMA, ring.window, pointers.window, 0, 0)
            slot = sdma.CopyRing(
                engine=index,
                vmid=self.memory.vmid,
                ring=ring.address,
                size=ring.size,
                read_pointer=pointers.address + READ_POINTER,
                write_pointer=pointers.address + WRITE_POINTER,
                doorbell=sdma.FIRST_DOORBELL + index * sdma.DOORBELLS,
            )
            undo.add(self._unload_copy, slot)
            self._begin(f"opening copy queue {index}")
            sdma.open_ring(self.chip, slot)
            host = self._host_ring(QueueKind.SDMA, ring, pointers, slot.doorbell)
            return AmQueue(
                *(QueueKind.SDMA, self._copier, ring.window, pointers.window),
                *(host, self._path, undo.take()),
            )

    def _unload_copy(self, slot: sdma.CopyRing) -> None:
        if not self._lost:
            self._begin(f"closing copy queue {slot.engine}")
            sdma.close_ring(self.chip, slot.engine)

    def _hold_ring(self, size: int, undo: Undo) -> tuple[Allocation, Allocation]:
        if not is_power_of_two(size) or size < 4096:
            raise InvalidValue(f"ring of {size} bytes: give a power of two from 4096 up")
        ring = self.memory.hold_system(size, Access.EXECUTE, "a queue's ring")
        undo.add(self.memory.drop, ring)
        pointers = self.memory.hold_system(_POINTERS, Access.READ, "a queue's pointers")
        undo.add(self.memory.drop, pointers)
        return ring, pointers

    def _host_ring(
        self, kind: QueueKind, ring: Allocation, pointers: Allocation, number: int
    ) -> HostRing | FarRing:
        """Where a queue is published; its doorbell's number is that of 8 bytes."""
        words, page = ring.window, pointers.window
        doorbell = self.chip.doorbells.sub(_DOORBELL * number, _DOORBELL)
        if isinstance(words, FlushedWindow) and isinstance(page, FlushedWindow):
            told = None if kind is QueueKind.PM4 else page.inner.sub(WRITE_POINTER, 8)
            return FarRing(
                *(ring.address, words.inner, MemoryWindow.over(bytearray(8)), told, doorbell),
                *(self.chip.post_flush, kind.unit, kind.doorbell_bias),
            )
        put = page.sub(WRITE_POINTER, 8)
        if not (
            isinstance(words, MemoryWindow)
            and isinstance(put, MemoryWindow)
            and isinstance(doorbell, MemoryWindow)
        ):
            raise Unsupported(f"{self.name}: a queue in memory that is not mapped here")
        return HostRing(
            address=words.address,
            size=ring.size,
            put=put.address,
            put_width=put.size,
            unit=kind.unit,
            doorbell=doorbell.address,
            doorbell_width=doorbell.size,
            bias=kind.doorbell_bias,
        )

    # Waiting, faults

    def begin_wait(self) -> None:
        """As `AmPort.begin_wait`: what a wait needs is in its thread alone."""

    def host_wrote(self) -> None:
        """As `AmPort.host_wrote`."""
        self.chip.flush_hdp()

    def clock(self) -> int:
        """The GPU's clock in ticks of `clock_hz`."""
        block = self.chip.registers.smuio
        while True:
            high = block.get("GOLDEN_TSC_COUNT_UPPER")
            low = block.get("GOLDEN_TSC_COUNT_LOWER")
            if block.get("GOLDEN_TSC_COUNT_UPPER") == high:
                return high << 32 | low

    def look(self) -> None:
        """As `AmPort.look`: reads the interrupts that came."""
        for entry in self._interrupts.entries():
            self._note(entry)

    def _note(self, entry: ih.Entry) -> None:
        """An interrupt: of a fault if a hub has kept one, or if its source is one."""
        for hub in self._hubs:
            status, address = hub.fault()
            if status:
                self._fault = self._fault or (_describe(hub, status, address), address)
                hub.clear_fault()
        if entry.client == ih.CLIENT_GFX and entry.source in _FAULT_SOURCES:
            self._fault = self._fault or (_FAULT_SOURCES[entry.source], 0)
        _log.info("%s: %s", self.name, entry)

    def check(self) -> None:
        """Raises GpuFault for what the card told of, DeviceLost where it is gone."""
        if self._lost:
            raise DeviceLost(f"{self.name}: {self._lost}")
        try:
            self.chip.function.check()
        except DeviceLost as error:
            self._lost = error.message
            raise
        self.look()
        if self._fault is not None:
            told, address = self._fault
            near = f"it is {self.memory.describe(address)}" if address else ""
            parts = (told, near, self.explain(address), "recover() makes the device usable again")
            raise GpuFault(
                f"{self.name}: {'; '.join(filter(None, parts))}", address if address else None
            )

    def let_run_out(self) -> bool:
        """As `AmPort.let_run_out`."""
        with suppress(HwTimeout):
            for _ in range(_RUN_OUT):
                if self._is_drained():
                    break
                self.chip.waiter.idle(_MILLISECOND)
        return self._is_drained()

    def _is_drained(self) -> bool:
        return all(queue.is_drained for queue in self._open_now)

    def stop(self) -> Rung | None:
        """As `AmPort.stop`."""
        self._taken = None
        try:
            self._queues.close()
        except DeviceError as error:
            _log.warning("stopping the queues of %s: %s", self.name, error)
            self._lost = f"a queue did not stop ({error.message}): open the device anew"
        self._open_now.clear()
        return self._taken

    def renew(self, rung: Rung) -> None:
        """As `AmPort.renew`: the address space is the same one, with its faults forgotten."""
        if self._lost:
            raise DeviceLost(f"{self.name}: {self._lost}")
        self.look()
        self._fault = None
        for hub in self._hubs:
            hub.clear_fault()
        self.memory.begin()

    def close(self) -> None:
        """Gives everything back: queues, memory, the function. Again does nothing."""
        if self._closed:
            return
        self._closed = True
        with Undo() as undo:
            undo.add(close_chip, self.chip)
            undo.add(self.memory.close)
            undo.add(self._own.close)
            undo.add(self.memory.clear)
            undo.add(self._queues.close)


_FAULT_SOURCES: Final = {
    ih.SOURCE_BAD_OPCODE: "the command processor met a packet that it does not know",
    ih.SOURCE_PRIV_REG: "a packet wrote a register that it may not",
    ih.SOURCE_PRIV_INSTRUCTION: "a packet did what it may not",
    ih.SOURCE_SQ: "a wave stopped at an error",
}


# gfxhub_client_ids of gfxhub_v3_0.c (Linux); that GFX12 has the same is assumed.
_CLIENTS: Final = {
    4: "CPF",
    5: "CPC",
    6: "CPG",
    7: "RLC",
    8: "TCP, data of kernels",
    9: "SQC, code of kernels",
    10: "SQC, constants of kernels",
    13: "SDMA0",
    14: "SDMA1",
}


def _describe(hub: Hub, status: int, address: int) -> str:
    """A page fault in words: bits of GCVM_L2_PROTECTION_FAULT_STATUS."""
    name, block = hub.fault_status, hub.block
    bits = {each: block.field(name, each, status) for each in ("VMID", "CID", "RW")}
    why = [
        each
        for each in ("WALKER_ERROR", "PERMISSION_FAULTS", "MAPPING_ERROR")
        if block.field(name, each, status)
    ]
    how = "written" if bits["RW"] else "read"
    known = _CLIENTS.get(bits["CID"], "") if hub.prefix == "GC" else ""
    client = f"client {bits['CID']:#x}" + (f" ({known})" if known else "")
    return (
        f"page {address:#x} was {how} and may not be: VMID {bits['VMID']}, {client},"
        f" {', '.join(why) or 'no reason'} (status {status:#010x})"
    )


def target_of(chip: Chip) -> Target:
    """What packets and launches for a card depend on. Raises Unsupported for its generation."""
    shape = chip.discovery.shape
    if shape is None:
        raise Unsupported(f"{chip.name}: its tables do not say how large its graphics core is")
    found = Target(
        version=chip.gc,
        sdma=chip.discovery.block(HwId.SDMA0).version,
        shader_engines=shape.shader_engines,
        compute_units=shape.shader_engines * shape.arrays * shape.compute_units,
        scratch_waves=shape.scratch_waves,
        arrays=shape.arrays,
        units_per_array=shape.compute_units,
    )
    packets_of(found.generation)  # raises
    return found


def cards(world: World) -> Sequence[PciAddress]:
    """GPUs of AMD's on the bus, in order; none is opened."""
    return cards_of(world, AMD)


def choose(world: World, index: int) -> PciAddress:
    """A card by its place in `cards`. Raises InvalidIndex, DeviceError where there is none."""
    return choose_card(cards(world), "AMD", index, NO_PCI_GPU)


def take_card(world: World, index: int, load: Load = load_firmware) -> Chip:
    """A card's function for this process, nothing of it touched. Raises as `PciBus.open`."""
    return Chip(world.pci.open(choose(world, index)), world.waiter, load=load)


def boot(chip: Chip, until: str | None = None) -> Iterator[Done]:
    """Walks the steps of a card; `gpu.drivers.boot.walk` says what it raises."""
    return walk(chip, STEPS, until)


def close_chip(chip: Chip) -> None:
    """Stops what a boot began, as far as it came, and gives the function back."""
    with Undo() as undo:
        undo.add(chip.function.close)
        for memory in chip.dma:
            undo.add(memory.close)
        undo.add(chip.function.set_bus_master, False)
        if "gfx" in chip.done:
            undo.add(gfx.stop_core, chip)
        if "ih" in chip.done:
            undo.add(ih.stop_interrupts, chip)


def bring_up(chip: Chip, options: QueueOptions) -> PciPort:
    """Boots a card that was taken; on an error nothing of it stays open."""
    with Undo() as undo:
        undo.add(close_chip, chip)
        for _ in boot(chip):
            pass
        port = PciPort(chip, options)
        undo.take()
    return port


def open_pci(
    world: World,
    index: int = 0,
    *,
    options: QueueOptions | None = None,
    load: Load = load_firmware,
    **device: Unpack[DeviceOptions],
) -> AmDevice:
    """Opens a GPU by its place on the bus, and boots it; on an error nothing of it stays open.

    ``load`` gives what a firmware file holds, by default from where systems have it.

    Raises AccessDenied with what to do, TransportError where somebody else has it, FirmwareError,
    BootError, Unsupported for a chip that this driver does not boot, OutOfMemory.
    """
    chip = take_card(world, index, load)
    return AmDevice(bring_up(chip, options or QueueOptions()), **device)

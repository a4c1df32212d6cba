"""Queues that registers have put on the hardware: what a queue asks of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpu.sim.amd.chip.hwqueue import HwQueue, RingSettings
from gpu.sim.amd.pci.gmc import Hub
from gpu.sim.amd.pci.ih import InterruptHandler
from gpu.sim.amd.pci.nbio import DOORBELL_BYTES, Nbio
from gpu.sim.amd.pci.silicon import Silicon
from gpu.sim.translate import PageFault, Translation

CPC, TCP, SQC_CODE, SDMA = 5, 8, 9, 13
"""Clients of the graphics hub (gfxhub_client_ids of gfxhub_v3_0.c; U on GFX12): compute queues,
data of kernels, their code, the first copy engine."""
UNRUNG: Final = (1 << 64) - 1
"""What the model puts into a doorbell that nobody has rung; a 32-bit ring shows against it."""


class RegisterQueue:
    """One queue. See `gpu.sim.amd.chip.hwqueue.QueueHost`.

    Attributes:
        hardware: the queue behind it.
    """

    hardware: HwQueue

    def __init__(
        self,
        parts: Parts,
        name: str,
        vmid: int,
        doorbell: int | None,
        port: tuple[int, int],
        why_off: Callable[[], str],
        why_out: Callable[[int], str],
        tell: Callable[[int], None],
        client: int,
    ):
        """A queue of an engine.

        Args:
            parts: of the chip.
            name: in records.
            vmid: whose addresses it uses.
            doorbell: which one it listens to, in dwords; None is none.
            port: that of the bridge that leads to the engine, and its AWID.
            why_off: why its engine does not run; empty where it does.
            why_out: why the engine does not hear a doorbell; empty where it does.
            tell: sends its interrupt, with a number.
            client: as which of the hub's it fetches packets; see `CPC`.
        """
        self._parts = parts
        self._name = name
        self._vmid = vmid
        self._doorbell = doorbell
        self._port = port
        self._why_off, self._why_out, self._tell = why_off, why_out, tell
        self._client = client
        self._seen = UNRUNG
        if doorbell is not None and 4 * doorbell + 8 <= DOORBELL_BYTES:
            parts.nbio.doorbells.write_word(4 * doorbell, 8, UNRUNG)

    def start(self, kind: type[HwQueue], settings: RingSettings, rptr: int, wptr: int) -> HwQueue:
        """The queue begins to run."""
        self.hardware = kind(self, self._parts.chip.asic, settings)
        self.hardware.rptr, self.hardware.wptr = rptr, wptr
        return self.hardware

    @property
    def name(self) -> str:
        """What records call it."""
        return self._name

    @property
    def space(self) -> Translation:
        """What its addresses lead to."""
        return self._parts.hub.spaces[self._vmid]

    def why_off(self) -> str:
        """Why its engine does not run."""
        return self._why_off()

    def doorbell(self) -> int | None:
        """What was rung since the last call, where it gets through."""
        index = self._doorbell
        if index is None:
            return None
        value = self._parts.nbio.doorbells.read_word(4 * index, 8)
        if value == self._seen:
            return None
        self._seen = value
        why = self._parts.nbio.why_no_doorbell(index, *self._port) or self._why_out(index)
        if why:
            self._parts.chip.violation(f"{self._name}: doorbell {index:#x} is not heard, as {why}")
            return None
        return value

    def page_fault(self, fault: PageFault) -> None:
        """The hub notes it, and who asked: a kernel, for data or for code, or the engine."""
        client = TCP if self.hardware.runs_kernels() else self._client
        self._parts.hub.report(self._vmid, fault, SQC_CODE if fault.execute else client)

    def reset_gpu(self, why: str) -> None:
        """Nobody resets a GPU but its driver: the queue stands still."""
        self._parts.chip.sim.debug.fault(f"{self._name} hangs: {why}")
        self.hardware.stop(why)

    def read_poison(self) -> None:
        """Memory whose contents are lost: the queue stands still."""
        self._parts.chip.sim.debug.fault(f"{self._name}: poison was consumed")
        self.hardware.stop("poison was consumed")

    def interrupt(self, number: int, bits: int) -> None:
        """An end of pipe, or a trap."""
        self._tell(number)


class Parts:
    """What queues need of a chip."""

    def __init__(self, chip: Silicon, hub: Hub, nbio: Nbio, ih: InterruptHandler):
        self.chip = chip
        self.hub = hub
        self.nbio = nbio
        self.ih = ih

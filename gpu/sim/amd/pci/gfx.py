"""The graphics core as compute needs it: selection, MEC, hardware queues, RLC.

gfx_v11_0.c, gfx_v12_0.c, amdgpu_amdkfd_gfx_v11.c and kfd_mqd_manager_v11.c of Linux 6.12.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import Final

from gpu.sim.amd.chip.aql import AqlQueue
from gpu.sim.amd.chip.hwqueue import HwQueue, RingSettings
from gpu.sim.amd.chip.pm4_queue import Pm4Queue
from gpu.sim.amd.pci.hosts import CPC, Parts, RegisterQueue
from gpu.sim.amd.pci.ih import GRBM_CP
from gpu.sim.amd.pci.registers import Refused
from gpu.sim.translate import PageFault

QUEUES: Final = 4
_PIPES: Final = {11: 4, 12: 2}
_FIRST, _LAST = 0x1FA9, 0x1FE0  # CP_MQD_BASE_ADDR to CP_HQD_PQ_WPTR_HI
_MQD_HEADER, _MQD_FIRST = 0xC0310800, 0x80
_EOP: Final = 181
_PORT: Final = (0, 3)
_DRAIN, _RESET = 1, 2
_DEQUEUE_NS, _SAFE_MODE_NS = 10_000, 1_000
_SOFT_RESET_CP: Final = 1 << 0 | 1 << 18
# Where queues write themselves, or software between descriptor and activation.
_OWN: Final = frozenset(
    (
        *("CP_HQD_ACTIVE", "CP_HQD_PQ_DOORBELL_CONTROL", "CP_HQD_DEQUEUE_REQUEST"),
        *("CP_HQD_PQ_RPTR", "CP_HQD_PQ_WPTR_LO", "CP_HQD_PQ_WPTR_HI", "CP_HQD_EOP_RPTR"),
        *("CP_HQD_PQ_WPTR_POLL_ADDR", "CP_HQD_PQ_WPTR_POLL_ADDR_HI", "CP_HQD_HQ_STATUS0"),
        *("CP_HQD_EOP_WPTR", "CP_HQD_ERROR"),
    )
)
_FIXED_WHILE_ACTIVE: Final = (
    *("CP_HQD_PQ_BASE", "CP_HQD_PQ_BASE_HI", "CP_HQD_PQ_CONTROL", "CP_HQD_VMID"),
    *("CP_MQD_BASE_ADDR", "CP_MQD_BASE_ADDR_HI"),
)
Slot = tuple[int, int, int]


class GraphicsCore:
    """The graphics core.

    Attributes:
        queues: those that are active, by (me, pipe, queue).
    """

    def __init__(self, parts: Parts):
        self._parts = parts
        self._regs = regs = parts.chip.regs
        self._pipes = _PIPES[parts.chip.board.chip.gc[0]]
        self.queues: dict[Slot, RegisterQueue] = {}
        self._is_loaded = False
        base = regs.address("CP_MQD_BASE_ADDR") - _FIRST
        named = {regs.address(name) for name in regs.names()}
        for offset in range(_FIRST, _LAST + 1):
            if base + offset not in named:  # Linux writes what lies between as well
                regs.add(f"CP_HQD_RESERVED_{offset:x}", base + offset, "GC")
        self._row = {regs.address(n) - base: n for n in regs.names() if n.startswith("CP_")}
        self._banks = {name: kind for name in regs.names() if (kind := _bank(name))}
        regs.bank = self._bank
        regs.begin("CP_MEC_RS64_CNTL", 1 << 30)
        regs.hook("CP_MEC_RS64_CNTL", write=self._mec_control)
        regs.hook("CP_HQD_ACTIVE", self._is_active, self._activate)
        regs.hook("CP_HQD_DEQUEUE_REQUEST", write=self._dequeue)
        regs.hook("CP_HQD_PQ_RPTR", self._rptr)
        regs.hook("CP_HQD_PQ_WPTR_LO", lambda: self._live_wptr("CP_HQD_PQ_WPTR_LO") & 0xFFFFFFFF)
        regs.hook("CP_HQD_PQ_WPTR_HI", lambda: self._live_wptr("CP_HQD_PQ_WPTR_HI") >> 32)
        for name in _FIXED_WHILE_ACTIVE:
            regs.hook(name, write=partial(self._keep, name))
        regs.hook("RLC_SAFE_MODE", write=self._safe_mode)
        regs.hook("GRBM_SOFT_RESET", write=self._soft_reset)

    def reset(self) -> None:
        """Nothing runs."""
        for queue in self.queues.values():
            queue.hardware.stop("the chip was reset")
        self.queues.clear()
        self._is_loaded = False

    def start(self) -> None:
        """RLC has loaded all firmware of the core."""
        self._is_loaded = True

    def hardware(self) -> list[HwQueue]:
        """The queues themselves."""
        return [queue.hardware for queue in self.queues.values()]

    def why_halted(self, pipe: int) -> str:
        """Why a pipe of MEC does not run; empty where it does."""
        if not self._is_loaded:
            return "off: RLC has not loaded its firmware"
        value = self._regs.value("CP_MEC_RS64_CNTL")
        fields = self._regs.fields("CP_MEC_RS64_CNTL")
        halted, reset, active = (
            value >> fields[name][0] & 1
            for name in ("MEC_HALT", f"MEC_PIPE{pipe}_RESET", f"MEC_PIPE{pipe}_ACTIVE")
        )
        if halted or reset or not active:
            return f"off: pipe {pipe} of MEC does not run, CP_MEC_RS64_CNTL is {value:#x}"
        return ""

    def _select(self) -> tuple[int, int, int, int]:
        value = self._regs.value("GRBM_GFX_CNTL")
        return value >> 2 & 3, value & 3, value >> 8 & 7, value >> 4 & 0xF

    def _bank(self, name: str) -> object:
        kind = self._banks.get(name)
        if kind is None:
            return None
        me, pipe, queue, vmid = self._select()
        if kind == "vmid":
            return vmid
        if kind == "pipe":
            return me, pipe
        if me != 1 or pipe >= self._pipes or queue >= QUEUES:
            raise Refused(
                f"GRBM_GFX_CNTL selects ME {me}, pipe {pipe}, queue {queue}: compute queues are "
                f"of ME 1, pipes 0 to {self._pipes - 1}, queues 0 to {QUEUES - 1}"
            )
        return me, pipe, queue

    def _slot(self) -> Slot:
        self._bank("CP_HQD_ACTIVE")
        return self._select()[:3]

    def _keep(self, name: str, value: int) -> None:
        slot = self._slot()
        if slot in self.queues:
            raise Refused(f"queue {slot} is active")
        self._regs.set(name, value, slot)

    def _mec_control(self, value: int) -> None:
        halt, _ = self._regs.fields("CP_MEC_RS64_CNTL")["MEC_HALT"]
        if not value >> halt & 1:
            if not self._is_loaded:
                raise Refused("MEC has no firmware before RLC has loaded it")
            if not self._regs.value("CP_MEC_RS64_PRGRM_CNTR_START", (1, 0)):
                raise Refused("CP_MEC_RS64_PRGRM_CNTR_START of pipe 0 is 0: code is not there")
        self._regs.set("CP_MEC_RS64_CNTL", value)

    # Hardware queues.

    def _is_active(self) -> int:
        return int(self._slot() in self.queues)

    def _live(self) -> HwQueue | None:
        queue = self.queues.get(self._slot())
        return queue.hardware if queue else None

    def _rptr(self) -> int:
        queue = self._live()
        if queue is None:
            return self._regs.value("CP_HQD_PQ_RPTR", self._slot())
        return queue.rptr % (queue.settings.size // queue.unit)

    def _live_wptr(self, name: str) -> int:
        queue = self._live()
        stored = self._regs.value(name, self._slot())
        return queue.wptr if queue else stored | stored << 32

    def _activate(self, value: int) -> None:
        slot = self._slot()
        if not value & 1:
            self._remove(slot)
            return
        if slot in self.queues:
            raise Refused(f"queue {slot} is active already")
        regs = self._regs

        def pair(name: str, high: str = "_HI") -> int:
            return regs.pair(name, name.removesuffix("_LO") + high, slot)

        def field(name: str, part: str) -> int:
            return regs.field(name, part, slot)

        self._check(slot)
        size = 4 << field("CP_HQD_PQ_CONTROL", "QUEUE_SIZE") + 1
        is_aql = bool(field("CP_HQD_AQL_CONTROL", "CONTROL0"))
        if is_aql != (field("CP_HQD_PQ_CONTROL", "SLOT_BASED_WPTR") == 2):
            raise Refused("CP_HQD_AQL_CONTROL and PQ_CONTROL.SLOT_BASED_WPTR do not agree on AQL")
        settings = RingSettings(
            *(pair("CP_HQD_PQ_BASE") << 8, size),
            *(pair("CP_HQD_PQ_RPTR_REPORT_ADDR"), pair("CP_HQD_PQ_WPTR_POLL_ADDR")),
        )
        doorbell = field("CP_HQD_PQ_DOORBELL_CONTROL", "DOORBELL_OFFSET")
        host = RegisterQueue(
            *(self._parts, f"{slot[1]}.{slot[2]} of MEC", field("CP_HQD_VMID", "VMID")),
            doorbell if field("CP_HQD_PQ_DOORBELL_CONTROL", "DOORBELL_EN") else None,
            _PORT,
            *(partial(self.why_halted, slot[1]), self._why_out, partial(self._tell, slot)),
            CPC,
        )
        wptr = pair("CP_HQD_PQ_WPTR_LO")
        host.start(
            AqlQueue if is_aql else Pm4Queue, settings, regs.value("CP_HQD_PQ_RPTR", slot), wptr
        )
        self.queues[slot] = host

    def _check(self, slot: Slot) -> None:
        """What makes no queue. Raises Refused."""
        regs = self._regs
        vmid = regs.field("CP_HQD_VMID", "VMID", slot)
        if not regs.value("SH_MEM_CONFIG", vmid):
            raise Refused(f"SH_MEM_CONFIG of VMID {vmid} was not set")
        if not regs.pair("CP_HQD_PQ_RPTR_REPORT_ADDR", "CP_HQD_PQ_RPTR_REPORT_ADDR_HI", slot):
            raise Refused("CP_HQD_PQ_RPTR_REPORT_ADDR is 0")
        if not regs.pair("CP_HQD_EOP_BASE_ADDR", "CP_HQD_EOP_BASE_ADDR_HI", slot):
            raise Refused("CP_HQD_EOP_BASE_ADDR is 0: ends of pipe have no buffer")
        self._check_descriptor(slot)

    def _check_descriptor(self, slot: Slot) -> None:
        """The descriptor (MQD) in memory, which a switch of queues would load, says the same."""
        regs = self._regs
        address = regs.pair("CP_MQD_BASE_ADDR", "CP_MQD_BASE_ADDR_HI", slot)
        vmid = regs.field("CP_MQD_CONTROL", "VMID", slot)
        try:
            data = self._parts.hub.spaces[vmid].load(address, 2048)
        except PageFault as fault:
            raise Refused(f"CP_MQD_BASE_ADDR: {fault}") from fault
        words = struct.unpack("<512I", data)
        if words[0] != _MQD_HEADER:
            raise Refused(f"the MQD at {address:#x} begins with {words[0]:#x}, no MQD's")
        for offset in range(_FIRST, _LAST + 1):
            name, word = self._row[offset], words[_MQD_FIRST + offset - _FIRST]
            if name not in _OWN and regs.value(name, slot) != word:
                raise Refused(
                    f"{name} is {regs.value(name, slot):#x}, in the MQD at {address:#x} {word:#x}"
                )

    def _why_out(self, doorbell: int) -> str:
        low, high = (self._regs.value(f"CP_MEC_DOORBELL_RANGE_{end}") for end in ("LOWER", "UPPER"))
        if low <= 4 * doorbell <= high:
            return ""
        return f"CP_MEC_DOORBELL_RANGE is {low:#x} to {high:#x} in bytes"

    def _tell(self, slot: Slot, number: int) -> None:
        me, pipe, queue = slot
        vmid = self._regs.field("CP_HQD_VMID", "VMID", slot)
        self._parts.ih.send(GRBM_CP, _EOP, pipe | me << 2 | queue << 4, vmid, (number,))

    def _dequeue(self, value: int) -> None:
        slot = self._slot()
        kind = value & 0xF
        if kind not in (0, _DRAIN, _RESET):
            raise Refused("a queue is drained (1) or its waves are reset (2)")
        self._regs.set("CP_HQD_DEQUEUE_REQUEST", value, slot)
        if kind and slot in self.queues:
            gone = partial(self._dequeued, slot, kind)
            self._parts.chip.later.after(_DEQUEUE_NS, f"take queue {slot} off", gone)

    def _dequeued(self, slot: Slot, kind: int) -> None:
        queue = self.queues.get(slot)
        if queue is None or queue.hardware.is_unsaved:
            return
        busy = queue.hardware.stuck or queue.hardware.runs_kernels()
        if kind == _DRAIN and busy:
            again = partial(self._dequeued, slot, kind)
            if not queue.hardware.stuck:
                self._parts.chip.later.after(_DEQUEUE_NS, f"drain queue {slot}", again)
            return
        self._remove(slot)
        self._regs.set("CP_HQD_DEQUEUE_REQUEST", 0, slot)

    def _remove(self, slot: Slot) -> None:
        queue = self.queues.pop(slot, None)
        if queue is None:
            return
        hardware = queue.hardware
        units = hardware.settings.size // hardware.unit
        self._regs.set("CP_HQD_PQ_RPTR", hardware.rptr % units, slot)
        self._regs.set("CP_HQD_PQ_WPTR_LO", hardware.wptr, slot)
        self._regs.set("CP_HQD_PQ_WPTR_HI", hardware.wptr >> 32, slot)
        hardware.stop("it was taken off the hardware")

    def _safe_mode(self, value: int) -> None:
        self._regs.set("RLC_SAFE_MODE", value)
        self._parts.chip.later.after(
            *(_SAFE_MODE_NS, "enter or leave safe mode"),
            lambda: self._regs.set("RLC_SAFE_MODE", value & ~1),
        )

    def _soft_reset(self, value: int) -> None:
        self._regs.set("GRBM_SOFT_RESET", value)
        if value & _SOFT_RESET_CP:
            for slot in list(self.queues):
                self._remove(slot)
            self._regs.set("CP_MEC_RS64_CNTL", 1 << 30)


def _bank(name: str) -> str:
    if name.startswith(("CP_HQD_", "CP_MQD_", "SPI_COMPUTE_QUEUE_RESET")):
        return "queue"
    if name.startswith("SH_MEM_"):
        return "vmid"
    return "pipe" if "_PRGRM_CNTR_START" in name else ""

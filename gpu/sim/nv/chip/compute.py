"""The compute class: state, invalidates, and launches by QMD.

Method addresses are those of clc7c0.h, clc9c0.h, clcbc0.h and clcec0.h (NVIDIA/open-gpu-doc), which
agree in all that is used here.
"""

from __future__ import annotations

from typing import Final

from gpu.core.bits import align_up
from gpu.sim.executor import Endless, RunningKernel
from gpu.sim.nv.chip import inline
from gpu.sim.nv.chip.errors import CONTAINED_ERROR, HardwareError, class_error, graphics
from gpu.sim.nv.chip.grids import Grid, write_release
from gpu.sim.nv.chip.host import Host
from gpu.sim.nv.chip.launch import Launch
from gpu.sim.nv.chip.method_tables import expand
from gpu.sim.nv.chip.qmd import SIZES, Qmd, Release
from gpu.sim.translate import PageFault, first_hole

_WAIT_FOR_IDLE: Final = 0x110
_INLINE_QMDS: Final = range(0x318, 0x4A0, 4)
_INVALIDATE_CACHES: Final = 0x21C
_INVALIDATE_CACHES_NO_WFI: Final = 0x1698
_INVALIDATE_SKED: Final = 0x298
_SHARED_WINDOW: Final = 0x2A0, 0x2A4  # A: bits 48:32, B: bits 31:0
_SEND_PCAS_A: Final = 0x2B4
_SIGNALING_PCAS: Final = 0x2BC
_SIGNALING_PCAS2: Final = 0x2C0
_LOCAL_SIZES: Final = 0x2E4, 0x2E8  # bytes for each TPC
_LOCAL_MEMORY: Final = 0x790, 0x794
_LOCAL_WINDOW: Final = 0x7B0, 0x7B4
_REPORT: Final = 0x1B00, 0x1B04
_REPORT_PAYLOAD: Final = 0x1B08
_REPORT_EXECUTE: Final = 0x1B0C
_NEW_PAYLOAD: Final = 0x15C, 0x158  # SET_REPORT_SEMAPHORE_PAYLOAD_UPPER, _LOWER
_NEW_ADDRESS: Final = 0x164, 0x160
_NEW_REPORT_EXECUTE: Final = 0x168
_CACHE_BITS: Final = ((0, "code"), (4, "data"), (12, "constant"))

# SEND_SIGNALING_PCAS2_B.PCAS_ACTION: which of (invalidate, schedule) each does.
_ACTIONS: Final = {
    0x0: (False, False),
    0x1: (True, False),
    0x2: (False, True),
    0x3: (True, True),
    0x8: (False, False),
    0x9: (False, True),
    0xA: (True, True),
}
_WINDOW_LIMIT: Final = 1 << 49
_QMD_CACHES: Final = (
    ("INVALIDATE_INSTRUCTION_CACHE", "code"),
    ("INVALIDATE_SHADER_DATA_CACHE", "data"),
    ("INVALIDATE_SHADER_CONSTANT_CACHE", "constant"),
)


class ComputeEngine:
    """The compute class on one channel.

    Attributes:
        registers: methods as last written, by address.
        grids: those that run.
    """

    def __init__(self, channel: Host):
        self.channel = channel
        self.gpu = channel.gpu
        self.port = channel.port
        self.registers: dict[int, int] = {}
        self.grids: list[Grid] = []
        self._inline = inline.InlineCopy(channel, self.registers)
        self._known = expand(self.gpu.chip.compute_methods)

    def method(self, address: int, value: int) -> None:
        """One method. Raises ChannelError, PageFault, KernelFault."""
        if address not in self._known:
            raise class_error(
                f"class {self.gpu.chip.compute:#x} has no method {address:#x} (data {value:#x})"
            )
        if address in _INLINE_QMDS:
            raise class_error(f"compute method {address:#x} is not modelled")
        if self._inline.busy and address not in inline.METHODS:
            raise class_error(f"compute method {address:#x} before all inline data came")
        self.registers[address] = value
        if address in inline.METHODS:
            self._inline.method(address, value)
        elif address == _WAIT_FOR_IDLE:
            self.channel.wait_idle(f"{self.channel}: WAIT_FOR_IDLE")
        elif address in (_INVALIDATE_CACHES, _INVALIDATE_CACHES_NO_WFI):
            self._invalidate(value)
            if address == _INVALIDATE_CACHES:
                self.channel.wait_idle(f"{self.channel}: INVALIDATE_SHADER_CACHES")
        elif address == _INVALIDATE_SKED:
            self.gpu.caches.invalidate("sked")
        elif address == _SIGNALING_PCAS:
            self._pcas(invalidate=bool(value & 1), schedule=bool(value & 2))
        elif address == _SIGNALING_PCAS2:
            if value & 0xF not in _ACTIONS:
                raise class_error(f"PCAS action {value & 0xF:#x} is not modelled")
            self._pcas(*_ACTIONS[value & 0xF])
        elif address == _REPORT_EXECUTE:
            self._report(value)
        elif address == _NEW_REPORT_EXECUTE:
            self._new_report(value)

    def step(self) -> None:
        """Runs a slice of one of the grids. Raises PageFault, KernelFault, ChannelError."""
        grid = self.gpu.rng.choice(self.grids)
        if grid.step():
            for dependent in grid.dependents:
                self.launch(dependent.address, dependent.invalidate)
            self.grids.remove(grid)

    def _invalidate(self, value: int) -> None:
        names = [name for bit, name in _CACHE_BITS if value >> bit & 1]
        self.gpu.caches.invalidate(*names)

    def _pair(self, methods: tuple[int, int]) -> int | None:
        high, low = (self.registers.get(method) for method in methods)
        return None if high is None or low is None else high << 32 | low

    def _pcas(self, invalidate: bool, schedule: bool) -> None:
        if _SEND_PCAS_A not in self.registers:
            raise class_error("a PCAS action before SEND_PCAS_A")
        address = self.registers[_SEND_PCAS_A] << 8
        if schedule:
            self.launch(address, invalidate)
        elif invalidate:
            self._forget_qmd(address)

    def _forget_qmd(self, address: int) -> None:
        size = SIZES[self.gpu.chip.qmd_major]
        for mapping, offset, count in self.port.space.spans(address, size, write=False):
            self.gpu.caches.invalidate_range("sked", mapping, offset, count)

    def launch(self, address: int, invalidate: bool) -> None:
        """Schedules the grid of a QMD. Raises ChannelError, PageFault, KernelFault."""
        if invalidate:
            self._forget_qmd(address)
        chip = self.gpu.chip
        data = self.port.as_agent("sked").read(address, SIZES[chip.qmd_major])
        qmd = Qmd(chip, data)
        qmd.check_version()
        launch = self._decode(address, qmd)
        self._invalidate_for(qmd, launch)
        self._check_mapped(qmd, launch)
        self.grids.append(Grid(self.channel, launch, qmd, self._fault(launch)))
        for dependent in qmd.dependents():
            if dependent.prefetch:
                self.port.as_agent("sked").read(dependent.address, SIZES[chip.qmd_major])
        self.gpu.counts.kernels += 1

    def _fault(self, launch: Launch) -> RunningKernel | None:
        """What runs in place of a grid that a fault was injected for.

        Raises PageFault, HardwareError.
        """
        fault = self.gpu.faults.due("hang", "page-fault", "reset", "ecc", "xid")
        if fault is None:
            return None
        if fault.name == "page-fault":  # the MMU tells reads from writes, not from fetches
            is_code = fault.detail == "exec"
            at = launch.program if is_code else first_hole(self.port.space, launch.program)
            raise PageFault(at, fault.detail == "write", present=False)
        if fault.name == "ecc":
            raise HardwareError(CONTAINED_ERROR, "memory lost its contents")
        if fault.name == "xid":
            raise HardwareError(int(fault.detail), "a fault that was injected")
        if fault.name == "reset":
            self.gpu.lose_firmware()
        return Endless()

    def _decode(self, address: int, qmd: Qmd) -> Launch:
        grid, block, cluster = qmd.sizes()
        low, high = qmd.local_bytes()
        shared, local = self._windows()
        local_memory, per_tpc = self._local(low + high)
        qmd.releases()
        return Launch(
            qmd_address=address,
            qmd=qmd.data,
            program=qmd.program(),
            grid=grid,
            block=block,
            cluster=cluster,
            registers=qmd.registers(block),
            barriers=qmd.barriers(),
            shared_bytes=qmd.shared_bytes(),
            local_low=low,
            local_high=high,
            banks=qmd.banks(),
            shared_window=shared,
            local_window=local,
            local_memory=local_memory,
            local_per_tpc=per_tpc,
            sass_version=qmd.sass_version(),
        )

    def _windows(self) -> tuple[int, int]:
        """Generic addresses of shared and local memory, which must be set and free of mappings."""
        found = []
        for name, methods in (("shared", _SHARED_WINDOW), ("local", _LOCAL_WINDOW)):
            start = self._pair(methods)
            bits = self.gpu.chip.window_bits if name == "shared" else 24
            if start is None:
                raise graphics(f"a grid before the {name} memory window was ever set")
            if start % (1 << bits) or start >= _WINDOW_LIMIT:
                raise graphics(f"the {name} window {start:#x} is no multiple of {1 << bits:#x}")
            if self.port.space.overlapping(start, start + (1 << bits)):
                raise graphics(f"the {name} window at {start:#x} overlaps mapped memory")
            found.append(start)
        return found[0], found[1]

    def _local(self, per_thread: int) -> tuple[int, int]:
        """Where local memory lies and its bytes for each TPC; checked when a grid needs it."""
        base, per_tpc = self._pair(_LOCAL_MEMORY) or 0, self._pair(_LOCAL_SIZES) or 0
        if not per_thread:
            return base, per_tpc
        chip = self.gpu.chip
        warp = align_up(align_up(per_thread, 32) * 32, 0x200)
        needed = align_up(warp * chip.warps * 2, 0x8000)
        if not base or per_tpc < needed:
            raise graphics(
                f"{per_thread:#x} bytes of local memory for a thread need {needed:#x} for a TPC;"
                f" {per_tpc:#x} at {base:#x} are set"
            )
        self._check_range(base, per_tpc * chip.litter_gpcs * chip.litter_tpcs)
        return base, per_tpc

    def _invalidate_for(self, qmd: Qmd, launch: Launch) -> None:
        """Does what the QMD says about caches."""
        caches = self.gpu.caches
        caches.invalidate(*(cache for name, cache in _QMD_CACHES if qmd.get(name)))
        for i, bank in enumerate(launch.banks):
            if bank and qmd.get("CONSTANT_BUFFER_INVALIDATE", i):
                for mapping, offset, count in self.port.space.spans(*bank, write=False):
                    caches.invalidate_range("constant", mapping, offset, count)

    def _check_mapped(self, qmd: Qmd, launch: Launch) -> None:
        """Everything that is fetched for a grid must be mapped. Raises PageFault."""
        for bank in launch.banks:
            if bank:
                self._check_range(*bank)
        self._check_range(launch.program, 16)
        if not self.port.is_mapped(launch.program, 4096):
            self.gpu.debug.violation(
                f"less than 4 KiB are mapped from the program at {launch.program:#x} on: what is"
                " fetched ahead of it faults"
            )
        address, size = qmd.prefetch()
        if size:
            self._check_range(address, size)

    def _check_range(self, address: int, size: int) -> None:
        for _ in self.port.space.spans(address, size, write=False):
            pass

    def _report(self, value: int) -> None:
        """REPORT_SEMAPHORE_D: OPERATION 1:0 = 0 RELEASE, STRUCTURE_SIZE bit 28 = 1 ONE_WORD."""
        if value & 3:
            raise class_error(f"report semaphore operation {value & 3} is not modelled")
        words = 1 if value >> 28 & 1 else 4
        address = self._pair(_REPORT) or 0
        if address % (4 * words):
            raise class_error(f"a report semaphore of {words} words at {address:#x}")
        payload = self.registers.get(_REPORT_PAYLOAD, 0)
        self._release_when_idle(Release(address, payload, words, wide=False, trap=False))

    def _new_report(self, value: int) -> None:
        """REPORT_SEMAPHORE_EXECUTE: OPERATION 1:0, STRUCTURE_SIZE 4:3, PAYLOAD_SIZE64 bit 12."""
        words = (4, 1, 2, 0)[value >> 3 & 3]
        address, payload = self._pair(_NEW_ADDRESS) or 0, self._pair(_NEW_PAYLOAD) or 0
        wide = bool(value >> 12 & 1)
        if value & 0x43 or not words or address % (4 * words) or (wide and words == 1):
            raise class_error(f"REPORT_SEMAPHORE_EXECUTE {value:#x} at {address:#x}")
        payload &= (1 << 64) - 1 if wide else (1 << 32) - 1
        self._release_when_idle(Release(address, payload, words, wide, trap=False))

    def _release_when_idle(self, release: Release) -> None:
        def act() -> None:
            if not self.channel.loses_completion():
                write_release(self.port, release, self.gpu.clock.now_ns)

        self.channel.wait_idle(f"{self.channel}: report semaphore", act)

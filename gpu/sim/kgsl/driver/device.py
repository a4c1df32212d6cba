"""The device as the kernel keeps it: what its calls share."""

from __future__ import annotations

import errno
from typing import Final

from gpu.autogen import kgsl
from gpu.sim.ids import IdTable
from gpu.sim.kernel import SysError
from gpu.sim.kgsl.chip.gpu import AdrenoGpu
from gpu.sim.kgsl.driver.contexts import MEMSTORE, MOST_CONTEXTS, Context
from gpu.sim.kgsl.driver.dispatcher import MS, Dispatcher
from gpu.sim.kgsl.driver.fences import Timeline
from gpu.sim.kgsl.driver.objects import KgslProcess, MemObject, Memory, Pages
from gpu.sim.kgsl.releases import Release
from gpu.sim.machine import Machine
from gpu.sim.physical import Pool
from gpu.sim.process import SimProcess

_MOST_OF_A_PROCESS: Final = 200  # KGSL_MAX_CONTEXTS_PER_PROC
_DETACH_NS: Final = 30_000 * MS


class Device:
    """The device.

    Attributes:
        gpu, release: the chip, and which kernel drives it.
        machine: time, chance, records.
        pages: what objects are made of.
        memstore: timestamps of contexts, which processes may map.
        dispatcher: what feeds the chip.
        contexts, timelines: by id.
        processes: those that have opened it.
        counts_performance: whether counters can be read (sysfs `perfcounter`).
    """

    def __init__(self, machine: Machine, gpu: AdrenoGpu, release: Release, memory: Memory):
        self.machine = machine
        self.gpu = gpu
        self.release = release
        self.pages = Pages(memory, has_caches=gpu.caches.mode != "none")
        self.memstore = Pool("memstore", MEMSTORE)
        self.memstore.allocate(MEMSTORE)
        self.dispatcher = Dispatcher(gpu, self.destroy)
        self.contexts: IdTable[Context] = IdTable()
        self.timelines: IdTable[Timeline] = IdTable()
        self.processes: dict[SimProcess, KgslProcess] = {}
        self._left: dict[SimProcess, list[str]] = {}
        self.counts_performance = release.name != "2025"  # adreno.c: `perfcounter = false`

    def close(self) -> None:
        """Gives its memory back."""
        self.pages.memory.close()
        self.memstore.close()

    # Processes.

    def opened(self, process: SimProcess) -> KgslProcess:
        """A process opens the device. Raises SysError(ENODEV)."""
        self.check_plugged()
        owner = self.processes.get(process)
        if owner is None:
            owner = self.processes[process] = KgslProcess(process)
            owner.space.tables.report = self.dispatcher.page_fault
        owner.files += 1
        return owner

    def closed(self, owner: KgslProcess, file: object) -> None:
        """The last descriptor of an open file is gone: its contexts end, and perhaps all."""
        for _, context in list(self.contexts):
            if context.file is file:
                self._left.setdefault(owner.process, []).append(str(context))
                self.detach(context)
        for number, timeline in list(self.timelines):
            if timeline.file is file:
                timeline.destroy()
                self.timelines.remove(number)
        owner.files -= 1
        if not owner.files:
            for _, item in list(owner.objects):
                if not item.is_freed:
                    self._left.setdefault(owner.process, []).append(str(item))
                self.free(owner, item, is_last=True)
            del self.processes[owner.process]

    def left_by(self, process: SimProcess) -> list[str]:
        """What a process had not given back when it closed its last file."""
        return self._left.pop(process, [])

    def check_plugged(self) -> None:
        """Raises SysError(ENODEV) when the device is gone."""
        if not self.gpu.plugged:
            raise SysError(errno.ENODEV, "the device is gone")

    # Objects.

    def free(self, owner: KgslProcess, item: MemObject, is_last: bool = False) -> None:
        """GPUOBJ_FREE: the object goes when no mapping of the CPU holds it."""
        if item.users:
            self.machine.debug.violation(
                f"{item} is freed while {item.users} commands that were told of it are under way:"
                " nothing keeps it for them"
            )
        item.is_freed = True
        if is_last:
            for address in item.cpu_mappings:
                owner.mapped.pop(address, None)
            item.cpu_mappings.clear()
        self.destroy(owner, item)

    def destroy(self, owner: KgslProcess, item: MemObject) -> None:
        """The end of an object that was freed, unless the CPU still maps it."""
        item.is_freed = True
        if item.cpu_mappings or not item.id:
            return
        if item.address:
            owner.space.unmap(item)
        for piece in item.pieces:
            self.gpu.caches.drop(piece.region, piece.offset, piece.size)
        if item.extents:
            self.pages.memory.release(item.extents)
        owner.objects.remove(item.id)
        item.id = 0

    def unmapped(self, process: SimProcess, address: int) -> None:
        """A process has unmapped what begins at an address."""
        owner = self.processes.get(process)
        item = owner.mapped.pop(address, None) if owner else None
        if owner and item:
            item.cpu_mappings.remove(address)
            if item.is_freed:
                self.destroy(owner, item)

    # Contexts.

    def context(self, owner: KgslProcess, number: int) -> Context:
        """A process's context. Raises SysError(EINVAL) for none, or another's."""
        found = self.contexts.get(number)
        if found is None or found.owner is not owner:
            raise SysError(errno.EINVAL, f"there is no context {number} of this process")
        return found

    def new_context(self, owner: KgslProcess, file: object, flags: int) -> Context:
        """A context. Raises SysError(ENOSPC)."""
        if owner.contexts > _MOST_OF_A_PROCESS:
            raise SysError(errno.ENOSPC, f"the process has {owner.contexts} contexts")
        context = Context(0, flags, owner, file, self.memstore)
        context.id = self.contexts.add(context, first=1, limit=MOST_CONTEXTS)
        context.consumed = context.retired = 0
        owner.contexts += 1
        self.dispatcher.contexts[context.id] = context
        return context

    def detach(self, context: Context) -> None:
        """DRAWCTXT_DESTROY: waits for what is in the ring, and gives it up after 30 s."""
        context.is_detached = True
        for queued in context.queue:
            queued.dropped()
        context.queue.clear()
        dispatcher = self.dispatcher
        if not context.is_invalid and dispatcher.holds(context):
            self.machine.wait(lambda: not dispatcher.holds(context), _DETACH_NS)
            if dispatcher.holds(context):
                self.machine.debug.fault(f"{context} did not end in 30 s")
                dispatcher.detach_timed_out(context)
        context.consumed = context.retired = 0
        for _, item in context.frees:
            self.destroy(context.owner, item)
        self.contexts.remove(context.id)
        del dispatcher.contexts[context.id]
        context.owner.contexts -= 1

    @property
    def constrained_by(self) -> list[Context]:
        """Contexts that ask for a power level."""
        return [c for _, c in self.contexts if c.constraint == kgsl.KGSL_CONSTRAINT_PWRLEVEL]

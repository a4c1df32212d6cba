"""What the kernel frees when a process ends, or a context of it."""

from __future__ import annotations

from gpu.sim.amd.kfd.memory import release, unmap
from gpu.sim.amd.kfd.process import KfdProcess
from gpu.sim.amd.kfd.queues import drop_queue


def free_process(p: KfdProcess) -> list[str]:
    """Frees all that a process has of KFD; returns what it should have freed itself."""
    left = [str(queue) for _, queue in p.queues]
    for _, queue in list(p.queues):
        drop_queue(p, queue)
    for device in p.devices.values():
        for number, allocation in list(device.allocations):
            if device.gpu_handle(number) != p.events.page_handle:
                left.append(f"allocation of {allocation.bo.size:#x} at {allocation.va:#x}")
            for other in list(allocation.mapped):
                unmap(allocation, other)
            release(device, number)
        device.close()
    p.events.close()
    p.due_ns, p.ended = None, True
    return left

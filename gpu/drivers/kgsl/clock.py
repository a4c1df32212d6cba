"""The GPU's clock as the host sees it: ticks of 19.2 MHz, the counter that timestamps are of."""

from __future__ import annotations

from typing import Final

from gpu.core.errors import DeviceHang
from gpu.core.interrupts import put_off
from gpu.core.wait import Waiter
from gpu.drivers.kgsl.contexts import Context
from gpu.drivers.kgsl.memory import GpuObject
from gpu.drivers.kgsl.packets import Packets

HZ: Final = 19_200_000
_STAMP: Final = 64
"""Where in its page the counter is written."""
_TIMEOUT: Final = 10.0
_MILLISECOND: Final = 1_000_000


class Clock:
    """Has the command processor write its counter, behind all that was submitted.

    KGSL tells it too (PERFCOUNTER_READ), but not where sysfs forbids counters, which is the
    default, and with garbage in its upper half in old versions (turnip).
    """

    def __init__(self, page: GpuObject, waiter: Waiter):
        """``page`` is memory that the host sees as it is."""
        self._page, self._waiter = page, waiter
        push = Packets()
        push.wait_for_idle()
        push.timestamp(page.address + _STAMP)
        push.wait_for_writes()
        self._size = len(push.data)
        page.memory.store(0, push.data)

    def read(self, context: Context) -> int:
        """Ticks now. Raises ContextLost, and DeviceHang where the GPU is busy for too long."""
        started = self._waiter.now_ns()
        with put_off():
            context.submit(self._page.made.id, (self._page.address, self._size))
            context.last += 1
        while not context.sleep(_WAIT):
            self._waiter.idle(_MILLISECOND)
            seconds = (self._waiter.now_ns() - started) / 1e9
            if seconds > _TIMEOUT:
                what = "the counter, behind all that was submitted"
                raise DeviceHang(what, None, "its value", seconds)
        return self._page.memory.read(_STAMP, 8)


_WAIT: Final = 10

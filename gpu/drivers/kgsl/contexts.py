"""A context of KGSL: what commands are queued in, until a failure of the GPU makes it invalid."""

from __future__ import annotations

import ctypes
import errno
from typing import Final

from gpu.autogen import kgsl
from gpu.core.errors import DeviceError, TransportError
from gpu.core.log import get_logger
from gpu.drivers.kgsl.calls import ContextLost, Kgsl

_log = get_logger(__name__)
_PRIORITY: Final = 8  # of 1, the first, to 15; what tinygrad asks for, and the middle
# The first two are demanded, as no context has a state of its own any more (adreno_drawctxt.c).
# The third has a failure end the context: else the kernel runs the failed command once more, which
# doubles what it does in place (adreno_dispatch.c).
_FLAGS: Final = (
    kgsl.KGSL_CONTEXT_PREAMBLE
    | kgsl.KGSL_CONTEXT_NO_GMEM_ALLOC
    | kgsl.KGSL_CONTEXT_NO_FAULT_TOLERANCE
    | kgsl.KGSL_CONTEXT_PWR_CONSTRAINT
    | _PRIORITY << kgsl.KGSL_CONTEXT_PRIORITY_SHIFT
    | kgsl.KGSL_CONTEXT_PREEMPT_STYLE_FINEGRAIN << kgsl.KGSL_CONTEXT_PREEMPT_STYLE_SHIFT
)
DEPTH: Final = 32
"""Commands that may be under way. KGSL has the next one wait when 49 are queued that the GPU was
not given (adreno_dispatch.c): so nobody waits there, with a lock held."""


class Context:
    """A context that is open.

    Attributes:
        number: what KGSL calls it by.
        last: the timestamp of the last command, which count up from 1: who submits counts.
        done: the last one that is known to be done.
        is_lost: whether the GPU failed while it ran.
    """

    def __init__(self, calls: Kgsl):
        """Opens one. Raises TransportError, OutOfMemory."""
        self._kgsl = calls
        self._tells_faults = True
        try:
            self.number = calls.create_context(_FLAGS | kgsl.KGSL_CONTEXT_FAULT_INFO)
        except TransportError as error:  # a kernel that does not know the flag
            if error.errno != errno.EINVAL:
                raise
            self._tells_faults = False
            self.number = calls.create_context(_FLAGS)
        self.last = self.done = 0
        self.is_lost = False
        self._objects = (kgsl.kgsl_command_object * 2)()
        self._command = kgsl.kgsl_gpu_command(
            flags=kgsl.KGSL_CMDBATCH_SUBMIT_IB_LIST,
            cmdlist=ctypes.addressof(self._objects),
            cmdsize=ctypes.sizeof(kgsl.kgsl_command_object),
            context_id=self.number,
        )
        for each in self._objects:
            each.flags = kgsl.KGSL_CMDLIST_IB
        self._ask_for_speed()

    def _ask_for_speed(self) -> None:
        """The highest clock while commands run; the kernel lets go of it by itself when idle.

        (kgsl_pwrctrl_set_constraint.) A kernel that refuses runs them all the same.
        """
        try:
            self._kgsl.constrain_power(self.number, kgsl.KGSL_CONSTRAINT_PWR_MAX)
        except TransportError as error:
            _log.info("the GPU's clock stays as the kernel has it: %s", error.message)

    def submit(self, object_id: int, *parts: tuple[int, int]) -> None:
        """Queues one or two parts of an object, addresses and bytes, to be run as commands.

        Raises ContextLost, and then nothing of it was queued.
        """
        for each, (address, size) in zip(self._objects, parts, strict=False):
            each.gpuaddr, each.size, each.id = address, size, object_id
        self._command.numcmds = len(parts)
        try:
            self._kgsl.submit(self._command)
        except ContextLost:
            self.is_lost = True
            raise

    def settle(self) -> bool:
        """Counts a command where it is not known whether it was queued; whether it was."""
        if self.is_lost:
            return False
        before, self.last = self.last, self._kgsl.queued(self.number)
        return self.last > before

    @property
    def is_busy(self) -> bool:
        """Whether something is under way, as far as is known."""
        return self.done < self.last and not self.is_lost

    def sleep(self, milliseconds: int) -> bool:
        """Sleeps until its last command is done; whether it was within the time, or never will."""
        last = self.last
        try:
            if not self._kgsl.wait(self.number, last, milliseconds):
                return False
        except ContextLost:
            self.is_lost = True
        self.done = last
        return True

    def look(self) -> None:
        """Learns whether it is lost."""
        if self.is_busy:
            self.sleep(1)

    def page_faults(self) -> list[int]:
        """Addresses that it accessed and that were no memory, as far as the kernel tells."""
        if not self._tells_faults:
            return []
        try:
            return self._kgsl.page_faults(self.number)
        except DeviceError as error:
            _log.info("the kernel tells of no page fault: %s", error.message)
            return []

    def close(self) -> None:
        """Ends it."""
        self._kgsl.destroy_context(self.number)

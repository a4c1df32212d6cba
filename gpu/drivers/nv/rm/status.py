"""Statuses of kernel calls: every one is checked, logged and, where it is bad, raised by name."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from gpu.autogen.nv import status as nv_status
from gpu.autogen.nv.status import status_name
from gpu.core.errors import DeviceLost, OutOfMemory, RmError
from gpu.core.log import get_logger

_log = get_logger(__name__)

_LOST: Final = {
    nv_status.NV_ERR_GPU_IS_LOST: "the GPU is gone from its bus",
    nv_status.NV_ERR_RESET_REQUIRED: "the GPU needs a reset, which this driver leaves to its owner",
}


@dataclass(frozen=True, slots=True)
class Call:
    """One call that the kernel answered.

    Attributes:
        operation: what was called, ``alloc HOPPER_COMPUTE_A (0xcbc0)``.
        subject: on which object, by its path in the tree.
        status: the answer, an NV_STATUS.
    """

    operation: str
    subject: str
    status: int

    def __str__(self) -> str:
        return f"{self.operation} of {self.subject}: {status_name(self.status)}"


class CallLog:
    """Where the calls of one client go. ``listener`` hears each while a step is reported."""

    def __init__(self) -> None:
        self.listener: Callable[[Call], None] | None = None

    def check(
        self, operation: str, subject: str, status: int, accept: Collection[int] = ()
    ) -> None:
        """Logs a call and raises for a status that is neither OK nor one of ``accept``.

        Raises OutOfMemory for NO_MEMORY, DeviceLost where the GPU cannot be used again, RmError
        with number and name for all else.
        """
        call = Call(operation, subject, status)
        _log.debug("%s", call)
        if self.listener is not None:
            self.listener(call)
        if status == nv_status.NV_OK or status in accept:
            return
        error = RmError(f"{operation} of {subject}", status, status_name(status))
        if status == nv_status.NV_ERR_NO_MEMORY:
            raise OutOfMemory(
                f"{error.message}; free buffers, or other programs on this GPU"
            ) from error
        if status in _LOST:
            raise DeviceLost(f"{error.message}: {_LOST[status]}") from error
        raise error

"""What the kernel tells of memory violations and resets, in the data of events.

Layouts: linux/kfd_ioctl.h, through gpu.autogen.kfd.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu.autogen import kfd


@dataclass(frozen=True, slots=True)
class MemoryFault:
    """What the kernel tells of a memory violation. The address is that of a page."""

    gpu_id: int
    address: int
    not_present: bool
    read_only: bool
    no_execute: bool
    imprecise: bool
    error_type: int

    def __str__(self) -> str:
        reasons = (
            ("is not mapped", self.not_present),
            ("is read-only", self.read_only),
            ("is not executable", self.no_execute),
        )
        told = " and ".join(text for text, is_so in reasons if is_so)
        near = "near " if self.imprecise else ""
        return f"an access {near}to page {self.address:#x}, which {told or self._other()}"

    def _other(self) -> str:
        return f"failed (KFD_MEM_ERR number {self.error_type})"


@dataclass(frozen=True, slots=True)
class Reset:
    """What the kernel tells when it resets a GPU: the numbers of ``KFD_HW_EXCEPTION_``."""

    gpu_id: int
    cause: int
    memory_lost: bool

    def __str__(self) -> str:
        memory = "lost" if self.memory_lost else "kept"
        return f"a reset by the kernel (cause {self.cause}), with its memory {memory}"


def memory_fault(data: kfd.kfd_event_data) -> MemoryFault | None:
    """What a MEMORY event tells; None where it did not come."""
    told = data.memory_exception_data
    if not told.gpu_id:
        return None
    return MemoryFault(
        gpu_id=told.gpu_id,
        address=told.va,
        not_present=bool(told.failure.NotPresent),
        read_only=bool(told.failure.ReadOnly),
        no_execute=bool(told.failure.NoExecute),
        imprecise=bool(told.failure.imprecise),
        error_type=told.ErrorType,
    )


def reset(data: kfd.kfd_event_data) -> Reset | None:
    """What a HW_EXCEPTION event tells; None where it did not come."""
    told = data.hw_exception_data
    if not told.gpu_id:
        return None
    return Reset(told.gpu_id, told.reset_cause, bool(told.memory_lost))

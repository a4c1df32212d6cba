"""Every fault that a kernel driver can show: its error is typed and bounded, and what goes on then.

Each row says what goes wrong while what is done, the error, and what is possible afterwards, the
first of these that is:

    right       nothing was raised, and all is right
    again       the same once more; the device was not touched
    recovered   `recover`, and then the next kernel
    anew        close the device, and open it again in this process
    process     open it in another process: this one has lost it
    gone        nothing, until someone looks after the machine

That what comes before it in this list is not possible is checked too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest

from bounded import bounded
from gpu.core.errors import (
    DeviceError,
    DeviceHang,
    DeviceLost,
    FormatError,
    GpuError,
    GpuFault,
    OutOfMemory,
    RmError,
    TransportError,
)
from gpu.sim.faults import FAULTS
from gpu.sim.process import SimProcess
from hcq.provoked import ACTS, Bench, Device, make_bench

SECONDS = 10.0  # of the processor; a row takes a tenth
BOUND_NS = 31_000_000_000  # of the machine's time: a wait's bound, and a little more
LEAST = 60


class Row(NamedTuple):
    """A fault.

    Attributes:
        vendor, setup: of the machine: its chip, what its queues read, the kernel's interface.
        fault: as `gpu.sim.faults` has it.
        act: while what is done; "open", or one of `provoked.ACTS`.
        error: what is raised, None for nothing.
        outcome: as above.
    """

    vendor: str
    fault: str
    act: str
    error: type[GpuError] | None
    outcome: str
    setup: dict[str, Any] = {}

    def __str__(self) -> str:
        where = "".join(f" {value}" for value in self.setup.values())
        return f"{self.vendor}{where}: {self.fault} in {self.act}"


AQL: dict[str, Any] = {"compute": "aql"}
OLD: dict[str, Any] = {"interface": 17}

OPENING = [
    # What the kernel refuses: drivers/gpu/drm/amd/amdkfd/kfd_chardev.c and what it calls.
    Row("AMD", "ioctl:GET_VERSION:EINVAL", "open", TransportError, "again"),
    Row("AMD", "ioctl:GET_VERSION:ENODEV", "open", DeviceLost, "again"),
    Row("AMD", "ioctl:GET_PROCESS_APERTURES_NEW:ENOMEM", "open", TransportError, "again"),
    Row("AMD", "ioctl:ACQUIRE_VM:EBUSY", "open", DeviceError, "again"),
    Row("AMD", "ioctl:ACQUIRE_VM:EINVAL", "open", TransportError, "again"),
    Row("AMD", "ioctl:CREATE_EVENT:ENOMEM", "open", TransportError, "again"),
    Row("AMD", "ioctl:CREATE_EVENT:ENOSPC@3", "open", TransportError, "again"),
    Row("AMD", "ioctl:ALLOC_MEMORY_OF_GPU:ENOMEM@2", "open", OutOfMemory, "again"),
    Row("AMD", "ioctl:ALLOC_MEMORY_OF_GPU:EINVAL@2", "open", TransportError, "again"),
    Row("AMD", "ioctl:MAP_MEMORY_TO_GPU:ENOMEM@2", "open", OutOfMemory, "again"),
    Row("AMD", "ioctl:CREATE_QUEUE:ENOMEM", "open", OutOfMemory, "again"),
    Row("AMD", "ioctl:CREATE_QUEUE:EINVAL", "open", TransportError, "again"),
    Row("AMD", "no-memory:gtt", "open", OutOfMemory, "again"),
    Row("AMD", "no-memory:vram", "open", OutOfMemory, "again"),
    Row("AMD", "short-read:nodes/1/properties", "open", FormatError, "again"),
    Row("AMD", "short-read:nodes/1/gpu_id", "open", FormatError, "process"),
    Row("AMD", "remove", "open", DeviceLost, "gone"),
    Row("AMD", "remove@4", "open", DeviceLost, "gone"),
    # kernel-open/nvidia/nv.c, src/nvidia/arch/nvalloc/unix/src/escape.c, and what they call.
    Row("NV", "ioctl:CARD_INFO:EINVAL", "open", TransportError, "again"),
    Row("NV", "ioctl:REGISTER_FD:EINVAL", "open", TransportError, "again"),
    Row("NV", "ioctl:RM_ALLOC:INSUFFICIENT_RESOURCES", "open", RmError, "again"),
    Row("NV", "ioctl:RM_ALLOC:INSUFFICIENT_PERMISSIONS@2", "open", RmError, "again"),
    Row("NV", "ioctl:RM_ALLOC:NO_MEMORY@6", "open", OutOfMemory, "again"),
    Row("NV", "ioctl:RM_ALLOC:GPU_IS_LOST@3", "open", DeviceLost, "again"),
    Row("NV", "ioctl:RM_ALLOC:RESET_REQUIRED@3", "open", DeviceLost, "again"),
    Row("NV", "ioctl:RM_CONTROL:TIMEOUT", "open", RmError, "again"),
    Row("NV", "ioctl:RM_CONTROL:INVALID_STATE@4", "open", RmError, "again"),
    Row("NV", "ioctl:RM_MAP_MEMORY:INVALID_LIMIT@2", "open", RmError, "again"),
    Row("NV", "ioctl:UVM_INITIALIZE:ILLEGAL_ACTION", "open", RmError, "again"),
    Row("NV", "ioctl:UVM_INITIALIZE:EIO", "open", TransportError, "again"),
    Row("NV", "ioctl:UVM_MM_INITIALIZE:NOT_SUPPORTED", "open", None, "right"),
    Row("NV", "ioctl:UVM_REGISTER_GPU:GPU_UUID_NOT_FOUND", "open", RmError, "again"),
    Row("NV", "ioctl:UVM_REGISTER_GPU_VASPACE:NO_MEMORY", "open", OutOfMemory, "again"),
    Row("NV", "ioctl:UVM_CREATE_EXTERNAL_RANGE:UVM_ADDRESS_IN_USE", "open", RmError, "again"),
    Row("NV", "ioctl:UVM_REGISTER_CHANNEL:NO_MEMORY", "open", OutOfMemory, "again"),
    Row("NV", "no-memory:gtt", "open", OutOfMemory, "again"),
    Row("NV", "no-memory:vram", "open", OutOfMemory, "again"),
    Row("NV", "short-read:driver/nvidia/version", "open", DeviceError, "again"),
    Row("NV", "remove@12", "open", TransportError, "gone"),
]
RUNNING = [
    Row("AMD", "hang", "launch", DeviceHang, "recovered"),
    Row("AMD", "hang", "launch", DeviceHang, "recovered", AQL),
    Row("AMD", "hang", "launch", DeviceHang, "recovered", OLD),
    Row("AMD", "hang", "launch", DeviceHang, "recovered", {"chip": "gfx1201"}),
    Row("AMD", "hang:hard", "launch", DeviceHang, "anew"),
    Row("AMD", "hang:hard", "launch", DeviceHang, "process", OLD),
    Row("AMD", "page-fault:read", "launch", GpuFault, "recovered"),
    Row("AMD", "page-fault:read", "launch", GpuFault, "recovered", {"chip": "gfx1030"}),
    Row("AMD", "page-fault:write", "launch", GpuFault, "recovered", AQL),
    Row("AMD", "page-fault:write", "launch", GpuFault, "process", OLD),
    Row("AMD", "page-fault:exec", "launch", GpuFault, "recovered"),
    Row("AMD", "reset", "launch", DeviceLost, "anew"),
    Row("AMD", "reset", "launch", DeviceLost, "process", OLD),
    Row("AMD", "ecc", "launch", DeviceLost, "anew"),
    Row("AMD", "ecc", "launch", DeviceLost, "process", OLD),
    Row("AMD", "stuck-fence", "launch", DeviceHang, "recovered"),
    Row("AMD", "stuck-fence", "launch", DeviceHang, "recovered", AQL),
    Row("AMD", "stuck-fence@1+", "copy", DeviceHang, "recovered"),
    Row("AMD", "lost-doorbell", "launch", DeviceHang, "recovered"),
    Row("AMD", "lost-doorbell", "launch", DeviceHang, "recovered", AQL),
    Row("AMD", "lost-doorbell@1+", "copy", DeviceHang, "again"),  # the next ring tells of all
    Row("AMD", "late-doorbell", "launch", None, "right"),
    Row("AMD", "late-doorbell", "copy", None, "right"),
    Row("AMD", "lost-interrupt", "launch", None, "right"),
    Row("AMD", "lost-interrupt@1+", "copy", None, "right"),
    Row("AMD", "ioctl:WAIT_EVENTS:EIO", "launch", TransportError, "again"),
    Row("AMD", "remove", "launch", DeviceLost, "gone"),
    Row("AMD", "remove", "copy", DeviceLost, "gone"),
    Row("NV", "hang", "launch", DeviceHang, "recovered"),
    Row("NV", "hang", "launch", DeviceHang, "recovered", {"chip": "ga102"}),
    Row("NV", "page-fault:read", "launch", GpuFault, "recovered"),
    Row("NV", "page-fault:read", "launch", GpuFault, "recovered", {"chip": "gb202"}),
    Row("NV", "page-fault:write", "launch", GpuFault, "recovered"),
    Row("NV", "page-fault:exec", "launch", GpuFault, "recovered"),
    Row("NV", "reset", "launch", DeviceLost, "gone"),
    Row("NV", "ecc", "launch", GpuFault, "recovered"),
    Row("NV", "xid:13", "launch", GpuFault, "recovered"),
    Row("NV", "xid:32", "launch", GpuFault, "recovered"),
    Row("NV", "xid:43", "launch", GpuFault, "recovered", {"chip": "ad102"}),
    Row("NV", "xid:45", "launch", GpuFault, "recovered"),
    Row("NV", "xid:109", "launch", GpuFault, "recovered"),
    Row("NV", "stuck-fence", "launch", DeviceHang, "recovered"),
    Row("NV", "stuck-fence@1+", "copy", DeviceHang, "again"),
    Row("NV", "lost-doorbell", "launch", DeviceHang, "again"),
    Row("NV", "lost-doorbell@1+", "copy", DeviceHang, "again"),
    Row("NV", "late-doorbell", "launch", None, "right"),
    Row("NV", "lost-interrupt", "launch", None, "right"),
    Row("NV", "remove", "launch", DeviceLost, "gone"),
    Row("NV", "remove", "copy", DeviceLost, "gone"),
]
ASKING = [
    Row("AMD", "no-memory:vram", "allocate", None, "right"),  # the allocator asks once more
    Row("AMD", "no-memory:vram@1+", "allocate", OutOfMemory, "again"),
    Row("AMD", "ioctl:ALLOC_MEMORY_OF_GPU:EINVAL", "allocate", TransportError, "again"),
    Row("AMD", "ioctl:MAP_MEMORY_TO_GPU:ENOMEM@1+", "allocate", OutOfMemory, "again"),
    Row("AMD", "remove", "allocate", DeviceLost, "gone"),
    Row("AMD", "no-memory:vram", "load", OutOfMemory, "again"),
    Row("AMD", "ioctl:MAP_MEMORY_TO_GPU:EIO", "load", TransportError, "again"),
    Row("AMD", "ioctl:CREATE_QUEUE:ENOMEM", "open_queue", OutOfMemory, "again"),
    Row("AMD", "no-memory:gtt", "open_queue", OutOfMemory, "again"),
    Row("NV", "no-memory:vram@1+", "allocate", OutOfMemory, "again"),
    Row("NV", "ioctl:RM_ALLOC:INSUFFICIENT_RESOURCES", "allocate", RmError, "again"),
    Row("NV", "ioctl:UVM_CREATE_EXTERNAL_RANGE:UVM_ADDRESS_IN_USE", "allocate", RmError, "again"),
    Row("NV", "remove", "allocate", DeviceLost, "gone"),
    Row("NV", "no-memory:vram", "load", OutOfMemory, "again"),
    Row("NV", "ioctl:RM_MAP_MEMORY:INSUFFICIENT_RESOURCES", "load", RmError, "again"),
    Row("NV", "ioctl:RM_CONTROL:TIMEOUT", "open_queue", RmError, "again"),
    Row("NV", "ioctl:UVM_REGISTER_CHANNEL:NO_MEMORY", "open_queue", OutOfMemory, "again"),
]
RECOVERING = [
    Row("AMD", "ioctl:CREATE_PROCESS:ENOMEM", "recover", DeviceLost, "recovered"),
    Row("AMD", "ioctl:CREATE_QUEUE:ENOMEM", "recover", DeviceLost, "anew"),
    Row("AMD", "ioctl:ACQUIRE_VM:EBUSY", "recover", DeviceLost, "recovered"),
    Row("AMD", "ioctl:MAP_MEMORY_TO_GPU:ENOMEM", "recover", DeviceLost, "recovered"),
    Row("AMD", "ioctl:IMPORT_DMABUF:ENOMEM", "recover", DeviceLost, "recovered"),
    Row("AMD", "ioctl:CREATE_EVENT:ENOSPC", "recover", DeviceLost, "recovered"),
    Row("AMD", "remove", "recover", DeviceLost, "gone"),
    Row("NV", "ioctl:RM_ALLOC:INSUFFICIENT_RESOURCES", "recover", None, "right"),
    Row("NV", "ioctl:RM_ALLOC:RESET_REQUIRED@1+", "recover", DeviceLost, "anew"),
    Row("NV", "ioctl:RM_FREE:TIMEOUT", "recover", None, "right"),
    Row("NV", "ioctl:UVM_REGISTER_CHANNEL:NO_MEMORY@1+", "recover", DeviceLost, "anew"),
    Row("NV", "remove", "recover", DeviceLost, "gone"),
    Row("AMD", "ioctl:FREE_MEMORY_OF_GPU:EBUSY", "close", TransportError, "anew"),
    Row("AMD", "ioctl:DESTROY_EVENT:EINVAL", "close", TransportError, "anew"),
    Row("NV", "ioctl:RM_FREE:TIMEOUT", "close", RmError, "anew"),
    Row("NV", "ioctl:UVM_FREE:INVALID_ADDRESS", "close", RmError, "anew"),
    Row("NV", "remove", "close", TransportError, "gone"),
    Row("AMD", "ioctl:FREE_MEMORY_OF_GPU:EBUSY", "end", TransportError, "anew"),
    Row("NV", "ioctl:UVM_FREE:INVALID_ADDRESS", "end", RmError, "anew"),
]
ROWS = [*OPENING, *RUNNING, *ASKING, *RECOVERING]


def works(act: Callable[[], object]) -> bool:
    """Whether something is possible; if not it says so with one of our errors."""
    try:
        act()
    except GpuError:
        return False
    return True


def after_opening(bench: Bench, process: SimProcess) -> str:
    """What is possible after opening has failed in a process."""
    if works(lambda: bench.opens(process)):
        return "again"
    return "process" if works(lambda: bench.opens(bench.machine.new_process())) else "gone"


def after(bench: Bench, device: Device) -> str:
    """What is possible after something has failed on a device."""
    if not device.is_closed:
        if works(lambda: bench.runs(device)):
            return "again"
        if works(device.recover):
            bench.runs(device)
            return "recovered"
        device.close()
    if works(bench.opens):
        return "anew"
    return "process" if works(lambda: bench.opens(bench.machine.new_process())) else "gone"


def raised(act: Callable[[], object]) -> type[GpuError] | None:
    """The class of the error of something."""
    try:
        act()
    except GpuError as error:
        assert error.message
        return type(error)
    return None


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_what_goes_wrong_is_told_and_got_over(row: Row) -> None:
    bench = make_bench(row.vendor, **row.setup)
    machine = bench.machine
    with bounded(SECONDS):
        if row.act == "open":
            process = machine.new_process()
            device = None
            act: Callable[[], object] = partial(bench.opens, process)
        else:
            device = bench.open()
            act = ACTS[row.act](bench, device)
        before = machine.clock.now_ns
        machine.faults.add(row.fault)
        error = raised(act)
        assert machine.clock.now_ns - before < BOUND_NS
        machine.faults.clear()
        assert error is row.error
        if error is None:
            outcome = "right"
            if device is not None:
                bench.runs(device)
        elif device is None:
            outcome = after_opening(bench, process)
        else:
            outcome = after(bench, device)
        assert outcome == row.outcome
        if device is not None:
            device.close()
    assert machine.debug.violations == []
    machine.close()


def test_there_are_many() -> None:
    assert len({(r.vendor, r.fault.partition("@")[0], r.act, *r.setup) for r in ROWS}) >= LEAST
    assert len({str(row) for row in ROWS}) == len(ROWS)
    named = {row.fault.partition("@")[0].partition(":")[0] for row in ROWS}
    assert named == set(FAULTS)

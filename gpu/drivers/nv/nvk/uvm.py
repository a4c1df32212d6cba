"""UVM: the part of the driver that owns page tables. RM objects get their addresses here.

A GPU and its VA space are registered once; then ranges of addresses are reserved and memory objects
mapped into them. Rules: kernel-open/nvidia-uvm/{uvm.c,uvm_map_external.c,uvm_user_channel.c} of
open-gpu-kernel-modules.
"""

from __future__ import annotations

import ctypes
from typing import Final

from gpu.autogen.nv import status, uvm
from gpu.core import hostmem
from gpu.core.errors import InvalidValue
from gpu.drivers.nv.nvk import peercalls as peers
from gpu.drivers.nv.nvk.branch import Branch
from gpu.drivers.nv.rm.object import RmObject
from gpu.drivers.nv.rm.status import CallLog
from gpu.transport.os import Os

UUID_SIZE: Final = 16
MAX_CHANNEL_ADDRESS: Final = 1 << 40
"""Channel buffers must lie below: max_channel_va of uvm_ampere.c and uvm_ada.c of nvidia-uvm.

Hopper and later (uvm_hopper.c, uvm_blackwell.c) would take them up to 1 << 57.
"""


class Uvm:
    """One file of /dev/nvidia-uvm, bound to this process; the caller opens and closes it.

    ``client`` owns the RM objects, through the control file ``control_fd``. All methods raise as
    `CallLog.check` does, InvalidValue for what the kernel would refuse, TransportError.
    """

    def __init__(self, os: Os, fd: int, control_fd: int, client: RmObject, log: CallLog):
        self._os = os
        self._fd = fd
        self._control_fd = control_fd
        self._client = client
        self._log = log

    def initialize(self) -> None:
        """Binds the file to this process; before all other calls.

        Without heterogeneous memory management, by which a kernel that follows a wild pointer into
        the process's own memory would read and write there instead of causing a fault. All branches
        from 535 on take the flag (uvm_ioctl.h, uvm_va_space.c).
        """
        params = uvm.UVM_INITIALIZE_PARAMS(flags=uvm.UVM_INIT_FLAGS_DISABLE_HMM)
        self._call(uvm.UVM_INITIALIZE, params, "this process")

    def keep_memory(self, second_fd: int) -> None:
        """Keeps the process's memory known to UVM for as long as a second file is open.

        Kernels that do not need it answer NOTHING_TO_DO or NOT_SUPPORTED.
        """
        params = uvm.UVM_MM_INITIALIZE_PARAMS(uvmFd=self._fd)
        self._os.ioctl(second_fd, uvm.UVM_MM_INITIALIZE, params)
        fine = (status.NV_WARN_NOTHING_TO_DO, status.NV_ERR_NOT_SUPPORTED)
        name = uvm.uvm_name(uvm.UVM_MM_INITIALIZE)
        self._log.check(name, "this process", params.rmStatus, accept=fine)

    def register_gpu(self, uuid: bytes) -> None:
        """Tells UVM to drive a GPU."""
        # rmCtrlFd and hClient are looked at with MIG alone.
        params = uvm.UVM_REGISTER_GPU_PARAMS(gpu_uuid=_uuid(uuid), rmCtrlFd=-1)
        self._call(uvm.UVM_REGISTER_GPU, params, _gpu(uuid))

    def unregister_gpu(self, uuid: bytes) -> None:
        """Undoes `register_gpu`."""
        params = uvm.UVM_UNREGISTER_GPU_PARAMS(gpu_uuid=_uuid(uuid))
        self._call(uvm.UVM_UNREGISTER_GPU, params, _gpu(uuid))

    def register_vaspace(self, uuid: bytes, vaspace: RmObject) -> None:
        """Hands over the page tables of a VA space, which must be externally owned."""
        params = uvm.UVM_REGISTER_GPU_VASPACE_PARAMS(
            gpuUuid=_uuid(uuid),
            rmCtrlFd=self._control_fd,
            hClient=self._client.handle,
            hVaSpace=vaspace.handle,
        )
        self._call(uvm.UVM_REGISTER_GPU_VASPACE, params, str(vaspace))

    def unregister_vaspace(self, uuid: bytes) -> None:
        """Undoes `register_vaspace`."""
        params = uvm.UVM_UNREGISTER_GPU_VASPACE_PARAMS(gpuUuid=_uuid(uuid))
        self._call(uvm.UVM_UNREGISTER_GPU_VASPACE, params, _gpu(uuid))

    def register_channel(self, uuid: bytes, channel: RmObject, base: int, length: int) -> None:
        """Maps a channel's own buffers into a range that nothing else uses.

        Without it a channel of a VA space that UVM owns cannot be scheduled.
        """
        _check_range(base, length, f"the window of {channel}")
        if base + length > MAX_CHANNEL_ADDRESS:
            raise InvalidValue(
                f"the window of {channel} ends at {base + length:#x}: it must lie below"
                f" {MAX_CHANNEL_ADDRESS:#x}"
            )
        params = uvm.UVM_REGISTER_CHANNEL_PARAMS(
            gpuUuid=_uuid(uuid),
            rmCtrlFd=self._control_fd,
            hClient=self._client.handle,
            hChannel=channel.handle,
            base=base,
            length=length,
        )
        self._call(uvm.UVM_REGISTER_CHANNEL, params, f"{channel}, {length:#x} bytes at {base:#x}")

    def unregister_channel(self, branch: Branch, uuid: bytes, channel: RmObject) -> None:
        """Undoes `register_channel`."""
        params = branch.unregister_channel(hClient=self._client.handle, hChannel=channel.handle)
        if isinstance(params, uvm.UVM_UNREGISTER_CHANNEL_PARAMS_535):
            params.gpuUuid = _uuid(uuid)
        self._call(uvm.UVM_UNREGISTER_CHANNEL, params, str(channel))

    def create_range(self, base: int, length: int) -> None:
        """Reserves addresses for `map_memory`; they must not be reserved yet."""
        _check_range(base, length, "a range")
        params = uvm.UVM_CREATE_EXTERNAL_RANGE_PARAMS(base=base, length=length)
        self._call(uvm.UVM_CREATE_EXTERNAL_RANGE, params, _span(base, length))

    def map_memory(
        self,
        branch: Branch,
        uuid: bytes,
        memory: RmObject,
        base: int,
        length: int,
        *,
        atomics: bool = True,
    ) -> None:
        """Maps the first ``length`` bytes of a memory object for reads, writes and atomics.

        ``memory`` is of this client, ``uuid`` any GPU's that may reach it.
        """
        _check_range(base, length, str(memory))
        params = branch.map_external(
            base=base,
            length=length,
            gpuAttributesCount=1,
            rmCtrlFd=self._control_fd,
            hClient=self._client.handle,
            hMemory=memory.handle,
        )
        params.perGpuAttributes[0].gpuUuid = _uuid(uuid)
        params.perGpuAttributes[0].gpuMappingType = (
            uvm.UVM_GPU_MAPPING_TYPE_READ_WRITE_ATOMIC
            if atomics
            else uvm.UVM_GPU_MAPPING_TYPE_READ_WRITE
        )
        what = f"{memory} in {_span(base, length)}"
        self._call(uvm.UVM_MAP_EXTERNAL_ALLOCATION, params, what)

    def unmap_memory(self, uuid: bytes, base: int, length: int) -> None:
        """Takes a range's memory from one GPU, which must not use it any more."""
        params = peers.UnmapExternal(base=base, length=length, gpuUuid=_uuid(uuid))
        what = f"{_span(base, length)} of {_gpu(uuid)}"
        self._call(peers.UVM_UNMAP_EXTERNAL, params, what)

    def enable_peers(self, first: bytes, second: bytes) -> None:
        """Lets two registered GPUs map each other's memory; once, in any order."""
        self._peers(peers.UVM_ENABLE_PEER_ACCESS, first, second)

    def disable_peers(self, first: bytes, second: bytes) -> None:
        """Ends that; mappings of the other's video memory are gone then."""
        self._peers(peers.UVM_DISABLE_PEER_ACCESS, first, second)

    def _peers(self, request: int, first: bytes, second: bytes) -> None:
        params = peers.PeerAccess(gpuUuidA=_uuid(first), gpuUuidB=_uuid(second))
        self._call(request, params, f"{_gpu(first)} and {_gpu(second)}")

    def free_range(self, branch: Branch, base: int, length: int) -> None:
        """Gives back a range with its mappings; the GPU must not use it any more."""
        params = branch.uvm_free(base=base)
        if isinstance(params, uvm.UVM_FREE_PARAMS_535):
            params.length = length
        self._call(uvm.UVM_FREE, params, _span(base, length))

    def _call(self, request: int, params: ctypes.Structure, subject: str) -> None:
        self._os.ioctl(self._fd, request, params)
        name = peers.NAMES.get(request) or uvm.uvm_name(request)
        self._log.check(name, subject, params.rmStatus)


def _uuid(uuid: bytes) -> ctypes.Array[ctypes.c_uint8]:
    if len(uuid) != UUID_SIZE:
        raise InvalidValue(f"{len(uuid)} bytes for the UUID of a GPU: it has {UUID_SIZE}")
    return (ctypes.c_uint8 * UUID_SIZE).from_buffer_copy(uuid)


def _gpu(uuid: bytes) -> str:
    text = uuid.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _span(base: int, length: int) -> str:
    return f"addresses {base:#x} to {base + length - 1:#x}"


def _check_range(base: int, length: int, what: str) -> None:
    page = hostmem.page_size
    if base <= 0 or length <= 0 or base % page or length % page:
        raise InvalidValue(
            f"{what}: {length:#x} bytes at {base:#x}: both must be positive multiples of {page:#x}"
        )

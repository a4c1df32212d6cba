"""The kernel driver's escapes: calls of /dev/nvidiactl and /dev/nvidiaN as ioctls.

`KernelPort` is the `RmPort` of a client's control file, `CardPort` maps objects of one GPU.
Both errno and status are looked at: an ioctl that the kernel understood returns 0 and has its
status inside the argument. Rules of the entry code: escape.c, nv.c, nv-mmap.c and
rmapi/{control,param_copy}.c of open-gpu-kernel-modules.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

from gpu.autogen.nv import classes as ids
from gpu.autogen.nv import control, rm
from gpu.autogen.nv.layout import offset_of
from gpu.core import hostmem
from gpu.core.errors import DeviceError, InvalidValue, TransportError
from gpu.core.window import MemoryWindow
from gpu.drivers.nv.nvk.branch import version_in
from gpu.drivers.nv.rm.object import Allocated, Mapping, RmObject
from gpu.drivers.nv.rm.status import CallLog
from gpu.transport import nvidia as nodes
from gpu.transport.ioctl import iowr
from gpu.transport.missing import no_node
from gpu.transport.os import Os, Ref

AllocForm = Literal["NVOS64", "NVOS21"]

# The kernel copies as many bytes of alloc parameters as its own struct has, whatever size we tell.
_ALLOC_BUFFER: Final = 512
_POINTER: Final = 16  # offset of the pointer to parameters in NVOS21, NVOS64 and NVOS54

_BUILD_VERSION: Final = control.NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_PARAMS
_VERSION_TEXT: Final = 256  # bytes of each string that RM keeps

_OS_DESCRIPTOR_FLAGS: Final = (
    rm.NVOS02_FLAGS_PHYSICALITY_NONCONTIGUOUS
    | rm.NVOS02_FLAGS_COHERENCY_CACHED
    | rm.NVOS02_FLAGS_MAPPING_NO_MAP
)


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU as the kernel driver lists it; ``minor`` is that of its node."""

    gpu_id: int
    minor: int
    pci_address: str
    pci_id: str

    def __str__(self) -> str:
        return f"GPU {self.pci_address} ({self.pci_id}) at {nodes.card(self.minor)}"


def open_node(system: Os, path: str) -> int:
    """Opens a node of the driver. Raises DeviceError, with what to do, where there is none."""
    try:
        return system.open(path, os.O_RDWR)
    except TransportError as error:
        if error.errno not in (errno.ENOENT, errno.ENXIO, errno.ENODEV):
            raise
        raise DeviceError(str(no_node(system, path))) from error


def escape(
    system: Os,
    fd: int,
    number: int,
    argument: ctypes.Structure | ctypes.Array[Any],
    refs: Sequence[Ref] = (),
) -> None:
    """One escape. The size in its request number is the argument's, which the kernel compares."""
    request = iowr(rm.NV_IOCTL_MAGIC, number, ctypes.sizeof(argument))
    system.ioctl(fd, request, argument, refs)


class KernelPort:
    """The `RmPort` of a control file, which the caller opens and closes.

    ``alloc_form`` is the struct that allocs are sent in; `using` changes it for a while.
    """

    def __init__(self, system: Os, control_fd: int):
        self.os = system
        self.control_fd = control_fd
        self.alloc_form: AllocForm = "NVOS64"

    @contextmanager
    def using(self, form: AllocForm) -> Iterator[None]:
        """Sends allocs in another struct within the block."""
        before, self.alloc_form = self.alloc_form, form
        try:
            yield
        finally:
            self.alloc_form = before

    def alloc(
        self,
        client: int,
        parent: int,
        handle: int,
        class_id: int,
        params: ctypes.Structure | None,
    ) -> Allocated:
        """Makes an object; see `RmPort.alloc`. Raises TransportError."""
        size = ctypes.sizeof(params) if params is not None else 0
        if size > _ALLOC_BUFFER:
            raise InvalidValue(
                f"{size} bytes of parameters for class {class_id:#x}: at most {_ALLOC_BUFFER}"
            )
        buffer = (ctypes.c_uint8 * _ALLOC_BUFFER)()
        struct = rm.NVOS64_PARAMETERS if self.alloc_form == "NVOS64" else rm.NVOS21_PARAMETERS
        call = struct(hRoot=client, hObjectParent=parent, hObjectNew=handle, hClass=class_id)
        refs: tuple[Ref, ...] = ()
        if params is not None:
            ctypes.memmove(buffer, ctypes.addressof(params), size)
            # The size stays 0: RM has its own for each class (alloc_free.c: serverAllocApiCopyIn),
            # and releases of gVisor refuse one of another branch (nvproxy: rmAllocSimpleParams).
            call.pAllocParms = ctypes.addressof(buffer)
            refs = (Ref(_POINTER, _ALLOC_BUFFER),)
        escape(self.os, self.control_fd, rm.NV_ESC_RM_ALLOC, call, refs)
        if params is not None:
            ctypes.memmove(ctypes.addressof(params), buffer, size)
        return Allocated(call.status, call.hObjectNew)

    def free(self, client: int, parent: int, handle: int) -> int:
        """Frees an object; see `RmPort.free`. Raises TransportError."""
        call = rm.NVOS00_PARAMETERS(hRoot=client, hObjectParent=parent, hObjectOld=handle)
        escape(self.os, self.control_fd, rm.NV_ESC_RM_FREE, call)
        return int(call.status)

    def control(
        self,
        client: int,
        handle: int,
        command: int,
        params: ctypes.Structure,
        refs: Sequence[Ref] = (),
    ) -> int:
        """Asks an object; see `RmPort.control`. Raises TransportError."""
        call = rm.NVOS54_PARAMETERS(
            hClient=client,
            hObject=handle,
            cmd=command,
            params=ctypes.addressof(params),
            paramsSize=ctypes.sizeof(params),
        )
        pointers = (Ref(_POINTER, ctypes.sizeof(params), refs=tuple(refs)),)
        escape(self.os, self.control_fd, rm.NV_ESC_RM_CONTROL, call, pointers)
        return int(call.status)

    def cards(self) -> list[Card]:
        """The GPUs of this machine, in the driver's order. Raises TransportError."""
        entries = (rm.nv_ioctl_card_info_t * rm.NV_MAX_CARDS)()
        escape(self.os, self.control_fd, rm.NV_ESC_CARD_INFO, entries)
        return [_card(entry) for entry in entries if entry.valid]


def _card(entry: rm.nv_ioctl_card_info_t) -> Card:
    pci = entry.pci_info
    address = f"{pci.domain:04x}:{pci.bus:02x}:{pci.slot:02x}.{pci.function}"
    pci_id = f"{pci.vendor_id:04x}:{pci.device_id:04x}"
    return Card(entry.gpu_id, entry.minor_number, address, pci_id)


def driver_version(system: Os, client: RmObject) -> str:
    """The version of the loaded driver: from its text file, else by asking RM.

    gVisor has no such file, and lets through the form with pointers alone (its nvproxy/version.go),
    which has the same layout in all branches.

    Raises DeviceError for a file without one, and as `RmObject.control` does.
    """
    if system.exists(nodes.VERSION):
        return version_in(system.read_file(nodes.VERSION).decode("utf-8", "replace"))
    texts = [(ctypes.c_char * _VERSION_TEXT)() for _ in range(3)]
    params = _BUILD_VERSION(_VERSION_TEXT, *(ctypes.addressof(text) for text in texts))
    refs = [
        Ref(offset_of(_BUILD_VERSION, name), size=_VERSION_TEXT)
        for name in ("pDriverVersionBuffer", "pVersionBuffer", "pTitleBuffer")
    ]
    client.control(control.NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION, params, refs)
    return texts[0].value.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class _Mapped:
    """What ends a mapping: the device it was made with, and RM's name of it."""

    device: RmObject
    linear_address: int


class CardPort:
    """One GPU's node, registered with a client's control file: maps its objects.

    Every mapping has a file of its own, since the kernel keeps one pending mapping a file. It is
    closed at once: the mapping holds it, and as many files as kernels would be too many.
    """

    def __init__(self, system: Os, control_fd: int, minor: int, log: CallLog):
        self.os = system
        self._control_fd = control_fd
        self._node = nodes.card(minor)
        self._log = log
        self.fd = self._open_registered()

    def close(self) -> None:
        """Closes the node. Raises TransportError."""
        self.os.close(self.fd)

    def map(
        self, device: RmObject, memory: RmObject, size: int, *, on_card: bool, address: int = 0
    ) -> Mapping:
        """Maps the first ``size`` bytes of an object, whole pages.

        ``on_card``: card memory or registers, rather than system memory. ``address``, unless 0, is
        where to put it, in place of a reservation of the caller's.

        Raises InvalidValue for a size or address that is not whole pages, TransportError, and as
        `CallLog.check` does.
        """
        _check_pages("size", size, str(memory))
        _check_pages("address", address or hostmem.page_size, str(memory))
        fd = self._open_registered() if on_card else open_node(self.os, nodes.CONTROL)
        try:
            linear = self._prepare(fd, device, memory, size)
            try:
                fixed = hostmem.MAP_FIXED if address else 0
                prot = hostmem.PROT_READ | hostmem.PROT_WRITE
                found = self.os.mmap(fd, size, prot, hostmem.MAP_SHARED | fixed, 0, address)
                hostmem.dontfork(found, size)
            except BaseException:
                self._forget(device, memory, linear)
                raise
        finally:
            self.os.close(fd)
        return Mapping(memory, found, size, MemoryWindow(found, size), _Mapped(device, linear))

    def unmap(self, mapping: Mapping) -> None:
        """Ends a mapping. Raises TransportError, and as `CallLog.check`."""
        assert isinstance(mapping.handle, _Mapped), "a mapping of another port"
        self.os.munmap(mapping.address, mapping.size)
        self._forget(mapping.handle.device, mapping.memory, mapping.handle.linear_address)

    def describe_host_memory(
        self, device: RmObject, address: int, size: int, *, name: str
    ) -> RmObject:
        """An object for memory that this process has already, pinned while the object lives.

        Raises InvalidValue for what is not whole pages, TransportError, and as `CallLog.check`.
        """
        _check_pages("size", size, name)
        _check_pages("address", address, name)
        class_id, handle = ids.NV01_MEMORY_SYSTEM_OS_DESCRIPTOR, device.client.new_handle()
        call = rm.nv_ioctl_nvos02_parameters_with_fd(fd=-1)
        call.params = rm.NVOS02_PARAMETERS(
            hRoot=device.client.handle,
            hObjectParent=device.handle,
            hObjectNew=handle,
            hClass=class_id,
            flags=_OS_DESCRIPTOR_FLAGS,
            pMemory=address,
            limit=size - 1,
        )
        # No Ref: the memory is described to the kernel, not read or written by the call.
        escape(self.os, self.fd, rm.NV_ESC_RM_ALLOC_MEMORY, call)
        what = f"{name} ({size:#x} bytes at {address:#x}) of {device}"
        self._log.check(f"alloc {ids.class_name(class_id)}", what, call.params.status)
        return device.adopt(class_id, handle, name=name)

    def _open_registered(self) -> int:
        fd = open_node(self.os, self._node)
        try:
            register = rm.nv_ioctl_register_fd_t(ctl_fd=self._control_fd)
            escape(self.os, fd, rm.NV_ESC_REGISTER_FD, register)
        except BaseException:
            self.os.close(fd)
            raise
        return fd

    def _prepare(self, fd: int, device: RmObject, memory: RmObject, size: int) -> int:
        """Makes the next mmap of ``fd`` map an object; returns RM's name for the mapping."""
        call = rm.nv_ioctl_nvos33_parameters_with_fd(fd=fd)
        call.params = rm.NVOS33_PARAMETERS(
            hClient=device.client.handle,
            hDevice=device.handle,
            hMemory=memory.handle,
            length=size,
        )
        escape(self.os, self._control_fd, rm.NV_ESC_RM_MAP_MEMORY, call)
        self._log.check(f"map {size:#x} bytes", str(memory), call.params.status)
        return int(call.params.pLinearAddress)

    def _forget(self, device: RmObject, memory: RmObject, linear: int) -> None:
        call = rm.NVOS34_PARAMETERS(
            hClient=device.client.handle,
            hDevice=device.handle,
            hMemory=memory.handle,
            pLinearAddress=linear,
        )
        escape(self.os, self._control_fd, rm.NV_ESC_RM_UNMAP_MEMORY, call)
        self._log.check("unmap", str(memory), call.status)


def _check_pages(what: str, value: int, name: str) -> None:
    if value <= 0 or value % hostmem.page_size:
        raise InvalidValue(
            f"{what} {value:#x} of {name}: it must be a positive multiple of"
            f" {hostmem.page_size:#x}, the page size"
        )

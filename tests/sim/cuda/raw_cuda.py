"""A tiny user of libcuda for tests: functions by their names, whoever answers.

Types of arguments are written down here a second time, from the prototypes of cuda.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import (
    c_char_p,
    c_int,
    c_size_t,
    c_ubyte,
    c_uint,
    c_uint64,
    c_ushort,
    c_void_p,
)
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_P, _I, _U, _Z, _D = c_void_p, c_int, c_uint, c_size_t, c_uint64
_LAUNCH: Final = (_P, *(_U,) * 7, _P, _P)


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle."""

    _fields_ = (("reserved", c_ubyte * 64),)


TYPES: Final[dict[str, tuple[Any, ...]]] = {
    "cuInit": (_U,),
    "cuDriverGetVersion": (_P,),
    "cuGetErrorName": (_I, _P),
    "cuGetErrorString": (_I, _P),
    "cuGetProcAddress_v2": (c_char_p, _P, _I, _D, _P),
    "cuDeviceGetCount": (_P,),
    "cuDeviceGet": (_P, _I),
    "cuDeviceGetName": (_P, _I, _I),
    "cuDeviceGetUuid_v2": (_P, _I),
    "cuDeviceTotalMem_v2": (_P, _I),
    "cuDeviceGetAttribute": (_P, _I, _I),
    "cuDeviceGetPCIBusId": (_P, _I, _I),
    "cuDeviceGetByPCIBusId": (_P, c_char_p),
    "cuDeviceCanAccessPeer": (_P, _I, _I),
    "cuDevicePrimaryCtxRetain": (_P, _I),
    "cuDevicePrimaryCtxRelease_v2": (_I,),
    "cuDevicePrimaryCtxReset_v2": (_I,),
    "cuDevicePrimaryCtxSetFlags_v2": (_I, _U),
    "cuDevicePrimaryCtxGetState": (_I, _P, _P),
    "cuCtxCreate_v2": (_P, _U, _I),
    "cuCtxDestroy_v2": (_P,),
    "cuCtxPushCurrent_v2": (_P,),
    "cuCtxPopCurrent_v2": (_P,),
    "cuCtxSetCurrent": (_P,),
    "cuCtxGetCurrent": (_P,),
    "cuCtxGetDevice": (_P,),
    "cuCtxSynchronize": (),
    "cuCtxGetStreamPriorityRange": (_P, _P),
    "cuCtxGetLimit": (_P, _I),
    "cuCtxSetLimit": (_I, _Z),
    "cuCtxEnablePeerAccess": (_P, _U),
    "cuCtxDisablePeerAccess": (_P,),
    "cuMemAlloc_v2": (_P, _Z),
    "cuMemFree_v2": (_D,),
    "cuMemAllocAsync": (_P, _Z, _P),
    "cuMemFreeAsync": (_D, _P),
    "cuMemGetInfo_v2": (_P, _P),
    "cuMemGetAddressRange_v2": (_P, _P, _D),
    "cuMemHostAlloc": (_P, _Z, _U),
    "cuMemAllocHost_v2": (_P, _Z),
    "cuMemFreeHost": (_P,),
    "cuMemHostRegister_v2": (_P, _Z, _U),
    "cuMemHostUnregister": (_P,),
    "cuMemHostGetDevicePointer_v2": (_P, _P, _U),
    "cuIpcGetMemHandle": (_P, _D),
    "cuIpcOpenMemHandle_v2": (_P, IpcHandle, _U),
    "cuIpcCloseMemHandle": (_D,),
    "cuMemGetAllocationGranularity": (_P, _P, _U),
    "cuMemCreate": (_P, _Z, _P, _D),
    "cuMemRelease": (_D,),
    "cuMemAddressReserve": (_P, _Z, _Z, _D, _D),
    "cuMemAddressFree": (_D, _Z),
    "cuMemMap": (_D, _Z, _Z, _D, _D),
    "cuMemUnmap": (_D, _Z),
    "cuMemSetAccess": (_D, _Z, _P, _Z),
    "cuMemExportToShareableHandle": (_P, _D, _I, _D),
    "cuMemImportFromShareableHandle": (_P, _P, _I),
    "cuPointerGetAttribute": (_P, _I, _D),
    "cuPointerGetAttributes": (_U, _P, _P, _D),
    "cuMemcpyHtoD_v2": (_D, _P, _Z),
    "cuMemcpyDtoH_v2": (_P, _D, _Z),
    "cuMemcpyDtoD_v2": (_D, _D, _Z),
    "cuMemcpyHtoDAsync_v2": (_D, _P, _Z, _P),
    "cuMemcpyDtoHAsync_v2": (_P, _D, _Z, _P),
    "cuMemcpyDtoDAsync_v2": (_D, _D, _Z, _P),
    "cuMemcpyAsync": (_D, _D, _Z, _P),
    "cuMemcpy": (_D, _D, _Z),
    "cuMemcpy2D_v2": (_P,),
    "cuMemsetD8_v2": (_D, c_ubyte, _Z),
    "cuMemsetD8Async": (_D, c_ubyte, _Z, _P),
    "cuMemsetD16Async": (_D, c_ushort, _Z, _P),
    "cuMemsetD32Async": (_D, _U, _Z, _P),
    "cuMemsetD2D32_v2": (_D, _Z, _U, _Z, _Z),
    "cuStreamCreate": (_P, _U),
    "cuStreamCreateWithPriority": (_P, _U, _I),
    "cuStreamGetPriority": (_P, _P),
    "cuStreamGetFlags": (_P, _P),
    "cuStreamGetId": (_P, _P),
    "cuStreamDestroy_v2": (_P,),
    "cuStreamSynchronize": (_P,),
    "cuStreamQuery": (_P,),
    "cuStreamWaitEvent": (_P, _P, _U),
    "cuLaunchHostFunc": (_P, _P, _P),
    "cuStreamAddCallback": (_P, _P, _P, _U),
    "cuEventCreate": (_P, _U),
    "cuEventDestroy_v2": (_P,),
    "cuEventRecord": (_P, _P),
    "cuEventQuery": (_P,),
    "cuEventSynchronize": (_P,),
    "cuEventElapsedTime": (_P, _P, _P),
    "cuModuleLoadData": (_P, _P),
    "cuModuleLoadDataEx": (_P, _P, _U, _P, _P),
    "cuModuleUnload": (_P,),
    "cuLinkCreate_v2": (_U, _P, _P, _P),
    "cuLinkAddData_v2": (_P, ctypes.c_int, c_char_p, ctypes.c_size_t, c_char_p, _U, _P, _P),
    "cuLinkAddFile_v2": (_P, ctypes.c_int, c_char_p, _U, _P, _P),
    "cuLinkComplete": (_P, _P, _P),
    "cuLinkDestroy": (_P,),
    "cuModuleGetFunction": (_P, _P, c_char_p),
    "cuModuleGetGlobal_v2": (_P, _P, _P, c_char_p),
    "cuFuncGetAttribute": (_P, _I, _P),
    "cuFuncSetAttribute": (_P, _I, _I),
    "cuFuncGetParamInfo": (_P, _Z, _P, _P),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (_P, _P, _I, _Z),
    "cuLaunchKernel": (*_LAUNCH[:8], _P, _P, _P),
    "cuLaunchKernelEx": (_P, _P, _P, _P),
    "cuGraphCreate": (_P, _U),
    "cuGraphDestroy": (_P,),
    "cuGraphAddKernelNode_v2": (_P, _P, _P, _Z, _P),
    "cuGraphAddMemcpyNode": (_P, _P, _P, _Z, _P, _P),
    "cuGraphAddMemsetNode": (_P, _P, _P, _Z, _P, _P),
    "cuGraphAddEmptyNode": (_P, _P, _P, _Z),
    "cuGraphAddDependencies": (_P, _P, _P, _Z),
    "cuGraphGetNodes": (_P, _P, _P),
    "cuGraphNodeGetType": (_P, _P),
    "cuGraphInstantiate_v2": (_P, _P, _P, _P, _Z),
    "cuGraphInstantiateWithFlags": (_P, _P, _D),
    "cuGraphLaunch": (_P, _P),
    "cuGraphExecDestroy": (_P,),
    "cuGraphExecKernelNodeSetParams_v2": (_P, _P, _P),
    "cuGraphExecMemcpyNodeSetParams": (_P, _P, _P, _P),
    "cuGraphExecMemsetNodeSetParams": (_P, _P, _P, _P),
}


class RawCuda:
    """A process that uses CUDA.

    Attributes:
        functions: exported name -> address.
    """

    def __init__(self, functions: Mapping[str, int]):
        self.functions = functions
        self._typed: dict[str, Any] = {}

    def result(self, name: str, *arguments: Any) -> int:
        """Calls a function; gives its CUresult."""
        typed = self._typed.get(name)
        if typed is None:
            plain = name.removesuffix("_ptsz").removesuffix("_ptds")
            prototype = ctypes.CFUNCTYPE(c_int, *TYPES[plain])
            typed = self._typed[name] = prototype(self.functions[name])
        code: int = typed(*arguments)
        return code

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function that must succeed."""
        code = self.result(name, *arguments)
        assert code == 0, f"{name} gives {code}"

    def get(self, name: str, *arguments: Any, kind: Any = c_uint64) -> Any:
        """What a function writes through its first argument."""
        place = kind()
        self.call(name, ctypes.byref(place), *arguments)
        return place.value

    def get_second(self, name: str, first: Any, kind: Any = c_uint64) -> Any:
        """What a function of two arguments writes through its second."""
        place = kind()
        self.call(name, first, ctypes.byref(place))
        return place.value

    def start(self, device: int = 0) -> int:
        """Initialises, and makes the primary context current; gives it."""
        self.call("cuInit", 0)
        context: int = self.get("cuDevicePrimaryCtxRetain", device)
        self.call("cuCtxSetCurrent", context)
        return context

    def alloc(self, size: int) -> int:
        """Device memory."""
        address: int = self.get("cuMemAlloc_v2", size)
        return address

    def pinned(self, size: int) -> npt.NDArray[np.uint8]:
        """Pinned memory as an array; it is there until it is freed."""
        address = self.get("cuMemHostAlloc", size, 0)
        return np.ctypeslib.as_array((c_ubyte * size).from_address(address))

    def upload(self, data: npt.NDArray[Any]) -> int:
        """Device memory with these contents."""
        address = self.alloc(data.nbytes)
        self.call("cuMemcpyHtoD_v2", address, data.ctypes.data, data.nbytes)
        return address

    def download(self, address: int, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What device memory holds, in the shape and type of an array."""
        data = np.empty_like(like)
        self.call("cuMemcpyDtoH_v2", data.ctypes.data, address, data.nbytes)
        return data

    def stream(self, flags: int = 0) -> int:
        """A stream; 1 is CU_STREAM_NON_BLOCKING."""
        handle: int = self.get("cuStreamCreate", flags)
        return handle

    def event(self, flags: int = 0) -> int:
        """An event; 2 is CU_EVENT_DISABLE_TIMING."""
        handle: int = self.get("cuEventCreate", flags)
        return handle

    def module(self, image: bytes) -> int:
        """A module of PTX or a cubin."""
        handle: int = self.get("cuModuleLoadData", ctypes.create_string_buffer(image))
        return handle

    def function(self, module: int, name: str) -> int:
        """A kernel of a module."""
        handle: int = self.get("cuModuleGetFunction", module, name.encode())
        return handle

    def launch(
        self,
        function: int,
        grid: Sequence[int],
        block: Sequence[int],
        *arguments: Any,
        dynamic: int = 0,
        stream: int = 0,
    ) -> int:
        """Launches a kernel with arguments of ctypes; gives the CUresult."""
        pointers = (c_void_p * max(1, len(arguments)))(
            *(ctypes.addressof(each) for each in arguments)
        )
        sizes = [*grid, *(1,) * (3 - len(grid)), *block, *(1,) * (3 - len(block))]
        return self.result("cuLaunchKernel", function, *sizes, dynamic, stream, pointers, None)

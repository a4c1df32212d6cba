"""The few functions of libcuda that the reference needs, through ctypes.

Names and numbers: cuda.h of CUDA 13.0.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

from tools.hw_acceptance.steplog import StepFailed, Unavailable

_SPIN: Final = 1  # CU_CTX_SCHED_SPIN
_Dims = tuple[int, int, int]


class Cuda:
    """Device 0 with its primary context, waiting by spinning.

    As a context manager it gives the context back. Raises Unavailable where there is no libcuda,
    StepFailed for every error of it.
    """

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise Unavailable(f"libcuda cannot be loaded: {error}") from error
        self.call("cuInit", 0)
        self._device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(self._device), 0)
        self.call("cuDevicePrimaryCtxSetFlags_v2", self._device, _SPIN)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function that returns a CUresult. Raises StepFailed for any but success."""
        code = getattr(self.library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(code, ctypes.byref(text))
            raise StepFailed(f"{name}: {(text.value or b'').decode() or code}")

    def name(self) -> str:
        """What the device is called."""
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, len(text), self._device)
        return text.value.decode("utf-8", "replace")

    def attribute(self, number: int) -> int:
        """A CUdevice_attribute of the device."""
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, self._device)
        return value.value

    def load(self, cubin: bytes, kernel: str) -> ctypes.c_void_p:
        """A kernel of a module, which stays loaded."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), cubin)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, kernel.encode())
        return function

    def alloc(self, size: int) -> int:
        """The address of device memory, which is not freed before the process ends."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def alloc_pinned(self, size: int) -> int:
        """The address of pinned host memory, likewise."""
        address = ctypes.c_void_p()
        self.call("cuMemAllocHost_v2", ctypes.byref(address), ctypes.c_size_t(size))
        assert address.value is not None, "libcuda gave no address and no error"
        return address.value

    def copy(self, function: str, target: int, source: int, size: int) -> None:
        """One of the synchronous copies, such as ``cuMemcpyHtoD_v2``."""
        self.call(function, ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(size))

    def launch(
        self,
        function: ctypes.c_void_p,
        grid: _Dims,
        block: _Dims,
        arguments: Sequence[Any],
        shared: int = 0,
    ) -> None:
        """Launches with ctypes values as arguments, and waits."""
        pointers = (ctypes.c_void_p * len(arguments))(
            *(ctypes.cast(ctypes.byref(each), ctypes.c_void_p) for each in arguments)
        )
        self.call("cuLaunchKernel", function, *grid, *block, shared, None, pointers, None)
        self.synchronize()

    def synchronize(self) -> None:
        """Waits for all that was launched."""
        self.call("cuCtxSynchronize")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.library.cuDevicePrimaryCtxRelease_v2(self._device)

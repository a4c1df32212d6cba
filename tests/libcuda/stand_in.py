"""A libcuda that computes nothing: it notes what it is asked for, and copies at once.

Memory of the GPU is the host's. Kernels are functions of Python, by name, that are given their
arguments; a test says what fails. What real libcuda and the strict model do is not known here.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from gpu.backends.cuda.library import BY_VALUE, SIGNATURES

CONTEXT = 0xC0
NOT_READY = 600
_TYPES: dict[str, Any] = {
    "uintptr_t": ctypes.c_size_t,
    "size_t": ctypes.c_size_t,
    "unsigned int": ctypes.c_uint,
    "unsigned long long": ctypes.c_ulonglong,
    "int": ctypes.c_int,
}
_NODE = struct.Struct("<Q7I4xQQQQ")
_CONFIG = struct.Struct("<7I4xQQI4x")


def _write(address: int, value: int, kind: Any = ctypes.c_uint64) -> int:
    kind.from_address(address).value = value
    return 0


class Launch(NamedTuple):
    """A launch: CUfunction, blocks and threads along x, bytes of shared memory, arguments."""

    function: int
    grid: int
    block: int
    shared: int
    arguments: tuple[int, ...]


class StandIn:
    """One GPU.

    Attributes:
        calls: names of functions with their arguments, in order.
        fails: the codes that functions give instead of doing anything, by name.
        kernels: what is run for a launch, by the kernel's name.
        launches: those that are of no graph, each with its stream.
        memory: allocations of the GPU, by address.
        modules: the images that are loaded, by handle.
        names: of kernels, by CUfunction.
        graphs: the nodes of each graph and of each executable one.
        nodes: the launch that a node is, and the nodes before it, by handle.
        current: CUcontext of each thread.
    """

    def __init__(self, capability: tuple[int, int] = (9, 0), driver: int = 13000):
        self.capability, self.driver = capability, driver
        self.calls: list[tuple[str, tuple[int, ...]]] = []
        self.fails: dict[str, int] = {}
        self.log = b""
        self.count = 1
        self.kernels: dict[str, Callable[..., None]] = {}
        self.launches: list[tuple[int, Launch]] = []
        self.memory: dict[int, Any] = {}
        self.modules: dict[int, bytes] = {}
        self.names: dict[int, str] = {}
        self.graphs: dict[int, list[int]] = defaultdict(list)
        self.nodes: dict[int, tuple[Launch, list[int]]] = {}
        self.current: defaultdict[int, int] = defaultdict(int)
        self._handles = iter(range(0x1000, 1 << 30, 16))
        self._kept: list[Any] = []

    def functions(self, without: tuple[str, ...] = ()) -> dict[str, int]:
        """Addresses, as the backend is given them."""
        return {
            name: self._exported(name) for name in (*SIGNATURES, *BY_VALUE) if name not in without
        }

    def _exported(self, name: str) -> int:
        own = getattr(self, name, None)

        def call(*arguments: int) -> int:
            self.calls.append((name, arguments))
            if name in self.fails:
                return self.fails[name]
            return int(own(*arguments) or 0) if own else 0

        if name in BY_VALUE:
            function = BY_VALUE[name](call)
        else:
            kinds = [_TYPES[kind] for kind in SIGNATURES[name]]
            function = ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(call)
        self._kept.append(function)
        return ctypes.cast(function, ctypes.c_void_p).value or 0

    def named(self, *names: str) -> list[str]:
        """Which of these were called, in order."""
        return [name for name, _ in self.calls if name in names]

    def given(self, name: str) -> list[tuple[int, ...]]:
        """The arguments of each call of a function."""
        return [arguments for called, arguments in self.calls if called == name]

    def _make(self, address: int) -> int:
        return _write(address, next(self._handles))

    def cuMemExportToShareableHandle(self, out: int, handle: int, kind: int, flags: int) -> int:
        return _write(out, os.open(os.devnull, os.O_RDONLY), ctypes.c_int)

    def cuMemCreate(self, out: int, size: int, properties: int, flags: int) -> int:
        return self._make(out)

    def cuMemAddressReserve(self, out: int, size: int, align: int, at: int, flags: int) -> int:
        return self._make(out)

    def cuMemGetAllocationGranularity(self, out: int, properties: int, option: int) -> int:
        return _write(out, 2 << 20)

    def cuDriverGetVersion(self, out: int) -> int:
        return _write(out, self.driver, ctypes.c_int)

    def cuGetErrorName(self, code: int, out: int) -> int:
        text = ctypes.c_char_p(b"CUDA_ERROR_OF_STAND_IN")
        self._kept.append(text)
        return _write(out, ctypes.cast(text, ctypes.c_void_p).value or 0)

    def cuGetErrorString(self, code: int, out: int) -> int:
        return 1

    def cuDeviceGetCount(self, out: int) -> int:
        return _write(out, self.count, ctypes.c_int)

    def cuDeviceGet(self, out: int, index: int) -> int:
        return _write(out, index, ctypes.c_int)

    def cuDeviceGetName(self, out: int, size: int, device: int) -> int:
        ctypes.memmove(out, b"Stand-in\0", 9)
        return 0

    def cuDeviceGetAttribute(self, out: int, which: int, device: int) -> int:
        values = {16: 132, 75: self.capability[0], 76: self.capability[1]}
        return _write(out, values[which], ctypes.c_int)

    def cuDeviceTotalMem_v2(self, out: int, device: int) -> int:
        return _write(out, 1 << 30)

    def cuDevicePrimaryCtxRetain(self, out: int, device: int) -> int:
        return _write(out, CONTEXT)

    def cuCtxGetCurrent(self, out: int) -> int:
        return _write(out, self.current[threading.get_ident()])

    def cuCtxSetCurrent(self, context: int) -> None:
        self.current[threading.get_ident()] = context

    def cuMemAlloc_v2(self, out: int, size: int) -> int:
        if size > 1 << 29:
            return 2
        memory = ctypes.create_string_buffer(size)
        self.memory[ctypes.addressof(memory)] = memory
        return _write(out, ctypes.addressof(memory))

    def cuMemFree_v2(self, address: int) -> None:
        del self.memory[address]

    def cuMemGetInfo_v2(self, free: int, total: int) -> int:
        return _write(free, 12345) or _write(total, 1 << 30)

    def cuPointerGetAttributes(self, count: int, asked: int, places: int, address: int) -> None:
        base = max((at for at in self.memory if at <= address), default=0)
        values = {1: CONTEXT, 2: 2 * bool(base), 9: 0, 11: base}
        values[12] = len(self.memory[base]) if base else 0
        for i in range(count):
            place = ctypes.c_uint64.from_address(places + 8 * i).value
            _write(place, values[ctypes.c_int.from_address(asked + 4 * i).value])

    cuMemHostAlloc = lambda self, out, size, flags: self.cuMemAlloc_v2(out, size)  # noqa: E731
    cuMemFreeHost = cuMemFree_v2

    def cuMemcpyHtoDAsync_v2(self, to: int, of: int, size: int, stream: int) -> None:
        ctypes.memmove(to, of, size)

    cuMemcpyDtoHAsync_v2 = cuMemcpyDtoDAsync_v2 = cuMemcpyHtoDAsync_v2

    def cuStreamCreate(self, out: int, flags: int) -> int:
        return self._make(out)

    cuEventCreate = cuGraphCreate = cuStreamCreate

    def cuEventElapsedTime(self, out: int, first: int, last: int) -> int:
        return _write(out, 0.25, ctypes.c_float)  # type: ignore[arg-type]

    def cuModuleLoadDataEx(self, out: int, image: int, count: int, keys: int, values: int) -> int:
        if self.log:
            ctypes.memmove(ctypes.c_uint64.from_address(values).value, self.log, len(self.log))
        is_cubin = ctypes.string_at(image, 4) == b"\x7fELF"
        if is_cubin and "cubin" in self.fails:
            return self.fails["cubin"]
        if not is_cubin and "ptx" in self.fails:
            return self.fails["ptx"]
        self._make(out)
        handle = ctypes.c_uint64.from_address(out).value
        self.modules[handle] = b"ELF" if is_cubin else ctypes.string_at(image)
        return 0

    def cuModuleUnload(self, module: int) -> None:
        del self.modules[module]

    def cuModuleGetFunction(self, out: int, module: int, name: int) -> int:
        self._make(out)
        self.names[ctypes.c_uint64.from_address(out).value] = ctypes.string_at(name).decode()
        return 0

    def cuLaunchKernelEx(self, config: int, function: int, listed: int, extra: int) -> None:
        content = ctypes.string_at(config, _CONFIG.size)
        grid, y, z, block, block_y, block_z, shared, stream, *rest = _CONFIG.unpack(content)
        assert (y, z, block_y, block_z, listed, *rest) == (1, 1, 1, 1, 0, 0, 0)
        launch = Launch(function, grid, block, shared, arguments_at(extra))
        self.launches.append((stream, launch))
        self.run(launch)

    def run(self, launch: Launch) -> None:
        """What a launch does."""
        self.kernels.get(self.names[launch.function], lambda *_: None)(*launch.arguments)

    def cuGraphAddKernelNode_v2(
        self, out: int, graph: int, after: int, count: int, parameters: int
    ) -> int:
        self._make(out)
        handle = ctypes.c_uint64.from_address(out).value
        earlier = list((ctypes.c_uint64 * count).from_address(after)) if count else []
        self.nodes[handle] = (_launch_at(parameters), earlier)
        self.graphs[graph].append(handle)
        return 0

    def cuGraphInstantiateWithFlags(self, out: int, graph: int, flags: int) -> int:
        self._make(out)
        self.graphs[ctypes.c_uint64.from_address(out).value] = self.graphs[graph]
        return 0

    def cuGraphExecKernelNodeSetParams_v2(self, made: int, node: int, parameters: int) -> None:
        assert node in self.graphs[made]
        self.nodes[node] = (_launch_at(parameters), self.nodes[node][1])

    def cuGraphLaunch(self, made: int, stream: int) -> None:
        for node in self.graphs[made]:
            self.run(self.nodes[node][0])


def arguments_at(extra: int) -> tuple[int, ...]:
    """The arguments that `extra` of a launch tells of, as words."""
    if not extra:
        return ()
    key, buffer, size_key, size, end = (ctypes.c_uint64 * 5).from_address(extra)
    assert (key, size_key, end) == (1, 2, 0)
    count = ctypes.c_uint64.from_address(size).value // 8
    return tuple((ctypes.c_uint64 * count).from_address(buffer))


def _launch_at(parameters: int) -> Launch:
    """What CUDA_KERNEL_NODE_PARAMS says."""
    function, grid, y, z, block, *rest = _NODE.unpack(ctypes.string_at(parameters, _NODE.size))
    block_y, block_z, shared, listed, extra, kernel, context = rest
    assert (y, z, block_y, block_z) == (1, 1, 1, 1)
    assert (listed, kernel, context) == (0, 0, 0)
    return Launch(function, grid, block, shared, arguments_at(extra))

"""Modules, functions and their attributes: sections 6.10 and 6.23."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

from gpu.sim.cuda.attributes import capability
from gpu.sim.cuda.codes import INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, CudaError
from gpu.sim.cuda.driver import Call
from gpu.sim.cuda.entry import export, get32, get64, get_text, put32, put64, put_text
from gpu.sim.cuda.images import read_image
from gpu.sim.cuda.modules import Function, Module

# CUjit_option.
_WALL_TIME: Final = 2
_INFO_LOG, _INFO_SIZE, ERROR_LOG, ERROR_SIZE = 3, 4, 5, 6
_LAST_OPTION: Final = 35


def _module(call: Call, handle: int) -> Module:
    return call.driver.handles.get(handle, Module)


def _function(call: Call, handle: int) -> Function:
    found = call.driver.handles.get(handle, Function)
    if found.module.context is not call.context:
        raise CudaError(INVALID_HANDLE, f"{found.name} is of another context")
    return found


@export("cuModuleLoadData", "pp")
def _load(call: Call, result: int, image: int) -> None:
    _load_with(call, result, image, 0, 0, 0)


@export("cuModuleLoadDataEx", "ppupp", since=2010)
def _load_with(call: Call, result: int, image: int, count: int, options: int, values: int) -> None:
    if not result:
        raise CudaError(INVALID_VALUE, "where the module goes is NULL")
    log = Log(count, options, values)
    context, driver = call.context, call.driver
    try:
        read = read_image(image, capability(context.device.chip), driver.version)
        driver.modules += 1
        module = Module(context, read, driver.modules)
    except CudaError as error:
        log.write(ERROR_LOG, ERROR_SIZE, str(error).partition(": ")[2])
        raise
    log.write(ERROR_LOG, ERROR_SIZE, "")
    log.write(_INFO_LOG, _INFO_SIZE, "")
    data, loaded = module.loaded.data, module.loaded
    module.data = driver.keep(
        context,
        driver.memory.add_module(context, loaded.base, len(data), data.ctypes.data),
    )
    module.handle = driver.own(context, module)
    put64(result, module.handle)


class Log:
    """The options of a load: where its logs go."""

    def __init__(self, count: int, options: int, values: int):
        self._values: dict[int, int] = {}
        for number in range(count):
            option = get32(options + 4 * number if options else 0, "the options")
            if option > _LAST_OPTION:
                raise CudaError(INVALID_VALUE, f"JIT option {option}")
            self._values[option] = values + 8 * number
            if option == _WALL_TIME:
                ctypes.c_float.from_address(values + 8 * number).value = 0.0

    def value(self, option: int) -> int | None:
        """What is given for an option that is a number; None where it is not."""
        if option not in self._values:
            return None
        return get64(self._values[option]) & 0xFFFFFFFF

    def write(self, buffer: int, size: int, text: str) -> None:
        """Writes a log and how long it is, where the caller wants it."""
        if buffer not in self._values or size not in self._values:
            return
        room = get64(self._values[size]) & 0xFFFFFFFF
        written = 0
        if room and text:
            written = put_text(get64(self._values[buffer]), room, text)
        put64(self._values[size], written)


@export("cuModuleUnload", "p", needs="driver")
def _unload(call: Call, handle: int) -> None:
    module = _module(call, handle)
    module.context.check()
    call.driver.work.wait([stream.tail for stream in module.context.streams])
    module.context.check()
    for function in module.functions.values():
        call.driver.disown(module.context, function)
    if module.data is not None:
        call.driver.free(module.data)
    call.driver.disown(module.context, handle)


@export("cuModuleGetFunction", "ppp")
def _get_function(call: Call, result: int, handle: int, name: int) -> None:
    module, wanted = _module(call, handle), get_text(name)
    if wanted not in module.kernels:
        raise CudaError(NOT_FOUND, f"no kernel {wanted!r} among {', '.join(module.kernels)}")
    found = module.functions.get(wanted)
    if found is None:
        function = Function(module, wanted, module.program(wanted))
        found = module.functions[wanted] = call.driver.own(module.context, function)
    put64(result, found)


@export("cuModuleGetFunctionCount", "pp", since=12040)
def _function_count(call: Call, result: int, handle: int) -> None:
    put32(result, len(_module(call, handle).kernels))


@export("cuModuleGetGlobal_v2", "pppp", since=3020)
def _get_global(call: Call, address: int, size: int, handle: int, name: int) -> None:
    wanted = get_text(name)
    found = _module(call, handle).variable(wanted)
    if found is None:
        raise CudaError(NOT_FOUND, f"no variable {wanted!r}")
    for pointer, value in zip((address, size), found, strict=True):
        if pointer:
            put64(pointer, value)


@export("cuModuleGetLoadingMode", "p", since=11070)
def _loading_mode(_: Call, result: int) -> None:
    put32(result, 2)  # CU_MODULE_LAZY_LOADING, the default since 12.2


@export("cuFuncGetAttribute", "pip", since=2020)
def _attribute(call: Call, result: int, attribute: int, handle: int) -> None:
    found = _function(call, handle).attributes.get(attribute)
    if found is None:
        raise CudaError(INVALID_VALUE, f"function attribute {attribute}")
    put32(result, found & 0xFFFFFFFF)


@export("cuFuncSetAttribute", "pii", since=9000)
def _set_attribute(call: Call, handle: int, attribute: int, value: int) -> None:
    _function(call, handle).set_attribute(attribute, value)


@export("cuFuncSetCacheConfig", "pi", since=3000)
def _set_cache_config(call: Call, handle: int, config: int) -> None:
    _function(call, handle)
    if not 0 <= config <= 3:
        raise CudaError(INVALID_VALUE, f"cache configuration {config}")


@export("cuFuncGetModule", "pp", since=11000)
def _module_of(call: Call, result: int, handle: int) -> None:
    put64(result, _function(call, handle).module.handle)


@export("cuFuncGetName", "pp", since=12030)
def _name_of(call: Call, result: int, handle: int) -> None:
    name = _function(call, handle).name
    kept = call.driver.texts.setdefault(name, ctypes.create_string_buffer(name.encode()))
    put64(result, ctypes.addressof(kept))


@export("cuFuncGetParamInfo", "pzpp", since=12040)
def _parameter(call: Call, handle: int, index: int, offset: int, size: int) -> None:
    parameters = _function(call, handle).parameters
    if index >= len(parameters):
        raise CudaError(INVALID_VALUE, f"parameter {index} of {len(parameters)}")
    put64(offset, parameters[index][0])
    if size:
        put64(size, parameters[index][1])


def _threads(call: Call, threads: int, dynamic: int) -> None:
    if threads < 1 or dynamic < 0:
        raise CudaError(INVALID_VALUE, f"a block of {threads} threads, {dynamic} bytes")


@export("cuOccupancyMaxActiveBlocksPerMultiprocessor", "ppiz", since=6050)
def _occupancy(call: Call, result: int, handle: int, threads: int, dynamic: int) -> None:
    _threads(call, threads, dynamic)
    put32(result, _function(call, handle).blocks_per_sm(threads, dynamic))


@export("cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", "ppizu", since=7000)
def _occupancy_with(
    call: Call, result: int, handle: int, threads: int, dynamic: int, flags: int
) -> None:
    if flags not in (0, 1):
        raise CudaError(INVALID_VALUE, f"flags {flags:#x} of an occupancy")
    _occupancy(call, result, handle, threads, dynamic)


@export("cuOccupancyMaxPotentialBlockSize", "ppppzi", since=6050)
def _best_block(
    call: Call, blocks: int, threads: int, handle: int, sizes: int, dynamic: int, limit: int
) -> None:
    function = _function(call, handle)
    most = function.attributes[0]
    shared: Callable[[int], int] = (
        ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int)(sizes) if sizes else lambda _: dynamic
    )
    best = (0, 0, 0)
    for size in range(32, min(most, limit or most) + 1, 32):
        held = function.blocks_per_sm(size, shared(size))
        best = max(best, (held * size, size, held))
    if not best[2]:
        raise CudaError(INVALID_VALUE, "no block of the function fits")
    put32(threads, best[1])
    put32(blocks, best[2] * function.module.context.device.chip.sms)

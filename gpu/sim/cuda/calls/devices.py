"""Initialisation, versions, errors and devices: sections 6.2 to 6.6 of the reference."""

from __future__ import annotations

import ctypes
from typing import Final

from gpu.sim.cuda import attributes
from gpu.sim.cuda.codes import (
    INVALID_DEVICE,
    INVALID_VALUE,
    NO_DEVICE,
    NOT_FOUND,
    RESULTS,
    CudaError,
)
from gpu.sim.cuda.driver import Call
from gpu.sim.cuda.entry import EXPORTS, export, get_text, put32, put64, put_text

_FOUND: Final = 0  # CU_GET_PROC_ADDRESS_SUCCESS
_NO_SYMBOL: Final = 1
_TOO_OLD: Final = 2
_PER_THREAD: Final = 2  # of CUdriverProcAddress_flags
_BEST_VERSION: Final = 13000


@export("cuInit", "u", needs="nothing")
def _init(call: Call, flags: int) -> None:
    if flags:
        raise CudaError(INVALID_VALUE, f"flags {flags:#x} of cuInit; they must be 0")
    call.driver.initialise()
    if not call.driver.devices:
        raise CudaError(NO_DEVICE, "the machine has no GPU")


@export("cuDriverGetVersion", "p", needs="nothing", since=2020)
def _version(call: Call, version: int) -> None:
    put32(version, call.driver.version)


def _text_of(call: Call, code: int, result: int, part: int) -> None:
    if code not in RESULTS:
        if result:
            put64(result, 0)
        raise CudaError(INVALID_VALUE, f"{code} is no error")
    text = RESULTS[code][part]
    kept = call.driver.texts.setdefault(text, ctypes.create_string_buffer(text.encode()))
    put64(result, ctypes.addressof(kept))


@export("cuGetErrorName", "ip", needs="nothing", since=6000)
def _error_name(call: Call, code: int, name: int) -> None:
    _text_of(call, code, name, 0)


@export("cuGetErrorString", "ip", needs="nothing", since=6000)
def _error_string(call: Call, code: int, text: int) -> None:
    _text_of(call, code, text, 1)


def _address(call: Call, name: str, version: int, flags: int) -> tuple[int, int]:
    """(address, status) of the newest function of a name that a version of CUDA had."""
    if flags not in (0, 1, _PER_THREAD):
        raise CudaError(INVALID_VALUE, f"flags {flags:#x} of cuGetProcAddress")
    # CUDA gave the API versions with its second number as tens: 11.3 is 11030.
    found = [each for each in EXPORTS.values() if each.base == name]
    fitting = [each for each in found if each.since <= min(version, call.driver.version)]
    if not fitting:
        return 0, _TOO_OLD if found else _NO_SYMBOL
    best = max(fitting, key=lambda each: (each.since, each.symbol))
    symbol = best.symbol
    if flags == _PER_THREAD and best.twin and version >= best.twin_since:
        symbol = f"{symbol}_{best.twin}"
    return call.driver.functions[symbol], _FOUND


@export("cuGetProcAddress_v2", "ppiQp", needs="nothing", since=12000)
def _proc_address(
    call: Call, symbol: int, result: int, version: int, flags: int, status: int
) -> None:
    name = get_text(symbol, "the symbol")
    address, found = _address(call, name, version, flags)
    put64(result, address)
    if status:
        put32(status, found)
    if not address:
        raise CudaError(NOT_FOUND, f"{name} of CUDA {version} is not there")


@export("cuGetProcAddress", "ppiQ", needs="nothing", since=11030)
def _old_proc_address(call: Call, symbol: int, result: int, version: int, flags: int) -> None:
    _proc_address(call, symbol, result, version, flags, 0)


@export("cuGetExportTable", "pp", needs="nothing", since=3000)
def _export_table(call: Call, table: int, _uuid: int) -> None:
    """Tables that no document tells of. nvrtc 12.9 asks for one wherever it meets a libcuda."""
    put64(table, 0)
    raise CudaError(NOT_FOUND, "there are no tables but those of the documented functions")


@export("cuDeviceGetCount", "p", needs="driver")
def _count(call: Call, count: int) -> None:
    put32(count, len(call.driver.devices))


@export("cuDeviceGet", "pi", needs="driver")
def _get(call: Call, device: int, ordinal: int) -> None:
    put32(device, call.driver.device(ordinal).index)


@export("cuDeviceGetName", "pii", needs="driver")
def _name(call: Call, name: int, size: int, device: int) -> None:
    put_text(name, size, call.driver.device(device).chip.board)


@export("cuDeviceGetUuid", "pi", needs="driver", since=9020)
@export("cuDeviceGetUuid_v2", "pi", needs="driver", since=11040)
def _uuid(call: Call, uuid: int, device: int) -> None:
    found = call.driver.device(device).uuid
    if not uuid:
        raise CudaError(INVALID_VALUE, "where the UUID goes is NULL")
    ctypes.memmove(uuid, found, len(found))


@export("cuDeviceTotalMem_v2", "pi", needs="driver", since=3020)
def _total(call: Call, size: int, device: int) -> None:
    put64(size, call.driver.device(device).chip.vram_size)


@export("cuDeviceGetAttribute", "pii", needs="driver")
def _attribute(call: Call, value: int, attribute: int, device: int) -> None:
    found = call.driver.device(device).attributes.get(attribute)
    if found is None:
        raise CudaError(INVALID_VALUE, f"device attribute {attribute} is not known")
    put32(value, found & 0xFFFFFFFF)


@export("cuDeviceComputeCapability", "ppi", needs="driver")
def _capability(call: Call, major: int, minor: int, device: int) -> None:
    found = call.driver.device(device).attributes
    put32(major, found[attributes.MAJOR])
    put32(minor, found[attributes.MINOR])


@export("cuDeviceGetPCIBusId", "pii", needs="driver", since=4010)
def _bus_id(call: Call, text: int, size: int, device: int) -> None:
    found = call.driver.device(device).bus_id
    if size <= len(found):
        raise CudaError(INVALID_VALUE, f"{size} bytes for {found!r}")
    put_text(text, size, found)


@export("cuDeviceGetByPCIBusId", "pp", needs="driver", since=4010)
def _by_bus_id(call: Call, device: int, text: int) -> None:
    wanted = get_text(text, "the bus id").upper()
    for each in call.driver.devices:
        if wanted in (each.bus_id, each.bus_id.partition(":")[2], each.bus_id[:-2]):
            put32(device, each.index)
            return
    raise CudaError(INVALID_DEVICE, f"no device is at {wanted}")


@export("cuDeviceCanAccessPeer", "pii", needs="driver", since=4000)
def _can_access_peer(call: Call, result: int, device: int, peer: int) -> None:
    one, other = call.driver.device(device), call.driver.device(peer)
    put32(result, int(one is not other and one.chip is other.chip))

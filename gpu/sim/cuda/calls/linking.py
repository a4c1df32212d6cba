"""Linking: cuLinkCreate and what goes with it, of section 6.10.

What comes out is a file of a cubin's form, whose one section holds the PTX that went in.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Final

from gpu.core.elf import EM_CUDA, ET_EXEC, HEADER, IDENT, SECTION, SHT_PROGBITS, SHT_STRTAB
from gpu.core.files import read_bytes
from gpu.sim.cuda.attributes import capability
from gpu.sim.cuda.calls.modules import ERROR_LOG, ERROR_SIZE, Log
from gpu.sim.cuda.codes import FILE_NOT_FOUND, INVALID_VALUE, NOT_SUPPORTED, CudaError
from gpu.sim.cuda.context import Context
from gpu.sim.cuda.driver import Call
from gpu.sim.cuda.entry import export, get_bytes, get_text, put64
from gpu.sim.cuda.images import learn, read_image
from gpu.sim.cuda.modules import Module

_KINDS: Final = ("cubin", "PTX", "fat binary", "object", "library", "NVVM")  # CUjitInputType
_PTX: Final = 1
_TARGET: Final = 9  # CU_JIT_TARGET
_NAMES: Final = b"\0.shstrtab\0.nv_debug_ptx_txt\0"
_ABI_VERSION: Final = 7  # of CUDA 12: the flags are the architecture


@dataclass(eq=False)
class Link:
    """A CUlinkState.

    Attributes:
        target: compute capability that it makes code for.
        ptx: what was added; None before.
        cubin: what was made, which the caller may read until it is destroyed.
    """

    context: Context
    target: tuple[int, int]
    log: Log
    ptx: str | None = None
    cubin: Any = None


@export("cuLinkCreate_v2", "uppp", since=6050)
def _create(call: Call, count: int, options: int, values: int, result: int) -> None:
    if not result:
        raise CudaError(INVALID_VALUE, "where the state goes is NULL")
    log = Log(count, options, values)
    asked = log.value(_TARGET)
    target = capability(call.context.device.chip) if asked is None else divmod(asked, 10)
    put64(result, call.driver.own(call.context, Link(call.context, target, log)))


@export("cuLinkAddData_v2", "pipzpupp", since=6050)
def _add_data(
    call: Call,
    handle: int,
    kind: int,
    data: int,
    size: int,
    name: int,
    count: int,
    options: int,
    values: int,
) -> None:
    Log(count, options, values)
    _add(call, handle, kind, get_bytes(data, size, "the data"))


@export("cuLinkAddFile_v2", "pipupp", since=6050)
def _add_file(
    call: Call, handle: int, kind: int, path: int, count: int, options: int, values: int
) -> None:
    Log(count, options, values)  # which refuses what is no option
    try:
        data = read_bytes(get_text(path, "the path"))
    except OSError as error:
        raise CudaError(FILE_NOT_FOUND, str(error)) from error
    _add(call, handle, kind, data)


def _add(call: Call, handle: int, kind: int, data: bytes) -> None:
    link = call.driver.handles.get(handle, Link)
    if not 0 <= kind < len(_KINDS) or link.cubin is not None:
        raise CudaError(INVALID_VALUE, f"input of type {kind}; or what is linked is complete")
    if kind != _PTX:
        raise CudaError(NOT_SUPPORTED, f"linking a {_KINDS[kind]} is not modelled: give PTX")
    if link.ptx is not None:
        raise CudaError(NOT_SUPPORTED, "linking several inputs is not modelled")
    text = ctypes.create_string_buffer(data)  # with a zero, which a file does not have
    driver = call.driver
    try:
        image = read_image(ctypes.addressof(text), link.target, driver.version)
        driver.modules += 1
        Module(link.context, image, driver.modules)  # which finds what is wrong in it
    except CudaError as error:
        link.log.write(ERROR_LOG, ERROR_SIZE, str(error).partition(": ")[2])
        raise
    link.ptx = image.ptx


@export("cuLinkComplete", "ppp", since=5050)
def _complete(call: Call, handle: int, cubin: int, size: int) -> None:
    link = call.driver.handles.get(handle, Link)
    if link.ptx is None or link.cubin is not None:
        raise CudaError(INVALID_VALUE, "nothing was added, or what is linked is complete")
    made = _cubin(link.ptx, link.target)
    learn(made, link.ptx)
    link.cubin = ctypes.create_string_buffer(made, len(made))
    put64(cubin, ctypes.addressof(link.cubin))
    if size:
        put64(size, len(made))


@export("cuLinkDestroy", "p", needs="driver", since=5050)
def _destroy(call: Call, handle: int) -> None:
    call.driver.disown(call.driver.handles.get(handle, Link).context, handle)


def _cubin(ptx: str, target: tuple[int, int]) -> bytes:
    content = ptx.encode() + b"\0"
    at = HEADER.size
    table = at + len(content) + len(_NAMES)
    table += -table % 8
    rows = (
        SECTION.pack(*(0,) * 10),
        SECTION.pack(1, SHT_STRTAB, 0, 0, at + len(content), len(_NAMES), 0, 0, 1, 0),
        SECTION.pack(11, SHT_PROGBITS, 0, 0, at, len(content), 0, 0, 1, 0),
    )
    header = HEADER.pack(
        (IDENT + bytes((0x33, _ABI_VERSION))).ljust(16, b"\0"),
        *(ET_EXEC, EM_CUDA, 1, 0, 0, table, 10 * target[0] + target[1]),
        *(HEADER.size, 0, 0, SECTION.size, len(rows), 1),
    )
    return (header + content + _NAMES).ljust(table, b"\0") + b"".join(rows)

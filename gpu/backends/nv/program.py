"""Cubins and kernels of NAK as programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gpu.backends.hcq.program import QueueProgram
from gpu.compiler.toolchain.nakbinary import NakBinary
from gpu.compiler.toolchain.nvbinary import NvBinary
from gpu.core.errors import FormatError, InvalidIndex, Unsupported
from gpu.drivers.nv.code.cubin import Cubin
from gpu.drivers.nv.code.sass import BareCode, BareSizes
from gpu.drivers.nv.device import RmDevice
from gpu.drivers.nv.encode.launch import LoadedKernel
from gpu.hcq.args import ArgumentLayout
from gpu.hcq.program import HCQProgram
from gpu.runtime.device import LaunchData

_WORD: Final = 8  # bytes of a parameter: an address, or a value as a long

Learn = Callable[[bytes, str, str, int, Mapping[int, bytes]], None]
"""Tells a simulated GPU of code, the name of its kernel, its PTX, where its parameters begin in
constant bank 0, and what its other constant banks hold."""


def load_program(
    device: RmDevice, learn: Learn | None, name: str, lib: bytes, data: LaunchData
) -> QueueProgram:
    """A kernel of the `NvBinary` that `lib` is; `data` as for `QueueProgram`, and more.

    ``values`` is how many of its parameters are numbers, behind the addresses of its buffers, and
    ``shared`` the bytes of shared memory of a block beside those that it declares.
    Raises InvalidIndex where it has no kernel of that name, Unsupported for code of another
    architecture, and what reading and loading raise.
    """
    binary = NvBinary.unpack(lib)
    cubin = Cubin(binary.cubin)
    kernel = cubin.kernel(name)
    values = data["values"]
    if any(parameter.size != _WORD for parameter in kernel.parameters):
        sizes = [parameter.size for parameter in kernel.parameters]
        raise FormatError(f"parameters of {name} have {sizes} bytes: each is one word of {_WORD}")
    layout = ArgumentLayout(len(kernel.parameters) - values, "q" * values)
    loaded = device.load(cubin, name, layout, dynamic_shared=data["shared"])
    if learn is not None:
        placed: LoadedKernel = loaded.info
        image = cubin.link(placed.image)
        code = image[kernel.offset : kernel.offset + kernel.size]
        banks = {bank.number: image[bank.offset : bank.offset + bank.size] for bank in kernel.banks}
        learn(code, name, binary.ptx, kernel.parameter_base, banks)
    return QueueProgram(device, loaded, data)


def load_bare_program(
    device: RmDevice, simulated: bool, name: str, lib: bytes, data: LaunchData
) -> QueueProgram:
    """The kernel of the `NakBinary` that `lib` is; `data` as for `load_program`.

    Raises Unsupported for a simulated GPU, which runs PTX and no machine code, and for code of
    another architecture, InvalidIndex where it is no kernel of that name, and what reading and
    loading raise.
    """
    if simulated:
        raise Unsupported(
            f"{name} was compiled by NAK, to machine code alone, and a simulated GPU runs the PTX"
            " that code was made of: use NV:CUDA or NV:PTX with SIM, or NV:NAK with a real GPU"
        )
    return QueueProgram(device, load_bare(device, name, lib, data["values"]), data)


def load_bare(device: RmDevice, name: str, lib: bytes, values: int) -> HCQProgram:
    """The kernel of a `NakBinary` in memory; ``values`` of its parameters are numbers."""
    binary = NakBinary.unpack(lib)
    if binary.sm != device.target.sm:
        raise Unsupported(
            f"{name} is code for sm_{binary.sm}, and this GPU is a sm_{device.target.sm}"
        )
    sizes = BareSizes(
        registers=binary.registers,
        barriers=binary.barriers,
        block=binary.block,
        shared=binary.shared,
        local=binary.local,
        parameters=binary.parameters,
    )
    words = binary.parameters // _WORD
    if values > words:
        raise InvalidIndex(f"{values} numbers among the {words} parameters of {name}")
    layout = ArgumentLayout(words - values, "q" * values)
    return device.load(BareCode(binary.name, binary.code, sizes), name, layout)

"""Cubins as programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gpu.backends.hcq.program import QueueProgram
from gpu.compiler.toolchain.nvbinary import NvBinary
from gpu.core.errors import FormatError
from gpu.drivers.nv.cubin import Cubin
from gpu.drivers.nv.hcqdevice import RmDevice
from gpu.drivers.nv.launch import LoadedKernel
from gpu.hcq.args import ArgumentLayout
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
        assert isinstance(loaded.info, LoadedKernel)
        image = cubin.link(loaded.info.image)
        code = image[kernel.offset : kernel.offset + kernel.size]
        banks = {bank.number: image[bank.offset : bank.offset + bank.size] for bank in kernel.banks}
        learn(code, name, binary.ptx, kernel.parameter_base, banks)
    return QueueProgram(loaded, data)

"""Code objects as programs."""

from __future__ import annotations

from gpu.backends.hcq.program import QueueProgram
from gpu.core.errors import InvalidValue
from gpu.drivers.am.code.object import read_code_object
from gpu.drivers.am.device import AmDevice
from gpu.drivers.am.encode.kernarg import argument_layout
from gpu.hcq.args import ArgumentLayout
from gpu.runtime.device import LaunchData


def load_program(device: AmDevice, name: str, lib: bytes, data: LaunchData) -> QueueProgram:
    """A kernel of the code object `lib`; `data` as for `QueueProgram`.

    Raises InvalidValue where it has no kernel of that name, and what reading and loading raise.
    """
    code = read_code_object(lib)
    if name not in code.kernels:
        raise InvalidValue(f"the code object has no kernel {name}, but {list(code.kernels)}")
    found = argument_layout(code.kernels[name].metadata)
    layout = ArgumentLayout(found.pointers, "q" * len(found.scalars))
    return QueueProgram(device, device.load(code, name, layout), data)

"""Steps of compiled graphs that the host computes: see `gpu/compiler/ir/graph/hostcall.py`.

What a call reads is copied to the host, and its results to the device, which waits meanwhile. In
the disk cache a call is plain data, as all of a compiled graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from gpu.compiler.ir.graph.hostcall import HostCall, run_host
from gpu.core.devspec import parse_device_name
from gpu.core.linalgerror import LinAlgError
from gpu.core.log import get_logger
from gpu.runtime.buffer import host_array
from gpu.runtime.device import Device
from gpu.runtime.timeline import span

log = get_logger(__name__)


class HostForm(NamedTuple):
    """A call in a compiled graph.

    Attributes:
        device: where the operands and the results are.
        call: the function, and the forms of its operands and all its results.
        kept: the numbers of the results that are wanted.
    """

    device: str
    call: HostCall
    kept: tuple[int, ...]

    def as_data(self) -> list[Any]:
        """The same as JSON has it."""
        return [self.device, self.call.as_data(), self.kept]

    @classmethod
    def from_data(cls, data: Sequence[Any]) -> Self:
        """What `as_data` gave."""
        device, call, kept = data
        return cls(device, HostCall.from_data(call), tuple(kept))


class HostFunction:
    """What runs a call.

    Attributes:
        form: the call.
        line: of the user's, for which it was compiled; "" where that is not known.
    """

    def __init__(self, form: HostForm, line: str):
        self.form, self.line = form, line
        shape, dtype = form.call.inputs[0]
        copies = (
            ""
            if parse_device_name(form.device)[0] == "CPU"
            else f", with copies from and to {form.device}"
        )
        log.info(
            *("%s of %s %s is computed by the host's LAPACK%s", form.call.name, dtype.name),
            *(list(shape), copies),
        )

    def __call__(self, memories: Sequence[Any]) -> None:
        """Computes the results that are wanted from the operands, whose memory is first.

        Raises LinAlgError for a matrix with which the function does not come to an end.
        """
        call, device = self.form.call, Device[self.form.device]
        operands = [host_array(shape, dtype.np) for shape, dtype in call.inputs]
        with span(f"{call.name} on the host"):
            device.synchronize()
            for operand, source in zip(operands, memories, strict=False):
                device.allocator.copy_out(operand.reshape(-1).view(np.uint8).data, source)
            try:
                results = run_host(call, operands)
            except LinAlgError as error:
                if self.line:
                    error.add_note(f"first asked for at {self.line}")
                raise
            for number, target in zip(self.form.kept, memories[len(operands) :], strict=True):
                data = results[number].reshape(-1).view(np.uint8).data
                device.allocator.copy_in(target, data)

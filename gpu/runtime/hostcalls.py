"""Steps of compiled graphs that the host computes: see `gpu/compiler/ir/graph/hostcall.py`.

What a call reads is copied to the host, and its results to the device, which waits meanwhile. In
the disk cache a call is plain data, as all of a compiled graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from gpu.compiler.ir.graph.body import Value
from gpu.compiler.ir.graph.hostcall import HostCall, run_host
from gpu.core.dtype import dtype_named
from gpu.core.linalgerror import LinAlgError
from gpu.core.log import get_logger
from gpu.runtime.buffer import host_array
from gpu.runtime.device import Device
from gpu.runtime.timeline import span

log = get_logger(__name__)


class HostForm(NamedTuple):
    """A call in a compiled graph.

    Attributes:
        device: where the operand and the results are.
        call: the function, and the forms of its operand and all its results.
        kept: the numbers of the results that are wanted.
    """

    device: str
    call: HostCall
    kept: tuple[int, ...]

    def as_data(self) -> list[Any]:
        """The same as JSON has it."""
        name, operand, outputs = self.call
        values = [(shape, dtype.name) for shape, dtype in (operand, *outputs)]
        return [self.device, name, values, self.kept]

    @classmethod
    def from_data(cls, data: Sequence[Any]) -> Self:
        """What `as_data` gave."""
        device, name, values, kept = data
        operand, *outputs = (Value(tuple(shape), dtype_named(dtype)) for shape, dtype in values)
        return cls(device, HostCall(name, operand, tuple(outputs)), tuple(kept))


class HostFunction:
    """What runs a call.

    Attributes:
        form: the call.
        line: of the user's, for which it was compiled; "" where that is not known.
    """

    def __init__(self, form: HostForm, line: str):
        self.form, self.line = form, line
        shape, dtype = form.call.operand
        copies = "" if form.device == "CPU" else f", with copies from and to {form.device}"
        log.info(
            *("%s of %s %s is computed by the host's LAPACK%s", form.call.name, dtype.name),
            *(list(shape), copies),
        )

    def __call__(self, memories: Sequence[Any]) -> None:
        """Computes the results that are wanted from the operand, whose memory is the first.

        Raises LinAlgError for a matrix with which the function does not come to an end.
        """
        call, device = self.form.call, Device[self.form.device]
        source, *targets = memories
        operand = host_array(call.operand.shape, call.operand.dtype.np)
        with span(f"{call.name} on the host"):
            device.synchronize()
            device.allocator.copy_out(operand.reshape(-1).view(np.uint8).data, source)
            try:
                results = run_host(call, operand)
            except LinAlgError as error:
                if self.line:
                    error.add_note(f"first asked for at {self.line}")
                raise
            for number, target in zip(self.form.kept, targets, strict=True):
                data = results[number].reshape(-1).view(np.uint8).data
                device.allocator.copy_in(target, data)

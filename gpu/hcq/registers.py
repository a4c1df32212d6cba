"""Commands that read and write registers of a device, such as its performance counters."""

from __future__ import annotations

from dataclasses import dataclass

from gpu.core.errors import Unsupported
from gpu.hcq.symbol import Value


@dataclass(frozen=True, slots=True)
class WriteRegister:
    """Write 32 bits to a register of the device, by its own number, once all before is done."""

    register: int
    value: int


@dataclass(frozen=True, slots=True)
class ReadRegister:
    """Write 32 bits of a register of the device to memory, once all before is done."""

    register: int
    address: Value


RegisterCommand = WriteRegister | ReadRegister


def no_registers(command: RegisterCommand, queue: str) -> Unsupported:
    """The error of encoders whose queues reach none."""
    return Unsupported(
        f"register {command.register:#x} on {queue}: compute queues of AMD's GPUs reach registers"
    )

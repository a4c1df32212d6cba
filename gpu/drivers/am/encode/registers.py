"""Commands that write registers and read counters, as packets of a compute queue."""

from __future__ import annotations

from typing import Final

from gpu.autogen.amd import pm4_gfx10
from gpu.core.errors import InvalidValue
from gpu.drivers.am.encode import pm4_fields as fields
from gpu.drivers.am.encode import pm4_packets as pm4
from gpu.drivers.am.encode.pm4 import Pm4Builder
from gpu.hcq.registers import RegisterCommand, WriteRegister

UCONFIG_BASE: Final = 0xA000
"""Where segment 1 of the graphics core's registers begins, in words (navi10_ip_offset.h)."""
_UCONFIG: Final = pm4_gfx10.VALUES["SET_UCONFIG_REG"]["START"]
_MOST: Final = 0xFFFF  # of the offsets of SET_UCONFIG_REG


def push_register(push: Pm4Builder, command: RegisterCommand) -> None:
    """Adds a write of a compute or UCONFIG register by its number, or a read of a counter.

    Raises InvalidValue for other registers.
    """
    number = command.register
    first, end = pm4.SH_REGISTERS
    is_compute = first <= number < end
    if not (is_compute or 0 <= number - _UCONFIG <= _MOST):
        raise InvalidValue(
            f"register {number:#x}: packets of compute queues reach {first:#x} to {end:#x}, and"
            f" {_UCONFIG:#x} to {_UCONFIG + _MOST:#x}"
        )
    if isinstance(command, WriteRegister):
        kind = pm4.SET_SH_REG if is_compute else pm4.SET_UCONFIG_REG
        offset = number - (first if is_compute else _UCONFIG)
        push.packet(kind, fields.RegisterStart(OFFSET=offset), command.value)
        return
    with push.once():
        push.copy_data(command.address, number, from_=fields.CopySource.COUNTER, all_64=False)

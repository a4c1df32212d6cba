"""NV_STATUS, the answers of RM and UVM; from nvstatuscodes.h of driver 580.142."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """Those that the model gives."""

    OK = 0x0
    BUSY_RETRY = 0x3
    GPU_IS_LOST = 0xF
    GPU_UUID_NOT_FOUND = 0x12
    ILLEGAL_ACTION = 0x16
    IN_USE = 0x17
    INSERT_DUPLICATE_NAME = 0x19
    INSUFFICIENT_RESOURCES = 0x1A
    INSUFFICIENT_PERMISSIONS = 0x1B
    INVALID_ADDRESS = 0x1E
    INVALID_ARGUMENT = 0x1F
    INVALID_BASE = 0x20
    INVALID_CHANNEL = 0x21
    INVALID_CLASS = 0x22
    INVALID_CLIENT = 0x23
    INVALID_DEVICE = 0x26
    INVALID_FLAGS = 0x29
    INVALID_LIMIT = 0x2E
    INVALID_OBJECT = 0x31
    INVALID_OBJECT_HANDLE = 0x33
    INVALID_OBJECT_PARENT = 0x36
    INVALID_OFFSET = 0x37
    INVALID_OWNER = 0x39
    INVALID_PARAM_STRUCT = 0x3A
    INVALID_PARAMETER = 0x3B
    INVALID_STATE = 0x40
    NO_FREE_FIFOS = 0x4F
    NO_MEMORY = 0x51
    NOT_SUPPORTED = 0x56
    OBJECT_NOT_FOUND = 0x57
    OPERATING_SYSTEM = 0x59
    OTHER_DEVICE_FOUND = 0x5A
    OUT_OF_RANGE = 0x5B
    PAGE_TABLE_NOT_AVAIL = 0x5D
    RESET_REQUIRED = 0x62
    STATE_IN_USE = 0x63
    TIMEOUT = 0x65
    UVM_ADDRESS_IN_USE = 0x68
    WARN_NOTHING_TO_DO = 0x10006


class RmError(Exception):
    """A call of RM or UVM that ends with a status; the ioctl itself succeeds.

    Attributes:
        status: what the caller finds in its argument.
        reason: for the debug channel.
    """

    def __init__(self, status: Status, reason: str):
        self.status = status
        self.reason = reason
        super().__init__(f"{status.name}: {reason}")


def check(holds: bool, status: Status, reason: str) -> None:
    """Raises RmError unless a condition holds."""
    if not holds:
        raise RmError(status, reason)

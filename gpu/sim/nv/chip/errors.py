"""What ends a channel: the numbers that its error notifier shows.

Numbers are ROBUST_CHANNEL_* of nverror.h (the kernel log's Xid). Which of 13 and 69 hardware gives
for a bad method is not in public sources; here methods and their data are 69, grids are 13.
"""

from __future__ import annotations

from typing import Final

GR_EXCEPTION: Final = 13
MMU_FAULT: Final = 31
PBDMA_ERROR: Final = 32
GR_CLASS_ERROR: Final = 69
FELL_OFF_THE_BUS: Final = 79
CONTAINED_ERROR: Final = 94
GSP_RPC_TIMEOUT: Final = 119
COPY_ERRORS: Final = (39, 40, 41, 70, 71, 72, 75, 76, 77, 85)
"""CE0 to CE9."""


class ChannelError(Exception):
    """An engine stops at something; the channel and its group are torn down.

    Attributes:
        code: for the error notifier.
        is_drivers: whether the driver did something wrong.
    """

    is_drivers = True

    def __init__(self, code: int, what: str):
        self.code = code
        super().__init__(f"Xid {code}: {what}")


class HardwareError(ChannelError):
    """What no driver is to blame for."""

    is_drivers = False


def pbdma(what: str) -> ChannelError:
    """The host's front end cannot go on: a bad entry, header or host method."""
    return ChannelError(PBDMA_ERROR, what)


def class_error(what: str) -> ChannelError:
    """A method or its data is not what the class on the subchannel takes."""
    return ChannelError(GR_CLASS_ERROR, what)


def graphics(what: str) -> ChannelError:
    """The compute engine cannot run what it was told to."""
    return ChannelError(GR_EXCEPTION, what)

"""What stops the GPU, as the kernel driver is told of it."""

from __future__ import annotations


class CpError(Exception):
    """The command processor cannot go on: a bad packet, a protected register, a bad launch.

    The interrupt CP_HW_ERROR or RBBM_HANG_DETECT brings it to the kernel, which calls both a hard
    fault (adreno_a6xx.c, `a6xx_cp_hw_err_callback`; adreno.c, `adreno_hang_int_callback`).

    Attributes:
        is_drivers: whether the driver did something wrong.
    """

    is_drivers = True


class HardwareHang(CpError):
    """The hang detector has fired, for which no driver is to blame."""

    is_drivers = False

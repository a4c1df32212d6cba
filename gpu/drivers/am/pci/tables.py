"""The kernel's register tables of blocks, each imported when a chip has that block.

A chip has eight of them, and each takes some milliseconds to import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gpu.drivers.am.graphics_core import RegisterTable, gc_11_0_0, gc_12_0_0


def _gc_11_0_3() -> RegisterTable:
    from gpu.autogen.amd.gc_11_0_3 import REGISTERS

    return REGISTERS


def _hdp_6_0_0() -> RegisterTable:
    from gpu.autogen.amd.hdp_6_0_0 import REGISTERS

    return REGISTERS


def _hdp_7_0_0() -> RegisterTable:
    from gpu.autogen.amd.hdp_7_0_0 import REGISTERS

    return REGISTERS


def _mmhub_3_0_0() -> RegisterTable:
    from gpu.autogen.amd.mmhub_3_0_0 import REGISTERS

    return REGISTERS


def _mmhub_3_0_2() -> RegisterTable:
    from gpu.autogen.amd.mmhub_3_0_2 import REGISTERS

    return REGISTERS


def _mmhub_4_1_0() -> RegisterTable:
    from gpu.autogen.amd.mmhub_4_1_0 import REGISTERS

    return REGISTERS


def _mp_13_0_0() -> RegisterTable:
    from gpu.autogen.amd.mp_13_0_0 import REGISTERS

    return REGISTERS


def _mp_14_0_2() -> RegisterTable:
    from gpu.autogen.amd.mp_14_0_2 import REGISTERS

    return REGISTERS


def _nbif_6_3_1() -> RegisterTable:
    from gpu.autogen.amd.nbif_6_3_1 import REGISTERS

    return REGISTERS


def _nbio_4_3_0() -> RegisterTable:
    from gpu.autogen.amd.nbio_4_3_0 import REGISTERS

    return REGISTERS


def _osssys_6_0_0() -> RegisterTable:
    from gpu.autogen.amd.osssys_6_0_0 import REGISTERS

    return REGISTERS


def _osssys_7_0_0() -> RegisterTable:
    from gpu.autogen.amd.osssys_7_0_0 import REGISTERS

    return REGISTERS


def _smuio_13_0_6() -> RegisterTable:
    from gpu.autogen.amd.smuio_13_0_6 import REGISTERS

    return REGISTERS


def _smuio_14_0_2() -> RegisterTable:
    from gpu.autogen.amd.smuio_14_0_2 import REGISTERS

    return REGISTERS


IMPORTS: Final[Mapping[str, Callable[[], RegisterTable]]] = {
    "gc_11_0_0": gc_11_0_0,
    "gc_12_0_0": gc_12_0_0,
    "gc_11_0_3": _gc_11_0_3,
    "hdp_6_0_0": _hdp_6_0_0,
    "hdp_7_0_0": _hdp_7_0_0,
    "mmhub_3_0_0": _mmhub_3_0_0,
    "mmhub_3_0_2": _mmhub_3_0_2,
    "mmhub_4_1_0": _mmhub_4_1_0,
    "mp_13_0_0": _mp_13_0_0,
    "mp_14_0_2": _mp_14_0_2,
    "nbif_6_3_1": _nbif_6_3_1,
    "nbio_4_3_0": _nbio_4_3_0,
    "osssys_6_0_0": _osssys_6_0_0,
    "osssys_7_0_0": _osssys_7_0_0,
    "smuio_13_0_6": _smuio_13_0_6,
    "smuio_14_0_2": _smuio_14_0_2,
}
"""What gives a table, by its name in autogen/amd."""

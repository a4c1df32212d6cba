"""Registers of graphics cores, by version: each table is large, and imported when it is wanted."""

from __future__ import annotations

from collections.abc import Mapping

RegisterTable = Mapping[str, tuple[int, int, Mapping[str, tuple[int, int]]]]
"""As in autogen/amd: name -> (base segment, offset in words, {field: (lowest bit, width)})."""


def gc_9_4_3() -> RegisterTable:
    """Of CDNA 2 and later."""
    from gpu.autogen.amd.gc_9_4_3 import REGISTERS

    return REGISTERS


def gc_10_3_0() -> RegisterTable:
    """Of RDNA 2, which drivers take for RDNA 1 too."""
    from gpu.autogen.amd.gc_10_3_0 import REGISTERS

    return REGISTERS


def gc_11_0_0() -> RegisterTable:
    """Of RDNA 3 and 3.5."""
    from gpu.autogen.amd.gc_11_0_0 import REGISTERS

    return REGISTERS


def gc_12_0_0() -> RegisterTable:
    """Of RDNA 4."""
    from gpu.autogen.amd.gc_12_0_0 import REGISTERS

    return REGISTERS

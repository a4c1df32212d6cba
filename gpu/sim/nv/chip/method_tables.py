"""Which methods each class knows: byte addresses, in hexadecimal, "first-last" in steps of 4.

From the public class headers of NVIDIA/open-gpu-doc, which are named beside each table. What is not
listed raises a class error.
"""

from __future__ import annotations

from functools import cache
from typing import Final

COMPUTE_AMPERE: Final = """
0 100-124 130-168 180-1b4 1dc-208 210-23c 244-268 270 280-288 290 298-2a8 2b0-2c0 2cc 2e4-2ec 310
318-41c 500-53c 550-574 790-794 7b0-7b4 7fc d94 da0-ddc de4 dec 1288 12a8 1330-1338 1424 1528
1550-1564 1574-157c 1698 1944 1a2c-1a3c 1b00-1b0c 25f8-25fc 2608 32f4-33ec 3400-3ffc
"""
"""AMPERE_COMPUTE_B and ADA_COMPUTE_A (clc7c0.h, clc9c0.h)."""

COMPUTE_HOPPER: Final = """
0 100-124 130-168 180-1b4 1dc-208 210-23c 244-268 280-288 298-2a4 2b0-2c0 2cc 2e4-2ec 310 318-49c
500-53c 550-574 790-794 7ac-7bc 7fc d94 da0-ddc de4 dec 1288 12a8 1330-1338 1424 1528 1550-1564
1574-157c 1698 1944 1a2c-1a3c 1b00-1b0c 25f8-25fc 2608 32f4-33ec 3400-3ffc
"""
"""HOPPER_COMPUTE_A (clcbc0.h)."""

COMPUTE_BLACKWELL: Final = """
0 100-124 130-168 180-190 1b0-1b4 1dc-210 21c-23c 244-268 280-288 298 2a0-2a4 2b0-2c0 2cc 2e4-2ec
310 318-49c 500-53c 550-570 74c 75c 790-794 7ac-7bc 7fc d94 da0-ddc de4 dec f10 ffc 1288 12a8
1330-1338 1424 1458-1464 1528 1550-1564 1574-157c 1698 1930-1938 1944 1a2c-1a3c 1b00-1b0c
25f8-25fc 2608 32f4-33ec 3400-3ffc
"""
"""BLACKWELL_COMPUTE_B (clcec0.h)."""

COPY_AMPERE: Final = """
0 100 140 21c-224 240-24c 254-264 300 400-41c 700-720 728-73c 744-750 1114
"""
"""AMPERE_DMA_COPY_B (clc7b5.h)."""

COPY_HOPPER: Final = """
0 100 140 21c-224 240-24c 254-264 300 400-41c 500 514-518 530-53c 6fc-720 728-73c 744-750 1114
"""
"""HOPPER_DMA_COPY_A (clc8b5.h)."""

COPY_BLACKWELL: Final = """
0 100 140 21c-224 240-24c 254-264 300 400-41c 500 514-518 530-53c 6fc-720 728-73c 744-750 1114
"""
"""BLACKWELL_DMA_COPY_B (clcab5.h)."""


@cache
def expand(table: str) -> frozenset[int]:
    """All method addresses of a table."""
    found: set[int] = set()
    for part in table.split():
        first, _, last = part.partition("-")
        found.update(range(int(first, 16), int(last or first, 16) + 4, 4))
    return frozenset(found)

"""docs/devices/amd.md: its table of chips is the one that the compiler goes by."""

from __future__ import annotations

import re

from docs.documents import ROOT
from gpu.compiler.ir.matrix import MATRICES
from gpu.compiler.targets.amd import CHIPS, amd_target


def operands(chip: str) -> str:
    """What matrix instructions of a chip multiply, in the table's words; fp8 is both formats."""
    dtypes = dict.fromkeys(MATRICES[name].operand for name in amd_target(chip).matrices)
    words = ["fp8" if one.is_float and one.bits == 8 else one.code for one in dtypes]
    return " ".join(dict.fromkeys(words)) or "none"


def test_chips_are_those_of_the_compiler() -> None:
    text = (ROOT / "docs/devices/amd.md").read_text().partition("<!-- table: chips -->\n")[2]
    rows = re.findall(r"^\| (gfx\w+) \| [^|]+ \| (.*) \|$", text, re.MULTILINE)
    assert [row.split(" | ") for _, row in rows] == [
        [
            str(chip.wave),
            f"{chip.vgprs}, {chip.granule}",
            f"{chip.shared >> 10} KiB",
            str(chip.units),
            operands(name),
        ]
        for name, chip in CHIPS.items()
    ]
    assert [name for name, _ in rows] == [*CHIPS]

"""Which instructions the lane engine refuses: docs/simulator/amd.md has them all, by generation."""

from __future__ import annotations

import fnmatch
import re
from collections import defaultdict
from pathlib import Path

import pytest

from gpu.sim.isa.layout import WaveLayout
from gpu.sim.isa.rdna.chip import chip_of
from gpu.sim.isa.rdna.decode import Instruction
from gpu.sim.isa.rdna.encodings import ENCODINGS
from gpu.sim.isa.rdna.formats import NULL, VGPR
from gpu.sim.isa.rdna.table import CACHE_CONTROLS, Opcode, load_table
from gpu.sim.isa.rdna.translate import Context, Layout, Untranslatable

DOCUMENT = Path(__file__).parents[3] / "docs/simulator/amd.md"
GENERATIONS = {
    "CDNA3": "gfx942",
    "CDNA4": "gfx950",
    "RDNA2": "gfx1030",
    "RDNA3": "gfx1100",
    "RDNA3.5": "gfx1151",
    "RDNA4": "gfx1201",
}
# Fields with which an instruction does what it can do here.
USUAL = {"soffset": NULL, "saddr": NULL, "ssrc0": 193, "opsel_hi": 3}
IMMEDIATES = {"s_sendmsg": 3, "s_getreg_b32": 1, "s_setreg_b32": 1, "s_setreg_imm32_b32": 1}
IMMEDIATES |= {"s_barrier_wait": 0xFFFF}


def refusal(chip: str, opcode: Opcode) -> str:
    """Why an instruction has no semantics; empty where it has."""
    form = ENCODINGS[chip].by_name["vopd" if opcode.format.startswith("vopd") else opcode.format]
    fields = dict.fromkeys(form.fields, 0) | {n: v for n, v in USUAL.items() if n in form.fields}
    scalars = {spec.field for spec in opcode.operands if spec.scalar}
    for name in form.fields:
        if name.startswith("src") and name not in scalars:
            fields[name] = VGPR
        elif name == "simm16":
            fields[name] = IMMEDIATES.get(opcode.name, 0)
    ENCODINGS[chip].adapt(opcode.name, fields)
    found = Instruction(opcode, fields, form.size, bytes(form.size), literal=0)
    if opcode.format.startswith("vopd"):
        found = Instruction(opcode, fields, form.size, bytes(form.size), 0, None, opcode)
    if "cndmask" in opcode.name and "src2" in fields:
        fields["src2"] = 106  # a mask
    if opcode.name == "ds_swizzle_b32":
        fields["offset1"] = 0x80
    lanes = chip_of(chip).wave_sizes[0]
    rows = Layout(WaveLayout(lanes), 512, 256 if chip_of(chip).has_accumulators else 0)
    context = Context(chip_of(chip).engine(lanes), rows, found, 0, 0, False)
    translate = chip_of(chip).translators.get(
        "vopdx" if opcode.format == "vopdy" else opcode.format
    )
    assert translate is not None, opcode.format
    try:
        translate(context)
    except Untranslatable as error:
        return error.message
    return ""


def refused(chip: str) -> set[str]:
    """Mnemonics of the chip that have no semantics in any of their encodings."""
    known: dict[str, list[bool]] = defaultdict(list)
    for opcode in load_table(chip).values():
        known[opcode.mnemonic].append(bool(refusal(chip, opcode)))
    return {name for name, each in known.items() if all(each)}


def listed(generation: str) -> set[str]:
    """What the document says, of this generation or of all.

    `a_{b,c}` stands for two names, `a_*` for all that begin so, controls of caches aside.
    """
    names: set[str] = set()
    every = {opcode.mnemonic for opcode in load_table(GENERATIONS[generation]).values()}
    for line in DOCUMENT.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) < 4 or (cells[1] != "all" and generation not in cells[1].split(", ")):
            continue
        for name in re.findall(r"`([a-z{]\S*)`", cells[2]):
            for pattern in expanded(name):
                alike = fnmatch.filter(every, pattern) if "*" in pattern else [pattern]
                names |= set(alike) - CACHE_CONTROLS
    return names


def expanded(name: str) -> list[str]:
    before, _, rest = name.partition("{")
    if not rest:
        return [name]
    inside, _, behind = rest.partition("}")
    return [before + word + end for word in inside.split(",") for end in expanded(behind)]


@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_document_lists_what_is_refused(generation: str) -> None:
    assert listed(generation) == refused(GENERATIONS[generation])

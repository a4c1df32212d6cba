"""Instructions as text, as Mesa's disassembler writes them."""

from __future__ import annotations

from gpu.sim.isa.ir3.decode import Instruction
from gpu.sim.isa.ir3.operands import Operand, immediate_text, register


def text_of(found: Instruction) -> str:
    """The line of an instruction (the `display` of src/freedreno/isa/*.xml in Mesa)."""
    flags = "(sy)" * found.sy + "(ss)" * found.ss + "(eq)" * found.eq + "(jp)" * found.jp
    flags += "(sat)" * found.sat
    if found.repeat:
        flags += f"(rpt{found.repeat})"
    if found.nop:
        flags += f"(nop{found.nop}) "
    flags += "(ul)" * found.ul
    head = flags + found.name + found.suffix
    tail = found.tail if found.tail is not None else _operands(found)
    return f"{head} {tail}" if tail else head


def _operands(found: Instruction) -> str:
    if found.category == 1:
        return _move(found)
    sources = [_source(found, each) for each in found.srcs]
    return ", ".join(["(ei)" * found.ei + dst.text() for dst in found.dsts] + sources)


def _source(found: Instruction, each: Operand) -> str:
    """Of three sources the sign is before all else."""
    if found.category != 3:
        return each.text()
    marks = "(neg)" * each.negated + "(r)" * each.repeats + "(last)" * each.last
    bare = each.bare()  # here Mesa also writes a distance of 0
    return marks + (bare.replace("<a0.x>", "<a0.x + 0>") if each.kind.startswith("rel") else bare)


def _move(found: Instruction) -> str:
    if found.name in ("mova", "mova1"):
        targets = ["a0.x" if found.name == "mova" else "a1.x"]
    else:
        targets = [_target(dst) for dst in found.dsts]
    sources = []
    for each in found.srcs:
        if each.kind == "imm" and found.name != "movs":
            repeats = "(r)" if each.repeats and found.name.startswith("mova") else ""
            sources.append(repeats + immediate_text(each.number, found.types[0]))
        else:
            sources.append(each.text())
    return found.rounding + ", ".join(targets + sources)


def _target(dst: Operand) -> str:
    """A destination of a move, whose distance from a0.x has no sign."""
    h = "h" * dst.half
    if dst.kind == "rel_gpr":
        return f"{h}r<a0.x + {dst.number}>" if dst.number else f"{h}r<a0.x>"
    return h + register(dst.number)

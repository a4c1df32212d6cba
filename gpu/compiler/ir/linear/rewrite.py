"""Instructions that take what their operands have become: what passes over programs share."""

from __future__ import annotations

from typing import Any

from gpu.compiler.ir.linear import Inst, Limit


class Rewrite:
    """A program being made from another one, instruction by instruction.

    Attributes:
        new: what instructions have become; those that are not in it are as they were.
    """

    def __init__(self) -> None:
        self.new: dict[Inst, Inst] = {}

    def rebuilt(self, inst: Inst) -> Inst:
        """An instruction that takes what its operands have become."""
        args = tuple(self.new.get(arg, arg) for arg in inst.args)
        attr = tuple(map(self._moved, inst.attr))
        if args != inst.args or attr != inst.attr:
            self.new[inst] = Inst(inst.op, inst.dtype, inst.lanes, args, attr)
        return self.new.get(inst, inst)

    def _moved(self, part: Any) -> Any:
        """A part of an attribute, which may name instructions."""
        if isinstance(part, Limit):
            return part._replace(value=self.new.get(part.value, part.value))
        return self.new.get(part, part) if isinstance(part, Inst) else part

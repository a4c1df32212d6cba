"""What an index of the linear IR leaves when it is divided: how accesses are aligned."""

from __future__ import annotations

from gpu.compiler.ir.linear import Inst


class Residues:
    """The remainders of scalar integers, each found once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Inst, int], int | None] = {}

    def of(self, inst: Inst, modulus: int) -> int | None:
        """What `inst` always leaves when divided, from 0; None where it differs or is not known."""
        key = inst, modulus
        if key not in self._known:
            found = self._found(inst, modulus)
            self._known[key] = None if found is None else found % modulus
        return self._known[key]

    def _found(self, inst: Inst, modulus: int) -> int | None:
        if inst.op == "const":
            return int(inst.attr[0])
        if inst.op == "loop":
            _, start, _, step = inst.attr
            return int(start) if step % modulus == 0 else None
        return self._computed(inst, modulus) if inst.op == "alu" else None

    def _computed(self, inst: Inst, modulus: int) -> int | None:
        (name,) = inst.attr
        if name not in ("add", "sub", "mul", "shl"):
            return None
        a, b = (self.of(arg, modulus) for arg in inst.args)
        if name == "mul" and 0 in (a, b):
            return 0
        if name == "shl":
            count = inst.args[1]
            factor = 1 << int(count.attr[0]) if count.op == "const" else 1
            return 0 if factor % modulus == 0 else None if a is None else a * factor
        if a is None or b is None:
            return None
        return a + b if name == "add" else a - b if name == "sub" else a * b

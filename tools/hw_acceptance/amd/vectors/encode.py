"""Machine code from the lane engine's own tables: no assembler is needed, for any of its chips."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from gpu.sim.isa.rdna.encodings import ENCODINGS
from gpu.sim.isa.rdna.table import Opcode, load_table


@dataclass(frozen=True)
class Assembler:
    """Encodes instructions of a chip by their names and fields."""

    chip: str

    def __call__(
        self, name: str, form: str = "", literal: int | None = None, **fields: int
    ) -> bytes:
        """An instruction in a format, by default its shortest; other fields are 0.

        ``literal`` is the constant behind it. Raises KeyError for a name the chip has not.
        """
        forms = _by_name(self.chip)[name]
        return self.encode(forms[form] if form else next(iter(forms.values())), fields, literal)

    def encode(
        self, opcode: Opcode, fields: Mapping[str, int], literal: int | None = None
    ) -> bytes:
        """The same of an opcode of the table."""
        layout = ENCODINGS[self.chip].by_name[opcode.format]
        code = layout.join({**fields, "op": opcode.number}).to_bytes(layout.size, "little")
        return code if literal is None else code + literal.to_bytes(4, "little")

    def dual(self, x: int, y: int, fields: Mapping[str, int], literal: int | None) -> bytes:
        """A VOPD of two numbers of opcodes."""
        layout = ENCODINGS[self.chip].by_name["vopd"]
        code = layout.join({**fields, "opx": x, "opy": y}).to_bytes(layout.size, "little")
        return code if literal is None else code + literal.to_bytes(4, "little")


@cache
def _by_name(chip: str) -> Mapping[str, Mapping[str, Opcode]]:
    found: dict[str, dict[str, Opcode]] = {}
    for opcode in load_table(chip).values():
        found.setdefault(opcode.name, {})[opcode.format] = opcode
    return found

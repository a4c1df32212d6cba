"""Lines of WGSL, and the names of values in them."""

from __future__ import annotations

from gpu.compiler.ir.linear import Inst


class Writer:
    """The body of a function while it is written.

    Attributes:
        lines: what is written.
        names: of values: variables, or expressions that are as short.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[Inst, str] = {}
        self._depth = 1
        self._counted = 0

    def line(self, text: str) -> None:
        """Adds a line."""
        self.lines.append("  " * self._depth + text)

    def open(self, text: str) -> None:
        """Opens a block."""
        self.line(f"{text} {{")
        self._depth += 1

    def close(self) -> None:
        """Closes the innermost block."""
        self._depth -= 1
        self.line("}")

    def fresh(self, letter: str = "v") -> str:
        """A name that is not used yet."""
        self._counted += 1
        return f"{letter}{self._counted}"

    def let(self, inst: Inst, text: str) -> None:
        """Names the value of an instruction."""
        self.names[inst] = name = self.fresh()
        self.line(f"let {name} = {text};")

    def args(self, inst: Inst) -> list[str]:
        """The names of an instruction's operands."""
        return [self.names[a] for a in inst.args]

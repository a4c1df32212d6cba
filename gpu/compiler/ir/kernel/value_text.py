"""Values of the kernel IR as text, numbered where they are used twice or nest deeply."""

from __future__ import annotations

from collections import Counter
from typing import Final

from gpu.compiler.ir.index import ALWAYS
from gpu.compiler.ir.kernel import Value
from gpu.compiler.ir.kernel.walk import operands_first
from gpu.compiler.ir.text import print_scalar

_PRINTED_DEPTH: Final = 6


def print_value(root: Value) -> tuple[list[str], str]:
    """Lines that give numbers to parts of a value, and the value in terms of them."""
    order = operands_first(root)
    uses = Counter(arg for value in order for arg in value.args)
    lines: list[str] = []
    text: dict[Value, str] = {}
    depth: dict[Value, int] = {}
    for value in order:
        text[value] = _expression(value, text)
        depth[value] = 1 + max((depth[a] for a in value.args), default=-1)
        shared = value.args and uses[value] > 1
        if value is not root and (shared or depth[value] >= _PRINTED_DEPTH):
            number = f"%{len(lines)}"
            lines.append(f"{number} = {text[value]}")
            text[value], depth[value] = number, 0
    return lines, text[root]


def _expression(value: Value, text: dict[Value, str]) -> str:
    args = ", ".join(text[a] for a in value.args)
    match value.kind:
        case "const":
            return f"{print_scalar(value.attr[0])}:{value.dtype.code}"
        case "index":
            return f"index({value.attr[0]})"
        case "load":
            buf, indices, mask = value.attr
            guard = "" if mask is ALWAYS else f" if {mask}"
            return f"{buf.name}[{', '.join(map(str, indices))}{guard}]"
        case "alu":
            return f"{value.attr[0]}({args})"
        case "shuffle_xor":
            distance, warp = value.attr
            return f"shuffle_xor.{distance}.{warp}({args})"
        case _:
            return f"{value.kind}.{value.dtype.code}({args})"

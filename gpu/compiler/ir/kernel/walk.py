"""The order in which the parts of a kernel's values are visited."""

from __future__ import annotations

from gpu.compiler.ir.kernel import Value


def operands_first(root: Value) -> list[Value]:
    """Every value `root` is made of, once, operands before what uses them; `root` is last."""
    order: list[Value] = []
    seen: set[Value] = set()
    stack = [(root, False)]
    while stack:
        value, expanded = stack.pop()
        if expanded:
            order.append(value)
        elif value not in seen:
            seen.add(value)
            stack.append((value, True))
            stack.extend((a, False) for a in reversed(value.args) if a not in seen)
    return order

"""What the compiler must know of the machine it compiles for."""

from __future__ import annotations

from dataclasses import dataclass

from gpu.compiler.lower.legalize import Native


@dataclass(frozen=True)
class Target:
    """A machine, as scheduling and lowering see it. Renderers give one; its repr is part of keys.

    Attributes:
        name: for messages, as in ``x86_64``.
        native: operations and dtypes the renderer prints directly.
        parallel: kind of the loop that spreads over the machine: `worker` or `grid`.
        workers: how many run at once; 1 means that splitting across them gains nothing.
        vector_bytes: width of a vector register, 0 where lanes do not exist.
        registers: vector registers a kernel may hold live.
        features: instruction set features in canonical order, for cache keys.
    """

    name: str
    native: Native
    parallel: str
    workers: int = 1
    vector_bytes: int = 0
    registers: int = 0
    features: str = ""

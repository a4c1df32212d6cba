"""Lanes of kernels that write images: the four elements of a pixel."""

from __future__ import annotations

from collections.abc import Iterator

from gpu.compiler.ir import kernel as K
from gpu.compiler.opt.analysis.loop_nest import leaves
from gpu.compiler.opt.opts import Bind, Opt


def writes_image(kernel: K.Kernel) -> bool:
    """Whether an output of the kernel is an image."""
    return any(leaf.update.buf.image for leaf in leaves(kernel.body))


def pixel_lanes(kernel: K.Kernel) -> Iterator[Opt]:
    """The innermost loop over an image, which counts the elements of a pixel, becomes lanes."""
    innermost = {leaf.loops[-1].var.name for leaf in leaves(kernel.body) if leaf.update.buf.image}
    for name in sorted(innermost):
        yield Bind(name, "vector")

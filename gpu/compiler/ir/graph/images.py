"""Images in graphs: values that lie in memory as pictures.

Nodes of an `ImageDType` are memory (`buffer`), what is written there (`cast`, of shape (height,
width, 4), an output of its own), and either under another shape (`reshape`). Everything else reads
them first: the cast of an image to float32.
"""

from __future__ import annotations

from typing import Final

from gpu.compiler.ir.dims import has_symbols
from gpu.compiler.ir.graph import make
from gpu.compiler.ir.graph.node import Node
from gpu.core.dtype import ImageDType, dtypes
from gpu.core.errors import ShapeError

CHANNELS: Final = 4
"""Elements of a pixel."""


def plain(x: Node) -> Node:
    """`x` to be computed with: an image is read as float32."""
    if not x.dtype.is_image:
        return x
    return make("cast", (x,), (), x.shape, x.dtype.element, x.device)


def is_written_image(node: Node) -> bool:
    """Whether `node` is an image that is made of other values."""
    return node.kind == "cast" and node.dtype.is_image


def as_image(x: Node, image: ImageDType) -> Node:
    """`x`, float32 or of what the image is made of, as an image of the same shape.

    Raises ShapeError where it has not as many elements.
    """
    if has_symbols(x.shape) or x.size != image.size:
        raise ShapeError(
            f"an image of {image.height} x {image.width} pixels has {image.size} elements, and a"
            f" value of shape {list(x.shape)} has {x.size}"
        )
    pixels = (image.height, image.width, CHANNELS)
    flat = _reshaped(x, pixels)
    written = make("cast", (flat,), (), pixels, image, x.device)
    return _reshaped(written, x.shape)


def rounded(x: Node, image: ImageDType) -> Node:
    """float32 `x` as an image holds it, in float32."""
    if image.stored is dtypes.float32:
        return x
    half = make("cast", (x,), (), x.shape, dtypes.float16, x.device)
    return make("cast", (half,), (), x.shape, dtypes.float32, x.device)


def _reshaped(x: Node, shape: tuple[int, ...]) -> Node:
    return x if x.shape == shape else make("reshape", (x,), (), shape, x.dtype, x.device)

"""Values in images: what must be in memory for that, and operands that are put there (`IMAGE=1`).

The operands of products that are summed, as in convolutions and matrix products, are read as
images where the target has some and they fit. One that is in memory already is read as an image in
its place: the runtime sees to that. Another one is written as an image instead of as plain memory.
Nothing is rounded: float32 becomes float images and float16 half images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from gpu.compiler.ir.dims import has_symbols
from gpu.compiler.ir.graph import MOVEMENT, NO_SOURCES, Node, make
from gpu.compiler.ir.graph.images import CHANNELS, as_image, is_written_image, plain
from gpu.compiler.ir.graph.rewrite import rewrite
from gpu.compiler.targets import ImageLimits, Target
from gpu.core.dtype import ImageDType, dtypes

# Kinds that stand between an operand and the memory it lies in.
_CHAIN: Final = MOVEMENT | {"cast", "detach"}


class Images(NamedTuple):
    """A graph whose operands are images.

    Attributes:
        roots: the graph's.
        views: nodes that are leaves read as images, with those.
    """

    roots: list[Node]
    views: Mapping[Node, Node]


def read_as_images(
    roots: Sequence[Node], is_leaf: Callable[[Node], bool], target_of: Callable[[str], Target]
) -> Images:
    """The graph with the operands of sums of products in images, where the device has them."""
    views: dict[Node, Node] = {}

    def change(node: Node) -> Node | None:
        limits = target_of(node.device).images if _is_contraction(node) else None
        if limits is None:
            return None
        product = node.src[0]
        operands = tuple(_through_image(x, limits, is_leaf, views) for x in product.src)
        if operands == product.src:
            return None
        new = make("alu", operands, product.attr, product.shape, product.dtype, product.device)
        return make("reduce", (new,), node.attr, node.shape, node.dtype, node.device)

    return Images(rewrite(roots, is_leaf, change), views)


def _is_contraction(node: Node) -> bool:
    """Whether `node` sums products of which an operand is repeated."""
    if node.kind != "reduce" or node.attr[0] != "add" or node.dtype is not dtypes.float32:
        return False
    product = node.src[0]
    if product.kind != "alu" or product.attr[0] != "mul":
        return False
    return any(_base(x, lambda node: False).size < x.size for x in product.src)


def _base(x: Node, is_leaf: Callable[[Node], bool]) -> Node:
    """The node whose elements `x` shows, moved and perhaps repeated or converted."""
    while x.kind in _CHAIN and not is_leaf(x) and not x.dtype.is_image:
        x = x.src[0]
    return x


def _through_image(
    x: Node, limits: ImageLimits, is_leaf: Callable[[Node], bool], views: dict[Node, Node]
) -> Node:
    """`x` made of an image of its base; `x` itself where that cannot be one."""
    base = _base(x, is_leaf)
    image = _image_for(base, limits) if base.kind not in NO_SOURCES else None
    if image is None:
        return x
    stored = as_image(base, image)
    if is_leaf(base):
        written = stored.src[0] if stored.kind == "reshape" else stored
        views[written] = base
    return _moved(x, base, plain(stored))


def _moved(x: Node, base: Node, read: Node) -> Node:
    """`x`, which shows `base`, made of `read`: the same elements in float32."""
    chain = []
    while x is not base:
        chain.append(x)
        x = x.src[0]
    for node in reversed(chain):
        if node.kind != "cast":
            read = make(node.kind, (read,), node.attr, node.shape, read.dtype, node.device)
    return read


def _image_for(base: Node, limits: ImageLimits) -> ImageDType | None:
    """The image that `base` can be.

    Of the widths there are one is chosen that lets it be read in place, next that of its matrix.
    """
    make_image = {dtypes.float32: dtypes.imagef, dtypes.float16: dtypes.imageh}.get(base.dtype)
    if make_image is None or has_symbols(base.shape) or not base.size or base.size % CHANNELS:
        return None
    pixels = base.size // CHANNELS
    row = base.shape[-1] // CHANNELS if base.shape[-1] % CHANNELS == 0 else 0
    widths = [
        width
        for width in range(1, min(pixels, limits.width) + 1)
        if pixels % width == 0 and pixels // width <= limits.height
    ]
    if not widths:
        return None
    pitch = max(limits.pitch, 1)
    width = max(widths, key=lambda width: (width % pitch == 0, width == row, width))
    return make_image((pixels // width, width))


def reductions_inline(image: Node, in_memory: Callable[[Node], bool]) -> set[Node]:
    """The reductions that the kernel of a written image would hold.

    They have to be kernels of their own: images are written by whole pixels.
    """
    assert is_written_image(image)
    found: set[Node] = set()
    seen: set[Node] = set()
    waiting = list(image.src)
    while waiting:
        node = waiting.pop()
        if node in seen or in_memory(node):
            continue
        seen.add(node)
        if node.kind == "reduce":
            found.add(node)
        else:
            waiting += node.src
    return found

"""The passes from a graph to linear IR, in order, for the targets of any machines.

What runs, what is explained and what is compiled for a machine that is not here all go through
`plan_graph` and `lower_kernel`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from gpu.compiler.fusion.hoist import hoist_factors
from gpu.compiler.fusion.images import read_as_images
from gpu.compiler.fusion.inplace import find_stores
from gpu.compiler.fusion.narrow_sums import narrow_sums
from gpu.compiler.fusion.placement import plan_fusion
from gpu.compiler.fusion.plan import Plan
from gpu.compiler.fusion.results import without_copies
from gpu.compiler.fusion.split_reduce import split_reductions
from gpu.compiler.fusion.transforms import expand_transforms
from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.graph import Node, toposort
from gpu.compiler.ir.graph import verify as verify_graph
from gpu.compiler.ir.graph.build import buffer, contiguous
from gpu.compiler.ir.graph.rewrite import without_custom_grads
from gpu.compiler.ir.graph.userkernel import Source, UserKernel
from gpu.compiler.ir.kernel.text import parse_kernel
from gpu.compiler.ir.linear import Program as LinearProgram
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.opts import Opt, apply
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.targets import ImageLimits, Target
from gpu.core.config import config
from gpu.core.dtype import ImageDType
from gpu.core.errors import Unsupported
from gpu.core.log import get_logger
from gpu.runtime.origins import copy_origin, name_origins
from gpu.runtime.stages import stage

log = get_logger(__name__)

# The target of the device that nodes name.
TargetOf: TypeAlias = Callable[[str], Target]


class Planned(NamedTuple):
    """A graph as it is computed.

    Attributes:
        roots: the same values, perhaps computed in another way; of complex ones the pairs.
        plan: where each node is computed.
        views: nodes that are leaves read in another way, as images or as the parts of complex
            numbers, with those; the plan has them as leaves.
    """

    roots: Sequence[Node]
    plan: Plan
    views: Mapping[Node, Node]


def plan_graph(
    roots: Sequence[Node], is_leaf: Callable[[Node], bool], target_of: TargetOf
) -> Planned:
    """Says where each node that `roots` need is computed; verified first where VERIFY is set.

    Raises Unsupported for a dtype that a device would compute on and does not have, and for what
    has no rule for complex numbers.
    """
    if config.VERIFY:
        verify_graph(roots)
    has_complex = check_dtypes(roots, is_leaf, target_of)
    roots = without_custom_grads(roots, is_leaf)
    parts: Mapping[Node, Node] = {}
    if has_complex:
        roots, parts = without_complex(roots, is_leaf)
    pictures: Mapping[Node, Node] = {}
    if config.IMAGE:
        roots, pictures = read_as_images(roots, lambda n: is_leaf(n) or n in parts, target_of)
    views = {**parts, **pictures}

    def in_memory(node: Node) -> bool:
        return is_leaf(node) or node in views

    roots = expand_transforms(roots, in_memory)
    roots = hoist_factors(roots, in_memory, lambda device: target_of(device).has_blocks)
    roots = narrow_sums(split_reductions(roots, in_memory, target_of), in_memory)
    roots = without_copies(roots, in_memory)
    # Memory that is also read as an image stays as it is: nobody knows when it is read last.
    viewed = set(pictures.values())
    stores = find_stores(roots, in_memory)
    stores = {node: store for node, store in stores.items() if store.leaf not in viewed}
    plan = plan_fusion(
        roots,
        in_memory,
        stores,
        lambda device: target_of(device).buffers,
        lambda device: target_of(device).has_blocks,
    )
    # Nor may a kernel read and write one image.
    reuses = tuple(
        (node, leaf) for node, leaf in plan.reuses if leaf not in viewed and not node.dtype.is_image
    )
    return Planned(roots, plan._replace(reuses=reuses), views)


def without_complex(
    roots: Sequence[Node], is_leaf: Callable[[Node], bool]
) -> tuple[list[Node], Mapping[Node, Node]]:
    """A graph of floats, and the leaves that are read as pairs there, by what they are read as.

    Each root is memory of its own, which pairs and the numbers they are cannot have together.
    """
    from gpu.compiler.ir.graph.complex import lower  # only now: few programs need it

    views: dict[Node, Node] = {}

    def read(leaf: Node) -> Node:
        # A buffer: what asks for the parts of a leaf may be in memory of its own besides.
        pairs = buffer(leaf, (*leaf.shape, 2), leaf.dtype.real, leaf.device)
        views[pairs] = leaf
        return pairs

    lowered = lower(roots, is_leaf, read, copy_origin)
    known: dict[Node, Node] = {}
    own: list[Node] = []
    for root, pairs in zip(roots, lowered, strict=True):
        shared = is_leaf(pairs) or pairs in views or known.setdefault(pairs, root) is not root
        own.append(contiguous(pairs, 1 + len(own)) if shared else pairs)
    return own, views


def check_dtypes(
    roots: Sequence[Node], is_leaf: Callable[[Node], bool], target_of: TargetOf
) -> bool:
    """Whether there are complex numbers in a graph.

    Raises Unsupported where a device would compute on a dtype that it does not have.
    """
    has_complex = False
    for node in toposort(roots, is_leaf):
        if is_leaf(node) or node.kind == "copy":
            continue
        target = target_of(node.device)
        if isinstance(node.dtype, ImageDType):
            check_image(node.device, node.dtype, target.images)
        for dtype in (node.dtype, *(source.dtype for source in node.src)):
            part = dtype
            if dtype.kind == "complex":
                has_complex, part = True, dtype.real
            if part in target.native.lacking:
                other = "complex64" if dtype.is_complex else "float32"
                error = Unsupported(
                    f"{node.device} has no {dtype.name}, on which {node.kind} would be computed;"
                    f" give it {other} (.cast('{other}') on another device first) or compute this"
                    " on another device, as in .to('CPU')"
                )
                name_origins(error, [node])
                raise error
    return has_complex


def check_image(device: str, image: ImageDType, limits: ImageLimits | None) -> None:
    """Raises Unsupported for an image that a device does not have."""
    if limits is None:
        raise Unsupported(
            f"{device} has no images, and {image.name} is one; keep the value in float32 or float16"
        )
    if not limits.fits(image):
        raise Unsupported(
            f"{device} has images of at most {limits.height} x {limits.width} pixels, and"
            f" {image.name} is larger; give it another height and width, or cut the value"
        )


def user_kernel(kernel: UserKernel, target: Target, device: str) -> K.Kernel | Source:
    """What runs of a user's kernel: its source in the language of `target`, else its kernel IR.

    Raises Unsupported where there is neither.
    """
    for source in kernel.sources:
        if source.language == target.language:
            return source
    if not kernel.ir:
        own = f"a source in {target.language!r}, or " if target.language else ""
        clang = ", or choose DEV=CPU:CLANG for its C" if "c" in kernel.languages.split(", ") else ""
        raise Unsupported(
            f"the kernel {kernel.name} is given in {kernel.languages} alone, which {device} does"
            f" not take as it is chosen here: give it {own}a function, which says in the kernel IR"
            f" what it computes and runs on every device{clang}"
        )
    return parse_kernel(kernel.ir)


class Lowered(NamedTuple):
    """A kernel made ready for a target: the transformations, what they made of it, and its code."""

    opts: list[Opt]
    scheduled: K.Kernel
    program: LinearProgram


def lower_kernel(kernel: K.Kernel, target: Target, chosen: Sequence[Opt] | None = None) -> Lowered:
    """A kernel as linear IR that `target` can render; verified on the way where VERIFY is set.

    Its schedule is the one `chosen`, else what the policies choose.
    """
    with stage("schedule"):
        if chosen is None:
            scheduled, opts = schedule(kernel, target, optimize=not config.NOOPT)
        else:
            scheduled, opts = apply(kernel, chosen), list(chosen)
    with stage("lower"):
        program = linearize(scheduled, target)
    if config.VERIFY:
        from gpu.compiler.ir.kernel.verify import verify_kernel
        from gpu.compiler.ir.linear.verify import verify_linear

        verify_kernel(kernel)
        verify_kernel(scheduled)
        verify_linear(program)
    return Lowered(opts, scheduled, program)

"""Compiling a graph: every pass in order, from the plan to code.

Imported by the first graph that is in no cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gpu.compiler.ir.graph import Node, toposort
from gpu.compiler.ir.graph import verify as verify_graph
from gpu.compiler.ir.linear import Program as LinearProgram
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.policy import schedule
from gpu.compiler.schedule.build import BuiltKernel, build_kernel
from gpu.compiler.schedule.fusion import plan_fusion
from gpu.compiler.schedule.images import read_as_images
from gpu.compiler.schedule.inplace import find_stores
from gpu.compiler.schedule.narrow import narrow_sums
from gpu.compiler.schedule.plan import At, Plan
from gpu.compiler.schedule.split import split_reductions
from gpu.compiler.target import ImageLimits, Target
from gpu.core.config import config
from gpu.core.dtype import ImageDType
from gpu.core.errors import GpuError, Unsupported
from gpu.core.log import get_logger
from gpu.runtime.device import Device, LaunchData
from gpu.runtime.memory import share_memory
from gpu.runtime.origins import name_origins
from gpu.runtime.schedule import Code, Key, Recipe, Slot, graph_key, graph_symbols

log = get_logger(__name__)


def compile_graph(
    roots: Sequence[Node], leaves: Sequence[Node], is_leaf: Callable[[Node], bool]
) -> Recipe:
    """Plans, lowers and compiles everything needed for `roots`.

    Raises CompileError where a toolchain fails and Unsupported for what a device cannot do.
    """
    if config.VERIFY:
        verify_graph(roots)
    check_dtypes(roots, is_leaf)
    roots, plan, views = _planned(roots, is_leaf)
    slot_of = {leaf: i for i, leaf in enumerate(leaves)}
    slot_of.update((view, slot_of[leaf]) for view, leaf in views.items())
    kernels = _Kernels(plan)
    position = {symbol.name: i for i, symbol in enumerate(graph_symbols(roots, plan.is_leaf))}
    vals: list[tuple[int, ...]] = []
    slots: list[Slot] = []
    steps: list[tuple[int, tuple[int, ...]]] = []
    for number, made in enumerate(plan.kernels):
        for root in made:
            if root in plan.stores:
                slot_of[root] = slot_of[plan.stores[root].leaf]
                continue
            slot_of[root] = len(leaves) + len(slots)
            slots.append(Slot(root.device, root.size, root.dtype))
        if made[0].kind == "copy":
            steps.append((-1, (slot_of[made[0].src[0]], slot_of[made[0]])))
            vals.append(())
        else:
            try:
                job, params, names = kernels.job(number)
            except GpuError as error:
                name_origins(error, made)
                raise
            steps.append((job, tuple(slot_of[node] for node in params)))
            vals.append(tuple(position[name] for name in names))
    codes, code_of = distinct(compile_jobs(kernels.jobs))
    log.info("compiled %d kernels, %d of them distinct", len(steps), len(codes))
    outputs = [slot_of[root] for root in roots]
    launches = tuple((code_of[job] if job >= 0 else job, used) for job, used in steps)
    taken = tuple(vals) if position else ()
    writes = tuple(dict.fromkeys(slot_of[store.leaf] for store in plan.stores.values()))
    reuses = tuple(
        (slot_of[node], slot_of[leaf])
        for node, leaf in plan.reuses
        if slot_of[node] in outputs
        and slot_of[leaf] not in writes
        and Device[node.device].may_alias
    )
    changed = {*writes, *(slot for slot, _ in reuses)}
    is_changing = [any(slot_of[node] in changed for node in made) for made in plan.kernels]
    first = is_changing.index(True) if changed else len(steps)
    recipe = Recipe(codes, tuple(slots), launches, tuple(outputs), taken, writes, reuses, first)
    return share_memory(recipe, len(leaves))


class _Planned(NamedTuple):
    """A graph as it is computed.

    Attributes:
        roots: the same values, perhaps computed in another way.
        plan: where each node is computed.
        views: nodes that are leaves read as images, with those; the plan has them as leaves.
    """

    roots: Sequence[Node]
    plan: Plan
    views: Mapping[Node, Node]


def _planned(roots: Sequence[Node], is_leaf: Callable[[Node], bool]) -> _Planned:
    views: Mapping[Node, Node] = {}
    if config.IMAGE:
        roots, views = read_as_images(roots, is_leaf, _target_of)

    def in_memory(node: Node) -> bool:
        return is_leaf(node) or node in views

    roots = narrow_sums(split_reductions(roots, in_memory, _target_of), in_memory)
    # Memory that is also read as an image stays as it is: nobody knows when it is read last.
    viewed = set(views.values())
    stores = find_stores(roots, in_memory)
    stores = {node: store for node, store in stores.items() if store.leaf not in viewed}
    plan = plan_fusion(roots, in_memory, stores, _most_buffers)
    # Nor may a kernel read and write one image.
    reuses = tuple(
        (node, leaf) for node, leaf in plan.reuses if leaf not in viewed and not node.dtype.is_image
    )
    return _Planned(roots, plan._replace(reuses=reuses), views)


def _target_of(device: str) -> Target:
    return Device[device].renderer.target


def _most_buffers(device: str) -> int:
    return _target_of(device).buffers


def check_dtypes(roots: Sequence[Node], is_leaf: Callable[[Node], bool]) -> None:
    """Raises Unsupported where a device would compute on a dtype that it does not have."""
    for node in toposort(roots, is_leaf):
        if is_leaf(node) or node.kind == "copy":
            continue
        lacking = _target_of(node.device).native.lacking
        if isinstance(node.dtype, ImageDType):
            check_image(node.device, node.dtype, _target_of(node.device).images)
        for dtype in (node.dtype, *(source.dtype for source in node.src)):
            if dtype in lacking:
                error = Unsupported(
                    f"{node.device} has no {dtype.name}, on which {node.kind} would be computed;"
                    " give it float32 (.cast('float32') on another device first) or compute this"
                    " on another device, as in .to('CPU')"
                )
                name_origins(error, [node])
                raise error


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


class _Kernels:
    """The kernels of a plan, of which those of one form (a transformer's layers) are made once.

    Attributes:
        jobs: what is to be compiled.
    """

    def __init__(self, plan: Plan):
        self.plan = plan
        self.jobs: list[Job] = []
        # For the form of a kernel its job, which nodes of the form its parameters are, and the
        # names of the values it takes.
        self._known: dict[Key, tuple[int, tuple[int, ...], tuple[str, ...]]] = {}

    def job(self, number: int) -> tuple[int, list[Node], tuple[str, ...]]:
        """The job of a kernel, by its place in `jobs`, the nodes of its parameters, and the names
        of the values it takes.
        """
        roots = self.plan.kernels[number]
        form, nodes = self._form(roots)
        if form not in self._known:
            built = build_kernel("kernel", number, self.plan)
            place = {node: i for i, node in enumerate(nodes)}
            names = tuple(val.name for val in built.kernel.vals)
            used = tuple(place[node] for node in built.params)
            self._known[form] = len(self.jobs), used, names
            self.jobs.append(prepare_kernel(built, roots[0].device))
        job, params, names = self._known[form]
        return job, [nodes[i] for i in params], names

    def _form(self, roots: Sequence[Node]) -> tuple[Key, list[Node]]:
        """What a kernel is made of, with its buffers numbered, and its nodes in that order."""

        inside = {*roots, *self._behind_store(roots[0])}

        def is_outside(node: Node) -> bool:
            return node not in inside and self.plan.is_read(node)

        key, _ = graph_key(roots, is_outside)
        nodes = toposort(roots, is_outside)
        places = [self.plan.placement.get(node) for node in nodes]
        depths = tuple((p.depth, p.space) if isinstance(p, At) else None for p in places)
        return (key, depths, roots[0] in self.plan.stores), nodes

    def _behind_store(self, root: Node) -> set[Node]:
        """What leads from `root`, if it is written in place, to the write that its kernel does.

        These may be asked for as well, and then have kernels of their own.
        """
        store = self.plan.stores.get(root)
        if store is None:
            return set()
        found = {store.write}
        for node in toposort([root], lambda n: n is store.write or self.plan.is_leaf(n)):
            if not found.isdisjoint(node.src):
                found.add(node)
        return found


def lower_kernel(built: BuiltKernel, target: Target) -> LinearProgram:
    """A kernel as linear IR that `target` can render; verified on the way where VERIFY is set."""
    kernel, opts = schedule(built.kernel, target, optimize=not config.NOOPT)
    log.debug("%s: %s", kernel.name, opts)
    program = linearize(kernel, target)
    if config.VERIFY:
        from gpu.compiler.ir.kernel_verify import verify_kernel
        from gpu.compiler.ir.linear_verify import verify_linear

        verify_kernel(built.kernel)
        verify_kernel(kernel)
        verify_linear(program)
    return program


class Job(NamedTuple):
    """A kernel that is to be compiled for a device."""

    device: str
    name: str
    source: str
    data: LaunchData


def prepare_kernel(built: BuiltKernel, device_name: str) -> Job:
    """A kernel lowered and rendered for a device."""
    renderer = Device[device_name].renderer
    program = lower_kernel(built, renderer.target)
    return Job(device_name, program.name, renderer.render(program), renderer.launch_data(program))


def compile_jobs(jobs: Sequence[Job]) -> list[Code]:
    """The code of each job; all kernels of a device go to its compiler at once."""
    libs: dict[tuple[str, str], bytes] = {}
    for device in dict.fromkeys(job.device for job in jobs):
        sources = list(dict.fromkeys(job.source for job in jobs if job.device == device))
        made = Device[device].compiler.compile_many_cached(sources)
        libs.update(((device, source), lib) for source, lib in zip(sources, made, strict=True))
    return [Code(j.device, j.name, libs[j.device, j.source], j.data) for j in jobs]


def distinct(codes: Sequence[Code]) -> tuple[tuple[Code, ...], list[int]]:
    """Each different code once, and where each of `codes` is among them."""
    place: dict[Key, int] = {}
    kept: list[Code] = []
    for code in codes:
        if code.key not in place:
            place[code.key] = len(kept)
            kept.append(code)
    return tuple(kept), [place[code.key] for code in codes]

"""Compiling a graph: from `gpu/runtime/pipeline.py`'s passes to code, and to what is run.

Imported by the first graph that is in no cache.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gpu.compiler.fusion.build import BuiltKernel, build_kernel
from gpu.compiler.fusion.label import kernel_label, kernel_nodes
from gpu.compiler.fusion.plan import Plan
from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.graph import (
    Node,
    bodies_of,
    in_memory,
    symbols_of,
    toposort,
)
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.body import Body, Stack
from gpu.compiler.ir.graph.userkernel import UserKernel
from gpu.compiler.ir.kernel.work import operations as work_of
from gpu.compiler.ir.kernel.work import parameter_bytes
from gpu.compiler.opt.opts import Opt
from gpu.compiler.opt.policy.cpu.scalar import why_scalar
from gpu.compiler.toolchain.base import Compiler
from gpu.core.config import config
from gpu.core.errors import GpuError
from gpu.core.log import get_logger
from gpu.runtime.collectives import StartForm
from gpu.runtime.device import Device, LaunchData, Renderer
from gpu.runtime.hostcalls import HostForm
from gpu.runtime.iteration import LoopForm
from gpu.runtime.memory import share_memory
from gpu.runtime.origins import listed, name_origins, operations
from gpu.runtime.overlap import with_waits
from gpu.runtime.pipeline import lower_kernel, plan_graph, user_kernel
from gpu.runtime.profile import PROFILE, is_profiling
from gpu.runtime.recipe import (
    OTHER,
    TRANSFER,
    About,
    Code,
    Key,
    OtherForm,
    Recipe,
    Slot,
    graph_key,
)
from gpu.runtime.stages import stage

log = get_logger(__name__)


def compile_graph(
    roots: Sequence[Node], leaves: Sequence[Node], is_leaf: Callable[[Node], bool]
) -> Recipe:
    """Plans, lowers and compiles everything needed for `roots`.

    Raises CompileError where a toolchain fails and Unsupported for what a device cannot do.
    """
    order = toposort(roots, is_leaf)
    symbols = symbols_of(order, is_leaf)
    computed = {node: i for i, node in enumerate(order) if not is_leaf(node)}
    with stage("plan"):
        planned, plan, views = plan_graph(roots, is_leaf, lambda name: Device[name].renderer.target)
    slot_of = {leaf: i for i, leaf in enumerate(leaves)}
    slot_of.update((view, slot_of[leaf]) for view, leaf in views.items())
    kernels = Kernels(plan, lambda name: Device[name].renderer, _tuner())
    position = {symbol.name: i for i, symbol in enumerate(symbols)}
    slots, vals = list[Slot](), list[tuple[int, ...]]()
    steps: list[tuple[int, tuple[int, ...]]] = []
    abouts, fills = list[About](), list[list[int]]()
    bodies, others = bodies_of(order, is_leaf), list[OtherForm]()
    for number, made in enumerate(plan.kernels):
        for root in _filled(made):
            if root in plan.stores:
                slot_of[root] = slot_of[plan.stores[root].leaf]
            elif root.kind not in ("loop", "host"):
                slot_of[root] = len(leaves) + len(slots)
                slots.append(Slot(root.device, root.size, root.dtype))
        fills.append([slot_of[root] for root in _filled(made) if root in slot_of])
        if made[0].kind == "copy":
            steps.append((TRANSFER, (slot_of[made[0].src[0]], slot_of[made[0]])))
            vals.append(())
            abouts.append(About(kernel_label(number, plan), 0, 2 * made[0].nbytes))
        elif made[0].kind in ("loop", "host"):
            read = [slot_of[in_memory(source, plan.is_leaf)] for source in made[0].src]
            form, used, inner = _other(made, bodies, read, slot_of, len(leaves) + len(slots))
            steps.append((OTHER - len(others), used))
            others.append(form)
            slots += inner
            vals.append(())
            abouts.append(About(kernel_label(number, plan), 0, _moved(made)))
        else:
            job, params, names = kernels.job(number)
            abouts.append(kernels.jobs[job].about)
            steps.append((job, tuple(slot_of[node] for node in params)))
            vals.append(tuple(position[name] for name in names))
        abouts[-1] = abouts[-1]._replace(origin=_nearest(made[0], computed))
    with stage("compile"):
        codes, code_of = distinct(compile_jobs(kernels.jobs))
    log.info("compiled %d kernels, %d of them distinct", len(steps), len(codes))
    outputs = [slot_of[root] for root in planned]
    _hold_numbers(slots, roots, [slot - len(leaves) for slot in outputs])
    launches = tuple((code_of[job] if job >= 0 else job, used) for job, used in steps)
    writes = tuple(dict.fromkeys(slot_of[store.leaf] for store in plan.stores.values()))
    reuses = _reuses(plan, slot_of, outputs, writes)
    first = _first_change(plan, slot_of, {*writes, *(slot for slot, _ in reuses)})
    recipe = Recipe(
        *(codes, tuple(slots), launches, tuple(outputs), tuple(vals if position else ())),
        *(writes, reuses, first, tuple(abouts), tuple(others)),
    )
    return share_memory(with_waits(recipe, fills), len(leaves))


def _filled(made: Sequence[Node]) -> Sequence[Node]:
    """What a kernel of a plan fills; one of a user's all its results, asked for or not."""
    if made[0].kind != "kernel":
        return made
    return [G.result(made[0], number) for number in range(len(made[0].attr[0].outputs))]


def _hold_numbers(slots: list[Slot], roots: Sequence[Node], places: Sequence[int]) -> None:
    """Gives the slots of complex roots, which are filled as pairs, the dtype of the numbers.

    `places` says which slot each root has; negative for the memory of a leaf.
    """
    for root, place in zip(roots, places, strict=True):
        if root.dtype.is_complex and place >= 0:
            slots[place] = Slot(root.device, root.size, root.dtype)


def _reuses(
    plan: Plan, slot_of: Mapping[Node, int], outputs: Sequence[int], writes: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """The plan's as slots, of outputs that may have the memory of a leaf which is not changed."""
    return tuple(
        (slot_of[node], slot_of[leaf])
        for node, leaf in plan.reuses
        if slot_of[node] in outputs
        and slot_of[leaf] not in writes
        and Device[node.device].may_alias
    )


def _first_change(plan: Plan, slot_of: Mapping[Node, int], changed: set[int]) -> int:
    """The first kernel that changes one of the slots; how many there are if none does."""
    changes = (any(slot_of.get(node) in changed for node in made) for made in plan.kernels)
    return next((number for number, does in enumerate(changes) if does), len(plan.kernels))


def _moved(made: Sequence[Node]) -> int:
    """Bytes that a call of the host reads and gives; what a loop does its steps tell."""
    first, *results = made
    return 0 if first.kind == "loop" else sum(each.nbytes for each in (*first.src, *results))


def _other(
    made: Sequence[Node],
    bodies: Sequence[Body],
    read: Sequence[int],
    slot_of: Mapping[Node, int],
    free: int,
) -> tuple[OtherForm, tuple[int, ...], list[Slot]]:
    """A loop, as `_loop` gives it, or a call of the host, which needs no memory of its own."""
    first, *results = made
    if first.kind == "loop":
        return _loop(made, bodies, read, slot_of, free)
    kept = tuple(result.attr[0] for result in results)
    used = (*read, *(slot_of[result] for result in results))
    if first.attr[0].across is not None:
        return StartForm(first.device, first.attr[:1]), used, []
    return HostForm(first.device, first.attr[0], kept), used, []


def _loop(
    made: Sequence[Node],
    bodies: Sequence[Body],
    read: Sequence[int],
    slot_of: Mapping[Node, int],
    free: int,
) -> tuple[LoopForm, tuple[int, ...], list[Slot]]:
    """A loop that reads slots, and the results that are wanted: its form, its slots, and those of
    them from `free` on that nothing else needs. They are as `Iteration` takes them.
    """
    loop, *results = made
    body, length, reverse = loop.attr
    kept = {node.attr[0]: slot_of[node] for node in results}
    inner: list[Slot] = []

    def scratch(carry: int) -> int:
        value = body.carried[carry]
        inner.append(Slot(loop.device, value.size, value.dtype))
        return free + len(inner) - 1

    carries = range(body.carries)
    last = [kept.get(carry) for carry in carries]
    ends = [scratch(carry) if slot is None else slot for carry, slot in enumerate(last)]
    apart = [number for number in kept if number >= body.carries]
    used = (*read, *ends, *map(scratch, carries))
    form = LoopForm(bodies.index(body), length, reverse, tuple(apart))
    return form, (*used, *(kept[number] for number in apart)), inner


def _nearest(root: Node, computed: Mapping[Node, int]) -> int:
    """The place of the node that a kernel's root was made of; -1 for one that is all new."""
    waiting, seen = deque([root]), {root}
    while waiting:
        node = waiting.popleft()
        if node in computed:
            return computed[node]
        new = [source for source in node.src if source not in seen]
        seen.update(new)
        waiting.extend(new)
    return -1


# The best schedule known of a kernel, on a device; None where that is the policies'. The last
# argument is what the kernel is called for people.
Tuner = Callable[[K.Kernel, str, str], Sequence[Opt] | None]


def _tuner() -> Tuner | None:
    if not config.BEAM or config.NOOPT:
        return None
    from gpu.runtime.tune.search import best_schedule  # only now: few programs search

    return best_schedule


class Kernels:
    """The kernels of a plan, of which those of one form (a transformer's layers) are made once.

    Attributes:
        jobs: what is to be compiled.
    """

    def __init__(
        self,
        plan: Plan,
        renderer_of: Callable[[str], Renderer],
        tuner: Tuner | None = None,
    ):
        """`renderer_of` gives what prints for the device of a name, `tuner` schedules for it."""
        self.plan = plan
        self.tuner = tuner
        self.renderer_of = renderer_of
        self.jobs: list[Job] = []
        # For the form of a kernel its job, which nodes of the form its parameters are, and the
        # names of the values it takes.
        self._known: dict[Key, tuple[int, tuple[int, ...], tuple[str, ...]]] = {}

    def job(self, number: int) -> tuple[int, list[Node], tuple[str, ...]]:
        """The job of a kernel, by its place in `jobs`, the nodes of its parameters, and the names
        of the values it takes. Errors name where the kernel's nodes were made.
        """
        roots = self.plan.kernels[number]
        try:
            if roots[0].kind == "kernel":
                return self._user_job(roots[0])
            form, nodes = self._form(number)
            if form not in self._known:
                self._known[form] = self._made(number, nodes)
        except GpuError as error:
            name_origins(error, roots)
            raise
        job, params, names = self._known[form]
        return job, [nodes[i] for i in params], names

    def _user_job(self, node: Node) -> tuple[int, list[Node], tuple[str, ...]]:
        """The same of a kernel that a user wrote."""
        kernel: UserKernel = node.attr[0]
        params = [*_filled([node]), *(in_memory(source, self.plan.is_leaf) for source in node.src)]
        key = (kernel, node.device)
        if key not in self._known:
            renderer = self.renderer_of(node.device)
            self.jobs.append(_user_job(kernel, node, renderer, self.tuner))
            self._known[key] = (len(self.jobs) - 1, (), ())
        return self._known[key][0], params, ()

    def _made(
        self, number: int, nodes: Sequence[Node]
    ) -> tuple[int, tuple[int, ...], tuple[str, ...]]:
        """A new job for a kernel, and what is known of its form from then on."""
        with stage("build"):
            built = build_kernel("kernel", number, self.plan)
        place = {node: i for i, node in enumerate(nodes)}
        names = tuple(val.name for val in built.kernel.vals)
        used = tuple(place[node] for node in built.params)
        device = self.plan.kernels[number][0].device
        self.jobs.append(
            _job(
                *(built, device, self.renderer_of(device), kernel_label(number, self.plan)),
                *(self._moved(built), self.tuner),
                listed(operations(kernel_nodes(number, self.plan))),
            )
        )
        return len(self.jobs) - 1, used, names

    def _moved(self, built: BuiltKernel) -> int:
        """Bytes of all parameters, of stacks only the part that is a step's of a loop."""
        moved = parameter_bytes(built.kernel)
        for node in built.params:
            leaf = self.plan.stores[node].leaf if node in self.plan.stores else node
            if leaf.kind == "buffer" and isinstance(leaf.attr[0], Stack):
                moved -= leaf.nbytes - leaf.nbytes // leaf.shape[0]
        return moved

    def _form(self, number: int) -> tuple[Key, list[Node]]:
        """What a kernel is made of, with its buffers numbered, and its nodes in that order."""
        roots = self.plan.kernels[number]
        inside = {*roots, *self._behind_store(roots[0])}

        def is_outside(node: Node) -> bool:
            return node not in inside and self.plan.is_read(node)

        key, _ = graph_key(roots, is_outside)
        nodes = toposort(roots, is_outside)
        places = tuple(self.plan.inside(node, number) for node in nodes)
        how = (places, self.plan.blocks.get(roots[0]), roots[0] in self.plan.stores)
        return (key, *how), nodes

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


class Job(NamedTuple):
    """A kernel that is to be compiled for a device.

    Attributes:
        of_user: the node whose kernel it is, where the source is a user's.
    """

    device: str
    name: str
    source: str
    data: LaunchData
    about: About
    of_user: Node | None = None


def _user_job(kernel: UserKernel, node: Node, renderer: Renderer, tuner: Tuner | None) -> Job:
    """A user's kernel for a device. Raises Unsupported where it is given in nothing that fits."""
    chosen = user_kernel(kernel, renderer.target, node.device)
    if isinstance(chosen, K.Kernel):
        built = BuiltKernel(chosen, ())
        return _job(built, node.device, renderer, kernel.name, parameter_bytes(chosen), tuner)
    from gpu.compiler.render.userkernel import PROGRAM, as_program  # only now: all languages

    text, data = as_program(kernel, chosen, renderer.target)
    about = About(kernel.name, 0, sum(each.nbytes for each in node.src), computes=kernel.name)
    return Job(node.device, PROGRAM, text, data, about, node)


def prepare_kernel(built: BuiltKernel, device_name: str) -> Job:
    """A kernel lowered and rendered for a device."""
    kernel = built.kernel
    renderer = Device[device_name].renderer
    return _job(built, device_name, renderer, kernel.name, parameter_bytes(kernel))


def _job(
    built: BuiltKernel,
    device_name: str,
    renderer: Renderer,
    label: str,
    moved: int,
    tuner: Tuner | None = None,
    computes: str = "",
) -> Job:
    chosen = tuner(built.kernel, device_name, label) if tuner else None
    opts, scheduled, program = lower_kernel(built.kernel, renderer.target, chosen)
    log.debug("%s: %s", label, opts)
    scalar = why_scalar(scheduled, renderer.target, not config.NOOPT)
    about = About(label, work_of(built.kernel.body), moved, scalar, computes=computes)
    if is_profiling():
        PROFILE.note_schedule(device_name, label, built.kernel, opts, renderer.target)
    with stage("render"):
        source, data = renderer.render(program), renderer.launch_data(program)
    return Job(device_name, program.name, source, data, about)


def compile_jobs(
    jobs: Sequence[Job], compiler_of: Callable[[str], Compiler] = lambda name: Device[name].compiler
) -> list[Code]:
    """The code of each job.

    All kernels of a device go to its compiler at once, but for sources of users, whose names are
    their own. Errors in such a source name the line that asked for it.
    """
    libs: dict[tuple[str, str], bytes] = {}
    for job in jobs:
        if job.of_user is not None:
            try:
                libs[job.device, job.source] = compiler_of(job.device).compile_cached(job.source)
            except GpuError as error:
                name_origins(error, [job.of_user])
                raise
    ours = [job for job in jobs if job.of_user is None]
    for device in dict.fromkeys(job.device for job in ours):
        sources = list(dict.fromkeys(job.source for job in ours if job.device == device))
        made = compiler_of(device).compile_many_cached(sources)
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

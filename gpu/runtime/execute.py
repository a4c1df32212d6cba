"""Running graphs: values of nodes become buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from gpu.compiler.ir.dims import (
    Symbol,
    TwoValues,
    any_symbols,
    plain,
    same_memory,
)
from gpu.compiler.ir.graph import Node, bodies_of, fresh_memory, toposort
from gpu.compiler.ir.graph.build import buffer, multi
from gpu.compiler.ir.graph.grid import layout_of
from gpu.core.config import config, for_settings
from gpu.core.errors import GpuError
from gpu.core.interrupts import put_off
from gpu.runtime.bindings import earlier
from gpu.runtime.buffer import Buffer, memories_of
from gpu.runtime.collectives import Exchange, StartForm
from gpu.runtime.device import Device
from gpu.runtime.dynamic import Arguments, Family, general
from gpu.runtime.hostcalls import HostForm, HostFunction
from gpu.runtime.iteration import Iteration, LoopForm
from gpu.runtime.origins import Origin, copy_origin, name_origins
from gpu.runtime.ownership import is_only_buffer, is_only_reference, only_held_by_graph
from gpu.runtime.prepared import Counters, Prepared, run_part
from gpu.runtime.profile import is_profiling, lines_of
from gpu.runtime.recent import Recent
from gpu.runtime.recipe import (
    OTHER,
    Key,
    Launch,
    Other,
    Recipe,
    Schedule,
    compile_settings,
    find_on_disk,
    graph_key,
    graph_symbols,
    keep_on_disk,
    load,
    short_key,
)
from gpu.runtime.status import any_words, known_words, note_statuses
from gpu.runtime.timeline import span
from gpu.runtime.users import note_thread, touching_alone

if TYPE_CHECKING:
    from gpu.compiler.shard.values import Sharded
    from gpu.runtime.nonfinite import Watched

Releases: TypeAlias = "Callable[[], list[Node]]"

# Kernels of compiled graphs that are kept, and as many again of those that were used before them.
# Each has mappings of its own, of which a process has few (Linux: vm.max_map_count, 65530).
KEPT_KERNELS: Final = 4096
_families: Recent[Key, Family] = Recent(KEPT_KERNELS)
_schedules: Recent[tuple[Family, Key], Schedule] = Recent(KEPT_KERNELS)
_small: Recent[Key, Small] = Recent(KEPT_KERNELS)


class Small(NamedTuple):
    """What computes small expressions that have one `short_key`, by launches alone.

    Attributes:
        schedule: what finds it among the schedules.
        order: for each of its leaves the place of that among those of the short key.
    """

    schedule: tuple[Family, Key]
    order: tuple[int, ...]


class _Settings(NamedTuple):
    """What settings say, here and now.

    Attributes:
        compiled: those that change what a graph compiles to.
        is_timed: whether kernels are timed.
        finds_nan: whether values are searched for the first NaN.
    """

    compiled: Key
    is_timed: bool
    finds_nan: bool


def forget_compiled() -> None:
    """Has every graph be compiled again, or found on disk, when it is computed next."""
    _families.clear()
    _schedules.clear()
    _small.clear()


def is_computed(node: Node) -> bool:
    """Whether the node's value is in memory."""
    if node.value is not None or node.kind == "buffer":
        return True
    return node.kind == "multi" and all(map(is_computed, node.src))


def parts_of(node: Node) -> tuple[Node, ...]:
    """Of a value in memory what each of its devices has; of one device's the node itself."""
    return (node,) if isinstance(node.device, str) else _memory_of(node).src


def _memory_of(node: Node) -> Node:
    """The `multi` node that stands for a value in memory of several devices."""
    return node.value or node


def storage(node: Node) -> Buffer:
    """The buffer of a node of one device whose value is in memory."""
    handle: Buffer = (node.value or node).attr[0]
    return handle


def is_only_storage(node: Node, buffers: Sequence[Buffer]) -> bool:
    """Whether the one buffer in `buffers`, in memory of its own, is that of `node` alone.

    One list besides `buffers` may hold it.
    """
    apart = node.kind == "buffer" or is_only_reference([node.value], 1)
    return apart and buffers[0].is_writable and is_only_buffer(buffers, 1)


def has_value(node: Node, value: Node) -> None:
    """A node, of which nothing was computed yet, has the value of a `buffer` node from now on."""
    node.value = value


def again(root: Node) -> Node | None:
    """The value of a small expression as one that was computed before, in memory of its own.

    None where `realize` has to find out what computes it. Raises what allocating raises.
    """
    settings, is_timed, finds_nan = _settings()
    if is_timed or finds_nan:
        return None
    base = root if root.kind != "reshape" else without_reshapes(root)
    found = short_key(base)
    known = None if found is None else _small.get((settings, found[0]))
    schedule = None if known is None else _schedules.get(known.schedule)
    if found is None or known is None or schedule is None:
        return None
    note_thread()
    copy_origin(root, base)
    leaves = found[1]
    slots = [storage(leaves[place]) for place in known.order]
    if any_words() and any(slot.statuses for slot in slots):
        return None
    slots += [Buffer(s.device, s.size, s.dtype) for s in schedule.slots]
    try:
        run_part(schedule.filling, slots, memories_of(slots), ())
    except GpuError as error:
        name_origins(error, [base])
        raise
    base.value = fresh_memory(slots[schedule.outputs[0]], base)
    return _view(base, root)


def realize(roots: Sequence[Node], released: Releases | None = None) -> list[Node]:
    """Computes the values of `roots`; returns a buffer node for each, of the same shape.

    A root that is another one's value under a new shape shares its memory. One that is a value
    after a write has the memory it had before, if nothing needs that value any more: `released`
    gives the nodes that the caller lets go of when it has the result, once for each reference.
    Raises what compiling and allocating raise; nothing is changed then.
    """
    if Device.has_groups and is_spread(roots):
        return _realize_spread(roots)
    bases = [without_reshapes(root) for root in roots]
    wanted = [b for b in dict.fromkeys(bases) if not is_computed(b) and b.size]
    if wanted:
        if bases != roots:
            _note_lines(bases, roots)
        statuses = known_words(wanted, is_computed, storage) if any_words() else None
        try:
            watched = _watched(wanted) if _settings().finds_nan else None
            _run(wanted, roots, bases, released)
            if statuses is not None:
                note_statuses([storage(node) for node in wanted], statuses)
            if watched is not None:
                watched.check([(node, storage(node)) for node in wanted])
        except GpuError as error:
            name_origins(error, wanted)
            raise
    return [_view(base, root) for base, root in zip(bases, roots, strict=True)]


def _watched(wanted: Sequence[Node]) -> Watched:
    """What computing `wanted` reads, for ``CHECK=nan``."""
    from gpu.runtime.nonfinite import Watched  # only now: few programs look for it

    return Watched({n: storage(n) for n in toposort(wanted, is_computed) if is_computed(n)})


def is_spread(nodes: Sequence[Node]) -> bool:
    """Whether computing `nodes` involves values on several devices."""
    return any(not isinstance(node.device, str) for node in toposort(nodes, is_computed))


def on_devices(nodes: Sequence[Node]) -> list[Sharded]:
    """What each of `nodes` is on the devices it is on, in nodes of single devices.

    Raises Unsupported for an operation along an axis that is cut, where there is no rule.
    """
    from gpu.compiler.shard.rules import lower  # only now: few programs need it

    return lower(nodes, is_computed, _memory_of, copy_origin)


def _realize_spread(roots: Sequence[Node]) -> list[Node]:
    """`realize` where some of what is computed is on several devices."""
    spread = on_devices(roots)
    parts = list(dict.fromkeys(part for each in spread for part in each.parts))
    done = dict(zip(parts, realize(parts), strict=True))
    result = []
    for root, each in zip(roots, spread, strict=True):
        own = [done[part] for part in each.parts]
        one = isinstance(root.device, str)
        layout = None if one else layout_of(root.device, each.layout)
        result.append(own[0] if one else multi(own, layout, root.shape, root.device))
        copy_origin(root, result[-1])
        if not is_computed(root):
            root.value = result[-1]
    return result


def without_reshapes(node: Node) -> Node:
    """The node whose memory, in another shape, is the value of `node`."""
    while node.kind == "reshape" and not is_computed(node):
        if any_symbols() and not same_memory(node.src[0].shape, node.shape):
            return node
        node = node.src[0]
    return node


def _view(base: Node, root: Node) -> Node:
    shown = base.value or base
    if shown.kind != "buffer":  # it has no elements
        return buffer(Buffer(root.device, 0, root.dtype), root.shape, root.dtype, root.device)
    if base is not root:
        shown = buffer(shown.attr[0], root.shape, root.dtype, root.device)
    copy_origin(root, shown)
    return shown


def _run(
    wanted: list[Node], roots: Sequence[Node], bases: list[Node], released: Releases | None
) -> None:
    """Computes `wanted`, those of `bases` that are not in memory; see `realize`."""
    try:
        prepared = prepare(wanted)
    except TwoValues:
        prepared = None  # for below: the error keeps frames, and they keep nodes
    if prepared is None:
        while (node := earlier(wanted, is_computed)) is not None:
            realize([node])
        realize(wanted)
        return
    given: list[Buffer] = [(leaf.value or leaf).attr[0] for leaf in prepared.leaves]
    if prepared.schedule.writes or prepared.schedule.reuses:
        # Who asked for what is there already keeps it.
        given_up = released() if released else []
        let_go = [node for node in given_up if not is_computed(without_reshapes(node))]
        del given_up
        known = (roots, bases, wanted, prepared.leaves, let_go, let_go)  # its list holds them too
        free = only_held_by_graph(roots, wanted, prepared.leaves, is_computed, known)
        _run_in_place(prepared, given, free, wanted)
        return
    slots = [*given, *prepared.make_slots()]
    prepared.run(slots)
    if len(wanted) == 1 and prepared.lines is None:
        _keep_small(wanted[0], prepared)
    _keep(wanted, prepared, slots)


def _keep_small(root: Node, prepared: Prepared) -> None:
    """Has `again` find what computed `root`, which is not in memory yet."""
    schedule = prepared.schedule
    is_fixed = not (prepared.values or schedule.is_shared or schedule.changing.steps)
    if is_fixed and (found := short_key(root)) is not None:
        (form, numbers), (key, leaves) = prepared.key, found
        settings = compile_settings()
        if (family := _families.get((form, settings))) is not None:
            order = tuple(map(leaves.index, prepared.leaves))
            _small.keep((settings, key), Small((family, numbers), order))


def _note_lines(bases: Sequence[Node], roots: Sequence[Node]) -> None:
    """Has what is computed told to be for the line of the tensor's node, where that is another.

    Apart from `realize`, whose own names must hold no node when it asks who else does.
    """
    for base, root in zip(bases, roots, strict=True):
        if base is not root:
            copy_origin(root, base)


def _keep(roots: Sequence[Node], prepared: Prepared, slots: Sequence[Buffer]) -> None:
    for root, slot in zip(roots, prepared.schedule.outputs, strict=True):
        root.value = fresh_memory(slots[slot], root)


def _run_in_place(
    prepared: Prepared, given: list[Buffer], free: set[Node], roots: Sequence[Node]
) -> None:
    """Runs a graph that changes memory of leaves: those in `free`, or copies of the others."""

    def may_change(slot: int) -> bool:
        leaf = prepared.leaves[slot]
        return leaf in free and is_only_storage(leaf, given[slot : slot + 1])

    schedule = prepared.schedule
    for slot in schedule.writes:
        if not may_change(slot):
            given[slot] = given[slot].duplicate()
    with touching_alone() as alone, put_off(at_once=False) as begin:
        reused = schedule.reused(may_change) if alone else {}
        slots = [*given, *prepared.make_slots()]
        prepared.run_in_place(slots, reused, before_changes=begin)
        _keep(roots, prepared, slots)


@for_settings
def _settings() -> _Settings:
    return _Settings(compile_settings(), is_profiling(), "nan" in config.CHECK)


def prepare(roots: list[Node]) -> Prepared:
    """Finds or compiles what computes `roots`, none of which may be in memory already.

    Raises InvalidValue where a symbolic size has two ranges or two values.
    """
    symbols = graph_symbols(roots, is_computed)
    key, leaves = graph_key(roots, is_computed)
    form, numbers = key
    settings, is_timed, _ = _settings()
    named = (form, settings)
    family = _families.get(named)
    if family is None:
        family = Family(numbers)
        _families.keep(named, family)
    schedule, arguments = _schedules.get((family, numbers)), None
    if schedule is None and numbers != family.first:
        arguments = family.arguments(numbers, roots, is_computed)
        if arguments is not None:
            schedule = _general(family, arguments, roots, leaves, symbols)
    if schedule is None:
        schedule = _find_or_compile(key, roots, leaves)
        _schedules.keep((family, numbers), schedule, schedule.weight)
    values: tuple[Symbol | int, ...] = (
        symbols if arguments is None else (*symbols, *arguments.words)
    )
    lines = _lines(schedule, arguments, roots, symbols) if is_timed else None
    return Prepared(key, leaves, schedule, values, lines)


def _general(
    family: Family,
    arguments: Arguments,
    roots: list[Node],
    leaves: list[Node],
    symbols: tuple[Symbol, ...],
) -> Schedule:
    """What computes `roots`, and all of the family that have the same pattern."""
    schedule = _schedules.get((family, arguments.pattern))
    if schedule is None:
        roots = _with_arguments(roots, arguments, symbols)
        key, _ = graph_key(roots, is_computed)
        schedule = _find_or_compile(plain(key), roots, leaves)
        _schedules.keep((family, arguments.pattern), schedule, schedule.weight)
    return schedule


def _lines(
    schedule: Schedule,
    arguments: Arguments | None,
    roots: list[Node],
    symbols: tuple[Symbol, ...],
) -> tuple[str, ...]:
    """The lines that the steps of a schedule are for, of the user who asks for `roots` now."""
    if arguments is not None:
        roots = _with_arguments(roots, arguments, symbols)
    return lines_of(schedule.abouts, toposort(roots, is_computed))


def _with_arguments(
    roots: list[Node], arguments: Arguments, symbols: tuple[Symbol, ...]
) -> list[Node]:
    """The graph of `roots` that takes arguments, for the same lines of the user."""
    new = general(roots, is_computed, arguments, symbols)
    for old, own in new.items():
        copy_origin(old, own)
    return [new[root] for root in roots]


def _find_or_compile(key: Key, roots: list[Node], leaves: list[Node]) -> Schedule:
    with span("schedule"):
        return _scheduled(key, roots, leaves)


def _scheduled(key: Key, roots: list[Node], leaves: list[Node]) -> Schedule:
    devices = sorted({node.device for node in (*roots, *leaves)})
    with span("find in the disk cache"):
        recipe = find_on_disk(key, devices)
    if recipe is None:
        for device in {root.device for root in roots if root.kind != "copy"}:
            Device[device].compiler.prepare()  # while the passes run
        # Only now: a process that finds everything it needs on disk never imports the compiler.
        from gpu.runtime.compile import compile_graph

        recipe = compile_graph(roots, leaves, is_computed)
        keep_on_disk(key, devices, recipe)
        Counters.compiled += 1
        Counters.kernels += len(recipe.codes)
    schedule = load(recipe, len(leaves), _others(recipe, roots) if recipe.others else ())
    origin = Origin(roots, is_computed)
    for step in (*schedule.filling.steps, *schedule.changing.steps):
        if isinstance(step, Launch):
            step.program.origin = step.program.origin or origin
    return schedule


def _others(recipe: Recipe, roots: list[Node]) -> list[Other]:
    """What runs the loops of a compiled graph, its calls of the host and its collectives."""
    bodies = bodies_of(roots, is_computed)
    lines = lines_of(recipe.abouts, toposort(roots, is_computed))
    steps = zip(recipe.steps, lines, strict=True)
    line_of = {OTHER - kernel: line for (kernel, _), line in steps}
    exchanges: dict[int, Exchange] = {}
    found: list[Other] = []
    for number, form in enumerate(recipe.others):
        if isinstance(form, LoopForm):
            found.append(Iteration(bodies[form.body], form, prepare))
        elif isinstance(form, HostForm):
            found.append(HostFunction(form, line_of[number]))
        elif isinstance(form, StartForm):
            exchanges[number] = Exchange(form)
            found.append(exchanges[number])
        else:
            found.append(exchanges[form.start])
    return found

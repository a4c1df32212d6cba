"""Compiled graphs as data: what to run, on which memory, and how to find it again.

`graph_key` numbers a graph's buffers by first use, so that two graphs that differ in nothing but
their buffers, or the values of symbolic sizes, share one schedule. Schedules are kept in memory,
and on disk as plain data: a process that has been run before compiles nothing and loads no
compiler.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from gpu.compiler.ir.dims import Symbol, any_symbols, has_symbols, plain
from gpu.compiler.ir.graph import Node, symbols_of, toposort
from gpu.compiler.ir.graph.body import Body
from gpu.compiler.ir.graph.hostcall import HostCall
from gpu.compiler.ir.optable import constant_key
from gpu.core.config import config, for_settings
from gpu.core.dtype import DType, dtype_named
from gpu.core.files import DiskCache, cache_dir, folder_signature
from gpu.core.log import get_logger
from gpu.runtime.collectives import Exchange, StartForm, WaitForm
from gpu.runtime.device import Device, LaunchData
from gpu.runtime.dynamic import WITH_NUMBERS, without_numbers
from gpu.runtime.hostcalls import HostForm, HostFunction
from gpu.runtime.iteration import Iteration, LoopForm
from gpu.runtime.program import Program
from gpu.runtime.stages import stage

log = get_logger(__name__)

# In the place of a kernel's number: a transfer, and the first of what is run otherwise, of which
# others count down.
TRANSFER: Final = -1
OTHER: Final = -2

Key = tuple[Any, ...]


class Code(NamedTuple):
    """A compiled kernel before it is loaded."""

    device: str
    name: str
    lib: bytes
    data: LaunchData

    @property
    def key(self) -> Key:
        """What tells it from others: kernels may have one text and be launched in two ways."""
        return (self.device, self.name, self.lib, tuple(sorted(self.data.items())))


class Slot(NamedTuple):
    """Memory a schedule fills: an output, or an intermediate value that dies with the run."""

    device: str
    size: int
    dtype: DType


class Launch(NamedTuple):
    """Runs a program on slots; `vals` says which values of the graph it takes."""

    program: Program
    slots: tuple[int, ...]
    vals: tuple[int, ...] = ()


class Transfer(NamedTuple):
    """Copies one slot to another one of the same size."""

    source: int
    target: int


class Repeat(NamedTuple):
    """Runs the steps of a loop on slots: those of what it reads, then of what it fills."""

    iteration: Iteration[Any]
    slots: tuple[int, ...]


class Call(NamedTuple):
    """Calls a function of the host on slots: those of its operands, then of its results."""

    host: HostFunction
    slots: tuple[int, ...]


class Start(NamedTuple):
    """Starts collectives on slots: of each what the rank gives, then what it gets."""

    exchange: Exchange
    slots: tuple[int, ...]


class Wait(NamedTuple):
    """Waits for the collectives that were started on the same slots."""

    exchange: Exchange
    slots: tuple[int, ...]


class About(NamedTuple):
    """What a step of a compiled graph does, for people.

    Attributes:
        label: what it computes, as `gpu/compiler/fusion/label.py` says it.
        operations: scalar operations.
        nbytes: bytes that it moves where it touches each element of its memory once.
        scalar: why it computes no vectors where it might; "" otherwise.
        origin: the node that it computes, by its place in the order of the graph; -1 if there is
            none.
        computes: the operations that are in it, after what the compiler made of them.
    """

    label: str
    operations: int
    nbytes: int
    scalar: str = ""
    origin: int = -1
    computes: str = ""


class Recipe(NamedTuple):
    """A compiled graph that is not loaded.

    Attributes:
        codes: the kernels, each once.
        slots: memory the steps fill; numbered after the graph's leaves.
        steps: in order, (kernel, slots), (-1, (source, target)) for a transfer, or
            (-2 - other, slots).
        outputs: the slot of each root.
        vals: for each step the values of the graph that its kernel takes; () where no size of the
            graph is symbolic.
        writes: leaves whose memory steps change; it is also the memory of a root.
        reuses: (slot, leaf) where the slot may be the memory of the leaf, for leaves that nothing
            needs after the run; see `Plan.reuses`.
        changes_from: the first step that changes memory of a leaf, or may.
        abouts: what each step does.
        others: the loops, the calls of functions of the host, and both steps of collectives.
    """

    codes: tuple[Code, ...]
    slots: tuple[Slot, ...]
    steps: tuple[tuple[int, tuple[int, ...]], ...]
    outputs: tuple[int, ...]
    vals: tuple[tuple[int, ...], ...] = ()
    writes: tuple[int, ...] = ()
    reuses: tuple[tuple[int, int], ...] = ()
    changes_from: int = 0
    abouts: tuple[About, ...] = ()
    others: tuple[OtherForm, ...] = ()


OtherForm: TypeAlias = "LoopForm | HostForm | StartForm | WaitForm"
Other: TypeAlias = "Iteration[Any] | HostFunction | Exchange"
Step: TypeAlias = "Launch | Transfer | Repeat | Call | Start | Wait"


class Run(NamedTuple):
    """Launches on one device in one call.

    Attributes:
        graph: runs them, given the memory of the slots that they use and the graph's values.
        slots: those slots; None for all that there are.
        launches: how many there are.
    """

    graph: Callable[[Sequence[Any], Sequence[int]], None]
    slots: tuple[int, ...] | None
    launches: int


class Part(NamedTuple):
    """Steps that run after each other.

    Attributes:
        steps: in order.
        runs: the same, with launches on one device that follow each other as one where the device
            has such a thing.
    """

    steps: tuple[Step, ...]
    runs: tuple[Step | Run, ...]


class Schedule(NamedTuple):
    """A compiled graph, ready to run: as a Recipe, with its programs loaded.

    Attributes:
        slots: memory the steps fill; numbered after the graph's leaves.
        filling: the steps before any memory changes that was there.
        outputs: the slot of each root.
        writes: leaves whose memory the other steps change, so that nothing else may need it.
        reuses: as in a Recipe.
        changing: the other steps, from the first that changes memory of a leaf, or may.
        abouts: what each step does, those of `filling` first.
        is_shared: whether there are steps that all ranks take together.
    """

    slots: tuple[Slot, ...]
    filling: Part
    outputs: tuple[int, ...]
    writes: tuple[int, ...]
    reuses: tuple[tuple[int, int], ...]
    changing: Part
    abouts: tuple[About, ...] = ()
    is_shared: bool = False

    def reused(self, may_change: Callable[[int], bool]) -> dict[int, int]:
        """Slots and the leaves whose memory they get: those that `may_change` says can be had."""
        found: dict[int, int] = {}
        for slot, leaf in self.reuses:
            if slot not in found and leaf not in found.values() and may_change(leaf):
                found[slot] = leaf
        return found

    @property
    def weight(self) -> int:
        """What keeping it costs, in kernels of a CPU."""
        steps = (*self.filling.steps, *self.changing.steps)
        kernels = sum(step.program.weight for step in steps if isinstance(step, Launch))
        return 1 + kernels + sum(s.iteration.weight for s in steps if isinstance(s, Repeat))


@for_settings
def compile_settings() -> Key:
    """The settings, here and now, that change what a graph compiles to."""
    return (config.NOOPT, config.IMAGE, config.BEAM)


def graph_symbols(roots: Sequence[Node], is_leaf: Callable[[Node], bool]) -> tuple[Symbol, ...]:
    """The symbolic sizes of a graph, in the order in which its launches take their values.

    Raises InvalidValue where one name stands for two variables, or for two values.
    """
    return symbols_of(toposort(roots, is_leaf), is_leaf) if any_symbols() else ()


def graph_key(roots: Sequence[Node], is_leaf: Callable[[Node], bool]) -> tuple[Key, list[Node]]:
    """The form of a graph with its numbers, and its leaves in order of first use.

    Graphs with equal keys compute the same function of their leaves and symbolic sizes. The form is
    the same for other numbers (`gpu/runtime/dynamic.py`).
    """
    numbers: list[Any] = []
    number: dict[Node, int] = {}
    number_of = number.__getitem__
    leaves: list[Node] = []
    parts: list[Key] = []
    for position, node in enumerate(toposort(roots, is_leaf)):
        number[node] = position
        kind = node.kind
        if kind == "buffer" or is_leaf(node):
            leaves.append(node)
            parts.append((node.shape, node.dtype, node.device))
        else:
            if kind in WITH_NUMBERS:
                attr = without_numbers(node, numbers)
            elif kind == "loop":
                attr = (_body_form(node.attr[0]), *node.attr[1:])
            elif kind in ("kernel", "host"):
                attr = node.attr[:1]  # without the rule of its gradient
            else:
                attr = () if kind in _OUTSIDE else node.attr
            sources = tuple(map(number_of, node.src))
            parts.append((kind, attr, node.shape, node.dtype, node.device, sources))
    form = tuple(parts)
    if any_symbols():
        form = plain(form)
    return ((form, tuple(map(number_of, roots))), tuple(numbers)), leaves


def short_key(root: Node) -> tuple[Key, list[Node]] | None:
    """A key of a small expression of memory on one device, and its leaves in order of first use.

    As `graph_key`, whose key is the same for more graphs: here numbers are part of the form, and
    what is shared inside counts once for each use. None for a graph that it does not know.
    """
    may_be_symbolic = any_symbols()
    nodes = [root]
    leaves: list[Node] = []
    parts: list[Any] = [root.device]
    for node in nodes:
        if may_be_symbolic and has_symbols(node.shape):
            return None
        if (node.value or node).kind == "buffer":
            if node in leaves:
                parts.append(leaves.index(node))
            else:
                leaves.append(node)
                parts += (node.shape, node.dtype)
            continue
        kind = node.kind
        if kind not in _SMALL or len(nodes) > _MOST_SMALL:
            return None
        if may_be_symbolic and has_symbols(node.attr):
            return None
        attr = constant_key(*node.attr) if kind == "const" else node.attr
        parts += (kind, attr, node.shape, node.dtype)
        nodes += node.src
    return tuple(parts), leaves


# Kinds whose number of sources follows from kind and attributes, and nodes of a small expression.
_SMALL: Final = frozenset(
    {"alu", "bitcast", "cast", "const", "expand", "permute", "reduce", "reshape", "slice"}
)
_MOST_SMALL: Final = 16


def _body_form(body: Body) -> object:
    """What bodies that compute the same have in common: their key, and where each leaf goes."""
    if body.form is None:
        key, leaves = graph_key(body.results, lambda node: node.kind == "buffer")
        used = tuple(map(body.parameters.index, leaves))
        body.form = (key, used, body.constants, body.carries, body.slices)
    return body.form


# The identity of a contiguous node changes nothing that is computed, nor does a rule of gradients.
_OUTSIDE: Final = frozenset({"contiguous", "custom_grad"})

# Loaded code, for as long as a schedule has it.
_programs: weakref.WeakValueDictionary[Key, Program] = weakref.WeakValueDictionary()


# Launches from which filling in all arguments at once is cheaper than calling one by one.
_MIN_GRAPH = 3


def load(recipe: Recipe, leaves: int, others: Sequence[Other]) -> Schedule:
    """Loads the programs of a recipe; equal code is loaded once in a process.

    `leaves` is how many slots come before the recipe's, and `others` run its others.
    """
    programs = []
    with stage("load"):
        for code in recipe.codes:
            program = _programs.get(code.key)
            if program is None:
                program = Device[code.device].runtime(code.name, code.lib, code.data)
                _programs[code.key] = program
            programs.append(program)
    vals = recipe.vals or ((),) * len(recipe.steps)
    steps: list[Step] = []
    devices: list[str] = []
    for (kernel, slots), taken in zip(recipe.steps, vals, strict=True):
        devices.append(recipe.codes[kernel].device if kernel >= 0 else "")
        if kernel >= 0:
            steps.append(Launch(programs[kernel], slots, taken))
        elif kernel == TRANSFER:
            steps.append(Transfer(*slots))
        else:
            other = others[OTHER - kernel]
            if isinstance(other, HostFunction):
                steps.append(Call(other, slots))
            elif isinstance(other, Exchange):
                is_start = isinstance(recipe.others[OTHER - kernel], StartForm)
                steps.append(Start(other, slots) if is_start else Wait(other, slots))
            else:
                steps.append(Repeat(other, slots))
    first = recipe.changes_from if recipe.writes or recipe.reuses else len(steps)
    count = leaves + len(recipe.slots)
    filling = _part(steps[:first], devices[:first], count)
    changing = _part(steps[first:], devices[first:], count)
    return Schedule(
        *(recipe.slots, filling, recipe.outputs, recipe.writes, recipe.reuses, changing),
        recipe.abouts,
        any(isinstance(other, Exchange) for other in others),
    )


def _part(steps: Sequence[Step], devices: Sequence[str], slots: int) -> Part:
    """Steps of which launches are on those of `devices`, where others have ""."""
    runs: list[Step | Run] = []
    for device, pairs in groupby(zip(devices, steps, strict=True), itemgetter(0)):
        row = [step for _, step in pairs]
        launches = [step for step in row if isinstance(step, Launch)]
        make = Device[device].graph if len(launches) >= _MIN_GRAPH else None
        if make is None:
            runs += row
            continue
        # Those of others are memory that this device does not know.
        used = sorted({slot for launch in launches for slot in launch.slots})
        place = {slot: number for number, slot in enumerate(used)}
        own = [step._replace(slots=tuple(place[slot] for slot in step.slots)) for step in launches]
        all_used = len(used) == slots
        runs.append(Run(make(own, len(used)), None if all_used else tuple(used), len(own)))
    return Part(tuple(steps), tuple(runs))


# On disk: a header as JSON, its length in front of it, then the kernels' code one after another.

_disk = DiskCache("graphs")
_LENGTH_BYTES = 4


def find_on_disk(key: Key, devices: Sequence[str]) -> Recipe | None:
    """The recipe that some process kept for this graph, compiler and machine."""
    data = _disk.get(_disk_key(key, devices))
    if data is None:
        return None
    size = int.from_bytes(data[:_LENGTH_BYTES], "little")
    header = json.loads(data[_LENGTH_BYTES : _LENGTH_BYTES + size])
    position = _LENGTH_BYTES + size
    codes = []
    for device, name, length, launch_data in header["codes"]:
        codes.append(Code(device, name, data[position : position + length], launch_data))
        position += length
    slots = tuple(Slot(device, n, dtype_named(dtype)) for device, n, dtype in header["slots"])
    steps = tuple((kernel, tuple(used)) for kernel, used in header["steps"])
    vals = tuple(tuple(taken) for taken in header["vals"])
    outputs, writes = tuple(header["outputs"]), tuple(header["writes"])
    reuses = tuple((slot, leaf) for slot, leaf in header["reuses"])
    others = tuple(_read_other(*other) for other in header["others"])
    return Recipe(
        *(tuple(codes), slots, steps, outputs, vals, writes),
        *(reuses, header["changes_from"]),
        tuple(About(*about) for about in header["abouts"]),
        others,
    )


def _other_as_data(other: OtherForm) -> tuple[str, Any]:
    match other:
        case HostForm():
            return "host", other.as_data()
        case StartForm():
            return "start", (other.device, [call.as_data() for call in other.calls])
        case WaitForm():
            return "wait", other.start
        case _:
            return "loop", other


def _read_other(kind: str, data: Any) -> OtherForm:
    match kind:
        case "host":
            return HostForm.from_data(data)
        case "start":
            return StartForm(data[0], tuple(map(HostCall.from_data, data[1])))
        case "wait":
            return WaitForm(data)
    body, length, reverse, kept = data
    return LoopForm(body, length, reverse, tuple(kept))


def keep_on_disk(key: Key, devices: Sequence[str], recipe: Recipe) -> None:
    """Keeps a recipe for other processes, if there is a cache to keep it in."""
    header = {
        "codes": [(c.device, c.name, len(c.lib), dict(c.data)) for c in recipe.codes],
        "slots": [(s.device, s.size, s.dtype.name) for s in recipe.slots],
        "steps": recipe.steps,
        "outputs": recipe.outputs,
        "vals": recipe.vals,
        "writes": recipe.writes,
        "reuses": recipe.reuses,
        "changes_from": recipe.changes_from,
        "abouts": recipe.abouts,
        "others": [_other_as_data(other) for other in recipe.others],
    }
    text = json.dumps(header).encode()
    data = b"".join(
        [len(text).to_bytes(_LENGTH_BYTES, "little"), text, *(c.lib for c in recipe.codes)]
    )
    _disk.put(_disk_key(key, devices), data)


def _disk_key(key: Key, devices: Sequence[str]) -> str:
    machines = [(d, Device[d].renderer.target.key, Device[d].compiler.key) for d in devices]
    tuned = tuned_signature() if config.BEAM else ""
    return f"{key}|{machines}|{compile_settings()}|{tuned}|{compiler_signature()}"


def tuned_file() -> Path | None:
    """The file of the best schedules known; None where there is no folder to keep it in."""
    folder = cache_dir() if config.TUNED is None else None
    return folder / "tuned.json" if folder else config.TUNED


def tuned_signature() -> str:
    """A text that changes with the file of the best schedules known; "" where there is none."""
    path = tuned_file()
    if path is None or not path.is_file():
        return ""
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns}"


@cache
def compiler_signature() -> str:
    """Names this version of the compiler's own sources."""
    return folder_signature(Path(__file__).parent.parent, ".py")


def digest(key: Key) -> str:
    """A short name for a graph's form, for logs."""
    return blake2b(repr(key).encode(), digest_size=6).hexdigest()

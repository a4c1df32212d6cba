"""What a page runs: kernels, the memory they run on, and where inputs and outputs are in it.

`Graph.description` is a page's `model.json`, and `templates/model.js` its reader. Memory is a list
of buffers, `slots`, which everything else names by number:

=========  ==========================================================================
slots      the size of each buffer in bytes
inputs     by name: dtype, shape, and the slot, -1 for what nobody reads; a whole number
           that is no tensor has a range [from, to] instead of the slot
outputs    the same; -1 for what has no elements
weights    the slot of each tensor in `weights.safetensors`
random     null, or the seed (null: the page chooses), the number of the first random
           word, how many a run takes, and [slot, offset] of each state: see
           `gpu/tensor/randomness.py:next_state`
kernels    file, entry point, which bindings are written, workgroups, the size of the
           binding that follows for spilled memory, 0 for none, and how many values are
           in the uniform buffer that follows, which is not there for 0
before     copies [from, to, bytes] that a run begins with
steps      [kernel, slots, values], in order; a value is the name of an input or a number
after      copies that a run ends with: new values of tensors that stay
stateful   whether a run depends on those before it
features   of WebGPU that kernels need
limits     of WebGPU that are needed at least
=========  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from gpu.cli.export.memory import NOWHERE, Memory
from gpu.cli.export.target import features_of
from gpu.cli.export.tracing import Traced
from gpu.compiler.ir.dims import Symbol
from gpu.compiler.ir.graph import Node
from gpu.runtime.compile import compile_graph
from gpu.runtime.execute import is_computed, without_reshapes
from gpu.runtime.recipe import Code, Recipe, graph_key, graph_symbols
from gpu.tensor.tensor import Tensor

FORMAT: Final = 1
"""Of `model.json`: another number for each change that an older reader would misunderstand."""


class Graph(NamedTuple):
    """A compiled function.

    Attributes:
        description: as above, without names and texts for people.
        sources: the WGSL of each kernel, by file name.
        weights: tensors of this process by name, each content once.
    """

    description: dict[str, Any]
    sources: dict[str, str]
    weights: dict[str, Tensor]


def compile_page(
    traced: Traced, names: Mapping[int, str], values: Mapping[str, Symbol], device: str
) -> Graph:
    """The kernels of a traced function and all that surrounds them.

    Args:
        traced: the function, as a graph on `device`.
        names: what weights shall be called, by the identity of their tensors.
        values: variables that are inputs, by name; others have the values that they have now.
        device: as `gpu/cli/export/target.py:page_device` gives it.

    Raises Unsupported for what WebGPU cannot do on every device.
    """
    wanted = [without_reshapes(n) for n in (*traced.outputs.values(), *traced.updates.values())]
    fresh = [node for node in dict.fromkeys(wanted) if not is_computed(node) and node.size]
    _, leaves = graph_key(fresh, is_computed)
    recipe = compile_graph(fresh, leaves, is_computed) if fresh else Recipe((), (), (), ())
    memory = Memory(traced, names)
    root_at = dict(zip(fresh, recipe.outputs, strict=True))
    places = _places(recipe, leaves, root_at, traced.updates, memory)

    def slot_of(node: Node) -> int:
        base = without_reshapes(node)
        if not base.size:
            return NOWHERE
        return memory.initial(base) if is_computed(base) else places[root_at[base]]

    outputs = {name: _about(node, slot_of(node)) for name, node in traced.outputs.items()}
    for leaf, value in traced.updates.items():
        memory.update(leaf, slot_of(value))
    placed = memory.inputs()
    named = _named_values(graph_symbols(fresh, is_computed), values)
    taken_by_step = recipe.vals or ((),) * len(recipe.steps)
    sources, kernels = _kernels(recipe.codes)
    description = {
        "format": FORMAT,
        "features": features_of(device),
        "stateful": memory.is_stateful,
        "limits": _limits(memory.slots, kernels, outputs),
        "inputs": {
            name: _about(node, placed.get(name, NOWHERE)) for name, node in traced.inputs.items()
        }
        | {
            name: {"dtype": "int32", "shape": [], "range": [value.lo, value.hi]}
            for name, value in values.items()
        },
        "outputs": outputs,
        "slots": memory.slots,
        "weights": memory.weight_slots,
        "random": memory.random(),
        "kernels": kernels,
        "before": memory.before,
        "steps": [
            [kernel, [places[slot] for slot in used], [named[i] for i in taken]]
            for (kernel, used), taken in zip(recipe.steps, taken_by_step, strict=True)
        ],
        "after": memory.after,
    }
    return Graph(description, sources, memory.weights)


def _places(
    recipe: Recipe,
    leaves: Sequence[Node],
    root_at: Mapping[Node, int],
    updates: Mapping[Node, Node],
    memory: Memory,
) -> list[int]:
    """The buffer of each slot of a recipe.

    Steps that write to a leaf do it in its own memory if that is what becomes of the leaf, else in
    a copy.
    """
    places = []
    for slot, leaf in enumerate(leaves):
        value = without_reshapes(updates[leaf]) if leaf in updates else leaf
        in_place = slot not in recipe.writes or root_at.get(value) == slot
        places.append(memory.slot_of(leaf) if in_place else memory.copied(leaf))
    return places + [memory.new(slot.size * slot.dtype.itemsize) for slot in recipe.slots]


def _named_values(symbols: Sequence[Symbol], inputs: Mapping[str, Symbol]) -> list[str | int]:
    """Of each variable of a graph the input that it is, or its value."""
    names = {symbol.name: name for name, symbol in inputs.items()}
    return [names.get(symbol.name, symbol.number) for symbol in symbols]


def _about(node: Node, slot: int) -> dict[str, Any]:
    return {"dtype": node.dtype.name, "shape": node.shape, "slot": slot}


def _kernels(codes: Sequence[Code]) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The files of kernels, each text once, and what is said of each kernel."""
    files: dict[str, str] = {}
    kernels = []
    for code in codes:
        text = code.lib.decode()
        file = files.setdefault(text, f"kernels/{len(files)}.wgsl")
        data = code.data
        written = [bool(data["written"] >> i & 1) for i in range(data["params"])]
        groups = [data["x"], data["y"], data["z"]]
        kernels.append(
            {"file": file, "entry": code.name, "written": written, "groups": groups}
            | {"spilled": data["spilled"], "values": data["vals"]}
        )
    return {file: text for text, file in files.items()}, kernels


def _limits(
    slots: Sequence[int], kernels: Sequence[dict[str, Any]], outputs: Mapping[str, dict[str, Any]]
) -> dict[str, int]:
    """WebGPU's names of limits, and what they have to be at least."""
    spilled = [kernel["spilled"] for kernel in kernels]
    largest = max([*slots, *spilled], default=0)
    results = sum(slots[about["slot"]] for about in outputs.values() if about["slot"] != NOWHERE)
    bindings = [len(kernel["written"]) + bool(kernel["spilled"]) for kernel in kernels]
    return {
        "maxStorageBufferBindingSize": largest,
        "maxBufferSize": max(largest, results),  # all results are read through one buffer
        "maxStorageBuffersPerShaderStage": max(bindings, default=0),
    }

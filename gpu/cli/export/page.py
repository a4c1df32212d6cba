"""From a model's file to the folder of its page."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final, NamedTuple

from gpu.cli.export.folder import new_folder
from gpu.cli.export.graph import Graph, compile_page
from gpu.cli.export.modelfile import Model
from gpu.cli.export.target import page_device
from gpu.cli.export.tracing import Traced, page_dtype, trace
from gpu.core.dtype import dtypes
from gpu.core.files import atomic_file, read_bytes
from gpu.runtime.execute import is_computed, storage
from gpu.runtime.recipe import graph_key
from gpu.tensor.formats.safetensors import safe_save
from gpu.tensor.tensor import Tensor
from gpu.tensor.tracing import JitError

_TEMPLATES: Final = Path(__file__).with_name("templates")
STATIC: Final = ("index.html", "style.css", "demo.js", "model.js", "webgpu.js")
"""Files that are the same in every page."""
GRAPH: Final = "model.json"
WEIGHTS: Final = "weights.safetensors"
EXAMPLE: Final = "example.safetensors"
KERNELS: Final = "kernels"
NAMES: Final = frozenset({*STATIC, GRAPH, WEIGHTS, EXAMPLE, KERNELS})
"""All that the folder of a page has at its top."""


class Page(NamedTuple):
    """A model ready to be written.

    Attributes:
        graph: what it runs.
        title, text: what the page says of it.
        example: inputs and, where they are the same in each first run, outputs; by names that begin
            with `inputs.` and `outputs.`.
    """

    graph: Graph
    title: str
    text: str
    example: dict[str, Tensor]


def make_page(model: Model, has_f16: bool) -> Page:
    """Captures and compiles a model, and computes what it makes of its example inputs.

    Raises JitError for a function that cannot be captured, Unsupported for what WebGPU cannot do.
    """
    device = page_device(has_f16)
    traced = trace(model.function, model.inputs, device)
    if _form(traced) != _form(trace(model.function, model.inputs, device)):
        raise JitError(
            "model did something else when it was called a second time with the same inputs: what"
            " it makes on its first call has to be there before (call it once at the end of the"
            " file), and what changes has to be an input or a Tensor that it assign()s to"
        )
    graph = compile_page(traced, model.names, model.values, device)
    example = {f"inputs.{name}": tensor for name, tensor in model.inputs.items()}
    for name, value in model.values.items():
        example[f"inputs.{name}"] = Tensor(value.number, dtype=dtypes.int32)
    random = graph.description["random"]
    if random is None or random["seed"] is not None:
        outputs = model.function(model.inputs)
        example |= {f"outputs.{name}": tensor for name, tensor in outputs.items()}
    as_arrays = {name: tensor.cast(page_dtype(tensor.dtype)) for name, tensor in example.items()}
    return Page(graph, model.title, model.text, as_arrays)


def _form(traced: Traced) -> object:
    """What must be the same each time a function is traced."""
    roots = [*traced.outputs.values(), *traced.updates.values()]
    key, nodes = graph_key(roots, is_computed)
    leaves = [traced.leaves[node] for node in nodes]
    made_inside = [
        storage(leaf.source).copy_out().tobytes()
        for leaf in leaves
        if leaf.source is not None and leaf.handle is None
    ]
    return (
        (key, list(traced.outputs), made_inside),
        [(leaf.kind, leaf.name, leaf.offset, id(leaf.handle)) for leaf in leaves],
    )


def write_page(page: Page, folder: Path) -> None:
    """Writes the folder, which must not hold anything else. Raises InvalidValue."""
    with new_folder(folder) as place:
        for name in STATIC:
            _write(place / name, read_bytes(_TEMPLATES / name))
        os.mkdir(place / KERNELS)
        for name, source in page.graph.sources.items():
            _write(place / name, source.encode())
        about = {"title": page.title, "text": page.text} | page.graph.description
        _write(place / GRAPH, _json(about).encode())
        safe_save(page.graph.weights, place / WEIGHTS)
        safe_save(page.example, place / EXAMPLE)


def _write(path: Path, data: bytes) -> None:
    with atomic_file(path) as file:
        file.write(data)


def _json(about: dict[str, Any]) -> str:
    """One line for each thing, so that people can read it."""
    lines = []
    for key, value in about.items():
        text = json.dumps(value)
        if isinstance(value, (list, dict)) and len(text) > 80:
            text = _lines(value)
        lines.append(f"  {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _lines(value: list[Any] | dict[str, Any]) -> str:
    if isinstance(value, dict):
        inner = [f"{json.dumps(key)}: {json.dumps(item)}" for key, item in value.items()]
        return "{\n    " + ",\n    ".join(inner) + "\n  }"
    return "[\n    " + ",\n    ".join(map(json.dumps, value)) + "\n  ]"

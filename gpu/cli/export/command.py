"""`gpu export`: writes a jitted function as a folder that runs without Python.

What takes long to import is imported when something is exported, not with the other commands.
"""

from __future__ import annotations

import argparse
import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpu.core.config import Context

if TYPE_CHECKING:
    from gpu.cli.export.page import Page

CONTRACT: Final = """\
MODEL is a Python file that defines two names:

  model    a function of tensors, or an object that is called as one; with @gpu.jit or
           without. It returns a tensor, or tensors in dicts, tuples and lists.
  inputs   example inputs, which fix all shapes and dtypes: a dict by the names of
           model's arguments, or a tuple in their order; of tensors or numpy arrays.
           A size or position is a variable with a value: Var("n", 0, 511).bind(3).

The file is run, and may load weights or train. Its docstring is the page's heading
and text. For instance:

  \"\"\"Sines of a hundred numbers.\"\"\"
  from gpu import Tensor

  inputs = {"angles": Tensor.linspace(0, 6, 100)}

  def model(angles):
      return {"sines": angles.sin()}

OUT is a folder that any static web server can serve: index.html shows the model and
runs it, model.js is what a page of yours imports.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what can be exported to, and the options of each."""
    formats = parser.add_subparsers(dest="format", metavar="FORMAT", required=True)
    webgpu = formats.add_parser(
        "webgpu",
        help="a web page that runs the model with WebGPU",
        description="Writes a web page that runs a model with WebGPU.",
        epilog=CONTRACT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    webgpu.add_argument("model", metavar="MODEL", type=Path, help="the file, see below")
    webgpu.add_argument("out", metavar="OUT", type=Path, help="the folder, new or empty")
    webgpu.add_argument("--force", action="store_true", help="replace an earlier export in OUT")
    webgpu.add_argument(
        "--f16",
        action="store_true",
        help="kernels for browsers with WebGPU's feature shader-f16 only, in which float16 is"
        " native; without it float16 works everywhere",
    )
    webgpu.add_argument(
        "--device", metavar="NAME", help="where MODEL itself is run, as in DEV= (default: CPU)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Exports.

    Raises InvalidValue for files and folders that do not do, JitError and Unsupported for models
    that do not.
    """
    from gpu.cli.export.folder import check_folder
    from gpu.cli.export.modelfile import load_model
    from gpu.cli.export.page import NAMES, make_page, write_page

    check_folder(arguments.out, arguments.force, NAMES)
    with Context(DEV=arguments.device) if arguments.device else nullcontext():
        page = make_page(load_model(arguments.model), arguments.f16)
    write_page(page, arguments.out)
    _report(page, arguments.out)
    return 0


def _report(page: Page, folder: Path) -> None:
    about = page.graph.description
    weights = sum(about["slots"][slot] for slot in about["weights"].values())
    rows = {
        "inputs": _named(about["inputs"]),
        "outputs": _named(about["outputs"]),
        "kernels": f"{len(about['kernels'])}, {len(about['steps'])} launches in a run",
        "memory": f"{sum(about['slots']):,} bytes, of which {weights:,} are weights",
        "written": str(folder),
        "try it": f"python3 -m http.server -d {shlex.quote(str(folder))}",
    }
    for title, text in rows.items():
        print(f"{title:<10}{text}")


def _named(tensors: dict[str, dict[str, Any]]) -> str:
    named = [f"{name} {about['dtype']}{list(about['shape'])}" for name, about in tensors.items()]
    return ", ".join(named) or "none"

"""Rewrites what the documents show of the compiler with what it makes now.

    python tools/refresh_docs.py

A block in a file of docs/ that follows a comment such as ``<!-- dump: plan -->`` is replaced by the
dump of that name; one after ``<!-- measured: effort -->`` likewise, but the tests allow measured
blocks to be a little out of date. Nothing else is touched. `tests/docs/` compares the same dumps
with the documents, and fails where this was not run after a change that shows.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import re
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

from gpu import Tensor
from gpu.backends.python.device import BLOCKS
from gpu.compiler.fusion import placement
from gpu.compiler.fusion.build import build_kernel
from gpu.compiler.fusion.placement import plan_fusion
from gpu.compiler.ir.kernel.text import print_kernel
from gpu.compiler.ir.optable import OPS
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.render.llvm.cpu import LLVMRenderer
from gpu.compiler.targets.cpu import host_target
from gpu.runtime.execute import is_computed
from gpu.runtime.explain import explain

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = tuple(sorted((ROOT / "docs").glob("*.md")))
GUIDE: Final = ROOT / "docs/add-an-accelerator.md"
BLOCK: Final = re.compile(
    r"<!-- (?P<kind>dump|measured): (?P<name>[\w ]+) -->\n```(?P<language>\w+)\n(?P<text>.*?)```",
    re.DOTALL,
)
COLUMNS: Final = 112
# One CPU whatever this machine is.
RENDERER: Final = LLVMRenderer(host_target("x86_64,avx2,fma", workers=2))


def excerpt(text: str, *spans: tuple[int, int]) -> str:
    """Parts of a text, each from one line to another, with lines in between that count the rest.

    Negative numbers count from the end, as in slices. Wide lines are cut.
    """
    lines = text.rstrip("\n").split("\n")
    wanted = [range(*slice(*span).indices(len(lines))) for span in spans]
    kept = sorted({number for numbers in wanted for number in numbers})
    result = []
    for number, before in zip([*kept, len(lines)], [-1, *kept], strict=True):
        if left_out := number - before - 1:
            result.append(f"... {left_out} lines ...")
        if number < len(lines):
            result.append(_cut(lines[number]))
    return "".join(f"{line}\n" for line in result)


def _cut(line: str) -> str:
    return line if len(line) <= COLUMNS else line[: COLUMNS - 4] + " ..."


# The expression of architecture.md.


def softmax() -> Tensor:
    """Softmax over the rows of a float32 matrix of 64 x 96."""
    return Tensor(np.zeros((64, 96), np.float32), device="CPU").softmax(1)


@cache
def stages() -> dict[str, str]:
    """Every representation of `softmax()`, by name."""
    return dict(explain([softmax()._node], is_computed, RENDERER))


def stage(name: str, *spans: tuple[int, int]) -> str:
    """A stage, or an excerpt of it."""
    return excerpt(stages()[name], *(spans or ((0, len(stages()[name])),)))


def _linear() -> str:
    """The linear program without its many constants: the first loops, and the last one."""
    lines = stages()["linear"].split("\n")
    first_loop = next(number for number, line in enumerate(lines) if " = loop " in line)
    return stage("linear", (0, 4), (first_loop, first_loop + 22), (-13, len(lines)))


def _source() -> str:
    """The source: its head, the first vectors, and the end of the function."""
    lines = stages()["source"].split("\n")
    first_vector = next(n for n, line in enumerate(lines) if " = load <" in line)
    end = lines.index("}") + 1
    return stage("source", (0, 10), (first_vector - 3, first_vector + 8), (end - 8, end))


def _launch_data() -> str:
    """What the runtime keeps beside the kernel."""
    plan = plan_fusion([softmax()._node], is_computed)
    kernel, _ = schedule(build_kernel("k0", 0, plan).kernel, RENDERER.target)
    return f"{RENDERER.launch_data(linearize(kernel, RENDERER.target))}\n"


def _blocks() -> str:
    """The same expression scheduled for a machine with small blocks of threads."""
    plan = plan_fusion([softmax()._node], is_computed)
    kernel, _ = schedule(build_kernel("k0", 0, plan).kernel, BLOCKS)
    return excerpt(print_kernel(kernel), (0, 33), (-3, None))


def _matrices() -> str:
    """A product of two float16 matrices, for the same machine."""
    a, b = (Tensor(np.zeros((128, 128), np.float16), device="CPU") for _ in range(2))
    plan = plan_fusion([(a @ b)._node], is_computed)
    kernel, _ = schedule(build_kernel("k0", 0, plan).kernel, BLOCKS)
    lines = print_kernel(kernel).split("\n")
    loop = next(number for number, line in enumerate(lines) if " serial " in line)
    last = max(number for number, line in enumerate(lines) if " mma " in line)
    return excerpt(textwrap.dedent("\n".join(lines[loop : last + 1])), (0, 24))


def _tiles() -> str:
    """A product of two bfloat16 matrices, for a CPU with tile registers."""
    a, b = (Tensor(np.zeros((128, 128)), device="CPU").cast("bfloat16") for _ in range(2))
    sources = {a._node, b._node}
    plan = plan_fusion([(a @ b)._node], lambda node: node in sources or is_computed(node))
    kernel, _ = schedule(build_kernel("k0", 0, plan).kernel, host_target("sapphirerapids", 2))
    lines = print_kernel(kernel).split("\n")
    first = next(number for number, line in enumerate(lines) if "fragment" in line)
    last = max(number for number, line in enumerate(lines) if "store_tile" in line)
    return excerpt(textwrap.dedent("\n".join(lines[first : last + 1])), (0, 40))


# The tables.


def fusion_limits() -> str:
    """The numbers that the fusion policy decides by."""
    values = {name: value for name, value in vars(placement).items() if name.isupper()}
    numbers = {name: value for name, value in values.items() if isinstance(value, int)}
    width = max(map(len, numbers))
    return "".join(f"{name:<{width}}  {value}\n" for name, value in numbers.items())


def layers() -> str:
    """Who may import whom, from the test that enforces it."""
    allowed: dict[str, tuple[str, ...]] = _module("tests/test_layers.py").ALLOWED
    existing = {name: seen for name, seen in allowed.items() if _exists(name)}
    width = max(map(len, existing))
    return "".join(
        f"{name:<{width}}  ->  {', '.join(seen) or 'nothing of ours'}\n"
        for name, seen in existing.items()
    )


def _exists(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def _module(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def operations(core: bool) -> str:
    """The names of scalar operations that every device has, or of those that can be derived."""
    names = [name for name, operation in OPS.items() if operation.core == core]
    return textwrap.fill(" ".join(names), COLUMNS, break_on_hyphens=False) + "\n"


# The device of add-an-accelerator.md.


def guide_code() -> str:
    """The Python blocks of the guide as one module, each line at the number it has there."""
    lines = []
    inside = False
    for line in GUIDE.read_text().split("\n"):
        if line.startswith("```"):
            inside = line == "```python"
            lines.append("")
        else:
            lines.append(line if inside else "")
    return "\n".join(lines)


@cache
def guide_device() -> dict[str, Any]:
    """The names that the guide's blocks define; running them registers the device TOY."""
    scope: dict[str, Any] = {"__name__": "toy"}
    exec(compile(guide_code(), str(GUIDE), "exec"), scope)
    return scope


def toy_kernel() -> str:
    """What the guide's renderer prints for the sum of the rows of a 6 x 10 matrix."""
    renderer = guide_device()["ToyRenderer"]()
    total = Tensor(np.zeros((6, 10), np.float32), device="CPU").sum(0)
    return explain([total._node], is_computed, renderer)[-1].text


def lines_of_code(source: str) -> int:
    """Lines with code on them: no blank lines, comments or docstrings."""
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    used: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (*skipped, tokenize.ENDMARKER):
            used.update(range(token.start[0], token.end[0] + 1))
    return len(used - set(_docstring_lines(ast.parse(source))))


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        described = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, described) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            yield from range(first.lineno, (first.end_lineno or first.lineno) + 1)


_CPU: Final = (
    "gpu/backends/cpu/*.py",
    "gpu/compiler/render/*.py",
    "gpu/compiler/render/launch/cpu_abi.py",
    "gpu/compiler/render/cstyle/c*.py",
    "gpu/compiler/render/cstyle/flow.py",
    "gpu/compiler/render/llvm/*.py",
    "gpu/compiler/toolchain/*.py",
)
_OTHERS: Final = ("amd", "cuda", "gpu", "mesa", "nak", "nir", "nv", "ptx")
"""What the names of modules in these folders begin with that are of other devices."""
_LOADER: Final = ("objload", "relocate", "elf", "execmem")


def effort() -> str:
    """How many lines of code each device takes."""
    found = [path for pattern in _CPU for path in sorted(ROOT.glob(pattern))]
    cpu = [path for path in found if not path.name.startswith(_OTHERS)]
    cpu += [ROOT / f"gpu/core/{name}.py" for name in _LOADER]
    rows = {
        "TOY, the blocks above": lines_of_code(guide_code()),
        "PYTHON, gpu/backends/python/device.py": lines_of_code(
            (ROOT / "gpu/backends/python/device.py").read_text()
        ),
        "CPU, two renderers, two compilers, pool, loader": sum(
            lines_of_code(path.read_text()) for path in cpu
        ),
    }
    width = max(map(len, rows))
    return "".join(f"{name:<{width}}  {count:>5}\n" for name, count in rows.items())


DUMPS: Final[dict[str, Callable[[], str]]] = {
    "graph": lambda: stage("graph"),
    "plan": lambda: stage("plan"),
    "kernel": lambda: stage("kernel"),
    "schedule": lambda: stage("schedule", (0, 12), (-4, 1000)),
    "blocks": _blocks,
    "matrices": _matrices,
    "tiles": _tiles,
    "scheduled kernel": lambda: stage("scheduled kernel", (0, 21)),
    "linear": _linear,
    "source": _source,
    "launch data": _launch_data,
    "fusion limits": fusion_limits,
    "layers": layers,
    "core operations": lambda: operations(core=True),
    "derived operations": lambda: operations(core=False),
    "toy kernel": toy_kernel,
}
MEASURED: Final[dict[str, Callable[[], str]]] = {"effort": effort}


def refreshed(text: str) -> str:
    """A document with every marked block made anew. Raises KeyError for a name nobody knows."""
    return BLOCK.sub(_refreshed_block, text)


def _refreshed_block(match: re.Match[str]) -> str:
    kind, name, language = match["kind"], match["name"], match["language"]
    made = (DUMPS if kind == "dump" else MEASURED)[name]()
    return f"<!-- {kind}: {name} -->\n```{language}\n{made}```"


def main() -> None:
    for path in DOCS:
        old = path.read_text()
        new = refreshed(old)
        if new != old:
            path.write_text(new)
        print(f"{path.relative_to(ROOT)}: {'as it was' if new == old else 'refreshed'}")


if __name__ == "__main__":
    main()

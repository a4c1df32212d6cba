"""The rules of the tree, checked on the syntax trees of all sources of the package.

Who may import whom is `ALLOWED`; the other rules say in their docstring what they forbid and where
to do it instead. What a rule forbids and the tree does for a reason stands in `EXCEPTIONS`, with
that reason. Imports inside functions and under TYPE_CHECKING count like all others.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
MAX_FILE: Final = 600  # lines
MAX_FUNCTION: Final = 60  # lines
MAX_AUTOGEN: Final = 30_000  # lines, all of it

# A package or module, and what it may import besides itself and what is not ours. The longest name
# that fits a module counts. A package that is not named here is not part of the design.
ALLOWED: Final[dict[str, tuple[str, ...]]] = {
    # gpu/__init__ alone.
    "gpu": (
        *("gpu.core", "gpu.runtime", "gpu.tensor"),
        *(
            "gpu.nn",
            "gpu.array_api",
            "gpu.dtype",
            "gpu.func",
            "gpu.linalg",
            "gpu.special",
            "gpu.signal",
        ),
    ),
    "gpu.__main__": ("gpu.cli",),
    "gpu.dtype": ("gpu.core",),
    "gpu.nn": ("gpu.tensor",),
    "gpu.array_api": ("gpu.core", "gpu.tensor"),
    "gpu.fft": ("gpu.tensor",),
    "gpu.linalg": ("gpu.core", "gpu.tensor"),
    "gpu.special": ("gpu.tensor",),
    "gpu.signal": ("gpu.tensor",),
    "gpu.func": ("gpu.tensor",),
    "gpu.data": ("gpu.core", "gpu.runtime", "gpu.compiler.ir", "gpu.tensor"),
    "gpu.core": (),
    "gpu.autogen": (),
    "gpu.transport": ("gpu.core", "gpu.autogen"),
    "gpu.hcq": ("gpu.core",),
    "gpu.drivers": ("gpu.core", "gpu.transport", "gpu.hcq", "gpu.autogen"),
    "gpu.sim": ("gpu.core", "gpu.autogen"),
    # Each room of NVIDIA's model knows those before it.
    "gpu.sim.nv.chip": ("gpu.core", "gpu.sim"),
    "gpu.sim.nv.rm": ("gpu.core", "gpu.sim"),
    "gpu.sim.nv.uvm": ("gpu.core", "gpu.sim"),
    # A library in the place of a machine: it runs PTX, and knows chips by their table alone.
    "gpu.sim.cuda": (
        *("gpu.core", "gpu.sim.isa", "gpu.sim.simulation", "gpu.sim.undisturbed", "gpu.sim.faults"),
        *("gpu.sim.nv.chip.chips", "gpu.sim.races"),
    ),
    # Another, which runs what a compiler that it is given makes.
    "gpu.sim.metal": (
        *("gpu.core", "gpu.sim.isa.native", "gpu.sim.simulation", "gpu.sim.undisturbed"),
        *("gpu.sim.faults", "gpu.sim.races", "gpu.sim.record", "gpu.sim.worlds"),
    ),
    # Instruction sets know no machine; a chip knows memory and time, and nobody who drives it.
    "gpu.sim.isa": ("gpu.core",),
    "gpu.sim.amd.chip": (
        *("gpu.core", "gpu.autogen", "gpu.sim.isa", "gpu.sim.amd.chips"),
        *("gpu.sim.simulation", "gpu.sim.record", "gpu.sim.physical", "gpu.sim.translate"),
        *("gpu.sim.port", "gpu.sim.chunks", "gpu.sim.linecaches", "gpu.sim.executor"),
    ),
    "gpu.compiler": ("gpu.core",),
    "gpu.compiler.ir": ("gpu.core",),
    "gpu.compiler.targets": ("gpu.core", "gpu.compiler.ir"),
    "gpu.compiler.shard": ("gpu.core", "gpu.compiler.ir"),
    "gpu.compiler.fusion": ("gpu.core", "gpu.compiler.ir", "gpu.compiler.targets"),
    # What loops do, what may be done to them, what is done: each knows those before it.
    "gpu.compiler.opt.analysis": ("gpu.core", "gpu.compiler.ir", "gpu.compiler.targets"),
    "gpu.compiler.opt.primitives": ("gpu.core", "gpu.compiler.ir", "gpu.compiler.opt.analysis"),
    "gpu.compiler.opt.opts": (
        *("gpu.core", "gpu.compiler.ir", "gpu.compiler.opt.analysis"),
        "gpu.compiler.opt.primitives",
    ),
    "gpu.compiler.opt.policy": (
        *("gpu.core", "gpu.compiler.ir", "gpu.compiler.targets", "gpu.compiler.opt"),
    ),
    "gpu.compiler.nir_text": ("gpu.core",),
    "gpu.compiler.lower": ("gpu.core", "gpu.compiler.ir", "gpu.compiler.targets"),
    "gpu.compiler.render": (
        *("gpu.core", "gpu.compiler.ir", "gpu.compiler.targets", "gpu.compiler.nir_text"),
    ),
    "gpu.compiler.toolchain": (
        *("gpu.core", "gpu.autogen", "gpu.compiler.nir_text", "gpu.compiler.targets"),
    ),
    # The runtime knows backends by name only; a backend knows the runtime, whose classes it fills.
    "gpu.runtime": ("gpu.core", "gpu.compiler"),
    "gpu.backends": ("gpu.core", "gpu.runtime", "gpu.compiler", "gpu.transport", "gpu.autogen"),
    # Compiled kernels on command queues of any vendor.
    "gpu.backends.hcq": ("gpu.core", "gpu.runtime", "gpu.hcq"),
    # The same on one driver's; where SIM is set a model is under the driver.
    "gpu.backends.amd": (
        *("gpu.core", "gpu.runtime", "gpu.compiler", "gpu.transport", "gpu.autogen"),
        *("gpu.backends.hcq", "gpu.drivers.am", "gpu.hcq", "gpu.sim"),
    ),
    "gpu.backends.nv": (
        *("gpu.core", "gpu.runtime", "gpu.compiler", "gpu.transport", "gpu.autogen"),
        *("gpu.backends.hcq", "gpu.drivers.nv", "gpu.hcq", "gpu.sim"),
    ),
    "gpu.backends.qcom": (
        *("gpu.core", "gpu.runtime", "gpu.compiler", "gpu.transport", "gpu.autogen"),
        *("gpu.backends.hcq", "gpu.drivers.kgsl", "gpu.hcq", "gpu.sim"),
    ),
    # The vendor's own library, or a model of it.
    "gpu.backends.cuda": (
        *(
            "gpu.core",
            "gpu.runtime",
            "gpu.compiler",
            "gpu.transport",
            "gpu.backends.cpu.native",
            "gpu.backends.cpu.ircode",
        ),
        *("gpu.sim.cuda", "gpu.sim.worlds"),
    ),
    "gpu.backends.metal": (
        *("gpu.core", "gpu.runtime", "gpu.compiler", "gpu.transport", "gpu.autogen"),
        *("gpu.backends.cpu.native", "gpu.sim.metal"),
    ),
    "gpu.tensor": ("gpu.core", "gpu.runtime", "gpu.compiler.ir"),
    # Tensors of several processes.
    "gpu.distributed": ("gpu.core", "gpu.runtime", "gpu.compiler.ir", "gpu.tensor"),
    # torch's compiler on ours; whoever is not this does not import torch.
    "gpu.torch": ("gpu.core", "gpu.runtime", "gpu.compiler.ir", "gpu.tensor", "gpu.nn"),
    "gpu.cli": ("gpu",),  # everything
}
# What a package and all below it must not import, though it lies in what they may.
_NV_FRONT: Final = ("gpu.sim.nv.files", "gpu.sim.nv.world")
DENIED: Final = {
    # Simulators must not share the drivers' mistakes: they write these down a second time.
    "gpu.sim": ("gpu.core.pagelevels", "gpu.core.pagetable", "gpu.core.ring", "gpu.core.tlsf"),
    # Two ways to one GPU, each without the other.
    "gpu.drivers.am.kfd": ("gpu.drivers.am.pci",),
    "gpu.drivers.am.pci": ("gpu.drivers.am.kfd",),
    "gpu.drivers.nv.nvk": ("gpu.drivers.nv.pci",),
    "gpu.drivers.nv.pci": ("gpu.drivers.nv.nvk",),
    **{
        f"gpu.drivers.nv.{common}": ("gpu.drivers.nv.nvk", "gpu.drivers.nv.pci")
        for common in ("channel", "rm", "encode", "code", "fault", "memory", "port")
    },
    # A model knows no other vendor's, a kernel driver no machine code, and a bus neither.
    "gpu.sim.amd": ("gpu.sim.nv", "gpu.sim.kgsl", "gpu.sim.usb", "gpu.sim.worlds"),
    "gpu.sim.amd.kfd": ("gpu.sim.isa", "gpu.sim.amd.chip.lanes"),
    "gpu.sim.nv": ("gpu.sim.amd", "gpu.sim.kgsl", "gpu.sim.worlds"),
    "gpu.sim.nv.chip": (*_NV_FRONT, "gpu.sim.nv.rm", "gpu.sim.nv.uvm"),
    "gpu.sim.nv.rm": (*_NV_FRONT, "gpu.sim.nv.uvm", "gpu.sim.process"),
    "gpu.sim.nv.uvm": (*_NV_FRONT, "gpu.sim.process"),
    "gpu.sim.kgsl": ("gpu.sim.amd", "gpu.sim.nv", "gpu.sim.worlds"),
    "gpu.sim.kgsl.chip": (
        *("gpu.sim.kgsl.driver", "gpu.sim.kgsl.world", "gpu.sim.kgsl.releases", "gpu.sim.process"),
        "gpu.sim.machine",
    ),
    "gpu.sim.kgsl.driver": ("gpu.sim.isa", "gpu.sim.kgsl.chip.lanes"),
    "gpu.sim.usb": ("gpu.sim.nv", "gpu.sim.kgsl", "gpu.sim.isa", "gpu.sim.worlds"),
    "gpu.sim.pci": ("gpu.sim.amd", "gpu.sim.nv", "gpu.sim.kgsl", "gpu.sim.isa", "gpu.sim.worlds"),
}
# Packages in which no module imports itself by way of others.
WITHOUT_CIRCLES: Final = (
    *("gpu.compiler", "gpu.drivers", "gpu.hcq", "gpu.runtime", "gpu.sim", "gpu.transport"),
)

# What looks at files without opening them.
LOOKING: Final = {
    f"os.{name}"
    for name in ("access", "listdir", "lstat", "mmap", "readlink", "scandir", "stat", "walk")
}

# (rule, file, what it reports) -> why it stands. An entry that is no longer needed fails a test.
EXCEPTIONS: Final[dict[tuple[str, str, str], str]] = {
    ("layers", "gpu/tensor/interop.py", "gpu.array_api"): (
        "tensors give their namespace of the standard by its public name"
    ),
    ("layers", "gpu/distributed/start.py", "gpu.__version__"): (
        "processes that work together compare the versions that they run"
    ),
    ("devices", "gpu/compiler/targets/cpu.py", "/proc/cpuinfo"): (
        "the CPU's features are of the machine that compiles, not of a device; a plain file"
    ),
    ("devices", "gpu/cli/bench/contest.py", "/proc/self/status"): (
        "the memory of the process that benchmarks; a plain file"
    ),
    ("devices", "gpu/core/available.py", "/proc/meminfo"): "a plain file of the system's",
    ("devices", "gpu/core/available.py", "/sys/fs/cgroup/"): "plain files of the system's",
    ("devices", "gpu/core/files.py", "fcntl"): "locks on plain files",
    ("devices", "gpu/core/execmem.py", "mmap"): "anonymous executable memory, not a device's",
    ("devices", "gpu/backends/cpu/pool.py", "mmap"): "anonymous memory that workers share",
    ("devices", "gpu/sim/wire.py", "socket"): "between processes on one model, not to a device",
    ("dynamic_imports", "gpu/runtime/device.py", "import_module"): "the table of backends",
    ("dynamic_imports", "gpu/runtime/default.py", "import_module"): "the table of finders",
    ("dynamic_imports", "gpu/__init__.py", "import_module"): (
        "names of the public API, from a table, when they are first used"
    ),
    **{
        ("dynamic_imports", "gpu/sim/cuda/__main__.py", name): "the program that the user names"
        for name in ("run_module", "run_path")
    },
    ("files", "gpu/sim/cuda/calls/processes.py", "os.open"): (
        "memory of another process of the model, which that names by a descriptor"
    ),
    ("printing", "gpu/__init__.py", "print"): "show_config prints; that is what it is for",
    ("files", "gpu/core/trace.py", "open"): "written line by line, so that a crash loses one",
    ("files", "gpu/cli/main.py", "os.open"): "os.devnull takes the place of a closed pipe",
}


class Module(NamedTuple):
    """A source file: its path from the root, and what it says."""

    path: str
    text: str

    @property
    def name(self) -> str:
        return ".".join(Path(self.path).with_suffix("").parts).removesuffix(".__init__")

    @property
    def tree(self) -> ast.Module:
        return _parse(self.text)


class Finding(NamedTuple):
    """A breach of a rule: the line, the thing that `EXCEPTIONS` may name, and what to do."""

    line: int
    thing: str
    advice: str


Rule = Callable[[Module], Iterator[Finding]]


@cache
def _parse(text: str) -> ast.Module:
    return ast.parse(text)


@cache
def _nodes(text: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(_parse(text)))


def _inside(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def _imports(module: Module) -> Iterator[tuple[int, str]]:
    """(line, full name) of everything a module imports; `from a import b` gives ``a.b``."""
    parts = module.name.split(".")
    package = parts if module.path.endswith("/__init__.py") else parts[:-1]
    for node in _nodes(module.text):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def _dotted(node: ast.expr) -> str:
    """``os.path.join`` of such an expression; what is no plain name gives ``()``."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return "()"


def _calls(module: Module) -> Iterator[tuple[ast.Call, str]]:
    for node in _nodes(module.text):
        if isinstance(node, ast.Call):
            yield node, _dotted(node.func)


def _resolved(module: Module) -> Iterator[tuple[ast.Call, str]]:
    """Calls, with what is imported by its full name; `os` that is no module counts as any value.

    So ``os.open`` is the system's only where it is imported: drivers call an `Os` of theirs ``os``.
    """
    names: dict[str, str] = {"os": "()"}
    for node in _nodes(module.text):
        if isinstance(node, ast.Import):
            for alias in node.names:
                head = alias.name.partition(".")[0]
                names[alias.asname or head] = alias.name if alias.asname else head
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    for call, called in _calls(module):
        head, dot, rest = called.partition(".")
        yield call, f"{names.get(head, head)}{dot}{rest}"


def layers(module: Module) -> Iterator[Finding]:
    """A package imports only what `ALLOWED` says."""
    owners = [n for n in ALLOWED if module.name == n or (n != "gpu" and _inside(module.name, (n,)))]
    if not owners:
        yield Finding(1, module.name, "is in no package of the design: put it in one of ALLOWED")
        return
    owner = max(owners, key=len)
    allowed = ALLOWED[owner] if owner == "gpu" else (owner, *ALLOWED[owner])
    denied = tuple(d for n, names in DENIED.items() if _inside(module.name, (n,)) for d in names)
    for line, target in _imports(module):
        ours = _inside(target, ("gpu",)) and not _inside(target, allowed)
        if ours or _inside(target, denied):
            known = ", ".join(ALLOWED[owner]) or "nothing of ours"
            yield Finding(line, target, f"must not be imported by {owner}, which may know {known}")


def environment(module: Module) -> Iterator[Finding]:
    """The environment is read in core/config.py alone.

    Its helper core/settingkinds.py expands ``~`` in paths, which reads HOME.
    """
    names = ("environ", "environb", "getenv", "getenvb", "putenv", "unsetenv")
    variables = {f"os.{name}" for name in names}
    homes = {"os.path.expanduser", "os.path.expandvars", "Path.home", "().expanduser"}
    allowed = {"gpu/core/config.py": variables | homes, "gpu/core/settingkinds.py": homes}
    used = list(_imports(module))
    used += [(n.lineno, _dotted(n)) for n in _nodes(module.text) if isinstance(n, ast.Attribute)]
    for line, name in used:
        if name in (variables | homes) - allowed.get(module.path, set()):
            yield Finding(line, name, "reads the environment: make it a setting of core/config.py")


def devices(module: Module) -> Iterator[Finding]:
    """Device files, ioctl, device mappings, USB and sockets belong to transport/.

    Models of devices name the paths that they answer for; like drivers they look at no real file.
    """
    if module.path.startswith("gpu/transport/"):
        return
    if module.path.startswith(("gpu/drivers/", "gpu/sim/")):
        for node, called in _resolved(module):
            if called in LOOKING or called.startswith(("os.path.", "glob.", "pathlib.", "Path")):
                yield Finding(node.lineno, called, "looks at real files: ask the world's Os")
    for line, target in _imports(module):
        root = target.partition(".")[0]
        if root in ("fcntl", "mmap", "socket", "termios", "usb"):
            yield Finding(line, root, "touches devices: go through gpu/transport")
    for node in _nodes(module.text):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            if re.match(r"/(dev|sys|proc)(/|$)", text) and not module.path.startswith("gpu/sim/"):
                yield Finding(node.lineno, text, "is a device's path: go through gpu/transport")


def files(module: Module) -> Iterator[Finding]:
    """Plain files are read and written by core/files.py; transport/ opens devices itself."""
    if module.path == "gpu/core/files.py" or module.path.startswith("gpu/transport/"):
        return
    openers = {"open", "io.open", "os.open", "os.fdopen", "codecs.open", "Path().open"}
    arrays = {
        f"numpy.{name}" for name in ("load", "save", "savez", "fromfile", "memmap", "loadtxt")
    }
    methods = {"read_text", "write_text", "read_bytes", "write_bytes"}
    for node, called in _resolved(module):
        owner, _, method = called.rpartition(".")
        path_opened = (
            method == "open"
            and isinstance(node.func, ast.Attribute)
            and (
                isinstance(node.func.value, ast.Call)
                and _dotted(node.func.value.func).endswith("Path")
            )
        )
        is_method = method in methods and owner not in ("", "files", "gpu.core.files")
        if called in openers | arrays or is_method or path_opened:
            yield Finding(node.lineno, called, "opens a file: use gpu/core/files.py")


def dynamic_imports(module: Module) -> Iterator[Finding]:
    """Nothing is imported by a computed name but the backends, by the runtime's table."""
    names = {"__import__", "import_module", "run_module", "run_path", "exec_module", "load_module"}
    for node, called in _calls(module):
        name = called.rpartition(".")[2]
        if name in names:
            yield Finding(node.lineno, name, "imports dynamically: write an import statement")


def star_imports(module: Module) -> Iterator[Finding]:
    """`from x import *` hides where names come from."""
    for line, target in _imports(module):
        if target.endswith(".*"):
            yield Finding(line, target, "imports everything: name what is needed")


def printing(module: Module) -> Iterator[Finding]:
    """Only the command line tools print; the library logs."""
    for node, called in _calls(module):
        if called == "print" and not module.path.startswith("gpu/cli/"):
            yield Finding(node.lineno, called, "use the module's logger (gpu.core.log)")


def sizes(module: Module) -> Iterator[Finding]:
    """A file has one job and fits in a head; a function fits on a screen."""
    lines = module.text.count("\n")
    if lines > MAX_FILE:
        yield Finding(1, module.path, f"has {lines} lines of at most {MAX_FILE}: split it by job")
    for node in _nodes(module.text):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > MAX_FUNCTION:
                advice = f"has {length} lines of at most {MAX_FUNCTION}: split it"
                yield Finding(node.lineno, node.name, advice)


def docstrings(module: Module) -> Iterator[Finding]:
    """Every module and every public class, function and method says what it is."""
    if not ast.get_docstring(module.tree):
        yield Finding(1, module.path, "the module has no docstring")
    yield from _undocumented(module.tree, "")


def _undocumented(parent: ast.Module | ast.ClassDef, prefix: str) -> Iterator[Finding]:
    for node in parent.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("_"):  # what is magic is described by its class
            continue
        # The getter describes a property, the implementation its overloads.
        marks = {_dotted(d).rpartition(".")[2] for d in node.decorator_list}
        described_elsewhere = marks & {"overload", "setter", "deleter", "override"}
        if not ast.get_docstring(node) and not described_elsewhere:
            yield Finding(node.lineno, prefix + node.name, "has no docstring")
        if isinstance(node, ast.ClassDef):
            yield from _undocumented(node, f"{prefix}{node.name}.")


# Rules that generated code need not follow.
HAND_WRITTEN: Final = (sizes, docstrings)
RULES: Final[tuple[Rule, ...]] = (
    *(layers, environment, devices, files, dynamic_imports, star_imports, printing),
    *HAND_WRITTEN,
)


@cache
def _modules() -> tuple[Module, ...]:
    # gpu/autogen is a link to autogen/: listed by hand, as not every glob follows links.
    found = {p for p in (ROOT / "gpu").rglob("*.py") if ROOT / "gpu/autogen" not in p.parents}
    paths = {p: str(p.relative_to(ROOT)) for p in found}
    for path in (ROOT / "autogen").rglob("*.py"):
        paths[path] = str(Path("gpu") / path.relative_to(ROOT))
    return tuple(Module(name, p.read_text()) for p, name in sorted(paths.items()))


@cache
def _broken(rule: Rule) -> list[tuple[str, Finding]]:
    generated = "gpu/autogen/" if rule in HAND_WRITTEN else "\0"
    return [(m.path, f) for m in _modules() if not m.path.startswith(generated) for f in rule(m)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_holds(rule: Rule) -> None:
    breaches = [
        f"{path}:{f.line}: {f.thing} {f.advice}"
        for path, f in _broken(rule)
        if (rule.__name__, path, f.thing) not in EXCEPTIONS
    ]
    assert not breaches, f"{rule.__doc__}\n" + "\n".join(breaches)


def test_exceptions_are_still_needed() -> None:
    found = {(rule.__name__, path, f.thing) for rule in RULES for path, f in _broken(rule)}
    stale = set(EXCEPTIONS) - found
    assert not stale, f"remove from EXCEPTIONS what no file does any more: {sorted(stale)}"


def _circle(modules: Iterable[Module]) -> list[str]:
    """Modules of which each imports the next, the last the first; none where there are none."""
    known = {module.name: module for module in modules}
    graph = dict[str, set[str]]()
    for name, module in known.items():
        targets = {target for _, target in _imports(module)}
        packages = {target.rpartition(".")[0] for target in targets - known.keys()}
        graph[name] = (targets | packages) & known.keys() - {name}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


@pytest.mark.parametrize("package", WITHOUT_CIRCLES)
def test_no_circle_of_imports(package: str) -> None:
    circle = _circle(module for module in _modules() if _inside(module.name, (package,)))
    assert not circle, " -> ".join(circle)


def test_a_circle_is_found() -> None:
    for_types = "if TYPE_CHECKING:\n  from gpu.sim.b import B"
    first, second = Module("gpu/sim/a.py", for_types), Module("gpu/sim/b.py", "import gpu.sim.a")
    assert sorted(set(_circle([first, second]))) == ["gpu.sim.a", "gpu.sim.b"]
    assert not _circle([first, Module("gpu/sim/b.py", "from gpu.sim.c import a")])


def test_autogen_stays_small() -> None:
    lines = sum(m.text.count("\n") for m in _modules() if m.path.startswith("gpu/autogen/"))
    assert lines < MAX_AUTOGEN, f"autogen/ has {lines} lines: narrow its recipes"


def test_every_package_is_seen() -> None:
    seen = {m.path.split("/")[1] for m in _modules()}
    assert {"core", "compiler", "runtime", "backends", "tensor", "cli", "autogen"} <= seen


# A rule, a file that breaks it, and what is reported.
BAD: Final[list[tuple[Rule, str, str, str]]] = [
    (layers, "gpu/core/a.py", "import gpu.runtime.device", "gpu.runtime.device"),
    (layers, "gpu/core/a.py", "def f():\n  from gpu import tensor", "gpu.tensor"),
    (layers, "gpu/core/a.py", "from ..tensor import base", "gpu.tensor.base"),
    (layers, "gpu/core/__init__.py", "from ..tensor import base", "gpu.tensor.base"),
    (layers, "gpu/core/a.py", "import gpu", "gpu"),
    (layers, "gpu/compiler/a.py", "from gpu.hcq import queue", "gpu.hcq.queue"),
    (layers, "gpu/sim/nv/rm/a.py", "from gpu.sim import process", "gpu.sim.process"),
    (layers, "gpu/drivers/nv/rm/a.py", "import gpu.drivers.nv.pci.boot", "gpu.drivers.nv.pci.boot"),
    (layers, "gpu/sim/nv/chip/a.py", "import gpu.sim.nv.rm.status", "gpu.sim.nv.rm.status"),
    (layers, "gpu/compiler/ir/a.py", "from gpu import autogen", "gpu.autogen"),
    (layers, "gpu/compiler/ir/a.py", "import gpu.compiler.lower", "gpu.compiler.lower"),
    (layers, "gpu/compiler/lower/a.py", "import gpu.compiler.opt.opts", "gpu.compiler.opt.opts"),
    (
        *(layers, "gpu/compiler/opt/analysis/a.py"),
        *("import gpu.compiler.opt.primitives.loops", "gpu.compiler.opt.primitives.loops"),
    ),
    (layers, "gpu/runtime/a.py", "from gpu.backends.cpu import device", "gpu.backends.cpu.device"),
    (layers, "gpu/backends/cpu/a.py", "import gpu.drivers.registry", "gpu.drivers.registry"),
    (layers, "gpu/backends/hcq/a.py", "import gpu.drivers.am", "gpu.drivers.am"),
    (layers, "gpu/tensor/a.py", "from gpu.compiler.lower import emit", "gpu.compiler.lower.emit"),
    (layers, "gpu/sim/a.py", "from gpu.core.ring import Ring", "gpu.core.ring.Ring"),
    (layers, "gpu/sim/a.py", "from gpu.drivers import am", "gpu.drivers.am"),
    (layers, "gpu/sim/isa/a.py", "from gpu.core import ring", "gpu.core.ring"),
    (layers, "gpu/sim/isa/a.py", "import gpu.sim.machine", "gpu.sim.machine"),
    (layers, "gpu/sim/amd/chip/a.py", "import gpu.sim.amd.kfd.gpu", "gpu.sim.amd.kfd.gpu"),
    (layers, "gpu/sim/amd/chip/a.py", "import gpu.sim.process", "gpu.sim.process"),
    (layers, "gpu/sim/amd/kfd/a.py", "from gpu.sim import nv", "gpu.sim.nv"),
    (layers, "gpu/sim/amd/kfd/a.py", "import gpu.sim.isa.engine", "gpu.sim.isa.engine"),
    (layers, "gpu/sim/nv/a.py", "import gpu.sim.amd.chips", "gpu.sim.amd.chips"),
    (layers, "gpu/sim/kgsl/a.py", "import gpu.sim.amd.chips", "gpu.sim.amd.chips"),
    (layers, "gpu/sim/kgsl/chip/a.py", "import gpu.sim.kgsl.world", "gpu.sim.kgsl.world"),
    (layers, "gpu/sim/pci/a.py", "import gpu.sim.amd.chips", "gpu.sim.amd.chips"),
    (layers, "gpu/dtype.py", "from gpu.tensor import base", "gpu.tensor.base"),
    (layers, "gpu/__init__.py", "from gpu.backends import cpu", "gpu.backends.cpu"),
    (layers, "gpu/misc/a.py", "", "gpu.misc.a"),
    (environment, "gpu/cli/a.py", "import os\nos.environ['A']", "os.environ"),
    (environment, "gpu/cli/a.py", "from os import getenv", "os.getenv"),
    (environment, "gpu/core/settingkinds.py", "os.putenv('A', '')", "os.putenv"),
    (environment, "gpu/core/files.py", "os.path.expanduser('~')", "os.path.expanduser"),
    (environment, "gpu/core/files.py", "Path.home()", "Path.home"),
    (environment, "gpu/core/files.py", "Path('~').expanduser()", "().expanduser"),
    (devices, "gpu/drivers/a.py", "x = '/dev/kfd'", "/dev/kfd"),
    (devices, "gpu/drivers/a.py", "x = f'/sys/bus/{y}'", "/sys/bus/"),
    (devices, "gpu/drivers/a.py", "x = b'/proc'", "/proc"),
    (devices, "gpu/drivers/a.py", "def f():\n  from fcntl import ioctl", "fcntl"),
    (devices, "gpu/core/a.py", "import usb.core", "usb"),
    (devices, "gpu/sim/a.py", "import mmap", "mmap"),
    (devices, "gpu/sim/a.py", "import os\nos.listdir('/sys')", "os.listdir"),
    (devices, "gpu/drivers/a.py", "import os as host\nhost.path.exists(x)", "os.path.exists"),
    (devices, "gpu/drivers/a.py", "Path(x).exists()", "Path"),
    (devices, "gpu/core/a.py", "import socket", "socket"),
    (files, "gpu/tensor/a.py", "with open('a') as f: pass", "open"),
    (files, "gpu/tensor/a.py", "import os\nos.open('a', 0)", "os.open"),
    (files, "gpu/drivers/a.py", "import os as host\nhost.open('a', 0)", "os.open"),
    (files, "gpu/drivers/a.py", "import os.path\nos.open('a', 0)", "os.open"),
    (files, "gpu/tensor/a.py", "from io import open\nopen('a')", "io.open"),
    (files, "gpu/tensor/a.py", "Path('a').open()", "().open"),
    (files, "gpu/tensor/a.py", "path.read_text()", "path.read_text"),
    (files, "gpu/tensor/a.py", "Path('a').write_bytes(b'')", "().write_bytes"),
    (files, "gpu/tensor/a.py", "import numpy as np\nnp.load('a')", "numpy.load"),
    (dynamic_imports, "gpu/core/a.py", "importlib.import_module('a')", "import_module"),
    (dynamic_imports, "gpu/core/a.py", "__import__('a')", "__import__"),
    (star_imports, "gpu/core/a.py", "from os import *", "os.*"),
    (printing, "gpu/core/a.py", "print('a')", "print"),
    (sizes, "gpu/core/a.py", "\n" * (MAX_FILE + 1), "gpu/core/a.py"),
    (sizes, "gpu/core/a.py", "def f():\n" + "  1\n" * MAX_FUNCTION, "f"),
    (docstrings, "gpu/core/a.py", "x = 1", "gpu/core/a.py"),
    (docstrings, "gpu/core/a.py", "'''D.'''\ndef f(): pass", "f"),
    (docstrings, "gpu/core/a.py", "'''D.'''\nclass A:\n  '''D.'''\n  def f(self): pass", "A.f"),
]
# A rule, and a file that follows it.
GOOD: Final[list[tuple[Rule, str, str]]] = [
    (layers, "gpu/core/a.py", "import os\nimport gpuless\nfrom gpu.core import config"),
    (layers, "gpu/core/__init__.py", "from . import config"),
    (layers, "gpu/compiler/toolchain/a.py", "import gpu.autogen.nvrtc, gpu.compiler.targets"),
    (layers, "gpu/backends/nv/a.py", "from gpu.drivers import nv"),
    (layers, "gpu/cli/a.py", "import gpu\nfrom gpu.sim import worlds"),
    (layers, "gpu/sim/amd/kfd/a.py", "import gpu.sim.amd.chip.sdma, gpu.sim.machine"),
    (environment, "gpu/core/config.py", "os.environ['A']"),
    (environment, "gpu/cli/a.py", "self.environ, config.home"),
    (devices, "gpu/transport/a.py", "import fcntl\nx = '/dev/kfd'"),
    (devices, "gpu/drivers/a.py", "x = 'and/or /dev', '/developer'"),
    (devices, "gpu/sim/a.py", "x = '/dev/kfd'"),
    (devices, "gpu/drivers/a.py", "world.os.exists(x), os.list_dir(x), os.stat(x)"),
    (files, "gpu/core/files.py", "open('a')"),
    (files, "gpu/drivers/a.py", "import os as host\ndef f(os): os.open('a', host.O_RDWR)"),
    (files, "gpu/tensor/a.py", "read_bytes('a'), files.read_bytes('a'), registry.open('a')"),
    (printing, "gpu/cli/a.py", "print('a')"),
    (sizes, "gpu/core/a.py", "def f():\n" + "  1\n" * (MAX_FUNCTION - 1)),
    (docstrings, "gpu/core/a.py", "'''D.'''\nclass _A: pass\ndef _f(): pass"),
    (docstrings, "gpu/core/a.py", "'''D.'''\n@x.setter\ndef f(): pass\n@overload\ndef g(): pass"),
]


@pytest.mark.parametrize(("rule", "path", "text", "thing"), BAD)
def test_rule_finds(rule: Rule, path: str, text: str, thing: str) -> None:
    assert thing in [finding.thing for finding in rule(Module(path, text))]


@pytest.mark.parametrize(("rule", "path", "text"), GOOD)
def test_rule_allows(rule: Rule, path: str, text: str) -> None:
    assert list(rule(Module(path, text))) == []


def test_every_rule_can_fail() -> None:
    assert {rule for rule, *_ in BAD} == set(RULES)

"""Making the folder that a run takes along: wheel, kernels, recorder, manifest."""

from __future__ import annotations

import pickle
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from gpu import __version__
from gpu.core.errors import CompileError, Unsupported
from gpu.core.files import read_bytes
from tools.hw_acceptance import folder as prepared
from tools.hw_acceptance.kernels import ARCHITECTURES, SOURCES
from tools.hw_acceptance.nvrtc import Compiled
from tools.hw_acceptance.vectors.pack import VECTORS, Group, write

ROOT: Final = Path(__file__).resolve().parents[2]
HERE: Final = Path(__file__).resolve().parent
_WHEEL_SOURCES: Final = ("gpu", "autogen", "pyproject.toml", "README.md", "LICENSE")
_BUILD: Final = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
_C_FLAGS: Final = ("-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread")
_TIMEOUT: Final = 300.0  # seconds that a tool may take


class Compiler(Protocol):
    """What compiles CUDA C: `nvrtc.Nvrtc`, or what stands in for it."""

    version: str

    def architectures(self) -> list[int]:
        """The numbers that it compiles for."""
        ...

    def compile(self, name: str, source: str, sm: int, options: Sequence[str] = ()) -> Compiled:
        """A source for an architecture."""
        ...


def prepare(
    folder: Path,
    compiler: Compiler,
    architectures: Iterable[int] = ARCHITECTURES,
    *,
    build_wheel: Callable[[Path], Path] | None = None,
    build_vectors: Callable[[Path, Sequence[int]], None] | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Fills a folder, replacing what an earlier `prepare` left there; returns the manifest.

    Raises Unsupported where a tool is missing or too old, CompileError with a tool's own words,
    DeviceError for a folder that grew too large.
    """
    wanted = list(architectures)
    check_architectures(compiler, wanted)
    gcc = find_gcc()
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.name == prepared.MANIFEST or old.suffix in (".whl", ".zip", ".so"):
            old.unlink()
    say(f"wheel of {__version__}")
    (build_wheel or make_wheel)(folder)
    say(f"{len(SOURCES)} kernels for {', '.join(f'sm_{sm}' for sm in wanted)}")
    compile_kernels(folder / prepared.KERNELS, compiler, wanted)
    say("instruction vectors")
    (build_vectors or make_vectors)(folder / VECTORS, wanted)
    say("recorder")
    build_shared(gcc, HERE / "recorder.c", folder / prepared.RECORDER)
    build_shared(gcc, HERE / "launchloop.c", folder / prepared.LAUNCH_LOOP)
    facts = {
        "gpu": __version__,
        "nvrtc": compiler.version,
        "architectures": wanted,
        "machine": platform.machine(),
    }
    manifest = prepared.write_manifest(folder, facts)
    total = sum(each["size"] for each in manifest["files"].values())
    say(f"{folder}: {total} bytes in {len(manifest['files'])} files")
    return manifest


def check_architectures(compiler: Compiler, wanted: Sequence[int]) -> None:
    """Raises Unsupported for architectures that the compiler does not know."""
    known = compiler.architectures()
    missing = [f"sm_{sm}" for sm in wanted if sm not in known]
    if missing:
        raise Unsupported(
            f"nvrtc {compiler.version} does not compile for {', '.join(missing)}: install a newer"
            " one (`pip install nvidia-cuda-nvrtc`), or name fewer with --arch"
        )


def find_gcc() -> str:
    """The C compiler. Raises Unsupported, with how to get one, where there is none."""
    found = shutil.which("gcc") or shutil.which("cc")
    if found is None:
        raise Unsupported("the recorder is C and there is no gcc: install it (Debian: gcc)")
    return found


def build_shared(compiler: str, source: Path, target: Path) -> None:
    """Compiles a C file to a shared object. Raises CompileError."""
    _run([compiler, *_C_FLAGS, str(source), "-o", str(target), "-ldl"], source.name)


def compile_kernels(path: Path, compiler: Compiler, architectures: Sequence[int]) -> None:
    """Writes cubin and PTX of every kernel for every architecture into a zip file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for sm in architectures:
            for name, source in SOURCES.items():
                compiled = compiler.compile(name, source, sm)
                archive.writestr(prepared.kernel_member(sm, name, "cubin"), compiled.cubin)
                archive.writestr(prepared.kernel_member(sm, name, "ptx"), compiled.ptx)


def make_vectors(path: Path, architectures: Sequence[int]) -> None:
    """Writes what PTX instructions give on the simulator, and their machine code.

    Raises Unsupported where no library assembles PTX, CompileError with a tool's own words.
    """
    from gpu.compiler.toolchain.nvlibs import find_library
    from gpu.compiler.toolchain.nvptx import assemble

    library = find_library("nvJitLink")
    with tempfile.TemporaryDirectory(prefix="gpu-vectors-") as scratch:
        recorded = Path(scratch) / "groups.pickle"
        command = [sys.executable, "-m", "tools.hw_acceptance.vectors.record", str(recorded)]
        _run(command, "the instruction vectors", cwd=ROOT)
        groups: list[Group] = pickle.loads(read_bytes(recorded))
    write(path, groups, architectures, lambda ptx, arch: assemble(library, ptx, arch))


def make_wheel(target: Path) -> Path:
    """Builds the wheel from a copy of the sources; a stale build/ would bring old modules back.

    Raises CompileError with the build's own words.
    """
    with tempfile.TemporaryDirectory(prefix="gpu-wheel-") as scratch:
        copy = Path(scratch) / "source"
        copy.mkdir()
        for name in _WHEEL_SOURCES:
            source = ROOT / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
                shutil.copytree(source, copy / name, symlinks=True, ignore=ignored)
            else:
                shutil.copy(source, copy / name)
        _run([sys.executable, "-c", _BUILD, str(target.resolve())], "the wheel", cwd=copy)
    return next(target.glob("*.whl"))


def _run(command: Sequence[str], what: str, cwd: Path | None = None) -> None:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, timeout=_TIMEOUT
    )
    if done.returncode:
        words = (done.stdout + done.stderr).strip()[-2000:]
        raise CompileError(f"{what} could not be built by {command[0]}:\n{words}")

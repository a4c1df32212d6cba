"""Clang as a process: C, LLVM IR as text, or MSL, to ELF objects.

Starting it takes some 40 ms and a kernel some 6 ms, so that kernels go in batches of one
translation unit each, whose object is then taken apart. Tried with clang 14 and 19.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from gpu.compiler.toolchain.base import Compiler, disassemble_elf
from gpu.compiler.toolchain.elf_split import exported_functions, split_functions
from gpu.compiler.toolchain.msl import MSL_OPTIONS, with_library
from gpu.core.config import config
from gpu.core.elf import parse_object
from gpu.core.errors import CompileError, FormatError, Unsupported
from gpu.core.files import DiskCache

NAMES: Final = ("clang", *(f"clang-{version}" for version in range(22, 13, -1)))
"""What clang may be called, in the order they are looked for."""
OLDEST: Final = 14
_TIMEOUT: Final = 60.0  # seconds
_INSTALL: Final = (
    "install clang (Debian and Ubuntu: apt install clang; macOS: xcode-select --install)"
)
# ELF whatever the system: the loader of these objects is ours.
_MACHINES: Final = {
    "x86_64": ("--target=x86_64-unknown-linux-gnu", "-march=x86-64"),
    # Apple keeps register x18 to itself ("Writing ARM64 code for Apple platforms").
    "aarch64": ("--target=aarch64-unknown-linux-gnu", "-march=armv8-a", "-ffixed-x18"),
}
# What the text from gpu/compiler/render/cstyle/c.py relies on, and what the loader does not take.
# Loops are vectorised and unrolled already.
_LANGUAGES: Final = {
    "c": (
        "-std=gnu11", "-O2", "-fwrapv", "-fno-strict-aliasing", "-ffp-contract=on",
        "-fno-math-errno", "-ffreestanding", "-fno-builtin", "-fno-vectorize",
        "-fno-unroll-loops", "-ffunction-sections",
    ),
    "ir": ("-O2",),
    "msl": MSL_OPTIONS,
}  # fmt: skip
_CLANG_NAMES: Final = {"msl": "cl"}
"""Languages that clang calls otherwise."""
_OBJECT: Final = (
    "-w", "-Qunused-arguments", "-fno-color-diagnostics", "-fno-caret-diagnostics", "-fPIC",
    "-fno-stack-protector", "-fno-asynchronous-unwind-tables", "-fno-ident", "-nostdlib",
    "-nostdinc",
)  # fmt: skip
_X86_OBJECT: Final = ("-fcf-protection=none",)
_FEWEST_IN_A_BATCH: Final = 8  # so that starting clang costs less than what it does
_MOST_PROCESSES: Final = 8
_VERSION: Final = re.compile(r"clang version (\d+)[^\n]*")
_PLACE: Final = re.compile(r"^(?:source(\d+)|<stdin>):(\d+):", re.MULTILINE)
_MESSAGE_LINES: Final = 20

_versions = DiskCache("clang-versions")


class ClangCompiler(Compiler):
    """Compiles for one CPU architecture and set of features."""

    def __init__(
        self,
        architecture: str,
        features: str = "",
        language: str = "c",
        options: Sequence[str] = (),
    ):
        """`architecture` and `features` as in a `Target`: `x86_64`, `+avx,+avx2`.

        `language` is `c`, `ir` for text of LLVM IR, or `msl`, which is checked and run here and not
        meant for a CPU (see `gpu/compiler/toolchain/msl.py`). `options` of clang's come last: with
        ``-emit-llvm`` it gives bitcode in the place of objects. Raises Unsupported for another
        architecture and where clang is missing or too old, CompileError where what is called
        clang is something else.
        """
        if architecture not in _MACHINES:
            known = ", ".join(_MACHINES)
            raise Unsupported(f"the clang compiler knows {known}, not {architecture!r}")
        self._language = language
        self._path = find_clang()
        version = clang_version(self._path)
        self._options = [
            *_MACHINES[architecture],
            *_LANGUAGES[language],
            *_OBJECT,
            *(_X86_OBJECT if architecture == "x86_64" else ()),
            *_feature_options(features),
            *options,
        ]
        self._gives_bitcode = "-emit-llvm" in options
        if language == "ir" and version.startswith("clang version 14"):
            self._options += ["-mllvm", "-opaque-pointers"]  # the default from LLVM 15 on
        super().__init__(f"{version}|{language}|{' '.join(self._options)}", "clang")

    def compile(self, source: str) -> bytes:
        """An ELF object. Raises CompileError with clang's message and the line it is about."""
        return self._run([source])

    def compile_many(self, sources: Sequence[str]) -> list[bytes]:
        """An object for each source, from as few processes as keep the machine's CPUs busy.

        Raises CompileError if any is refused.
        """
        if self._language != "c" or len(sources) < 2:
            return [self.compile(source) for source in sources]
        batches = _batches(sources)
        with ThreadPoolExecutor(len(batches)) as threads:
            return [lib for libs in threads.map(self._compile_batch, batches) for lib in libs]

    def disassemble(self, lib: bytes) -> str:
        """The object's code as text, through llvm-objdump or objdump."""
        return disassemble_elf(lib)

    def _compile_batch(self, sources: Sequence[str]) -> list[bytes]:
        """Compiles sources in one translation unit, and takes the object apart."""
        if len(sources) == 1:
            return [self.compile(sources[0])]
        whole = parse_object(self._run(sources))
        by_number = {name.rpartition("_")[2]: name for name in exported_functions(whole)}
        wanted = [str(number) for number in range(len(sources))]
        if by_number.keys() != set(wanted):
            raise CompileError(
                f"{self._path} made {sorted(by_number.values())} of {len(sources)} kernels"
            )
        names = {by_number[number]: by_number[number].rpartition("_")[0] for number in wanted}
        libs = split_functions(whole, names)
        return [libs[name] for name in names]

    def _run(self, sources: Sequence[str]) -> bytes:
        """One run of clang; several sources are one translation unit."""
        match self._language:
            case "c":
                text = _joined(sources)
            case "msl":
                text = with_library(sources[0])
            case _:
                text = sources[0]
        name = _CLANG_NAMES.get(self._language, self._language)
        command = [self._path, *self._options, "-c", "-x", name, "-", "-o", "-"]
        done = _run_tool(command, text)
        if done.returncode != 0:
            message = done.stderr.decode(errors="replace").strip() or "it said nothing"
            raise CompileError(
                f"{self._path} ended with {done.returncode}: {_explain(message, sources)}"
            )
        if self._gives_bitcode:
            return done.stdout
        try:
            parse_object(done.stdout)
        except FormatError as error:
            raise CompileError(
                f"{self._path} gave {len(done.stdout)} bytes that are no object: {error.message}"
            ) from error
        return done.stdout


def find_clang() -> str:
    """The path of the clang to use: the one that CLANG names, else the first in PATH of `NAMES`.

    Raises Unsupported where there is none.
    """
    if chosen := config.CLANG:
        path = shutil.which(chosen)
        if path is None:
            raise Unsupported(f"CLANG={chosen} is no program that can be run; {_INSTALL}")
        return path
    for name in NAMES:
        if path := shutil.which(name):
            return path
    raise Unsupported(f"compiling C needs clang, and none is in PATH; {_INSTALL}")


def clang_version(path: str) -> str:
    """The line a clang says its version with, from the disk cache where the file is unchanged.

    Raises CompileError where it says none, Unsupported for one that is too old.
    """
    status = os.stat(path)
    key = f"{os.path.realpath(path)}|{status.st_size}|{status.st_mtime_ns}"
    known = _versions.get(key)
    if known is not None:
        return known.decode()
    done = _run_tool([path, "--version"], "")
    found = _VERSION.search(done.stdout.decode(errors="replace"))
    if done.returncode != 0 or found is None:
        raise CompileError(
            f"{path} --version ended with {done.returncode} and named no version of clang; set"
            f" CLANG to another, or {_INSTALL}"
        )
    if int(found[1]) < OLDEST:
        raise Unsupported(f"{path} is {found[0]}; {OLDEST} or newer is needed")
    _versions.put(key, found[0].encode())
    return found[0]


def _run_tool(command: list[str], text: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a program on a text. Raises CompileError where it cannot be run or does not end."""
    try:
        return subprocess.run(
            command, input=text.encode(), capture_output=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"{command[0]} was stopped after {error.timeout} seconds") from error
    except OSError as error:
        raise CompileError(f"{command[0]} cannot be run: {error}") from error


def _feature_options(features: str) -> list[str]:
    """Features by LLVM's own names, which the driver's options differ from here and there."""
    words = [word for word in features.split(",") if word]
    options = [o for word in words for o in ("-Xclang", "-target-feature", "-Xclang", word)]
    # Without this clang may halve 512-bit vectors.
    return [*options, "-mprefer-vector-width=512"] if "+avx512f" in words else options


def _joined(sources: Sequence[str]) -> str:
    """C sources as one: what number 3 calls ``SYMBOL(kernel)`` is ``kernel_3`` in it.

    A single one keeps its names. Lines are counted anew in each, for messages.
    """
    parts = []
    for number, source in enumerate(sources):
        if len(sources) > 1:
            parts.append(f"#undef SYMBOL\n#define SYMBOL(name) name##_{number}\n")
        parts.append(f'#line 1 "source{number}"\n{source}\n')
    return "".join(parts)


def _batches(sources: Sequence[str]) -> list[Sequence[str]]:
    """Sources in order, in batches of about one size, as many as processes are worth starting."""
    processes = min(config.CPU_THREADS, _MOST_PROCESSES, -(-len(sources) // _FEWEST_IN_A_BATCH))
    bounds = [len(sources) * i // processes for i in range(processes + 1)]
    return [sources[a:b] for a, b in itertools.pairwise(bounds)]


def _explain(message: str, sources: Sequence[str]) -> str:
    """The head of clang's message, with the line of source that its first error names."""
    shown = "\n".join(message.splitlines()[:_MESSAGE_LINES])
    place = _PLACE.search(message)
    if place is None:
        return shown
    source, number = int(place[1] or 0), int(place[2])
    lines = sources[source].splitlines() if source < len(sources) else []
    if not 0 < number <= len(lines):
        return shown
    return f"{shown} (line {number}: {lines[number - 1].strip()})"

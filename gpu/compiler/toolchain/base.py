"""What every compiler of kernel source is: a key, `compile`, and a cache in front of it."""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Final

from gpu.core import elf
from gpu.core.errors import CompileError, Unsupported
from gpu.core.files import DiskCache, atomic_write, content_signature, object_cache_dir

_TOOL_TIMEOUT: Final = 60.0  # seconds
_PATIENCE: Final = 60.0  # seconds in which another process compiles
_NO_SUCH_MACHINE: Final = "can't disassemble for architecture"  # binutils 2.40
_HERE: Final = Path(__file__).parent


class Compiler(ABC):
    """Turns source text into an object or binary that a device loads.

    Attributes:
        key: toolchain, its version and the options: all that the result depends on besides the
            source and our own code. Known without loading the toolchain, so that a cache hit
            never does.
    """

    key: str

    def __init__(self, key: str, namespace: str):
        """`namespace` names the folder of the disk cache."""
        self.key = key
        self._disk = DiskCache(namespace, parent=object_cache_dir)
        self._memory: dict[bytes, bytes] = {}

    def prepare(self) -> None:  # noqa: B027  # most have nothing to do
        """Begins what the first `compile` would wait for, such as starting a process, and waits for
        none of it.
        """

    @abstractmethod
    def compile(self, source: str) -> bytes:
        """Compiles `source`. Raises CompileError with the tool's words where it is refused."""

    @abstractmethod
    def disassemble(self, lib: bytes) -> str:
        """The machine code of a compiled object as text.

        Raises Unsupported, saying what to install, where the tool for it is missing.
        """

    def compile_many(self, sources: Sequence[str]) -> list[bytes]:
        """What `compile` gives for each source; for tools that cost less for several at once."""
        return [self.compile(source) for source in sources]

    def compile_cached(self, source: str) -> bytes:
        """What `compile` gives, from memory or disk where it has been compiled before."""
        return self.compile_many_cached([source])[0]

    def compile_many_cached(self, sources: Sequence[str]) -> list[bytes]:
        """As `compile_cached` for each source; those not known are compiled together.

        What another process compiles at the moment, as ranks that begin with an empty cache do, is
        waited for: each source is compiled by one of them.
        """
        digests = [self._digest(source) for source in sources]
        unknown = {d: s for d, s in zip(digests, sources, strict=True) if self._find(d) is None}
        until = time.monotonic() + _PATIENCE
        while unknown:
            with self._disk.claimed([digest.hex() for digest in unknown]) as own:
                is_late = time.monotonic() > until
                self._make({d: s for d, s in unknown.items() if is_late or d.hex() in own})
            unknown = {d: s for d, s in unknown.items() if d not in self._memory}
            if unknown:
                self._disk.wait_for(next(iter(unknown)).hex(), _PATIENCE)
        return [self._memory[digest] for digest in digests]

    def _make(self, sources: Mapping[bytes, str]) -> None:
        """Compiles what is not known by now of sources with their digests."""
        unknown = {digest: s for digest, s in sources.items() if self._find(digest) is None}
        made = self.compile_many(list(unknown.values())) if unknown else []
        for digest, lib in zip(unknown, made, strict=True):
            self._disk.put(digest.hex(), lib)
            self._memory[digest] = lib

    def _digest(self, source: str) -> bytes:
        text = f"{_code_signature(type(self))}\0{self.key}\0{source}"
        return blake2b(text.encode(), digest_size=32).digest()

    def _find(self, digest: bytes) -> bytes | None:
        """A result from memory or disk; what was on disk is in memory afterwards."""
        known = self._memory.get(digest) or self._disk.get(digest.hex())
        if known is not None:
            self._memory[digest] = known
        return known


@cache
def _code_signature(kind: type[Compiler]) -> str:
    """Names the code that makes objects of what a tool gives.

    It is this folder, what reads and writes ELF, and the class's own: the file that it is in, or
    its folder where that is one of this package's. A class that is in no file has a key alone.
    """
    places = {_HERE, *(Path(elf.__file__).with_name(f"{name}.py") for name in ("elf", "elfwrite"))}
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if file is not None and os.path.isfile(file):
        own = Path(file)
        places.add(own.parent if own.is_relative_to(_HERE.parents[1]) else own)
    return content_signature(*sorted(places))


def disassemble_elf(lib: bytes) -> str:
    """An ELF object through `llvm-objdump`, which knows all targets, or binutils' `objdump`.

    Raises Unsupported where neither is in PATH, or the one there knows no such machine;
    CompileError where the tool fails.
    """
    import shutil

    why = "disassembling needs llvm-objdump or objdump in PATH"
    for name, options in (("llvm-objdump", ["-d", "-r"]), ("objdump", ["-d", "-r", "-w"])):
        if tool := shutil.which(name):
            try:
                return run_on_file([tool, *options], lib)
            except CompileError as error:
                if _NO_SUCH_MACHINE not in error.message:
                    raise
                why = f"{tool} knows no machine such as this code is for"
    raise Unsupported(
        f"{why}; install LLVM's tools (Debian: the package llvm) or binutils for that machine"
    )


def run_on_file(command: list[str], content: bytes) -> str:
    """What a command prints about a file of this content, which it takes as its last argument.

    Raises CompileError where it fails, or takes too long.
    """
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "kernel.o")
        atomic_write(path, content)
        try:
            done = subprocess.run(
                [*command, path],
                capture_output=True,
                text=True,
                timeout=_TOOL_TIMEOUT,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompileError(f"{command[0]} failed: {error}") from error
    if done.returncode != 0:
        raise CompileError(f"{command[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout

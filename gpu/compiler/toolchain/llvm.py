"""LLVM through llvmlite: LLVM IR text to an ELF object.

LLVM ends its process where it meets what it cannot compile, so it has one of its own
(`helper`, `llvm_emit`), which the first kernel that is not cached starts and later ones share.
"""

from __future__ import annotations

import os
import re
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from gpu.compiler.toolchain.base import Compiler, disassemble_elf
from gpu.compiler.toolchain.llvm_emit import (
    ASSEMBLY,
    OBJECT,
    Machine,
    answer,
    pack_request,
)
from gpu.core.config import config
from gpu.core.distributions import installed_version
from gpu.core.errors import Unsupported

if TYPE_CHECKING:  # what starts processes is imported by who has something to compile
    from gpu.compiler.toolchain.helper import Helper

_OPT_LEVEL: Final = 2
# ELF whatever the system: the loader of these objects is ours.
_TRIPLES: Final = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}
# Apple keeps register x18 to itself ("Writing ARM64 code for Apple platforms"); doing without it
# makes objects that run on every system.
_EXTRA_FEATURES: Final = {"x86_64": "", "aarch64": "+reserve-x18"}
_NAME: Final = re.compile(r"^define [^@]*@([\w.$-]+|\"[^\"]*\")", re.MULTILINE)


class LLVMCompiler(Compiler):
    """Compiles LLVM IR for one CPU architecture and set of features."""

    def __init__(self, architecture: str, features: str = ""):
        """`architecture` and `features` as in a `Target`: `x86_64`, `+avx,+avx2`.

        Raises Unsupported for another architecture or where llvmlite is not installed.
        """
        self.machine = cpu_machine(architecture, features)
        triple, _, features, level, *_ = self.machine
        key = f"llvmlite {llvmlite_version()}|{triple}|{features}|O{level}"
        super().__init__(key, "llvm")

    def prepare(self) -> None:
        """Starts the process that LLVM runs in."""
        prepare_llvm()

    def compile(self, source: str) -> bytes:
        """An ELF object. Raises CompileError with LLVM's message and the line it is about."""
        return emit_object(source, self.machine)

    def disassemble(self, lib: bytes) -> str:
        """The object's code as text, through llvm-objdump or objdump."""
        return disassemble_elf(lib)


def cpu_machine(architecture: str, features: str = "") -> Machine:
    """The machine for a CPU. Raises Unsupported for an unknown architecture."""
    if architecture not in _TRIPLES:
        known = ", ".join(_TRIPLES)
        raise Unsupported(f"the LLVM compiler knows {known}, not {architecture!r}")
    features = ",".join(filter(None, (features, _EXTRA_FEATURES[architecture])))
    return Machine(_TRIPLES[architecture], "", features, _OPT_LEVEL, "pic", "small")


def emit_object(source: str, machine: Machine) -> bytes:
    """The object that LLVM makes of LLVM IR.

    Raises CompileError with LLVM's message and the line it is about, Unsupported where LLVM is too
    old for the machine or no process can be started for it.
    """
    return _emit(source, machine, OBJECT)


def emit_assembly(source: str, machine: Machine) -> str:
    """As `emit_object`, but the text of the machine's assembler."""
    return _emit(source, machine, ASSEMBLY).decode()


def prepare_llvm() -> None:
    """Starts the process that LLVM runs in, without waiting for it."""
    if not config.LLVM_IN_PROCESS:
        _helper().start()


def _emit(source: str, machine: Machine, kind: str) -> bytes:
    request = pack_request(source, machine, kind)
    if config.LLVM_IN_PROCESS:
        return answer(request)
    from gpu.compiler.toolchain.helper import Kernel

    found = _NAME.search(source)
    name = found[1] if found else "a module without functions"
    try:
        return _helper().compile(request, Kernel("LLVM", name, str(machine), source, ".ll"))
    except Unsupported as error:
        error.add("LLVM_IN_PROCESS=1 does without, and LLVM's fatal errors end this process then")
        raise


def llvmlite_version() -> str:
    """The version of llvmlite. Raises Unsupported where it is not installed."""
    version = installed_version("llvmlite")
    if version is None:
        raise Unsupported(
            "the LLVM compiler needs llvmlite: pip install llvmlite, or use DEV=CPU:CLANG"
        )
    return version


@cache
def _helper() -> Helper:
    """The process that LLVM runs in."""
    from gpu.compiler.toolchain.helper import Helper

    spec = find_spec("llvmlite")
    assert spec is not None and spec.origin is not None, "who compiles has asked for its version"
    packages = os.path.dirname(os.path.dirname(spec.origin))
    # It is imported before the first request comes.
    return Helper(answer, f"sys.path.append({packages!r}); import llvmlite.binding")

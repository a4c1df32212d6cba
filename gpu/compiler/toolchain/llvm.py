"""LLVM in the process, through llvmlite: LLVM IR text to an ELF object.

Code generation only, at level 2: the renderer's text is in SSA form, vectorised and unrolled, and
LLVM's optimiser doubles the time for no faster code. llvmlite is imported by the first `compile`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from gpu.compiler.toolchain.base import Compiler, disassemble_elf
from gpu.core.distributions import installed_version
from gpu.core.errors import CompileError, Unsupported

_OPT_LEVEL: Final = 2
# ELF whatever the system: the loader of these objects is ours.
_TRIPLES: Final = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}
# Apple keeps register x18 to itself ("Writing ARM64 code for Apple platforms"); doing without it
# makes objects that run on every system.
_EXTRA_FEATURES: Final = {"x86_64": "", "aarch64": "+reserve-x18"}
_LINE_NUMBER: Final = re.compile(r"<string>:(\d+):")


class LLVMCompiler(Compiler):
    """Compiles LLVM IR for one CPU architecture and set of features."""

    def __init__(self, architecture: str, features: str = ""):
        """`architecture` and `features` as in a `Target`: `x86_64`, `+avx,+avx2`.

        Raises Unsupported for another architecture or where llvmlite is not installed.
        """
        if architecture not in _TRIPLES:
            known = ", ".join(_TRIPLES)
            raise Unsupported(f"the LLVM compiler knows {known}, not {architecture!r}")
        self._triple = _TRIPLES[architecture]
        self._features = ",".join(filter(None, (features, _EXTRA_FEATURES[architecture])))
        key = f"llvmlite {llvmlite_version()}|{self._triple}|{self._features}|O{_OPT_LEVEL}"
        super().__init__(key, "llvm")

    def compile(self, source: str) -> bytes:
        """An ELF object. Raises CompileError with LLVM's message and the line it is about."""
        return emit_object(source, self._triple, _target_machine(self._triple, self._features))

    def disassemble(self, lib: bytes) -> str:
        """The object's code as text, through llvm-objdump or objdump."""
        return disassemble_elf(lib)


def emit_object(source: str, triple: str, machine: Any) -> bytes:
    """What a target machine of llvmlite makes of LLVM IR: an object.

    Raises CompileError with LLVM's message and the line it is about.
    """
    emitted: bytes = _emit(source, triple, machine, machine.emit_object)
    return emitted


def emit_assembly(source: str, triple: str, machine: Any) -> str:
    """As `emit_object`, but the text of the machine's assembler."""
    emitted: str = _emit(source, triple, machine, machine.emit_assembly)
    return emitted


def _emit(source: str, triple: str, machine: Any, emit: Callable[[Any], Any]) -> Any:
    import llvmlite.binding as llvm

    try:
        # A context of its own frees the types, constants and metadata along with the module.
        with (
            llvm.create_context() as context,
            llvm.parse_assembly(source, context) as module,
        ):
            module.triple = triple
            module.data_layout = str(machine.target_data)
            module.verify()
            return emit(module)
    except RuntimeError as error:
        raise CompileError(_explain(str(error), source)) from error


def llvmlite_version() -> str:
    """The version of llvmlite. Raises Unsupported where it is not installed."""
    version = installed_version("llvmlite")
    if version is None:
        raise Unsupported(
            "the LLVM compiler needs llvmlite: pip install llvmlite, or use DEV=CPU:CLANG"
        )
    return version


@cache
def _target_machine(triple: str, features: str) -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu="", features=features, opt=_OPT_LEVEL, reloc="pic", codemodel="small"
    )


def _explain(message: str, source: str) -> str:
    """LLVM's message, with the line of source that it names."""
    found = _LINE_NUMBER.search(message)
    if found is None:
        return f"LLVM: {message.strip()}"
    number = int(found[1])
    line = source.splitlines()[number - 1].strip()
    return f"LLVM: {message.strip()} (line {number}: {line})"

"""LLVM IR to code objects for AMD GPUs: LLVM generates code, our linker places it."""

from __future__ import annotations

from typing import Final

from gpu.compiler.targets.amd import check_chip
from gpu.compiler.toolchain.amdgcn_link import link
from gpu.compiler.toolchain.base import Compiler
from gpu.compiler.toolchain.llvm import emit_object, llvmlite_version, prepare_llvm
from gpu.compiler.toolchain.llvm_emit import Machine

_TRIPLE: Final = "amdgcn-amd-amdhsa"
_OPT_LEVEL: Final = 3
# Off is putting private arrays into local memory, for which a kernel reads its dispatch packet, or
# into registers that a chain of selects picks from; and that a value of 16 bits may live in either
# half of a register, for which LLVM 22 has llvm.copysign read a register that nothing wrote.
_FEATURES: Final = "-promote-alloca,-real-true16"


class AMDCompiler(Compiler):
    """Compiles LLVM IR for one chip to a code object: an ELF shared object, see `link`."""

    def __init__(self, chip: str):
        """`chip` as LLVM calls it: `gfx1100`.

        Raises Unsupported for one that is not known or where llvmlite is not installed.
        """
        check_chip(chip)
        self._chip = chip
        key = f"llvmlite {llvmlite_version()}|{_TRIPLE}|{chip}|{_FEATURES}|O{_OPT_LEVEL}"
        super().__init__(key, "amdgcn")

    def prepare(self) -> None:
        """Starts the process that LLVM runs in."""
        prepare_llvm()

    def compile(self, source: str) -> bytes:
        """A code object.

        Raises CompileError with LLVM's message and the line it is about, Unsupported where the
        LLVM of this llvmlite is too old for the chip.
        """
        return link(emit_object(source, amd_machine(self._chip)))

    def disassemble(self, lib: bytes) -> str:
        """The code of a code object as text, through LLVM's library where there is one.

        Raises Unsupported, saying what to install, where there is none.
        """
        from gpu.compiler.toolchain.llvm_disassembler import disassemble_code_object

        return disassemble_code_object(lib, self._chip)


def amd_machine(chip: str) -> Machine:
    """The machine for a chip, as LLVM calls it. Raises Unsupported for one that is not known."""
    oldest = check_chip(chip).llvm
    return Machine(_TRIPLE, chip, _FEATURES, _OPT_LEVEL, "pic", oldest=oldest)

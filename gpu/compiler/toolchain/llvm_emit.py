"""LLVM IR to objects and assembly by llvmlite: what `llvm` has done in a process of its own.

Code generation only: the renderers' text is in SSA form, vectorised and unrolled, and LLVM's
optimiser doubles the time for no faster code.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final, NamedTuple

from gpu.core.errors import CompileError, Unsupported

OBJECT: Final = "object"
ASSEMBLY: Final = "assembly"
_LINE_NUMBER: Final = re.compile(r"<string>:(\d+):")


class Machine(NamedTuple):
    """A target machine of LLVM's, by the arguments of llvmlite's `create_target_machine`.

    Attributes:
        triple: the target.
        cpu, features: as LLVM calls them.
        level: of code generation, 0 to 3.
        reloc, codemodel: the relocation model and the code model.
        oldest: the first release of LLVM that knows the cpu; before, it compiles for another.
    """

    triple: str
    cpu: str
    features: str
    level: int
    reloc: str = "default"
    codemodel: str = "default"
    oldest: int = 0

    def __str__(self) -> str:
        return " ".join(filter(None, (self.triple, self.cpu, self.features)))


def pack_request(source: str, machine: Machine, kind: str) -> bytes:
    """A request for `answer`: the `kind` is `OBJECT` or `ASSEMBLY`."""
    return "\0".join((*map(str, machine[:]), kind, source)).encode()


def answer(request: bytes) -> bytes:
    """An object, or text of the assembler.

    Raises CompileError with LLVM's message and the line it is about, Unsupported where LLVM is too
    old for the machine. Where LLVM gives up for other reasons it ends the process.
    """
    import llvmlite
    import llvmlite.binding as llvm

    count = len(Machine._fields)
    *fields, kind, source = request.decode().split("\0", count + 1)
    triple, cpu, features, level, reloc, codemodel, oldest = fields
    asked = Machine(triple, cpu, features, int(level), reloc, codemodel, int(oldest))
    if llvm.llvm_version_info[0] < asked.oldest:
        raise Unsupported(
            f"{cpu} is known to LLVM {oldest} and newer, and llvmlite {llvmlite.__version__} has"
            f" LLVM {'.'.join(map(str, llvm.llvm_version_info))}: pip install --upgrade llvmlite"
        )
    try:
        machine = _target_machine(asked)
        # A context of its own frees the types, constants and metadata along with the module.
        with (
            llvm.create_context() as context,
            llvm.parse_assembly(source, context) as module,
        ):
            module.triple = triple
            module.data_layout = str(machine.target_data)
            module.verify()
            if kind == ASSEMBLY:
                return str(machine.emit_assembly(module)).encode()
            return bytes(machine.emit_object(module))
    except RuntimeError as error:
        raise CompileError(_explain(str(error), source)) from error


def _explain(message: str, source: str) -> str:
    """LLVM's message, with the line of source that it names."""
    found = _LINE_NUMBER.search(message)
    if found is None:
        return f"LLVM: {message.strip()}"
    number = int(found[1])
    line = source.splitlines()[number - 1].strip()
    return f"LLVM: {message.strip()} (line {number}: {line})"


@cache
def _target_machine(machine: Machine) -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(machine.triple).create_target_machine(
        cpu=machine.cpu,
        features=machine.features,
        opt=machine.level,
        reloc=machine.reloc,
        codemodel=machine.codemodel,
    )

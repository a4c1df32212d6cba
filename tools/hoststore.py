"""Makes gpu/core/hoststore_code.py: the machine code of tools/hoststore.ll for each architecture.

python tools/hoststore.py           writes the module
python tools/hoststore.py --print   shows the disassembly instead (needs llvm-objdump)
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import textwrap
from importlib.metadata import version
from pathlib import Path
from typing import Final, NamedTuple

import llvmlite.binding as llvm

from gpu.core.elf import SHF_ALLOC, ElfObject, parse_object

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCE: Final = ROOT / "tools/hoststore.ll"
MODULE: Final = ROOT / "gpu/core/hoststore_code.py"
ENTRIES: Final = ("fence", "kick", "patch", "copy_wc", "spin")
_HARMLESS: Final = (".eh_frame",)  # unwind tables: nothing throws through this code


class Architecture(NamedTuple):
    """What differs between processors.

    Attributes:
        triple: LLVM's name of the target; ELF whatever the system is.
        features: of the processor, beyond what all of the architecture have.
        declarations: of intrinsics.
        fence: orders all stores before it, to any kind of memory, before all stores after it.
        pause: tells the processor that it waits.
        lane: the vector that one store of `copy_wc` writes.
        lane_size: its size in bytes.
    """

    triple: str
    features: str
    declarations: str
    fence: str
    pause: str
    lane: str
    lane_size: int


ARCHITECTURES: Final = {
    "x86_64": Architecture(
        triple="x86_64-unknown-linux-gnu",
        features="",
        declarations="declare void @llvm.x86.sse.sfence()\ndeclare void @llvm.x86.sse2.pause()",
        # Intel SDM 3A, 9.2.2 and 12.3.1: write-combined stores are weakly ordered.
        fence="call void @llvm.x86.sse.sfence()",
        pause="call void @llvm.x86.sse2.pause()",
        lane="<16 x i8>",
        lane_size=16,
    ),
    "aarch64": Architecture(
        triple="aarch64-unknown-linux-gnu",
        # Apple keeps register x18 to itself; doing without makes code that runs on every system.
        features="+reserve-x18",
        declarations="declare void @llvm.aarch64.dsb(i32)\ndeclare void @llvm.aarch64.hint(i32)",
        # Arm ARM, C6.2 DSB: option 14 is ST, full system. DMB ISH does not reach a device.
        fence="call void @llvm.aarch64.dsb(i32 14)",
        pause="call void @llvm.aarch64.hint(i32 1)",  # yield
        lane="<32 x i8>",  # stnp of two registers
        lane_size=32,
    ),
}


def source_for(arch: Architecture) -> str:
    """The IR for one architecture."""
    lanes = range(0, 64, arch.lane_size)
    wide = []
    for at in lanes:
        wide += [
            f"  %w.from{at} = getelementptr i8, ptr %w.from, i64 {at}",
            f"  %w.v{at} = load {arch.lane}, ptr %w.from{at}, align 1",
        ]
    for at in lanes:
        wide += [
            f"  %w.to{at} = getelementptr i8, ptr %w.to, i64 {at}",
            f"  store {arch.lane} %w.v{at}, ptr %w.to{at}, align 16, !nontemporal !0",
        ]
    text = SOURCE.read_text()
    for name, value in {
        "declarations": arch.declarations,
        "fence": arch.fence,
        "pause": arch.pause,
        "wide": "\n".join(wide),
    }.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def compile_for(arch: Architecture) -> bytes:
    """An ELF object."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(arch.triple).create_target_machine(
        cpu="", features=arch.features, opt=2, reloc="pic", codemodel="small"
    )
    with llvm.create_context() as context, llvm.parse_assembly(source_for(arch), context) as module:
        module.triple = arch.triple
        module.data_layout = str(machine.target_data)
        module.verify()
        passes = llvm.create_new_module_pass_manager()
        passes.add_always_inliner_pass()
        passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
        emitted: bytes = machine.emit_object(module)
        return emitted


def code_of(data: bytes) -> tuple[bytes, dict[str, int]]:
    """The code of an object, and the offset of each entry.

    Exits where code alone would not be enough: it has relocations, constants or variables.
    """
    parsed: ElfObject = parse_object(data)
    loaded = [s for s in parsed.sections if s.flags & SHF_ALLOC and s.size]
    loaded = [s for s in loaded if s.name not in _HARMLESS]
    if [s.name for s in loaded] != [".text"]:
        sys.exit(f"only .text may be loaded, not {[s.name for s in loaded]}")
    text = loaded[0]
    if any(r.section == text.index for r in parsed.relocations):
        sys.exit("the code has relocations: it refers to something outside")
    offsets = {s.name: s.value for s in parsed.symbols if s.section == text.index}
    return text.content, {name: offsets[name] for name in ENTRIES}


def module_text() -> str:
    """The generated module, whole."""
    parts = [
        '"""Machine code of the native stores. Generated by tools/hoststore.py from',
        "tools/hoststore.ll; do not edit.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "from typing import Final",
        "",
        f'LLVMLITE: Final = "{version("llvmlite")}"',
        '"""The version of llvmlite that made it."""',
        "ENTRIES: Final[dict[str, dict[str, int]]] = {",
    ]
    codes = {name: code_of(compile_for(arch)) for name, arch in ARCHITECTURES.items()}
    for name, (_, offsets) in codes.items():
        shown = ", ".join(f'"{entry}": {offset}' for entry, offset in offsets.items())
        parts.append(f'    "{name}": {{{shown}}},')
    parts += [
        "}",
        '"""Where each function begins in the code, by architecture."""',
        "CODE: Final[dict[str, bytes]] = {",
    ]
    for name, (code, _) in codes.items():
        parts += [f'    "{name}": bytes.fromhex(', '        """']
        parts += [f"        {line}" for line in textwrap.wrap(code.hex(), 88)]
        parts += ['        """', "    ),"]
    parts += ["}", '"""Position-independent code, by architecture."""', ""]
    return "\n".join(parts)


def print_disassembly() -> None:
    """Shows the code of every architecture."""
    for name, arch in ARCHITECTURES.items():
        with tempfile.NamedTemporaryFile(suffix=".o") as file:
            file.write(compile_for(arch))
            file.flush()
            print(f"--- {name}")
            subprocess.run(["llvm-objdump", "-d", "--no-show-raw-insn", file.name], check=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        print_disassembly()
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        MODULE.write_text(module_text())

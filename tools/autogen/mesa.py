"""Makes autogen/mesa.py from a wheel: layouts and numbers as the library's own DWARF has them.

    pip download --no-deps tinymesa==25.2.7.2
    python -m tools.autogen.mesa tinymesa-25.2.7.2-*.whl [--check]

gdb reads the DWARF; nothing of the library is run. Mesa has no stable interface, so that the module
goes with this one wheel.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from .emit import table
from .recipe import AutogenError

OUTPUT: Final = Path(__file__).resolve().parents[2] / "autogen" / "mesa.py"
PACKAGE: Final = "tinymesa"
VERSION: Final = "25.2.7.2"
LIBRARY: Final = "tinymesa/libtinymesa.so"

# Structure -> the members that are used.
C_FIELDS: Final = {
    "nir_builder": ("exact", "fp_fast_math", "shader"),
    "nir_def": ("num_components", "bit_size"),
    "nir_src": ("ssa",),
    "nir_alu_instr": ("def", "src"),
    "nir_alu_src": ("src", "swizzle"),
    "nir_load_const_instr": ("def", "value"),
    "nir_intrinsic_instr": ("def", "num_components", "const_index", "src"),
    "nir_shader": (
        "info.workgroup_size", "info.shared_size", "info.float_controls_execution_mode",
        "scratch_size",
    ),
    "nir_op_info": ("name", "num_inputs"),
    "nir_intrinsic_info": ("name", "num_srcs"),
    "fd_dev_id": ("gpu_id",),
    "fd_dev_info": ("cs_shared_mem_size", "num_sp_cores", "a6xx.reg_size_vec4"),
    "ir3_compiler_options": (
        "disable_cache", "bindless_fb_read_descriptor", "bindless_fb_read_slot",
    ),
    "ir3_shader_options": (
        "api_wavesize", "real_wavesize", "push_consts_type", "push_consts_dwords", "const_allocs",
    ),
    "ir3_shader_nir_options": (),
    "ir3_shader_key": (),
    "ir3_shader_variant": (
        "bin", "const_state", "imm_state.count", "imm_state.values", "info.size",
        "info.sizedwords", "info.max_reg", "info.max_half_reg", "info.double_threadsize",
        "constant_data_size", "branchstack", "instrlen", "constlen", "pvtmem_size",
        "pvtmem_per_wave", "early_preamble", "shared_size", "inputs_count", "inputs",
        "inputs[0].slot", "inputs[0].regid", "inputs[1]", "num_samp", "mergedregs", "num_uavs",
    ),
    "ir3_const_state": (
        "num_ubos", "num_driver_params", "allocs.max_const_offset_vec4", "ubo_state.num_enabled",
    ),
    "nir_load_store_vectorize_options": ("callback", "modes"),
    "isa_decode_options": ("gpu_id", "show_errors", "max_errors"),
}  # fmt: skip
# As the bindings of NAK's Rust code have them.
RUST_FIELDS: Final = {
    "nak_shader_bin": ("info", "code_size", "code", "asm_str"),
    "nak_shader_info": (
        "stage", "sm", "num_gprs", "num_control_barriers", "num_instrs", "slm_size", "crs_size",
        "__bindgen_anon_1",
    ),
    "nak_shader_info__bindgen_ty_1__bindgen_ty_1": ("local_size", "smem_size"),
    "nak_qmd_info": ("addr", "smem_size", "smem_max", "global_size", "num_cbufs", "cbufs"),
    "nak_qmd_cbuf": ("index", "size", "addr"),
    "nv_device_info": ("sm", "max_warps_per_mp", "cls_compute"),
}  # fmt: skip
# What bindgen calls a nested structure of C, and what it is called here.
_NAMES: Final = {"nak_shader_info__bindgen_ty_1__bindgen_ty_1": "nak_shader_info_cs"}
ALU: Final = (
    "b2f32", "b2f64", "b2i8", "b2i16", "b2i32", "b2i64", "bcsel", "f2f16_rtne", "f2f32",
    "f2f64", "f2i8", "f2i16", "f2i32", "f2i64", "f2u8", "f2u16", "f2u32", "f2u64", "fabs", "fadd",
    "feq", "ffloor", "ffma", "fge",
    "flt", "fmul", "fneg", "fneu", "frcp", "fround_even", "frsq", "ftrunc",
    "i2f32", "i2f64", "i2i8", "i2i16", "i2i32", "i2i64", "iabs", "iadd", "iand", "idiv", "ieq",
    "ige", "ilt", "imax", "imin", "imul", "ine", "ineg", "inot", "ior", "irem", "ishl", "ishr",
    "isub", "ixor", "mov", "pack_64_2x32_split", "u2f32", "u2f64", "u2u8", "u2u16", "u2u32",
    "u2u64", "udiv", "ufind_msb", "uge", "ult", "umax", "umin", "umod", "ushr",
)  # fmt: skip
INTRINSICS: Final = (
    "barrier", "decl_reg", "ldc_nv", "load_const_ir3", "load_global", "load_local_invocation_id",
    "load_reg", "load_scratch", "load_shared", "load_workgroup_id", "shuffle_xor", "store_global",
    "store_reg", "store_scratch", "store_shared",
)  # fmt: skip
INDICES: Final = (
    "ACCESS", "ALIGN_MUL", "ALIGN_OFFSET", "BASE", "BIT_SIZE", "EXECUTION_SCOPE", "MEMORY_MODES",
    "MEMORY_SCOPE", "MEMORY_SEMANTICS", "NUM_COMPONENTS", "WRITE_MASK",
)  # fmt: skip
CONSTANTS: Final = (
    "ACCESS_CAN_REORDER", "ACCESS_NON_WRITEABLE",
    "FLOAT_CONTROLS_DENORM_PRESERVE_FP16", "FLOAT_CONTROLS_DENORM_PRESERVE_FP32",
    "FLOAT_CONTROLS_DENORM_PRESERVE_FP64", "FLOAT_CONTROLS_INF_PRESERVE_FP16",
    "FLOAT_CONTROLS_INF_PRESERVE_FP32", "FLOAT_CONTROLS_INF_PRESERVE_FP64",
    "FLOAT_CONTROLS_NAN_PRESERVE_FP16", "FLOAT_CONTROLS_NAN_PRESERVE_FP32",
    "FLOAT_CONTROLS_NAN_PRESERVE_FP64", "FLOAT_CONTROLS_ROUNDING_MODE_RTE_FP16",
    "FLOAT_CONTROLS_ROUNDING_MODE_RTE_FP32", "FLOAT_CONTROLS_ROUNDING_MODE_RTE_FP64",
    "FLOAT_CONTROLS_SIGNED_ZERO_PRESERVE_FP16", "FLOAT_CONTROLS_SIGNED_ZERO_PRESERVE_FP32",
    "FLOAT_CONTROLS_SIGNED_ZERO_PRESERVE_FP64",
    "IR3_CONST_ALLOC_PUSH_CONSTS", "IR3_PUSH_CONSTS_PER_STAGE", "IR3_SINGLE_OR_DOUBLE",
    "MESA_SHADER_COMPUTE", "NIR_MEMORY_ACQ_REL", "SCOPE_WORKGROUP",
    "SYSTEM_VALUE_LOCAL_INVOCATION_ID", "SYSTEM_VALUE_WORKGROUP_ID", "nir_jump_break",
    "nir_var_mem_global", "nir_var_mem_shared",
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; 1 if the module differs."""
    parser = argparse.ArgumentParser(prog="python -m tools.autogen.mesa", description=__doc__)
    parser.add_argument("wheel", type=Path, help=f"that of {PACKAGE} {VERSION}")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="autogen-") as folder:
        with zipfile.ZipFile(options.wheel) as wheel:
            library = Path(wheel.extract(LIBRARY, folder))
        text = module(library)
    if options.check:
        same = OUTPUT.exists() and OUTPUT.read_text() == text
        print(f"{'same' if same else 'DIFFERS'} autogen/{OUTPUT.name}")
        return int(not same)
    OUTPUT.write_text(text)
    return 0


def module(library: Path) -> str:
    """The text of the module for a library. Raises AutogenError for one that is not as expected."""
    fields, sizes = _layouts(library)
    numbers = _numbers(library)
    intrinsics = {}
    for name in INTRINSICS:
        number, sources = numbers[f"intrinsic {name}"], numbers[f"sources {name}"]
        places = {i: numbers[f"index {name} {i}"] - 1 for i in INDICES}
        used = ", ".join(f'"{i}": {place}' for i, place in places.items() if place >= 0)
        intrinsics[name] = f"({number}, {sources}, {{{used}}})"
    alu = {name: f"({numbers[f'alu {name}']}, {numbers[f'inputs {name}']})" for name in ALU}
    constants = {name: numbers[f"constant {name}"] for name in CONSTANTS}
    return "".join(
        [
            _head(library),
            "\n# structure -> bytes\n",
            table("SIZES", "dict[str, int]", sizes),
            "\n# structure.member -> (offset, bytes)\n",
            table("FIELDS", "dict[str, tuple[int, int]]", fields),
            "\n# operation -> (number, operands)\n",
            table("ALU", "dict[str, tuple[int, int]]", alu),
            "\n# intrinsic -> (number, operands, {index: its place in const_index})\n",
            table("INTRINSICS", "dict[str, tuple[int, int, dict[str, int]]]", intrinsics),
            "\n",
            table("CONSTANTS", "dict[str, int]", constants),
        ]
    )


def _head(library: Path) -> str:
    digest = hashlib.sha256(library.read_bytes()).hexdigest()
    return (
        f"# Made by `python -m tools.autogen.mesa` from PyPI package {PACKAGE} {VERSION}:"
        f" do not edit.\n#   {LIBRARY}\n#     sha256 {digest}\n"
        "# Mesa is under the MIT licence; here are numbers of its debug information alone.\n"
        '"""NIR, NAK and ir3 of libtinymesa: layouts of structures, numbers of operations."""\n'
        "\nfrom __future__ import annotations\n"
        f'\nPACKAGE: str = "{PACKAGE}"\nVERSION: str = "{VERSION}"\n'
    )


def _layouts(library: Path) -> tuple[dict[str, str], dict[str, int]]:
    commands, wanted = [], []
    for language, prefix, structures in (
        ("c", "struct ", C_FIELDS),
        ("rust", "nak_bindings::", RUST_FIELDS),
    ):
        commands.append(f"set language {language}")
        for structure, members in structures.items():
            name = f"{prefix}{structure}"
            wanted.append(f"size {structure}")
            commands.append(_shown(wanted[-1], f"sizeof({name})"))
            for member in members:
                place = f"(({name}*)0)->{member}" if language == "c" else ""
                wanted += [f"offset {structure}.{member}", f"bytes {structure}.{member}"]
                if language == "c":
                    commands.append(_shown(wanted[-2], f"(unsigned long)&{place}"))
                    commands.append(_shown(wanted[-1], f"sizeof({place})"))
            if language == "rust":
                commands += [f"echo structure {structure}\\n", f"ptype /o {name}"]
    output = _gdb(library, commands)
    numbers = _read(output) | _rust_members(output)
    _check(wanted, numbers)
    fields, sizes = {}, {}
    for structure, members in (C_FIELDS | RUST_FIELDS).items():
        known = _NAMES.get(structure, structure)
        sizes[known] = numbers[f"size {structure}"]
        for member in members:
            place = (numbers[f"{what} {structure}.{member}"] for what in ("offset", "bytes"))
            fields[f"{known}.{member}"] = "({}, {})".format(*place)
    return fields, sizes


def _rust_members(output: str) -> dict[str, int]:
    """Offsets and sizes out of what `ptype /o` prints for a structure of Rust."""
    numbers = {}
    for part in output.split("structure ")[1:]:
        structure = part.split("\n", 1)[0]
        for offset, size, name in re.findall(r"/\* +(\d+) +\| +(\d+) \*/ +(\w+): ", part):
            numbers[f"offset {structure}.{name}"] = int(offset)
            numbers[f"bytes {structure}.{name}"] = int(size)
    return numbers


def _numbers(library: Path) -> dict[str, int]:
    wanted = {f"alu {name}": f"(int)nir_op_{name}" for name in ALU}
    wanted |= {f"inputs {name}": f"nir_op_infos[nir_op_{name}].num_inputs" for name in ALU}
    for name in INTRINSICS:
        info = f"nir_intrinsic_infos[nir_intrinsic_{name}]"
        wanted[f"intrinsic {name}"] = f"(int)nir_intrinsic_{name}"
        wanted[f"sources {name}"] = f"{info}.num_srcs"
        for index in INDICES:
            wanted[f"index {name} {index}"] = f"{info}.index_map[NIR_INTRINSIC_{index}]"
    wanted |= {f"constant {name}": f"(int){name}" for name in CONSTANTS}
    commands = ["set language c", *(_shown(name, value) for name, value in wanted.items())]
    numbers = _read(_gdb(library, commands))
    _check(wanted, numbers)
    return numbers


def _shown(name: str, expression: str) -> str:
    return f"echo {name} =\noutput/d {expression}\necho \\n"


def _read(output: str) -> dict[str, int]:
    found = re.findall(r"^([\w .\[\]]+) =(-?\d+)$", output, re.MULTILINE)
    return {name: int(number) for name, number in found}


def _check(wanted: Iterable[str], numbers: Mapping[str, int]) -> None:
    missing = [name for name in wanted if name not in numbers]
    if missing:
        raise AutogenError(f"gdb finds no {', '.join(missing)}")


def _gdb(library: Path, commands: list[str]) -> str:
    with tempfile.NamedTemporaryFile("w", suffix=".gdb") as script:
        script.write("\n".join(commands) + "\n")
        script.flush()
        command = ["gdb", "-nx", "-batch", "-x", script.name, str(library)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise AutogenError("gdb is not installed: it reads the library's DWARF") from error
    if done.returncode or "Error in sourced command file" in done.stderr:
        raise AutogenError(f"gdb fails: {done.stderr.strip()[-500:]}")
    return done.stdout


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AutogenError as error:
        sys.exit(f"tools.autogen.mesa: {error}")

"""`tools/autogen`: reading headers, and writing the same bytes again.

Making every module anew takes packages of some 270 MB from Debian's archive, and so is done only
where asked for: `--require=autogen`.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]


def _load() -> None:
    """`tools/autogen` is no part of an installed package: loaded by its path."""
    folder = ROOT / "tools/autogen"
    spec = importlib.util.spec_from_file_location("autogen_tool", folder / "__init__.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["autogen_tool"] = module
    spec.loader.exec_module(module)


def _tool(name: str) -> ModuleType:
    if "autogen_tool" not in sys.modules:
        _load()
    return importlib.import_module(f"autogen_tool.{name}")


recipe = _tool("recipe")
registers = _tool("registers")
packets = _tool("packets")
ANY: Final = (".*",)

OFFSETS: Final = """
// addressBlock: gc_shdec
#define regCOMPUTE_PGM_LO                                     0x1bac
#define regCOMPUTE_PGM_LO_BASE_IDX                            0
#define mmGRBM_CNTL   0x0da0
#define mmGRBM_CNTL_BASE_IDX    1
#define cfgGRBM_CNTL    0x30303
"""
MASKS: Final = """
//GRBM_CNTL
#define GRBM_CNTL__REPORT_LAST_RDERR__SHIFT                   0x1f
#define GRBM_CNTL__READ_TIMEOUT__SHIFT                        0x0
#define GRBM_CNTL__READ_TIMEOUT_MASK                          0x000000FFL
#define GRBM_CNTL__REPORT_LAST_RDERR_MASK                     0x80000000L
"""


def test_registers_and_their_fields_are_read() -> None:
    table = registers.parse_registers(OFFSETS, MASKS, recipe.Patterns(ANY))
    assert table == {
        "COMPUTE_PGM_LO": (0, 0x1BAC, {}),
        "GRBM_CNTL": (1, 0xDA0, {"READ_TIMEOUT": (0, 8), "REPORT_LAST_RDERR": (31, 1)}),
    }
    assert list(table["GRBM_CNTL"][2]) == ["READ_TIMEOUT", "REPORT_LAST_RDERR"]
    some = registers.parse_registers(OFFSETS, MASKS, recipe.Patterns(["COMPUTE_.*"]))
    assert list(some) == ["COMPUTE_PGM_LO"]


@pytest.mark.parametrize(
    ("offsets", "masks", "said"),
    [
        ("#define regA 0x1", "", "A lacks its offset or its segment"),
        ("#define regA_BASE_IDX 0", "", "A lacks its offset or its segment"),
        ("#define regA 0x1\n#define regA 0x2", "", "A is both 0x1 and 0x2"),
        ("", "#define A__F__SHIFT 0x1", r"is missing: \['A__F'\]"),
        ("", "#define A__F__SHIFT 0x1\n#define A__F_MASK 0x1L", "A__F: shift 1 does not fit"),
        ("", "#define A__F__SHIFT 0x0\n#define A__F_MASK 0x5L", "A__F: shift 0 does not fit"),
    ],
)
def test_headers_that_contradict_themselves_are_refused(
    offsets: str, masks: str, said: str
) -> None:
    with pytest.raises(recipe.AutogenError, match=said):
        registers.parse_registers(offsets, masks, recipe.Patterns(ANY))


def test_what_a_header_forgets_has_to_be_named() -> None:
    half, whole = "#define A__F__SHIFT 0x1\n", "#define A__F_MASK 0x2L\n"
    assert registers.parse_fields(half, recipe.Patterns(ANY), ["A__F"]) == {}
    with pytest.raises(recipe.AutogenError, match="A__F"):
        registers.parse_fields(half + whole, recipe.Patterns(ANY), ["A__F"])


def test_a_pattern_that_matches_nothing_is_noticed() -> None:
    names = recipe.Patterns(["A_.*", "B_.*"])
    assert "A_1" in names and "XA_1" not in names
    with pytest.raises(recipe.AutogenError, match=r"registers: no name matches B_\.\*"):
        names.check("registers")


PM4: Final = """\
#define PACKET3_COMPUTE(op, n) (PACKET3(op, n) | 1 << 1)
#define	PACKET3_NOP					0x10
#define	PACKET3_WRITE_DATA				0x37
#define		WRITE_DATA_DST_SEL(x)                   ((x) << 8)
    /* 0 - register
     * 1 - memory (sync - via GRBM)
     */
#define		WR_CONFIRM                              (1 << 20)
#              define PACKET3_SEM_SEL_WAIT	    (0x7 << 29) /* why */
#define	PACKET3_SET_SH_REG				0x76
#define		PACKET3_SET_SH_REG_START			0x00002c00
"""


def test_pm4_definitions_belong_to_the_packet_before_them() -> None:
    table = packets.parse_pm4(PM4)
    assert {name: one.opcode for name, one in table.items()} == {
        "NOP": 0x10,
        "WRITE_DATA": 0x37,
        "SET_SH_REG": 0x76,
    }
    assert table["WRITE_DATA"].fields == {"DST_SEL": 8}
    assert table["WRITE_DATA"].values == {"WR_CONFIRM": 1 << 20, "SEM_SEL_WAIT": 7 << 29}
    assert table["SET_SH_REG"].values == {"START": 0x2C00}
    with pytest.raises(recipe.AutogenError, match="ODD"):
        packets.parse_pm4(PM4 + "#define ODD (1 + 1)\n")


SDMA: Final = """
#define SDMA_OP_FENCE  5
#define SDMA_GCR_SEQ(x)			(((x) & 0x3) << 16)
#define SDMA_GCR_GL2_WB			(1 << 15)
** Definitions for SDMA_PKT_FENCE packet
/*define for HEADER word*/
/*define for mtype field*/
#define SDMA_PKT_FENCE_HEADER_mtype_offset 0
#define SDMA_PKT_FENCE_HEADER_mtype_mask   0x00000007
#define SDMA_PKT_FENCE_HEADER_mtype_shift  16
#define SDMA_PKT_FENCE_HEADER_MTYPE(x) (((x) & 7) << 16)
/*define for ADDR_LO word*/
#define SDMA_PKT_FENCE_ADDR_LO_addr_31_0_offset 1
#define SDMA_PKT_FENCE_ADDR_LO_addr_31_0_mask   0xFFFFFFFF
#define SDMA_PKT_FENCE_ADDR_LO_addr_31_0_shift  0
"""


def test_packets_of_the_copy_engine_are_read() -> None:
    assert packets.parse_sdma(SDMA, recipe.Patterns(ANY)) == {
        "FENCE": {"HEADER.mtype": (0, 16, 3), "ADDR_LO.addr_31_0": (1, 0, 32)}
    }
    assert packets.parse_sdma_numbers(SDMA) == {"SDMA_OP_FENCE": 5}
    assert packets.parse_sdma_gcr(SDMA) == {"SEQ": (16, 2), "GL2_WB": (15, 1)}


MACROS: Final = """
#define BASE 'K'  /* the letter */
#define IOWR(nr, type) _IOWR(BASE, nr, type)
#define CALL \\
    IOWR(0x02, struct args)
#define PLAIN _IO(';', FIRST + 1)
#define FIRST 100
#define HIGH (1u << TOP_BIT)
#define ALL (HIGH | 0x3ULL)
#define OCTAL 010
#define NOT_A_NUMBER "text"
#define LOOP LOOP
#define FLAG(x) (1 << (x))
"""


def test_numbers_of_calls_are_computed() -> None:
    macros = _tool("macros").Macros([MACROS], {"args": 0x60}, {"TOP_BIT": 31})
    assert macros.value("CALL") == 0xC0604B02
    assert macros.value("PLAIN") == 0x3B65
    assert (macros.value("ALL"), macros.value("OCTAL")) == (0x80000003, 8)
    assert macros.value("NOT_A_NUMBER") is None
    assert "FLAG" not in macros.constants() and "CALL" in macros.constants()
    with pytest.raises(recipe.AutogenError, match="LOOP expands to itself"):
        macros.value("LOOP")


def test_every_enumeration_gets_a_name() -> None:
    text = "enum {A};\nenum b {B};\ntypedef enum\n{ C } c;\nenum : int {D};"
    named = "enum x_0 {A};\nenum b {B};\ntypedef enum x_1\n{ C } c;\nenum x_2 : int {D};"
    assert _tool("clang")._name_enumerations("x", text) == named


def test_licences_lose_their_frames_alone() -> None:
    emit = _tool("emit")
    text = "/* SPDX-License-Identifier: X */\n/*\n * Copyright\n *\n *   Indented.\n */\nint x;"
    assert (
        emit.licence(text + "/* no */") == "SPDX-License-Identifier: X\n\nCopyright\n\n  Indented."
    )
    assert emit.licence("// Part of LLVM.\n//\n// End\n\nint x; // no") == "Part of LLVM.\n\nEnd"


def test_tables_are_wrapped_and_stay_python() -> None:
    emit = _tool("emit")
    fields = {f"FIELD_{i}": (i, 1) for i in range(20)}
    text = emit.registers({"A": (0, 16, {}), "B": (1, 0x20, fields)})
    assert max(map(len, text.split("\n"))) <= emit.WIDTH
    found: dict[str, object] = {}
    exec(text, found)
    assert found["REGISTERS"] == {"A": (0, 16, {}), "B": (1, 0x20, fields)}


def _tar(names: list[str]) -> tarfile.TarFile:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = len(name)
            archive.addfile(entry, io.BytesIO(name.encode()))
    buffer.seek(0)
    return tarfile.open(fileobj=buffer, mode="r|")


def test_only_what_is_wanted_is_unpacked(tmp_path: Path) -> None:
    unpack = _tool("debian")._unpack
    names = ["./root/a.h", "./root/linux/b.h", "./root/linux/c.h", "./root/d.h", "./other/a.h"]
    with _tar(names) as archive:
        assert unpack(archive, "root", ["a.h", "linux/", "e.h"], tmp_path) == {"a.h", "linux/"}
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.h")}
    assert found == {"a.h", "linux/b.h", "linux/c.h"}
    assert (tmp_path / "a.h").read_text() == "./root/a.h"


def test_every_recipe_has_its_module_and_every_module_its_recipe() -> None:
    modules = {one.module for one in _tool("recipes").RECIPES}
    assert len(modules) == len(_tool("recipes").RECIPES)
    marked = {
        str(path.relative_to(ROOT / "autogen").with_suffix(""))
        for path in (ROOT / "autogen").rglob("*.py")
        if path.read_text().startswith("# Generated by tools/autogen")
    }
    assert marked == modules


def test_modules_are_of_the_versions_that_the_recipes_name() -> None:
    for one in _tool("recipes").RECIPES:
        text = (ROOT / f"autogen/{one.module}.py").read_text()
        assert f"# Debian package {one.package.name}, version {one.package.version}:\n" in text
        assert all(f"#   {header}\n" in text for header in one.headers)


def test_regenerating_gives_the_same_bytes(need: Callable[[str], None]) -> None:
    """Status 3, where a package could not be had, is a failure too: nothing was compared then."""
    need("autogen")
    command = [sys.executable, "-m", "tools.autogen", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "same autogen/kfd.py" in done.stdout

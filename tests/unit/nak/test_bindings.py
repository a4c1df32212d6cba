"""autogen/mesa.py: the same again from the library, and what a hand-written probe found."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu.autogen import mesa
from gpu.compiler.toolchain.mesalib import find_mesa
from tools.autogen.mesa import OUTPUT, module


@pytest.mark.slow
def test_the_library_gives_the_same_bytes_again(need: Callable[[str], None]) -> None:
    need("tinymesa")
    if shutil.which("gdb") is None:
        pytest.skip("gdb, which reads the library's DWARF, is not in PATH")
    library = Path(find_mesa().path)
    digest = hashlib.sha256(library.read_bytes()).hexdigest()
    if digest not in OUTPUT.read_text():
        pytest.skip(f"{library} is not the library of the wheel for this system")
    assert module(library) == OUTPUT.read_text()


def test_layouts_that_were_found_by_hand() -> None:
    """From `ptype /o` of the wheel and from programs that NAK compiled with them."""
    assert mesa.SIZES["nir_builder"] == 40
    assert mesa.FIELDS["nir_shader.info.workgroup_size"] == (328, 6)
    assert mesa.FIELDS["nir_intrinsic_instr.src"][0] == 120
    assert mesa.FIELDS["nir_src.ssa"][0] == 24
    assert mesa.FIELDS["nir_load_const_instr.value"][0] == 64
    number, operands, places = mesa.INTRINSICS["store_global"]
    assert operands == 2 and places["WRITE_MASK"] == 0 and number != mesa.INTRINSICS["barrier"][0]

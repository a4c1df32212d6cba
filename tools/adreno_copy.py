#!/usr/bin/env python3
"""Makes gpu/drivers/kgsl/copy_code.py: the kernel by which Adreno GPUs copy memory.

    python -m tools.adreno_copy           # writes it
    python -m tools.adreno_copy --print   # the NIR, and the machine code of a630 as text

KGSL has no copy queue, and a driver without a compiler copies too, so that the code is there for
each generation, as Mesa's compiler ir3 makes it. It needs tinymesa (the extra `nak`).
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import Final

from gpu.compiler.nir_text import NirInst, NirProgram, print_nir
from gpu.compiler.targets.adreno import CHIPS
from gpu.compiler.toolchain.ir3 import Ir3Compiler
from gpu.core.ir3binary import Ir3Binary
from gpu.drivers.kgsl.copy_code import BLOCK

PATH: Final = Path(__file__).resolve().parents[1] / "gpu/drivers/kgsl/copy_code.py"
_START: Final = "_CODE: Final = "


class _Body:
    """Instructions in the making; calling it appends one and gives the number of its value."""

    def __init__(self) -> None:
        self.list: list[NirInst] = []
        self._count = 0

    def __call__(self, op: str, *args: int, bits: int = 0, attr: tuple[int, ...] = ()) -> int:
        self.list.append(NirInst(op, bits, args, attr))
        self._count += bool(bits)
        return self._count - 1

    def const(self, value: int, bits: int = 32) -> int:
        return self("load_const", bits=bits, attr=(value,))

    def plus(self, address: int, offset: int) -> int:
        """An address of 64 bits and an offset of 32."""
        return self("iadd", address, self("u2u64", offset, bits=64), bits=64)


def program() -> NirProgram:
    """Each thread moves every ``threads``-th piece: of 16 bytes and of 4 where alignment lets it.

    Parameters: addresses of 64 bits to and from, then bytes and threads as 32 bits.
    """
    b = _Body()
    target, source = (b("param", bits=64, attr=(at,)) for at in (0, 8))
    size, threads = (b("param", bits=32, attr=(at,)) for at in (16, 20))
    group, thread = (b(f"{kind}_id", bits=32) for kind in ("workgroup", "local_invocation"))
    first = b("iadd", b("imul", group, b.const(BLOCK), bits=32), thread, bits=32)
    zero = b.const(0)
    both = b("u2u32", b("ior", target, source, bits=64), bits=32)
    done = zero
    for shift in (4, 2, 0):
        left = b("isub", size, done, bits=32)
        count = b("ushr", left, b.const(shift), bits=32)
        odd = b("iand", both, b.const((1 << shift) - 1), bits=32)
        count = b("bcsel", b("ieq", odd, zero, bits=1), count, zero, bits=32)
        turn = b("reg", bits=32)
        b("store_reg", turn, first)
        b("loop")
        piece = b("load_reg", turn, bits=32)
        b("if", b("uge", piece, count, bits=1))
        b("break")
        b("endif")
        at = b("iadd", done, b("ishl", piece, b.const(shift), bits=32), bits=32)
        _move(b, b.plus(target, at), b.plus(source, at), 1 << shift)
        b("store_reg", turn, b("iadd", piece, threads, bits=32))
        b("endloop")
        done = b("iadd", done, b("ishl", count, b.const(shift), bits=32), bits=32)
    return NirProgram("copy", BLOCK, 0, 0, 24, tuple(b.list))


def _move(b: _Body, target: int, source: int, size: int) -> None:
    """Loads, then stores some bytes; ir3 makes one access of words beside each other."""
    bits = min(8 * size, 32)
    places = [b.const(at, 64) for at in range(0, size, 4)]
    froms = [b("iadd", source, at, bits=64) for at in places]
    values = [b("load_global", at, bits=bits, attr=(bits // 8, 0)) for at in froms]
    for at, value in zip(places, values, strict=True):
        b("store_global", value, b("iadd", target, at, bits=64), attr=(bits // 8,))


def render() -> str:
    """The table, as Python."""
    source = print_nir(program())
    chips: dict[Ir3Binary, list[str]] = {}
    for chip in CHIPS:
        made = Ir3Binary.unpack(Ir3Compiler(chip).compile(source))
        chips.setdefault(made._replace(chip=0), []).append(chip)
    lines = [f"{_START}{{"]
    for binary, names in chips.items():
        *numbers, name, code, immediates = binary
        lines.append(f"    {tuple(names)!r}: Ir3Binary(".replace("'", '"'))
        rows = zip(Ir3Binary._fields, (*numbers, name), strict=False)
        lines += [f"        {field}={value!r},".replace("'", '"') for field, value in rows]
        lines.append("        code=bytes.fromhex(")
        lines += [f'            "{part}"' for part in textwrap.wrap(code.hex(), 80)]
        lines += [
            "        ),",
            f'        immediates=bytes.fromhex("{immediates.hex()}"),',
            "    ),",
        ]
    return "\n".join([*lines, "}", ""])


def current() -> str:
    """The file with the table as it would be made now."""
    head, _, _ = PATH.read_text().partition(_START)
    return head + render()


def main() -> None:
    """Writes the file, or prints what it is made of."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--print", action="store_true", help="print the kernel")
    if parser.parse_args().print:
        source = print_nir(program())
        compiler = Ir3Compiler("a630")
        print(source, compiler.disassemble(compiler.compile(source)))
    else:
        PATH.write_text(current())


if __name__ == "__main__":
    main()

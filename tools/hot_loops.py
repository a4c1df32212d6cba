"""What the innermost loops of compiled kernels are made of, on CPUs that need not be here.

    python -m tools.hot_loops
    python -m tools.hot_loops x86-64-v4 apple-m1 --kernels gemm conv
    python -m tools.hot_loops --write tests/unit/hot_loops.json

A line is a kernel on a CPU: instructions on vectors for each 100 operations that its hottest loop
does (an addition or a product in one lane is an operation, a fused one is two), and how many
instructions of all innermost loops that compute work on one lane, on the stack (spills) and on
lanes one by one (gathers). Where `llvm-mca` is found, the cycles that it reckons for 100 operations
of the hottest loop. No device is needed, and nothing is run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import gpu
from gpu import Tensor, dtypes
from gpu.compiler.toolchain.llvm import LLVMCompiler, emit_assembly
from gpu.core.dtype import DType
from tools.coalescing import memory


def product(m: int, n: int, k: int, dtype: DType = dtypes.float32) -> Tensor:
    """A matrix product."""
    return memory(m, k, dtype=dtype) @ memory(k, n, dtype=dtype)


def bytes_product(m: int, n: int, k: int) -> Tensor:
    """A product of bytes with a sign, with sums that hold it."""
    a, b = memory(m, k, dtype=dtypes.int8), memory(k, n, dtype=dtypes.int8)
    return a.dot(b, dtype=dtypes.int32)


def attention_scores() -> Tensor:
    """Small products, one after the other."""
    return memory(96, 33, 40) @ memory(96, 40, 33)


def narrow_rows() -> Tensor:
    """Rows that are narrower than a vector, with what they and their columns share."""
    return (memory(1 << 16, 3) * memory(3) + memory(1 << 16, 1)).exp()


def gradient_of_weight(side: int) -> Tensor:
    """The product of a transposed matrix and itself: many rows, few columns."""
    x = memory(65536, side)
    return x.T @ x


KERNELS: Final[dict[str, Callable[[], Tensor]]] = {
    "gemm 256": lambda: product(256, 256, 256),
    "gemm n = 15": lambda: product(1024, 15, 1024),
    "gemm n = 31": lambda: product(1024, 31, 1024),
    "gemm bf16": lambda: product(256, 256, 256, dtypes.bfloat16),
    "gemm i8": lambda: product(256, 256, 256, dtypes.int8),
    "gemm i8 to i32": lambda: bytes_product(133, 66, 127),
    "gemm bf16 odd": lambda: product(32, 94, 42, dtypes.bfloat16),
    "gemm i8 odd": lambda: product(41, 29, 279, dtypes.int8),
    "gemv": lambda: memory(1024, 1024) @ memory(1024),
    "A^T A": lambda: gradient_of_weight(32),
    "bmm 8": lambda: memory(4096, 8, 8) @ memory(4096, 8, 8),
    "bmm 33": attention_scores,
    "(a + c) @ b": lambda: (memory(512, 512) + memory(512)) @ memory(512, 512),
    "max-plus": lambda: (memory(256, 1, 256) + memory(1, 256, 256)).max(2),
    "conv 14": lambda: memory(8, 64, 14, 14).conv2d(memory(64, 64, 3, 3), padding=1),
    "conv 15": lambda: memory(8, 64, 15, 15).conv2d(memory(64, 64, 3, 3), padding=1),
    "conv i8": lambda: memory(8, 64, 14, 14, dtype=dtypes.int8).conv2d(
        memory(64, 64, 3, 3, dtype=dtypes.int8), padding=1, dtype=dtypes.int32
    ),
    "conv stride 2": lambda: memory(8, 32, 28, 28).conv2d(memory(64, 32, 3, 3), stride=2),
    "depthwise 14": lambda: memory(8, 64, 14, 14).conv2d(memory(64, 1, 7, 7), groups=64),
    "softmax": lambda: memory(1024, 1000).softmax(1),
    "layernorm": lambda: memory(4096, 768).layernorm(),
    "row sums": lambda: memory(2048, 2048).sum(1),
    "column sums": lambda: memory(2048, 2048).sum(0),
    "gelu": lambda: memory(1 << 20).gelu(),
    "tanh": lambda: memory(1 << 20).tanh(),
    "rows of 3": narrow_rows,
    "max pool": lambda: memory(8, 64, 28, 28).max_pool2d((2, 2)),
}
# CPUs, and what llvm-mca calls them; its models are of whole CPUs, not of levels.
TARGETS: Final = {
    "x86-64-v3": ("x86_64", "haswell"),
    "x86-64-v4": ("x86_64", "skylake-avx512"),
    "sapphirerapids": ("x86_64", "sapphirerapids"),
    "znver5": ("x86_64", "znver4"),
    "neoverse-v2": ("aarch64", "neoverse-v2"),
    "apple-m1": ("aarch64", "apple-m1"),
}
_LABEL: Final = re.compile(r"^(\.L\w+):")
_JUMP: Final = re.compile(r"^(?:j\w+|b|b\.\w+|cbn?z|tbn?z)$")


class Counts(NamedTuple):
    """What is counted of a kernel.

    Attributes:
        vectors: instructions on vectors for 100 operations of the hottest loop.
        scalars: instructions that compute in one lane, in all innermost loops that compute.
        spills, gathers: likewise those that touch the stack, and vectors filled lane by lane.
        cycles: of the hottest loop for 100 operations, as llvm-mca reckons; None without it.
    """

    vectors: float
    scalars: int
    spills: int
    gathers: int
    cycles: float | None = None


class Instruction(NamedTuple):
    """A line of assembly: its mnemonic and its operands."""

    name: str
    operands: str


class Dialect(NamedTuple):
    """How an architecture's assembly is read.

    Attributes:
        work: the lanes that an instruction computes in, and its operations in each; None where it
            computes nothing in lanes.
        vector, spill, gather: patterns of the text of instructions that are such.
    """

    work: Callable[[Instruction], tuple[int, int] | None]
    vector: re.Pattern[str]
    spill: re.Pattern[str]
    gather: re.Pattern[str]


_X86_FLOATS: Final = re.compile(
    r"v?(?:(?P<fused>fn?m(?:add|sub)\d+)|add|sub|mul|max|min|div|sqrt)(?P<each>[ps])(?P<type>[sdh])"
)
_X86_INTEGERS: Final = re.compile(r"v?p(?:add|sub|mull|max[su]|min[su])(?P<type>[bwdq])")
_X86_BITS: Final = {"s": 32, "d": 64, "h": 16}
_X86_INTEGER_BITS: Final = {"b": 8, "w": 16, "d": 32, "q": 64}
# Operations in each lane of 32 bits of what adds products, and in all of a tile.
_X86_DOTS: Final = {
    "pmaddwd": 4,
    "vpmaddwd": 4,
    "vpdpwssd": 4,
    "vpdpbusd": 8,
    "vdpbf16ps": 4,
    "vpdpbssd": 8,
    "vpdpbuud": 8,
}
_X86_TILES: Final = {"tdpbf16ps": 2 * 16 * 16 * 32}
_X86_TILES_OF_BYTES: Final = 2 * 16 * 16 * 64
_REGISTER_BITS: Final = {"x": 128, "y": 256, "z": 512}


def _x86_work(inst: Instruction) -> tuple[int, int] | None:
    if inst.name.startswith("tdp"):
        return 1, _X86_TILES.get(inst.name, _X86_TILES_OF_BYTES)
    widths = [_REGISTER_BITS[letter] for letter in re.findall(r"%([xyz])mm", inst.operands)]
    if not widths:
        return None
    if inst.name in _X86_DOTS:
        return max(widths) // 32, _X86_DOTS[inst.name]
    if found := _X86_FLOATS.fullmatch(inst.name):
        lanes = 1 if found["each"] == "s" else max(widths) // _X86_BITS[found["type"]]
        return lanes, 2 if found["fused"] else 1
    if found := _X86_INTEGERS.fullmatch(inst.name):
        return max(widths) // _X86_INTEGER_BITS[found["type"]], 1
    return None


_ARM_FUSED: Final = re.compile(r"fml[as]|fn?m(?:add|sub)|ml[as]|[su]mlal2?")
_ARM_PLAIN: Final = re.compile(r"f(?:add|sub|mul|max|min|maxnm|minnm|div|sqrt)")
_ARM_INTEGERS: Final = re.compile(r"add|sub|mul|[su]max|[su]min")
_ARM_DOTS: Final = {"sdot": 8, "udot": 8, "usdot": 8, "bfdot": 4, "smmla": 16, "ummla": 16}


def _arm_work(inst: Instruction) -> tuple[int, int] | None:
    found = re.match(r"v\d+\.(\d+)[bhsd]", inst.operands)
    lanes = int(found[1]) if found else 1
    if inst.name in _ARM_DOTS:
        return lanes, _ARM_DOTS[inst.name]
    if _ARM_FUSED.fullmatch(inst.name):
        return lanes, 2
    if _ARM_PLAIN.fullmatch(inst.name) or (found and _ARM_INTEGERS.fullmatch(inst.name)):
        return lanes, 1
    return None


DIALECTS: Final = {
    "x86_64": Dialect(
        _x86_work,
        re.compile(r"%[xyz]mm|%k\d|%tmm"),
        re.compile(r"\(%rsp"),
        re.compile(r"^v?p?gather|^v?pinsr[bwdq]|^v?insertps"),
    ),
    "aarch64": Dialect(
        _arm_work,
        re.compile(r"\bv\d+\.|\bq\d+"),
        re.compile(r"\[sp\b"),
        re.compile(r"^ld1 \{[^}]*\}\[|^(?:mov|ins) v\d+\.[bhsd]\["),
    ),
}


def innermost_loops(assembly: str) -> Iterator[list[Instruction]]:
    """The bodies of loops that have no loop inside: from a label to a jump back to it."""
    body: list[Instruction] = []
    labels: dict[str, int] = {}
    spans: list[tuple[int, int]] = []
    for line in assembly.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(body)
        elif line.startswith("\t") and not line.startswith("\t."):
            name, _, operands = line.strip().removeprefix("{vex}\t").partition("\t")
            body.append(Instruction(name, operands))
            target = operands.rpartition(",")[2].strip()
            if _JUMP.match(name) and target in labels:
                spans.append((labels[target], len(body)))
    for first, end in spans:
        if not any(first <= a and b <= end for a, b in spans if (a, b) != (first, end)):
            yield body[first:end]


def operations(loop: Sequence[Instruction], dialect: Dialect) -> int:
    """How many operations an iteration has, in all lanes."""
    found = (dialect.work(inst) for inst in loop)
    return sum(lanes * each for lanes, each in filter(None, found))


def is_scalar(inst: Instruction, dialect: Dialect) -> bool:
    """Whether an instruction computes, in one lane."""
    return dialect.work(inst) in ((1, 1), (1, 2))


def count(assemblies: Sequence[str], target: str) -> Counts | None:
    """What is counted of the kernels of an operation; None where no loop of theirs computes."""
    architecture, model = TARGETS[target]
    dialect = DIALECTS[architecture]
    found = [loop for text in assemblies for loop in innermost_loops(text)]
    loops = [loop for loop in found if operations(loop, dialect)]
    if not loops:
        return None
    hottest = max(loops, key=lambda loop: operations(loop, dialect))
    work = operations(hottest, dialect)
    inside = [inst for loop in loops for inst in loop]
    texts = [f"{inst.name} {inst.operands}" for inst in inside]
    vectors = sum(bool(dialect.vector.search(inst.operands)) for inst in hottest)
    cycles = reckoned(hottest, architecture, model)
    return Counts(
        round(100 * vectors / work, 2),
        sum(is_scalar(inst, dialect) for inst in inside),
        sum(bool(dialect.spill.search(text)) for text in texts),
        sum(bool(dialect.gather.search(text)) for text in texts),
        None if cycles is None else round(100 * cycles / work, 2),
    )


def reckoned(loop: Sequence[Instruction], architecture: str, model: str) -> float | None:
    """Cycles of an iteration, as llvm-mca reckons; None without it, or for a CPU it knows not."""
    tool = next(filter(None, map(shutil.which, ("llvm-mca-19", "llvm-mca"))), None)
    if tool is None:
        return None
    straight = (inst for inst in loop if not _JUMP.match(inst.name))
    text = "".join(f"\t{inst.name}\t{inst.operands}\n" for inst in straight)
    command = [tool, f"-mtriple={architecture}", f"-mcpu={model}", "-iterations=100"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    cycles = re.search(r"^Total Cycles:\s+(\d+)$", done.stdout, re.MULTILINE)
    return int(cycles[1]) / 100 if cycles else None


def assemblies(operation: Tensor, target: str) -> list[str]:
    """The assembly of each kernel of an operation."""
    found = []
    for kernel in gpu.compile_for(f"CPU:LLVM:{target}", operation):
        assert isinstance(kernel.compiler, LLVMCompiler)
        found.append(emit_assembly(kernel.source, kernel.compiler.machine))
    return found


def main(arguments: Sequence[str] = sys.argv[1:]) -> None:
    """Prints the counts, or writes them."""
    parser = argparse.ArgumentParser(prog="python -m tools.hot_loops", description=__doc__)
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS], default=[], metavar="CPU")
    parser.add_argument("--kernels", nargs="*", default=[""], help="parts of the names of kernels")
    parser.add_argument("--write", type=Path, help="a file for what was counted, as JSON")
    given = parser.parse_args(arguments)
    names = [name for name in KERNELS if any(part in name for part in given.kernels)]
    table: dict[str, dict[str, list[float]]] = {}
    print(f"{'':29} {'vectors':>8} {'scalars':>8} {'spills':>7} {'gathers':>8} {'cycles':>7}")
    for target, name in itertools.product(given.targets or TARGETS, names):
        counts = count(assemblies(KERNELS[name](), target), target)
        if counts is None:
            continue
        table.setdefault(name, {})[target] = list(counts[:4])
        cycles = "" if counts.cycles is None else f"{counts.cycles:.2f}"
        shown = f"{counts.vectors:8.2f} {counts.scalars:8} {counts.spills:7} {counts.gathers:8}"
        print(f"{name:14} {target:14} {shown} {cycles:>7}")
    if given.write:
        given.write.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()

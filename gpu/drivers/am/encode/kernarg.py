"""The arguments of one launch as the kernel reads them: those given, and the hidden ones behind.

Hidden arguments are those of code object 5 (LLVM's "User Guide for AMDGPU Backend", "Code Object V5
Metadata"): sizes of the launch that kernels may ask for. Pointers to services of a host runtime are
0: metadata lists them for kernels that never use them too, and one that does faults.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from gpu.core.bits import align_up
from gpu.core.errors import InvalidValue, Unsupported
from gpu.drivers.am.code.metadata import EXPLICIT, KernelArgument, KernelMetadata
from gpu.hcq.args import SCALARS, ArgumentLayout, KernelArguments
from gpu.hcq.commands import Block, Grid
from gpu.hcq.encoder import Patch
from gpu.hcq.symbol import Derived, Symbol, Value

_AXES: Final = "xyz"
_FORMATS: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}
_SIZES: Final = {
    "hidden_block_count": 4,
    "hidden_group_size": 2,
    "hidden_remainder": 2,
    "hidden_grid_dims": 2,
    "hidden_dynamic_lds_size": 4,
}
_ZERO: Final = frozenset(
    (
        *("hidden_none", "hidden_printf_buffer", "hidden_hostcall_buffer", "hidden_heap_v1"),
        *("hidden_multigrid_sync_arg", "hidden_default_queue", "hidden_completion_action"),
        *("hidden_queue_ptr", "hidden_private_base"),
        *("hidden_shared_base", *(f"hidden_global_offset_{axis}" for axis in _AXES)),
    )
)


class Kernarg(NamedTuple):
    """Bytes of arguments, and the patches of those that are symbols, for segment 0."""

    data: bytes
    patches: tuple[Patch, ...]


def argument_layout(kernel: KernelMetadata) -> ArgumentLayout:
    """The layout of a kernel's explicit arguments, which are pointers first, then scalars.

    Scalars are taken for unsigned numbers of their size. Raises Unsupported for other arguments.
    """
    explicit = [argument for argument in kernel.arguments if argument.kind in EXPLICIT]
    pointers = [argument for argument in explicit if argument.kind == "global_buffer"]
    scalars = [argument for argument in explicit if argument.kind == "by_value"]
    odd = [argument for argument in scalars if argument.size not in _FORMATS]
    if explicit != pointers + scalars or odd:
        found = ", ".join(f"{a.kind} of {a.size} bytes" for a in explicit)
        raise Unsupported(
            f"arguments of {kernel.name} are {found}: pointers and numbers are wanted"
        )
    layout = ArgumentLayout(len(pointers), [_FORMATS[argument.size] for argument in scalars])
    check_layout(kernel, layout)
    return layout


def check_layout(kernel: KernelMetadata, layout: ArgumentLayout) -> None:
    """Raises InvalidValue where a layout is not that of a kernel's explicit arguments."""
    ours = [(argument.offset, SCALARS[argument.code]) for argument in layout.arguments]
    theirs = [(a.offset, a.size) for a in kernel.arguments if a.kind in EXPLICIT]
    if ours != theirs:
        raise InvalidValue(
            f"arguments of {kernel.name} at (offset, size) {ours}: its metadata has {theirs}"
        )


def kernarg_size(kernel: KernelMetadata) -> int:
    """Bytes of memory for the arguments of a launch."""
    return align_up(kernel.kernarg_size, 8)


def build_kernarg(
    kernel: KernelMetadata, args: KernelArguments, grid: Grid, block: Block, dynamic_lds: int = 0
) -> Kernarg:
    """The arguments of a launch of ``grid`` groups, with bytes of LDS beside what it declares.

    Raises Unsupported for a hidden argument that is not known.
    """
    data = bytearray(args.data.ljust(kernarg_size(kernel), b"\0"))
    patches = [
        Patch(0, p.offset, p.width, 0, (1 << 8 * p.width) - 1, p.symbol) for p in args.patches
    ]
    for argument in kernel.arguments:
        if argument.kind in EXPLICIT or argument.kind in _ZERO:
            continue
        value = _hidden(kernel, argument, _Launch(grid, block, dynamic_lds))
        if isinstance(value, Symbol):
            mask = (1 << 8 * argument.size) - 1
            patches.append(Patch(0, argument.offset, argument.size, 0, mask, value))
        else:
            struct.pack_into(f"<{_FORMATS[argument.size]}", data, argument.offset, value)
    return Kernarg(bytes(data), tuple(patches))


class _Launch(NamedTuple):
    """What hidden arguments tell of."""

    grid: Grid
    block: Block
    dynamic_lds: int


def _hidden(kernel: KernelMetadata, argument: KernelArgument, launch: _Launch) -> Value:
    kind, _, axis = argument.kind.rpartition("_")
    values: dict[str, Sequence[Value]] = {
        "hidden_block_count": launch.grid,
        "hidden_group_size": launch.block,
        "hidden_remainder": (0, 0, 0),  # groups are whole
    }
    plain = {"hidden_grid_dims": 3, "hidden_dynamic_lds_size": launch.dynamic_lds}
    value: Value
    if argument.kind in plain:
        kind, value = argument.kind, plain[argument.kind]
    elif kind in values and axis in _AXES:
        value = values[kind][_AXES.index(axis)]
    else:
        raise Unsupported(f"kernel {kernel.name} takes {argument.kind}, which is not known here")
    if argument.size != _SIZES[kind]:
        raise Unsupported(
            f"kernel {kernel.name} takes {argument.kind} of {argument.size} bytes: it has"
            f" {_SIZES[kind]}"
        )
    return value


def times(size: Value, factor: int) -> Value:
    """``size * factor``; of a symbol it is computed once per replay."""
    if not isinstance(size, Symbol):
        return size * factor
    return Derived(f"{size.name} * {factor}", (size,), partial(_multiply, factor))


def _multiply(factor: int, size: int) -> int:
    return size * factor

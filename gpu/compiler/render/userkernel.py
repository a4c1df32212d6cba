"""A user's kernel in a language of devices as a whole program, and how that is launched.

What the user writes is the body of a function, what one thread does. Around it come the types of
elements, `NAME_t` for each array, the arrays themselves as pointers, their sizes as constants,
`NAME_size` and, but for 0-d arrays, `NAME_shape`, and three integers:

    block_id     of the block, below the kernel's grid
    thread_id    of the thread in its block, below the kernel's block
    global_id    block_id * block + thread_id

In C the threads of a block run one after another, and blocks on all workers.

Each launch is of a form that programs of the compiler have too, so that nothing that loads or
replays them tells the two apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from gpu.compiler.ir.graph.userkernel import Array, Source, UserKernel
from gpu.compiler.render.cstyle.c_text import PRELUDE, C
from gpu.compiler.render.cstyle.cuda import HEAD as CUDA_HEAD
from gpu.compiler.render.cstyle.hip import HEAD as HIP_HEAD
from gpu.compiler.render.cstyle.hip import IDS as HIP_IDS
from gpu.compiler.render.cstyle.hip import bounds as hip_bounds
from gpu.compiler.render.cstyle.metal import HEAD as METAL_HEAD
from gpu.compiler.render.cstyle.metal import symbol as metal_symbol
from gpu.compiler.render.cstyle.text import OPENCL, Language
from gpu.compiler.render.launch.grid import LAUNCH_ITEMS, MOST_ITEMS
from gpu.compiler.render.wgsl.renderer import MOST_THREADS
from gpu.compiler.targets import Target
from gpu.core.dtype import DType, dtypes
from gpu.core.errors import Unsupported

PROGRAM: Final = "kernel"
"""What the program is called."""

LaunchData = Mapping[str, int]
_WORDS: Final = {dtypes.float32: "f32", dtypes.int32: "i32", dtypes.uint32: "u32"}
# Threads of a block; devices of OpenCL say themselves what they have.
_MOST_THREADS: Final = {
    **dict.fromkeys(("cuda", "hip", "metal"), MOST_ITEMS),
    "wgsl": MOST_THREADS,
}
_MOST_GROUPS: Final = 65535  # in one dimension, on every WebGPU device
# Of a grid: positions in it are a uint ("Metal Shading Language Specification", 5.2.3.6).
_MOST_METAL_THREADS: Final = (1 << 32) - 1
_HIGHEST: Final = int(dtypes.int32.max)  # block_id is an int


def as_program(kernel: UserKernel, source: Source, target: Target) -> tuple[str, LaunchData]:
    """The text of the program and its launch data.

    Raises Unsupported for dtypes that the language has not, and launches that are too large.
    """
    most = _MOST_THREADS.get(source.language, kernel.block)
    if kernel.block > most:
        raise Unsupported(
            f"the kernel {kernel.name} has blocks of {kernel.block} threads, {source.language} has"
            f" at most {most}: give it a smaller block, and a larger grid"
        )
    return _WRITERS[source.language](kernel, source, target)


def _arrays(kernel: UserKernel) -> list[Array]:
    return [*kernel.outputs, *kernel.inputs]


def _own(text: str, kernel: UserKernel, what: str) -> list[str]:
    """Lines of the user's, which compilers are told to count on their own."""
    name = f"{kernel.name} ({what})" if what else kernel.name
    return [f'#line 1 "{name}"', text] if text else []


def _typedefs(kernel: UserKernel, language: Language, has_half: bool = True) -> list[str]:
    """The types of elements in memory; a float that the language has not is its bits."""

    def element(dtype: DType) -> object:
        is_half = has_half and dtype is dtypes.float16
        return language.type("half") if is_half else language.type_of(dtype)

    return [f"typedef {element(each.dtype)} {each.name}_t;" for each in _arrays(kernel)]


def _pointers(kernel: UserKernel, space: str = "", promise: str = "") -> list[str]:
    """The arrays as parameters of a function."""
    written = [f"{space}{each.name}_t *{promise}{each.name}" for each in kernel.outputs]
    return written + [f"{space}const {each.name}_t *{promise}{each.name}" for each in kernel.inputs]


def _sizes(kernel: UserKernel, space: str = "") -> list[str]:
    """Lines that say how large the arrays are."""
    lines = []
    for name, shape, _ in _arrays(kernel):
        lines.append(f"enum {{ {name}_size = {math.prod(shape)} }};")
        if shape:
            sizes = ", ".join(map(str, shape))
            lines.append(f"{space}const int {name}_shape[{len(shape)}] = {{{sizes}}};")
    return lines


def _written(kernel: UserKernel) -> int:
    return (1 << len(kernel.outputs)) - 1


def _c(kernel: UserKernel, source: Source, target: Target) -> tuple[str, LaunchData]:
    del target
    arrays, grid, block = _arrays(kernel), kernel.grid, kernel.block
    numbers = ["const i64 block_id", "const i64 thread_id", "const i64 global_id"]
    parameters = ", ".join([*_pointers(kernel, promise="restrict "), *numbers])
    given = [f"({each.name}_t *)args[{i}]" for i, each in enumerate(arrays)]
    call = ", ".join([*given, "b", "t", f"b * {block} + t"])
    lines = [
        PRELUDE,
        *_typedefs(kernel, C),
        *_sizes(kernel, "static "),
        *_own(source.header, kernel, "header"),
        f"static inline __attribute__((always_inline)) void one_thread({parameters}) {{",
        *_own(source.body, kernel, ""),
        "}",
        f"void SYMBOL({PROGRAM})(void **args, i64 worker, i64 workers) {{",
        f"  const i64 last = {grid}LL * (worker + 1) / workers;",
        f"  for (i64 b = {grid}LL * worker / workers; b < last; b++)",
        f"    for (i64 t = 0; t < {block}; t++) one_thread({call});",
        "}",
        "",
    ]
    return "\n".join(lines), {"scratch": 0, "parallel": int(grid > 1)}


def _opencl(kernel: UserKernel, source: Source, target: Target) -> tuple[str, LaunchData]:
    features = target.features.split(",")
    extensions = [f for f in ("fp64", "fp16") if f in features]
    parameters = ", ".join(_pointers(kernel, "__global ", "restrict "))
    lines = [
        *(f"#pragma OPENCL EXTENSION cl_khr_{name} : enable" for name in extensions),
        "#pragma OPENCL FP_CONTRACT OFF",
        *_typedefs(kernel, OPENCL),
        *_sizes(kernel, "__constant "),
        source.header,
        f"__attribute__((reqd_work_group_size({kernel.block}, 1, 1)))",
        f"__kernel void SYMBOL({PROGRAM})({parameters}) {{",
        "const int block_id = (int)get_group_id(0), thread_id = (int)get_local_id(0);",
        "const long global_id = (long)get_global_id(0);",
        source.body,  # without a number: messages of platforms count in the whole text
        "}",
        "",
    ]
    return "\n".join(lines), {
        "items0": kernel.grid * kernel.block, "items1": 1, "items2": 1,
        "group0": kernel.block, "group1": 1, "group2": 1,
        "parameters": len(_arrays(kernel)), "written": _written(kernel), "scratch": 0,
    }  # fmt: skip


def _grid_data(kernel: UserKernel) -> LaunchData:
    return {
        "groups": kernel.grid,
        "block": kernel.block,
        "workspace": 0,
        "values": 0,
        "shared": 0,
        "written": _written(kernel),
    }


def _cuda(kernel: UserKernel, source: Source, target: Target) -> tuple[str, LaunchData]:
    del target
    _check_grid(kernel, _HIGHEST, "CUDA")
    bounds = f"__launch_bounds__({kernel.block})"
    return _of_blocks(kernel, source, (CUDA_HEAD, bounds, "blockIdx.x", "threadIdx.x"))


def _hip(kernel: UserKernel, source: Source, target: Target) -> tuple[str, LaunchData]:
    del target
    _check_grid(kernel, LAUNCH_ITEMS // kernel.block, "HIP")
    return _of_blocks(kernel, source, (HIP_HEAD, hip_bounds(kernel.block), *HIP_IDS))


def _of_blocks(
    kernel: UserKernel, source: Source, words: tuple[str, str, str, str]
) -> tuple[str, LaunchData]:
    """A kernel of CUDA C or HIP C++.

    `words` are what the source begins with, what tells how large a block is, and which block and
    thread of it this is.
    """
    head, bounds, block, thread = words
    parameters = ", ".join(_pointers(kernel, promise="__restrict__ "))
    lines = [
        head,
        *_typedefs(kernel, OPENCL, has_half=False),
        *_sizes(kernel, "static __device__ "),
        *_own(source.header, kernel, "header"),
        f'extern "C" __global__ void {bounds} {PROGRAM}({parameters}) {{',
        f"const int block_id = {block}, thread_id = {thread};",
        f"const long global_id = (long)block_id * {kernel.block} + thread_id;",
        *_own(source.body, kernel, ""),
        "}",
        "",
    ]
    return "\n".join(lines), _grid_data(kernel)


def _check_grid(kernel: UserKernel, most: int, language: str) -> None:
    if kernel.grid > most:
        raise Unsupported(
            f"the kernel {kernel.name} has a grid of {kernel.grid:,} blocks, {language} has at most"
            f" {most:,} of {kernel.block} threads: give it larger blocks, or more to do in each"
            " thread"
        )


def _metal(kernel: UserKernel, source: Source, target: Target) -> tuple[str, LaunchData]:
    del target
    _check_grid(kernel, min(_MOST_METAL_THREADS // kernel.block, _HIGHEST), "Metal")
    buffers = enumerate(_pointers(kernel, "device "))
    parameters = ", ".join(
        [
            *(f"{pointer} [[buffer({i})]]" for i, pointer in buffers),
            "uint gpu_block [[threadgroup_position_in_grid]]",
            "uint gpu_thread [[thread_position_in_threadgroup]]",
        ]
    )
    lines = [
        METAL_HEAD,
        *_typedefs(kernel, OPENCL),
        *_sizes(kernel, "constant "),
        *_own(source.header, kernel, "header"),
        f"[[max_total_threads_per_threadgroup({kernel.block})]] kernel void"
        f" {metal_symbol(PROGRAM)}({parameters}) {{",
        "const int block_id = (int)gpu_block, thread_id = (int)gpu_thread;",
        f"const long global_id = (long)block_id * {kernel.block} + thread_id;",
        *_own(source.body, kernel, ""),
        "}",
        "",
    ]
    return "\n".join(lines), _grid_data(kernel)


def _wgsl(kernel: UserKernel, source: Source, target: Target) -> tuple[str, LaunchData]:
    _check_grid(kernel, _MOST_GROUPS, "WebGPU")
    kinds = dict(_WORDS)
    if dtypes.float16 not in target.native.storage_only:
        kinds[dtypes.float16] = "f16"
    lines = ["enable f16;"] if "f16" in kinds.values() else []
    for i, (name, shape, dtype) in enumerate(_arrays(kernel)):
        if dtype not in kinds:
            known = ", ".join(each.name for each in kinds)
            raise Unsupported(
                f"the kernel {kernel.name} is given in WGSL, which has no {dtype.name} in memory on"
                f" this device, of which {name} is: cast it to one of {known}"
            )
        access = "read_write" if i < len(kernel.outputs) else "read"
        count = math.prod(shape)
        binding = f"@group(0) @binding({i}) var<storage, {access}> {name}"
        lines += [
            f"alias {name}_t = {kinds[dtype]};",
            f"{binding}: array<{name}_t, {count}>;",
            f"const {name}_size: i32 = {count};",
        ]
        if shape:
            sizes = ", ".join(map(str, shape))
            lines.append(f"const {name}_shape = array<i32, {len(shape)}>({sizes});")
    lines += [
        source.header,
        f"@compute @workgroup_size({kernel.block})",
        f"fn {PROGRAM}(@builtin(workgroup_id) workgroup_id: vec3u,",
        "    @builtin(local_invocation_id) local_invocation_id: vec3u,",
        "    @builtin(global_invocation_id) global_invocation_id: vec3u) {",
        "let block_id = i32(workgroup_id.x);",
        "let thread_id = i32(local_invocation_id.x);",
        "let global_id = i32(global_invocation_id.x);",
        source.body,
        "}",
        "",
    ]
    return "\n".join(lines), {
        "params": len(_arrays(kernel)), "written": _written(kernel), "textures": 0, "vals": 0,
        "x": kernel.grid, "y": 1, "z": 1, "spilled": 0,
    }  # fmt: skip


_Writer = Callable[[UserKernel, Source, Target], tuple[str, LaunchData]]
_WRITERS: Final[dict[str, _Writer]] = {
    "c": _c,
    "cuda": _cuda,
    "hip": _hip,
    "metal": _metal,
    "opencl": _opencl,
    "wgsl": _wgsl,
}

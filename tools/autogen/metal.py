"""Makes autogen/metal.py from a wheel: types of Metal's methods and numbers, as metal-cpp has them.

    pip download --no-deps --only-binary=:all: --platform macosx_14_0_arm64 mlx-metal==0.32.4
    python -m tools.autogen.metal mlx_metal-0.32.4-*.whl [--check]

metal-cpp is Apple's own binding of Metal for C++: each of its methods is one message with the types
of its arguments. The wheel has its headers; nothing of it is run.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from .emit import table
from .recipe import AutogenError

OUTPUT: Final = Path(__file__).resolve().parents[2] / "autogen" / "metal.py"
PACKAGE: Final = "mlx-metal"
VERSION: Final = "0.32.4"
FOLDER: Final = "mlx/include/metal_cpp/"

# Class of metal-cpp -> the selectors that are sent to its objects.
SELECTORS: Final = {
    "NS::Array": ("count", "objectAtIndex:"),
    "NS::Error": ("code", "domain", "localizedDescription"),
    "NS::Object": ("alloc", "init", "respondsToSelector:"),
    "NS::String": ("UTF8String",),
    "MTL::BlitCommandEncoder": ("copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:",),
    "MTL::Buffer": ("contents", "length"),
    "MTL::CommandBuffer": (
        "GPUEndTime", "GPUStartTime", "blitCommandEncoder", "commit", "computeCommandEncoder",
        "error", "status", "waitUntilCompleted",
    ),
    "MTL::CommandEncoder": ("endEncoding",),
    "MTL::CommandQueue": ("commandBuffer",),
    "MTL::CompileOptions": (
        "setFastMathEnabled:", "setMathFloatingPointFunctions:", "setMathMode:",
    ),
    "MTL::ComputeCommandEncoder": (
        "dispatchThreadgroups:threadsPerThreadgroup:", "executeCommandsInBuffer:withRange:",
        "setBuffers:offsets:withRange:", "setBytes:length:atIndex:", "setComputePipelineState:",
        "useResources:count:usage:",
    ),
    "MTL::ComputePipelineDescriptor": (
        "setComputeFunction:", "setSupportIndirectCommandBuffers:",
    ),
    "MTL::ComputePipelineState": ("maxTotalThreadsPerThreadgroup", "threadExecutionWidth"),
    "MTL::Device": (
        "maxBufferLength", "name",
        "newBufferWithBytesNoCopy:length:options:deallocator:", "newBufferWithLength:options:",
        "newCommandQueue", "newComputePipelineStateWithDescriptor:options:reflection:error:",
        "newComputePipelineStateWithFunction:error:",
        "newIndirectCommandBufferWithDescriptor:maxCommandCount:options:",
        "newLibraryWithSource:options:error:", "recommendedMaxWorkingSetSize", "registryID",
        "supportsFamily:",
    ),
    "MTL::IndirectCommandBuffer": ("indirectComputeCommandAtIndex:",),
    "MTL::IndirectCommandBufferDescriptor": (
        "setCommandTypes:", "setInheritBuffers:", "setInheritPipelineState:",
        "setMaxKernelBufferBindCount:",
    ),
    "MTL::IndirectComputeCommand": (
        "concurrentDispatchThreadgroups:threadsPerThreadgroup:", "setBarrier",
        "setComputePipelineState:", "setKernelBuffer:offset:atIndex:",
    ),
    "MTL::Library": ("newFunctionWithName:",),
    "MTL::Resource": ("device", "storageMode"),
}  # fmt: skip
# Enumeration -> a pattern of those of its members that are used.
ENUMS: Final = {
    "CommandBufferError": ".*",
    "CommandBufferStatus": ".*",
    "GPUFamily": "(Apple|Mac).*",
    "MathFloatingPointFunctions": ".*",
    "IndirectCommandType": "ConcurrentDispatch",
    "MathMode": ".*",
    "ResourceOptions": "StorageModeShared",
    "ResourceUsage": "(Read|Write)",
    "StorageMode": "Shared",
}

_METHOD: Final = re.compile(
    r"_INLINE [^\n]*?(?P<owner>(?:NS|MTL)::\w+)::\w+\((?P<parameters>[^\n]*)\)(?: const)?\n\{\n"
    r"\s+(?:return )?(?:Object::)?sendMessage(?:Safe)?<(?P<result>[^\n]*?)>"
    r"\([^\n]*?_PRIVATE_SEL\((?P<selector>\w+)\)(?P<passed>[^\n;]*)\);\n"
)
_SELECTOR: Final = re.compile(r"_PRIVATE_DEF_SEL\((\w+),\s*\"([\w:]+)\"\)")
_ENUM: Final = re.compile(r"_(?:ENUM|OPTIONS)\(NS::(U?Integer), (\w+)\) \{\n(.*?)\n\}", re.DOTALL)
_MEMBER: Final = re.compile(r"^\s+(\w+) = (\d+(?: << \d+)?),", re.MULTILINE)
_TYPES: Final = {
    "CFTimeInterval": "double",
    "SEL": "void *",
    "MTL::Size": "MTLSize",
    "NS::Integer": "NSInteger",
    "NS::Range": "NSRange",
    "NS::UInteger": "NSUInteger",
    "Integer": "NSInteger",
    "UInteger": "NSUInteger",
}
_PLAIN: Final = ("bool", "uint64_t", "void")
_POINTERS: Final = ("ErrorDomain",)  # a String *


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; 1 if the module differs."""
    parser = argparse.ArgumentParser(prog="python -m tools.autogen.metal", description=__doc__)
    parser.add_argument("wheel", type=Path, help=f"that of {PACKAGE} {VERSION}")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    options = parser.parse_args(arguments)
    text = module(headers(options.wheel))
    if options.check:
        same = OUTPUT.exists() and OUTPUT.read_text() == text
        print(f"{'same' if same else 'DIFFERS'} autogen/{OUTPUT.name}")
        return int(not same)
    OUTPUT.write_text(text)
    return 0


def headers(wheel: Path) -> dict[str, str]:
    """The headers of Foundation and Metal in a wheel, by their names."""
    with zipfile.ZipFile(wheel) as opened:
        return {
            name.removeprefix(FOLDER): opened.read(name).decode()
            for name in sorted(opened.namelist())
            if re.match(rf"{FOLDER}(Foundation|Metal)/\w+\.hpp$", name)
        }


def module(sources: Mapping[str, str]) -> str:
    """The text of the module. Raises AutogenError for headers that are not as expected."""
    everything = "\n".join(sources.values())
    enums = {name: (kind, body) for kind, name, body in _ENUM.findall(everything)}
    types = kinds_of_enums(everything)
    numbers = {
        f"MTL{name}": value
        for enum, wanted in ENUMS.items()
        for name, value in _MEMBER.findall(enums[enum][1])
        if re.fullmatch(_prefix(enum) + wanted, name)
    }
    methods = dict(sorted(_methods(everything, types)))
    return "".join(
        [
            _head(everything),
            "\n# selector -> (what it gives, what it takes)\n",
            table("METHODS", "dict[str, tuple[str, tuple[str, ...]]]", methods),
            "\n",
            *(f"{name}: int = {value}\n" for name, value in numbers.items()),
        ]
    )


def _prefix(enum: str) -> str:
    return {"ResourceOptions": "Resource"}.get(enum, enum)


def _methods(text: str, types: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Selectors with their types, those of `SELECTORS`. Raises AutogenError."""
    found: dict[tuple[str, str], str] = {}
    for owner, selector, result, passed in declared(text):
        if selector not in SELECTORS.get(owner, ()):
            continue
        taken = "".join(f'"{c_type(each, types)}", ' for each in passed)
        told = f'("{c_type(result, types)}", ({taken.rstrip(" ")}))'
        told = told.replace(",))", "))") if len(passed) > 1 else told
        if found.setdefault((owner, selector), told) != told:
            raise AutogenError(f"metal-cpp has {owner} {selector} with different types")
    wanted = [(owner, selector) for owner, names in SELECTORS.items() for selector in names]
    if missing := [pair for pair in wanted if pair not in found]:
        raise AutogenError(f"metal-cpp has no {missing}")
    return ((f"{selector}", told) for (_, selector), told in found.items())


def declared(text: str) -> Iterator[tuple[str, str, str, list[str]]]:
    """Of all methods of metal-cpp the class, the selector, and the types of result and arguments.

    Raises AutogenError for a parameter that is not understood.
    """
    selectors = dict(_SELECTOR.findall(text))
    for method in _METHOD.finditer(text):
        parameters = re.sub(r"/\*.*?\*/", "", method["parameters"])
        types = dict(map(_parameter, _split(parameters)))
        passed = [types.get(name, name) for name in _split(method["passed"].removeprefix(","))]
        yield method["owner"], selectors.get(method["selector"], ""), method["result"], passed


def kinds_of_enums(text: str) -> dict[str, str]:
    """Types of metal-cpp as those of C: numbers, structures, and all enumerations."""
    return _TYPES | {f"MTL::{name}": f"NS{kind}" for kind, name, _ in _ENUM.findall(text)}


def numbers_of(text: str) -> dict[str, int]:
    """All members of enumerations that have a plain number, by the names that C has for them."""
    bodies = [body for _, _, body in _ENUM.findall(text)]
    return {f"MTL{name}": int(value) for body in bodies for name, value in _MEMBER.findall(body)}


def _split(text: str) -> list[str]:
    """What commas separate, those in brackets aside."""
    parts = re.split(r",(?![^(<]*[)>])", text)
    return [part.strip() for part in parts if part.strip()]


def _parameter(declared: str) -> tuple[str, str]:
    """Name and type of a parameter; a block is a pointer."""
    if block := re.search(r"\(\^(\w+)\)", declared):
        return block[1], "void *"
    found = re.fullmatch(r"(.*?)(\w+)(\[\])?", declared)
    if found is None:
        raise AutogenError(f"metal-cpp has a parameter that is not understood: {declared}")
    return found[2], found[1].strip() + ("*" if found[3] else "")


def c_type(declared: str, types: Mapping[str, str]) -> str:
    """A type of C: pointers to text are told from others."""
    if re.fullmatch(r"const char ?\*", declared):
        return "char const *"
    if declared.endswith("*") or declared in _POINTERS:
        return "void *"
    plain = declared if declared in _PLAIN else types.get(declared)
    if plain is None:
        raise AutogenError(f"metal-cpp has a type that is not understood: {declared}")
    return plain


def _head(everything: str) -> str:
    digest = hashlib.sha256(everything.encode()).hexdigest()
    return (
        f"# Made by `python -m tools.autogen.metal` from PyPI package {PACKAGE} {VERSION}:"
        f" do not edit.\n#   {FOLDER}{{Foundation,Metal}}/*.hpp\n#     sha256 {digest}\n"
        "# metal-cpp is under the Apache licence 2.0, copyright Apple Inc.; here are types and"
        " numbers alone.\n"
        '"""Metal: types of methods by selector, and numbers of enumerations."""\n'
        "\nfrom __future__ import annotations\n\n"
        f'PACKAGE: str = "{PACKAGE}"\nVERSION: str = "{VERSION}"\n'
    )


if __name__ == "__main__":
    sys.exit(main())

"""Whether names, types and numbers of Metal are what others have, too.

    python -m tools.metal_names FOLDER

FOLDER holds wheels from PyPI: mlx-metal, which has Apple's metal-cpp, and pyobjc-framework-Metal,
whose metadata was made from Apple's headers. Compared are the methods that the backend sends
(autogen/metal.py), those that the model answers (`gpu/sim/metal`), and the numbers of both. Nothing
of the wheels is run. PyObjC tells of a method only where Objective-C itself does not.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gpu.autogen import metal as ours
from gpu.sim.metal import chips, commands, compute, resources, work
from gpu.sim.metal.library import CLASSES
from gpu.sim.metal.methods import TYPES, methods_of
from tools.autogen.metal import c_type, declared, headers, kinds_of_enums, numbers_of
from tools.autogen.recipe import AutogenError

Signature = tuple[str, tuple[str, ...]]
"""Kinds of the result and of the arguments, as `_KINDS` has them."""
_KINDS: Final = {
    "void": "v", "void *": "^", "char const *": "^", "bool": "B", "NSUInteger": "Q",
    "uint64_t": "Q", "uint8_t": "C", "NSInteger": "q", "double": "d", "MTLSize": "Size",
    "NSRange": "Range",
}  # fmt: skip
_ENCODED: Final = {"Z": "B", "z": "C", "{MTLSize=QQQ}": "Size", "{_NSRange=QQ}": "Range"}
_KNOWN: Final = {
    "status": "PyObjC tells of MTLIOCommandBuffer's",
    "setKernelBuffer:offset:atIndex:": "PyObjC has an offset below zero",
    **dict.fromkeys(
        (
            "concurrentDispatchThreadgroups:threadsPerThreadgroup:",
            "concurrentDispatchThreads:threadsPerThreadgroup:",
        ),
        "PyObjC has integers; in metal-cpp they are MTLSize, as Metal's pages have them",
    ),
}
"""Differences of PyObjC from metal-cpp, too, and what they are."""
_FOUNDATION: Final = ("retain", "release", "autorelease", "retainCount", "drain")
_NUMBERS: Final = {
    "MTLCommandBufferStatusCommitted": commands.COMMITTED,
    "MTLCommandBufferStatusCompleted": commands.COMPLETED,
    "MTLCommandBufferStatusEnqueued": commands.ENQUEUED,
    "MTLCommandBufferStatusError": commands.FAILED,
    "MTLCommandBufferStatusNotEnqueued": commands.NOT_ENQUEUED,
    "MTLCommandBufferStatusScheduled": commands.SCHEDULED,
    "MTLCommandBufferErrorInternal": work.INTERNAL,
    "MTLCommandBufferErrorInvalidResource": work.INVALID_RESOURCE,
    "MTLCommandBufferErrorPageFault": work.PAGE_FAULT,
    "MTLCommandBufferErrorTimeout": work.TIMEOUT,
    "MTLDispatchTypeConcurrent": compute.CONCURRENT,
    "MTLDispatchTypeSerial": compute.SERIAL,
    "MTLStorageModeManaged": resources.MANAGED,
    "MTLStorageModeMemoryless": resources.MEMORYLESS,
    "MTLStorageModePrivate": resources.PRIVATE,
    "MTLStorageModeShared": resources.SHARED,
}
"""Those of the model that have a name in it."""


@dataclass
class Comparison:
    """What was compared with a witness.

    Attributes:
        agreed: how many were the same; silent: names that it does not tell of; different: why;
            known: what differs as `_KNOWN` has it.
    """

    agreed: int = 0
    known: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)

    def add(self, name: str, here: object, there: object) -> None:
        """Compares one; `there` is None where the witness has it not."""
        if there is None:
            self.silent.append(name)
        elif here == there:
            self.agreed += 1
        elif name in _KNOWN:
            self.known.append(f"{name}: {_KNOWN[name]}")
        else:
            self.different.append(f"{name}: {here} here, {there} there")

    def __str__(self) -> str:
        told = f"{self.agreed} agree, {len(self.different)} differ, {len(self.silent)} not told of"
        told += f", {len(self.known)} known to differ" if self.known else ""
        return "\n".join([told, *(f"    {each}" for each in [*self.different, *self.known])])


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; 1 if something differs."""
    parser = argparse.ArgumentParser(prog="python -m tools.metal_names", description=__doc__)
    parser.add_argument("folder", type=Path)
    found = compare(parser.parse_args(arguments).folder)
    for what, comparison in found.items():
        print(f"{what}: {comparison}")
    return int(any(each.different for each in found.values()))


def compare(folder: Path) -> dict[str, Comparison]:
    """All comparisons, by what was compared. Raises FileNotFoundError for a wheel that lacks."""
    text = "\n".join(headers(_one(folder, "mlx_metal-*.whl")).values())
    with zipfile.ZipFile(_one(folder, "pyobjc_framework_[mM]etal-*.whl")) as opened:
        metadata = opened.read("Metal/_metadata.py").decode()
    theirs = {"metal-cpp": _cpp_methods(text), "PyObjC": _pyobjc_methods(metadata)}
    numbers = {"metal-cpp": numbers_of(text), "PyObjC": _pyobjc_numbers(metadata)}
    found: dict[str, Comparison] = {}
    for witness, methods in theirs.items():
        sides = {"messages of the backend": _backend(), "methods of the model": _model()}
        for side, signatures in sides.items():
            compared = found[f"{side}, {witness}"] = Comparison()
            for selector, signature in signatures.items():
                told = methods.get(selector, {})
                there = signature if signature in told.values() else next(iter(told.values()), None)
                compared.add(selector, signature, there)
        compared = found[f"numbers, {witness}"] = Comparison()
        for name, value in {**_backend_numbers(), **_NUMBERS}.items():
            compared.add(name, value, numbers[witness].get(name))
        families = {v for n, v in numbers[witness].items() if n.startswith("MTLGPUFamily")}
        unknown = chips.KNOWN_FAMILIES - families
        found[f"families, {witness}"] = Comparison(len(chips.KNOWN_FAMILIES) - len(unknown))
        found[f"families, {witness}"].different += map(str, sorted(unknown))
    return found


def _one(folder: Path, pattern: str) -> Path:
    for path in sorted(folder.glob(pattern)):
        return path
    raise FileNotFoundError(f"there is no {pattern} in {folder}: pip download it there")


def _backend() -> dict[str, Signature]:
    return {
        selector: (_KINDS[result], tuple(_KINDS[each] for each in taken))
        for selector, (result, taken) in ours.METHODS.items()
    }


def _backend_numbers() -> dict[str, int]:
    return {name: value for name, value in vars(ours).items() if name.startswith("MTL")}


def _model() -> dict[str, Signature]:
    found = {}
    for each in CLASSES:
        for selector, told in methods_of(each).items():
            if selector not in _FOUNDATION:  # which metal-cpp sends by functions of the runtime
                kinds = [told.result, *told.arguments]
                result, *taken = ["^" if k == "@" or k not in TYPES else k for k in kinds]
                found[selector] = result, tuple(taken)
    return found


def _cpp_methods(text: str) -> dict[str, dict[str, Signature]]:
    """Signatures by selector and class, of types that are known here."""
    types = kinds_of_enums(text)
    found: dict[str, dict[str, Signature]] = {}
    for owner, selector, result, passed in declared(text):
        try:
            kinds = [_KINDS[c_type(each, types)] for each in (result, *passed)]
        except (AutogenError, KeyError):
            continue
        found.setdefault(selector, {})[owner] = kinds[0], tuple(kinds[1:])
    return found


def _pyobjc_methods(text: str) -> dict[str, dict[str, Signature]]:
    """Signatures by selector and class: calls of `r` in the metadata, of which nothing is run."""
    found: dict[str, dict[str, Signature]] = {}
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "r"):
            continue
        owner, selector, told = (ast.literal_eval(each) for each in node.args)
        signature = _pyobjc_signature(selector.decode(), told)
        if signature is not None:
            found.setdefault(selector.decode(), {})[owner.decode()] = signature
    return found


def _pyobjc_signature(selector: str, told: Mapping[str, Any]) -> Signature | None:
    """None where a type is left to Objective-C itself."""
    arguments = told.get("arguments", {})
    given = [arguments.get(2 + i, {}) for i in range(selector.count(":"))]
    encoded = [each.get("type") for each in (told.get("retval", {}), *given)]
    if None in encoded:
        return None
    result, *taken = map(_decoded, encoded)
    return result, tuple(taken)


def _decoded(encoded: bytes | str) -> str:
    text = (encoded if isinstance(encoded, str) else encoded.decode()).lstrip("nNoOrR")
    return "^" if text[0] in "@^*:#" else _ENCODED.get(text, text)


def _pyobjc_numbers(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in _pairs(text)}


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "enums":
            yield from re.findall(r"(\w+)@(-?\d+)(?=\$|$)", ast.literal_eval(node.value))


if __name__ == "__main__":
    sys.exit(main())

"""The file of instruction vectors: PTX, machine code, inputs, and what the simulator gave."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu.core.errors import CompileError, FormatError

VECTORS: Final = "vectors.zip"
LANES: Final = 128
SLOTS: Final = 5
"""Sources of a form at most; a kernel takes an array of (slot, lane) and one for its results."""
OLDEST: Final = 90
"""The architecture that the forms are written for."""
_INDEX: Final = "groups.json"
_TOLD: Final = ("text", "kernels", "forms", "bits", "exact", "refused")
_ENTRY: Final = re.compile(r"\.entry (\w+)\(")
_ERROR_LINE: Final = re.compile(r"line (\d+); error")

Words = npt.NDArray[np.uint64]
Assemble = Callable[[str, str], bytes]
"""A cubin of PTX for an architecture such as ``sm_90``."""


@dataclass(frozen=True)
class Group:
    """Forms whose kernels are one module of PTX.

    Attributes:
        text: of the module.
        kernels: names of its kernels, which take sources and results.
        forms: the instruction of each kernel.
        bits: of each one's result; a predicate has one.
        exact: whether all bits of results are laid down. Else NaNs may be any, and approximations
            differ.
        sources: of each form, (slot, lane).
        results: of each form, by the simulator.
        refused: forms that the simulator takes and NVIDIA's assembler does not; not among `forms`.
    """

    text: str
    kernels: tuple[str, ...]
    forms: tuple[str, ...]
    bits: tuple[int, ...]
    exact: bool
    sources: Words
    results: Words
    refused: tuple[str, ...] = ()


def assembled(group: Group, by: Assemble, arch: str) -> tuple[Group, bytes]:
    """The group without what the assembler refuses, and its machine code.

    Raises CompileError for an error that is in no kernel.
    """
    while True:
        try:
            return group, by(group.text, arch)
        except CompileError as error:
            lines = {int(number) for number in _ERROR_LINE.findall(str(error))}
            kernels = _kernels(group.text)
            bad = {name for name, span in kernels.items() if lines & set(span)}
            if not bad:
                raise
            group = _without(group, bad)


def _kernels(text: str) -> dict[str, range]:
    """The lines of each kernel, from 1."""
    starts = [(n, m[1]) for n, line in enumerate(text.split("\n"), 1) if (m := _ENTRY.match(line))]
    ends = [line for line, _ in starts[1:]] + [text.count("\n") + 2]
    return {name: range(line, end) for (line, name), end in zip(starts, ends, strict=True)}


def _without(group: Group, bad: Collection[str]) -> Group:
    """The group without some kernels; the others keep their names."""
    lines = group.text.split("\n")
    spans = _kernels(group.text)
    for name in bad:
        for line in spans[name]:
            lines[line - 1] = ""
    gone = [at for at, name in enumerate(group.kernels) if name in bad]
    kept = [at for at in range(len(group.forms)) if at not in gone]
    return replace(
        group,
        text="\n".join(lines),
        kernels=tuple(group.kernels[at] for at in kept),
        forms=tuple(group.forms[at] for at in kept),
        bits=tuple(group.bits[at] for at in kept),
        sources=group.sources[kept],
        results=group.results[kept],
        refused=(*group.refused, *(group.forms[at] for at in gone)),
    )


def write(path: Path, groups: Sequence[Group], architectures: Sequence[int], by: Assemble) -> None:
    """Writes the file, for those architectures that have the instructions."""
    index = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for number, whole in enumerate(groups):
            group, _ = assembled(whole, by, f"sm_{OLDEST}")
            index.append({name: getattr(group, name) for name in _TOLD})
            archive.writestr(f"{number}.sources", group.sources.tobytes())
            archive.writestr(f"{number}.results", group.results.tobytes())
            for sm in architectures:
                if sm >= OLDEST:
                    archive.writestr(_cubin(sm, number), by(group.text, f"sm_{sm}"))
        archive.writestr(_INDEX, json.dumps(index))


def read(path: Path, sm: int) -> Iterator[tuple[Group, bytes]]:
    """The groups, each with its machine code for an architecture.

    Raises FormatError where the file has none for it.
    """
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        for number, each in enumerate(json.loads(archive.read(_INDEX))):
            if _cubin(sm, number) not in names:
                raise FormatError(f"{path.name} has no code for sm_{sm}: prepare the folder for it")
            count = len(each["forms"])
            sources = np.frombuffer(archive.read(f"{number}.sources"), np.uint64)
            results = np.frombuffer(archive.read(f"{number}.results"), np.uint64)
            group = Group(
                text=each["text"],
                kernels=tuple(each["kernels"]),
                refused=tuple(each["refused"]),
                forms=tuple(each["forms"]),
                bits=tuple(each["bits"]),
                exact=each["exact"],
                sources=sources.reshape(count, SLOTS, LANES),
                results=results.reshape(count, LANES),
            )
            yield group, archive.read(_cubin(sm, number))


def some(group: Group, every: int) -> list[int]:
    """The numbers of the forms that a run takes: all, or one of so many."""
    return list(range(0, len(group.forms), every))


def _cubin(sm: int, number: int) -> str:
    return f"sm_{sm}/{number}.cubin"

"""The step that runs every form on the card and compares it with the lane engine."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu.backends.amd.chips import chip_name
from gpu.compiler.toolchain.llvm import llvmlite_version
from gpu.core.errors import DeviceHang, GpuFault, Unsupported
from gpu.drivers.am.code.descriptor import parse_descriptor
from gpu.drivers.am.code.metadata import KernelArgument, KernelMetadata
from gpu.drivers.am.code.object import CodeObject, Kernel
from gpu.drivers.am.device import AmDevice
from gpu.drivers.am.target import Version
from gpu.hcq.args import ArgumentLayout
from gpu.sim.isa.rdna.dispatch import DEFAULT_MODE, VGPR_GRANULE
from gpu.sim.isa.rdna.encodings import ENCODINGS
from gpu.sim.isa.rdna.table import load_table
from tools.hw_acceptance.amd.target import AmTarget
from tools.hw_acceptance.amd.vectors.encode import Assembler
from tools.hw_acceptance.amd.vectors.evaluate import evaluate
from tools.hw_acceptance.amd.vectors.forms import (
    LANES,
    LDS,
    OUT,
    VGPRS,
    Form,
    Words,
    forms,
    inputs,
    kernel,
    left_out,
)
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.steplog import StepFailed, Unavailable

SIMULATED_EVERY: Final = 25
"""A model, which has nothing to prove here, takes one form of so many."""
_LAYOUT: Final = ArgumentLayout(2, [])
_MOST_TOLD: Final = 50
_MOST_STUCK: Final = 8  # forms that hang or fault before the step ends
_ENTRY: Final = 256
_SIZE: Final = 4096
_NAN: Final = {"f16": (16, 0x7C00), "bf16": (16, 0x7F80), "f32": (32, 0x7F80_0000)}
_F64_NAN: Final = 0x7FF0_0000_0000_0000


def instructions(context: Context) -> None:
    """All forms, each with inputs of its own, drawn from its name.

    Raises StepFailed, Unavailable for chips that the lane engine does not know.
    """
    every = SIMULATED_EVERY if context.simulation is not None else 1
    target = AmTarget(context, traced=False)
    device = target.open()
    with device:
        chip = chip_name(device.target.version)
        check_known(chip)
        context.log.fact("opcodes that have no form", left_out(chip))
        told = _Told()
        for form in list(forms(chip))[::every]:
            _try(context, device, chip, form, told)
            if told.stuck > _MOST_STUCK:
                raise StepFailed(f"{told.stuck} forms hang or fault: {'; '.join(told.wrong)}")
    context.log.fact("forms", told.count)
    context.log.fact("forms that the engine refuses", told.refused)
    context.log.fact("results that may differ, and do", told.other[:_MOST_TOLD])
    wrong = f"{len(told.wrong)} differ: {'; '.join(told.wrong[:_MOST_TOLD])}"
    name = f"{told.count} forms of instructions"
    context.log.check(name, not told.wrong, wrong if told.wrong else "")


def check_known(chip: str) -> None:
    """Raises Unavailable for a chip that there are no forms for, or without llvmlite.

    The lane engine must know it, and the kernels around forms are written for RDNA3 and later.
    """
    try:
        llvmlite_version()
        load_table(chip)
    except Unsupported as missing:
        raise Unavailable(missing.message) from missing
    if "vopd" not in ENCODINGS[chip].by_name:
        raise Unavailable(f"forms of instructions are made for RDNA3 and later, not for {chip}")


class _Told:
    """What was found."""

    def __init__(self) -> None:
        self.count = 0
        self.stuck = 0
        self.wrong: list[str] = []
        self.other: list[str] = []
        self.refused: list[str] = []


def _try(context: Context, device: AmDevice, chip: str, form: Form, told: _Told) -> None:
    """One form. What hangs or faults costs itself alone, where the device can be recovered."""
    wanted = evaluate(chip, form)
    if isinstance(wanted, str):
        told.refused.append(form.name)
        return
    told.count += 1
    try:
        found = _run(device, chip, form)
    except (DeviceHang, GpuFault) as error:
        told.stuck += 1
        told.wrong.append(f"{form.name}: {type(error).__name__}")
        context.log.fact(f"{form.name} stopped the queue", str(error))
        device.recover()
        return
    text, exact = difference(form, found, wanted)
    if text:
        (told.wrong if exact else told.other).append(text)


def _run(device: AmDevice, chip: str, form: Form) -> Words:
    """What a kernel of the form stores on the device."""
    program = device.load(code_object(chip, device.target.version, form), "form", _LAYOUT)
    data = inputs(form)
    given, out = device.allocator.alloc(data.nbytes), device.allocator.alloc(OUT)
    device.allocator.copy_in(given, data.tobytes())
    device.allocator.copy_in(out, bytes(OUT))
    program(given, out, grid=(1, 1, 1), block=(LANES, 1, 1))
    found = np.frombuffer(device.allocator.copy_out(out), np.uint32)
    given.free()
    out.free()
    return found


def difference(form: Form, found: Words, wanted: Words) -> tuple[str, bool]:
    """The first word that differs, in words, and whether it has to be the same.

    NaNs may be any, and approximations differ in their last bits.
    """
    differs = found != wanted
    free = _both_nan(form.kind, found, wanted)
    exact = differs & ~free & (not form.approximate)
    places = np.flatnonzero(exact if exact.any() else differs)
    if not len(places):
        return "", True
    at = int(places[0])
    place = f"byte {4 * at:#x} of {OUT:#x}"
    text = f"{form.name} ({form.code.hex()}): {found[at]:#x}, the engine {wanted[at]:#x} at {place}"
    return text, bool(exact.any())


def _both_nan(kind: str, found: Words, wanted: Words) -> npt.NDArray[np.bool_]:
    """Words in which all that differs are numbers that are NaN on both sides."""
    if kind == "f64":
        both = np.logical_and(*((_doubles(each) > np.uint64(_F64_NAN)) for each in (found, wanted)))
        return np.repeat(both, 2)
    if kind not in _NAN:
        return np.zeros(len(found), bool)
    bits, infinity = _NAN[kind]
    sides = [each.view(f"u{bits // 8}") for each in (found, wanted)]
    rest = (1 << bits - 1) - 1
    nan = np.logical_and(*((each & rest) > infinity for each in sides))
    fine = nan | (sides[0] == sides[1])
    return fine.reshape(len(found), -1).all(1)


def _doubles(words: Words) -> npt.NDArray[np.uint64]:
    return words.view(np.uint64) & np.uint64((1 << 63) - 1)


def code_object(chip: str, version: Version, form: Form) -> CodeObject:
    """A code object with the kernel of a form, in waves of 32 lanes."""
    code = kernel(chip, form)
    ending = Assembler(chip)("s_code_end")  # the hardware fetches ahead
    code += ending * ((_SIZE - _ENTRY - len(code)) // len(ending))
    descriptor = _descriptor(version)
    image = descriptor.ljust(_ENTRY, b"\0") + code.ljust(_SIZE - _ENTRY, b"\0")
    metadata = KernelMetadata(
        name="form",
        symbol="form.kd",
        arguments=tuple(KernelArgument(f"p{n}", 8 * n, 8, "global_buffer") for n in range(2)),
        kernarg_size=16,
        kernarg_align=8,
        group_size=LDS,
        private_size=0,
        wavefront_size=32,
        max_workgroup=1024,
        required_workgroup=None,
        uses_dynamic_stack=False,
    )
    made = Kernel(metadata, parse_descriptor(descriptor, version), 0, _ENTRY)
    return CodeObject("form", version, {"form": made}, _SIZE, image, ())


def _descriptor(version: Version) -> bytes:
    """As LLVM's guide has it: two user registers, the ids of workgroups, modes as compilers ask."""
    rsrc1 = (VGPRS // VGPR_GRANULE[32] - 1) | (DEFAULT_MODE & 0xFF) << 12 | 1 << 30
    if version[0] < 12:
        rsrc1 |= 1 << 21 | 1 << 23  # DX10_CLAMP, IEEE_MODE
    rsrc2 = 2 << 1 | 1 << 7
    properties = 1 << 3 | 1 << 10  # the address of arguments, 32 lanes
    words = struct.pack("<III4xq20xIIIH", LDS, 0, 16, _ENTRY, 0, rsrc1, rsrc2, properties)
    return words.ljust(64, b"\0")

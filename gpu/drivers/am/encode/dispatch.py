"""A kernel in memory, and what a dispatch of it tells the hardware."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gpu.core.errors import InvalidValue, Unsupported
from gpu.drivers.am.code.object import Kernel
from gpu.drivers.am.encode.kernarg import argument_layout, check_layout
from gpu.drivers.am.encode.pm4 import packets_of
from gpu.drivers.am.encode.tmpring import Scratch, resource_descriptor, tmpring_size
from gpu.drivers.am.target import Target, dotted
from gpu.hcq.args import ArgumentLayout
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.commands import Block, Launch
from gpu.hcq.device import HCQDevice
from gpu.hcq.program import HCQProgram

_MAX_GROUP: Final = 1024  # work-items, of any AMD GPU
_USER_DATA: Final = 16
"""How many SGPRs a dispatch can set."""
_CODE_ALIGN: Final = 256

# The user SGPRs in their order: which bit of the descriptor asks for them, how many they are.
_USER_SGPRS: Final = (
    ("PRIVATE_SEGMENT_BUFFER", 4),
    ("DISPATCH_PTR", 2),
    ("QUEUE_PTR", 2),
    ("KERNARG_SEGMENT_PTR", 2),
    ("DISPATCH_ID", 2),
    ("FLAT_SCRATCH_INIT", 2),
    ("PRIVATE_SEGMENT_SIZE", 1),
)


@dataclass(frozen=True, slots=True, eq=False)
class LoadedKernel:
    """A kernel in memory.

    Attributes:
        kernel: as its code object has it.
        image: where the code object's image is.
        scratch: memory for its lanes, where it needs any.
        dynamic_lds: bytes of LDS of a group beside what it declares.
    """

    kernel: Kernel
    image: int
    scratch: Scratch | None = None
    dynamic_lds: int = 0

    @property
    def code(self) -> int:
        """Where its code begins."""
        return self.image + self.kernel.entry_offset

    @property
    def descriptor(self) -> int:
        """Where its descriptor is: what AQL packets name it by."""
        return self.image + self.kernel.descriptor_offset

    @property
    def group_size(self) -> int:
        """Bytes of LDS of a group."""
        return self.kernel.descriptor.group_size + self.dynamic_lds

    @property
    def private_size(self) -> int:
        """Bytes of scratch memory of a lane."""
        return self.kernel.descriptor.private_size


class AmProgram(HCQProgram):
    """A kernel that can be launched; its ``info`` is the `LoadedKernel`.

    ``code`` is the buffer of the image, kept alive with it. Without ``layout`` the arguments are
    those of the metadata. Raises InvalidValue for a layout that is not the kernel's.
    """

    def __init__(
        self,
        device: HCQDevice,
        loaded: LoadedKernel,
        code: HCQBuffer | None = None,
        layout: ArgumentLayout | None = None,
        *,
        written: Sequence[int] | None = None,
    ):
        metadata = loaded.kernel.metadata
        if layout is None:
            layout = argument_layout(metadata)
        else:
            check_layout(metadata, layout)
        super().__init__(
            device,
            metadata.name,
            code,
            layout,
            group_size=loaded.group_size,
            private_size=loaded.private_size,
            written=written,
            info=loaded,
        )


def loaded_kernel(target: Target, command: Launch[LoadedKernel]) -> LoadedKernel:
    """What a launch launches, checked for the GPU and its block.

    Raises InvalidValue for what does not fit the kernel.
    """
    loaded = command.program.info
    version = loaded.kernel.descriptor.version
    if version != target.version:
        raise InvalidValue(
            f"{command.program.name} was compiled for {dotted(version)}, this GPU is"
            f" {dotted(target.version)}"
        )
    check_layout(loaded.kernel.metadata, command.args.layout)
    _check_block(loaded, command.block)
    return loaded


def _check_block(loaded: LoadedKernel, block: Block) -> None:
    metadata = loaded.kernel.metadata
    if metadata.required_workgroup not in (None, block):
        raise InvalidValue(
            f"{metadata.name} with groups of {block}: it was compiled for"
            f" {metadata.required_workgroup}"
        )
    threads = block[0] * block[1] * block[2]
    most = min(metadata.max_workgroup, _MAX_GROUP)
    if threads > most:
        raise InvalidValue(
            f"{metadata.name} with {threads} work-items a group: it was compiled for at most {most}"
        )


@dataclass(frozen=True, slots=True)
class DispatchState:
    """What registers of a target get before a dispatch of a kernel.

    Attributes:
        program, rsrc1, rsrc2, rsrc3: of the code.
        tmpring_size: TMPRING_SIZE, which is 0 without scratch memory.
        scratch: its address, or 0; ``scratch_buffer`` is its resource descriptor, or zeros.
        wave32: what the dispatch says of waves.
        user: what the user SGPRs hold, in order, with their sizes.
    """

    program: int
    rsrc1: int
    rsrc2: int
    rsrc3: int
    tmpring_size: int
    scratch: int
    scratch_buffer: tuple[int, ...]
    wave32: bool
    user: tuple[tuple[str, int], ...] = field(default=())

    @property
    def needs_packet(self) -> bool:
        """Whether the kernel reads an AQL packet of its launch."""
        return any(name == "DISPATCH_PTR" for name, _ in self.user)


def dispatch_state(target: Target, loaded: LoadedKernel) -> DispatchState:
    """The registers for launches of a kernel by PM4 packets.

    Raises Unsupported for what the kernel needs and this driver does not do, InvalidValue for more
    than the hardware has.
    """
    kernel, descriptor = loaded.kernel, loaded.kernel.descriptor
    registers = packets_of(target.generation).registers
    rsrc1 = registers["COMPUTE_PGM_RSRC1"].parse(descriptor.rsrc1.value)
    if target.generation.needs_priv and target.priv:
        rsrc1 = rsrc1.replace(PRIV=1)
    rsrc2 = registers["COMPUTE_PGM_RSRC2"].parse(descriptor.rsrc2.value)
    rsrc2 = rsrc2.replace(LDS_SIZE=_lds_blocks(target, loaded))
    user = _user_sgprs(loaded)
    given = sum(size for _, size in user) + descriptor.preload["LENGTH"]
    if given > rsrc2["USER_SGPR"] or rsrc2["USER_SGPR"] > _USER_DATA:
        raise Unsupported(
            f"{kernel.name} wants {rsrc2['USER_SGPR']} user SGPRs, its descriptor names {given}:"
            f" as many are expected, of at most {_USER_DATA}"
        )
    if loaded.code % _CODE_ALIGN:
        raise InvalidValue(
            f"code of {kernel.name} at {loaded.code:#x}: a multiple of 256 is wanted"
        )
    scratch = _scratch(target, loaded)
    return DispatchState(
        program=loaded.code,
        rsrc1=rsrc1.value,
        rsrc2=rsrc2.value,
        rsrc3=descriptor.rsrc3.value,
        tmpring_size=0 if scratch is None else tmpring_size(target, scratch.size),
        scratch=0 if scratch is None else scratch.address,
        scratch_buffer=(0,) * 4
        if scratch is None
        else resource_descriptor(target, scratch, descriptor.wave32),
        wave32=descriptor.wave32,
        user=user,
    )


def _lds_blocks(target: Target, loaded: LoadedKernel) -> int:
    """What LDS_SIZE gets (LLVM's guide, COMPUTE_PGM_RSRC2, GRANULATED_LDS_SIZE)."""
    generation = target.generation
    if loaded.group_size > generation.lds_size:
        raise InvalidValue(
            f"{loaded.kernel.name} with {loaded.group_size} bytes of LDS a group: a group has at"
            f" most {generation.lds_size}"
        )
    return -(-loaded.group_size // generation.lds_block)


def _user_sgprs(loaded: LoadedKernel) -> tuple[tuple[str, int], ...]:
    properties = loaded.kernel.descriptor.properties
    user = tuple((name, size) for name, size in _USER_SGPRS if properties[f"ENABLE_SGPR_{name}"])
    if any(name == "QUEUE_PTR" for name, _ in user):
        raise Unsupported(f"{loaded.kernel.name} reads the AQL queue it runs in: there is none")
    return user


def place_of_kernarg(loaded: LoadedKernel) -> int | None:
    """Which user SGPR has the low half of the arguments' address; None where none has."""
    properties = loaded.kernel.descriptor.properties
    place = 0
    for name, size in _USER_SGPRS:
        if name == "KERNARG_SEGMENT_PTR":
            break
        place += size * properties[f"ENABLE_SGPR_{name}"]
    return place if properties["ENABLE_SGPR_KERNARG_SEGMENT_PTR"] else None


def _scratch(target: Target, loaded: LoadedKernel) -> Scratch | None:
    """The scratch memory of a launch; checked where there has to be any."""
    kernel = loaded.kernel
    if kernel.metadata.uses_dynamic_stack:
        raise Unsupported(f"{kernel.name} has a stack of no known size (recursion, pointers)")
    if not loaded.private_size:
        return None
    scratch = loaded.scratch
    if scratch is None or scratch.size.per_wave < loaded.private_size * 64:
        raise InvalidValue(
            f"{kernel.name} needs {loaded.private_size} bytes of scratch memory a lane: load it"
            " with a Scratch of at least scratch_size() of that"
        )
    return scratch

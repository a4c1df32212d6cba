"""Launch descriptors: one description for all versions, checked, and reading them back.

What the fields mean: clcbc0qmd.h of open-gpu-doc. Which of them a plain launch sets: Mesa's
src/nouveau/compiler/nak/qmd.rs and tinygrad's ops_nv.py, which are known to run on hardware.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from gpu.core.bits import align_up, mask
from gpu.core.errors import FormatError, InvalidValue, Unsupported
from gpu.drivers.nv.encode import sm_limits
from gpu.drivers.nv.encode.qmd_layout import QmdLayout, QmdWriter, Span, qmd_layout
from gpu.hcq.encoder import Patch
from gpu.hcq.symbol import Symbol, Value

QMD_ALIGN: Final = 256
PROGRAM_ALIGN: Final = 128
CONSTANT_ALIGN: Final = {3: 256, 4: 64, 5: 64}  # of a bank's address, by version
CONSTANT_UNIT: Final = 16
CONSTANT_BANKS: Final = 8
MAX_CONSTANT: Final = 64 << 10
SHARED_UNIT: Final = 128
LOCAL_UNIT: Final = 16
MAX_RELEASES: Final = 3
MAX_DEPENDENTS: Final = 2

_GROUP: Final = 0x3F  # tinygrad's; Mesa has others: it does not seem to matter
_TYPE_GRID: Final = 2  # GRID_CTA
_TYPE_CLUSTERS: Final = 3  # GRID_GPC_CGA
_L1_SYSMEMBAR: Final = 1
_FE_SYSMEMBAR: Final = 1
_PREFETCH_UNIT: Final = 256
_MAX_PREFETCH: Final = 0x1FF
_INVALIDATED: Final = (
    "INVALIDATE_TEXTURE_HEADER_CACHE",
    "INVALIDATE_TEXTURE_SAMPLER_CACHE",
    "INVALIDATE_TEXTURE_DATA_CACHE",
    "INVALIDATE_SHADER_DATA_CACHE",
    "INVALIDATE_SHADER_CONSTANT_CACHE",
)


class DependentAction(IntEnum):
    """What the end of a launch does to another descriptor."""

    INCREMENT_PUT = 0
    SCHEDULE = 1
    INVALIDATE_COPY_SCHEDULE = 3
    DECREMENT_DEPENDENCE = 4


@dataclass(frozen=True, slots=True)
class ConstantBuffer:
    """A constant bank: where, how many bytes, and whether what caches hold of it is stale."""

    bank: int
    address: Value
    size: int
    invalidate: bool = True


@dataclass(frozen=True, slots=True)
class Release:
    """A semaphore that is written when the launch is done, perhaps with nanoseconds at 8."""

    address: Value
    payload: Value
    bits: int = 64
    timestamp: bool = False


@dataclass(frozen=True, slots=True)
class Dependent:
    """A descriptor that is acted on when the launch is done."""

    address: Value
    action: DependentAction = DependentAction.SCHEDULE
    prefetch: bool = True


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch, for any version.

    Attributes:
        program: address of the first instruction.
        program_size: bytes of it, for prefetching; 0 prefetches nothing.
        grid: blocks in x, y, z.
        block: threads in x, y, z.
        registers: of a thread.
        barriers: how many named barriers it uses.
        shared: bytes of a block, the reserved ones included.
        local: bytes of a thread, counted down from the stack's top, as ptxas does.
        local_low: bytes of a thread, counted up from the window's beginning, as NAK does.
        sass_version: the architecture as the device tells it, 0x90.
        constants: its banks.
        releases: at most 3.
        dependents: at most 2.
        cluster: blocks of a cluster in x, y, z; None for a kernel without clusters.
        invalidate_code: whether what caches hold of the code is stale.
    """

    program: int
    grid: tuple[Value, Value, Value]
    block: tuple[int, int, int]
    registers: int
    sass_version: int
    program_size: int = 0
    barriers: int = 0
    shared: int = sm_limits.RESERVED_SHARED
    local: int = 0
    local_low: int = 0
    constants: tuple[ConstantBuffer, ...] = ()
    releases: tuple[Release, ...] = ()
    dependents: tuple[Dependent, ...] = ()
    cluster: tuple[int, int, int] | None = None
    invalidate_code: bool = False


@dataclass(frozen=True, slots=True)
class Qmd:
    """A descriptor, and the patches of its symbols, all of segment 0."""

    data: bytes
    patches: tuple[Patch, ...]


def build_qmd(major: int, sm: int, launch: Launch) -> Qmd:
    """The descriptor of a launch.

    Raises InvalidValue for what the SM or the descriptor cannot take, with the value and the
    limit; Unsupported for a version, an architecture, or clusters where there are none.
    """
    layout, sizes = qmd_layout(major), sm_limits.sm_limits(sm)
    _check(launch, sizes)
    writer = QmdWriter(layout)
    _put_kind(writer, launch)
    _put_sizes(writer, launch)
    _put_shared(writer, align_up(launch.shared, SHARED_UNIT), sizes)
    _put_program(writer, launch)
    for bank in launch.constants:
        _put_bank(writer, bank)
    for index, release in enumerate(launch.releases):
        _put_release(writer, index, release)
    for index, dependent in enumerate(launch.dependents):
        writer.put("DEPENDENT_QMD_ENABLE", 1, index)
        writer.put("DEPENDENT_QMD_ACTION", dependent.action, index)
        writer.put("DEPENDENT_QMD_PREFETCH", int(dependent.prefetch), index)
        writer.put("DEPENDENT_QMD_POINTER", dependent.address, index, shift=8)
    return Qmd(writer.data, tuple(writer.patches))


def _check(launch: Launch, sizes: sm_limits.SmLimits) -> None:
    _within("grid", launch.grid, sm_limits.MAX_GRID)
    _within("block", launch.block, sm_limits.MAX_BLOCK)
    x, y, z = launch.block
    threads, local = x * y * z, launch.local + launch.local_low
    for what, value, least, most in (
        ("threads of a block", threads, 1, sm_limits.MAX_THREADS),
        ("registers of a thread", launch.registers, 1, sm_limits.MAX_REGISTERS),
        ("barriers", launch.barriers, 0, sm_limits.MAX_BARRIERS),
        ("bytes of local memory of a thread", local, 0, sm_limits.MAX_LOCAL),
        ("releases", len(launch.releases), 0, MAX_RELEASES),
        ("dependents", len(launch.dependents), 0, MAX_DEPENDENTS),
    ):
        if not least <= value <= most:
            raise InvalidValue(f"{value} {what}: give {least} to {most}")
    sm_limits.check_registers(launch.registers, threads)
    if launch.cluster is not None:
        _check_cluster(launch.cluster, launch.grid, sizes)
    banks = [bank.bank for bank in launch.constants]
    if len(set(banks)) < len(banks):
        raise InvalidValue(f"constant banks {banks}: one of them is given twice")


def _within(what: str, sizes: tuple[Value, Value, Value], most: tuple[int, int, int]) -> None:
    for axis, size, limit in zip("xyz", sizes, most, strict=True):
        if not isinstance(size, Symbol) and not 1 <= size <= limit:
            raise InvalidValue(f"{what} of {size} in {axis}: give 1 to {limit}")


def _check_cluster(
    cluster: tuple[int, int, int], grid: tuple[Value, Value, Value], sizes: sm_limits.SmLimits
) -> None:
    if not sizes.clusters:
        raise Unsupported(f"clusters on sm_{sizes.sm}: they came with sm_90")
    blocks = cluster[0] * cluster[1] * cluster[2]
    if min(cluster) < 1 or blocks > sm_limits.MAX_CLUSTER:
        raise InvalidValue(f"cluster of {cluster} blocks: give 1 to {sm_limits.MAX_CLUSTER} in all")
    for axis, size, part in zip("xyz", grid, cluster, strict=True):
        if not isinstance(size, Symbol) and size % part:
            raise InvalidValue(f"grid of {size} in {axis} with clusters of {part}: it must divide")


def _put_kind(writer: QmdWriter, launch: Launch) -> None:
    layout = writer.layout
    writer.put("QMD_MAJOR_VERSION", layout.major)
    writer.put("QMD_GROUP_ID", _GROUP)
    writer.put("SASS_VERSION", launch.sass_version)
    writer.put("API_VISIBLE_CALL_LIMIT", 1)  # no check
    writer.put("SAMPLER_INDEX", 1)
    writer.put("CWD_MEMBAR_TYPE", _L1_SYSMEMBAR)
    for name in _INVALIDATED:
        writer.put(name, 1)
    writer.put("INVALIDATE_INSTRUCTION_CACHE", int(launch.invalidate_code))
    if layout.has("SM_GLOBAL_CACHING_ENABLE"):
        writer.put("SM_GLOBAL_CACHING_ENABLE", 1)
    if layout.has("QMD_TYPE"):
        writer.put("QMD_TYPE", _TYPE_CLUSTERS if launch.cluster else _TYPE_GRID)
    if launch.cluster is not None:
        for axis, size in zip(("WIDTH", "HEIGHT", "DEPTH"), launch.cluster, strict=True):
            writer.put(f"GPC_CGA_{axis}", size)


def _put_sizes(writer: QmdWriter, launch: Launch) -> None:
    for axis, blocks in zip(("WIDTH", "HEIGHT", "DEPTH"), launch.grid, strict=True):
        writer.put(f"GRID_{axis}", blocks)
    for number, threads in enumerate(launch.block):
        writer.put(f"CTA_THREAD_DIMENSION{number}", threads)
    writer.put("REGISTER_COUNT", launch.registers)
    writer.put("BARRIER_COUNT", launch.barriers)
    writer.put("SHADER_LOCAL_MEMORY_LOW_SIZE", align_up(launch.local_low, LOCAL_UNIT))
    writer.put("SHADER_LOCAL_MEMORY_HIGH_SIZE", align_up(launch.local, LOCAL_UNIT))


def _put_shared(writer: QmdWriter, shared: int, sizes: sm_limits.SmLimits) -> None:
    carve_out = _config(sizes.carve_out(shared))
    writer.put("SHARED_MEMORY_SIZE", shared)
    writer.put("MIN_SM_CONFIG_SHARED_MEM_SIZE", carve_out)
    writer.put("TARGET_SM_CONFIG_SHARED_MEM_SIZE", carve_out)
    writer.put("MAX_SM_CONFIG_SHARED_MEM_SIZE", _config(sizes.carve_outs[-1]))


def _config(carve_out: int) -> int:
    """How descriptors write a carve-out of some KiB."""
    return carve_out // 4 + 1


def _put_program(writer: QmdWriter, launch: Launch) -> None:
    if launch.program % PROGRAM_ALIGN:
        raise InvalidValue(f"program at {launch.program:#x}: give a multiple of {PROGRAM_ALIGN}")
    writer.put_split("PROGRAM_ADDRESS", launch.program)
    if launch.program_size:
        start = launch.program - launch.program % _PREFETCH_UNIT
        units = -(-(launch.program + launch.program_size - start) // _PREFETCH_UNIT)
        writer.put_split("PROGRAM_PREFETCH_ADDR", start)
        writer.put("PROGRAM_PREFETCH_SIZE", min(units, _MAX_PREFETCH))


def _put_bank(writer: QmdWriter, bank: ConstantBuffer) -> None:
    if not 0 <= bank.bank < CONSTANT_BANKS:
        raise InvalidValue(f"constant bank {bank.bank}: give 0 to {CONSTANT_BANKS - 1}")
    if not 0 < bank.size <= MAX_CONSTANT:
        raise InvalidValue(f"constant bank {bank.bank} of {bank.size} bytes: 1 to {MAX_CONSTANT}")
    align = CONSTANT_ALIGN[writer.layout.major]
    if not isinstance(bank.address, Symbol) and bank.address % align:
        raise InvalidValue(
            f"constant bank {bank.bank} at {bank.address:#x}: give a multiple of {align}"
        )
    writer.put("CONSTANT_BUFFER_VALID", 1, bank.bank)
    writer.put("CONSTANT_BUFFER_INVALIDATE", int(bank.invalidate), bank.bank)
    writer.put_split("CONSTANT_BUFFER_ADDR", bank.address, bank.bank)
    writer.put("CONSTANT_BUFFER_SIZE", align_up(bank.size, CONSTANT_UNIT), bank.bank)


def _put_release(writer: QmdWriter, index: int, release: Release) -> None:
    if release.bits not in (32, 64):
        raise InvalidValue(f"release of {release.bits} bits: give 32 or 64")
    align = 16 if release.timestamp else release.bits // 8
    if not isinstance(release.address, Symbol) and release.address % align:
        raise InvalidValue(f"release at {release.address:#x}: give a multiple of {align}")
    words = {32: 1, 64: 2}[release.bits]
    writer.put("RELEASE_ENABLE", 1, index)
    writer.put("RELEASE_STRUCTURE_SIZE", 0 if release.timestamp else words, index)
    writer.put("RELEASE_MEMBAR_TYPE", _FE_SYSMEMBAR, index)
    writer.put("RELEASE_PAYLOAD64B", int(release.bits == 64), index)
    writer.put_split("RELEASE_ADDR", release.address, index)
    if release.bits == 64 or isinstance(release.payload, Symbol):
        writer.put_split("RELEASE_PAYLOAD", release.payload, index)
    else:
        writer.put("RELEASE_PAYLOAD_LOWER", release.payload, index)


@dataclass(frozen=True, slots=True)
class DecodedQmd:
    """A descriptor as found in memory.

    Attributes:
        layout: of its version.
        fields: those that are not zero, as raw numbers, by name.
        reserved: bits that are set although no field covers them.
    """

    layout: QmdLayout
    fields: dict[str, int]
    reserved: int

    def lines(self) -> list[str]:
        """As text: the fields that are not zero, in the order of their bits."""
        spans = sorted(self.layout.spans.values(), key=lambda span: span.lo)
        lines = [f"launch descriptor version {self.layout.major}"]
        lines += [_show(span, self.fields[span.name]) for span in spans if span.name in self.fields]
        return lines + ([f"  reserved bits {self.reserved:#x}"] if self.reserved else [])


def _show(span: Span, number: int) -> str:
    shown = f" ({number << span.shift:#x})" if span.shift else ""
    return f"  {span.hi:>4}:{span.lo:<4} {span.name} = {number:#x}{shown}"


def decode_qmd(data: bytes, major: int | None = None) -> DecodedQmd:
    """Reads a descriptor of 256 or 384 bytes, of the version `major` where that is known.

    Else its bits tell. Versions 4 and 5 have theirs in different places, so that a descriptor may
    be of either; then it is taken for one of 4. Raises FormatError where it is none.
    """
    value = int.from_bytes(data, "little")
    for each in (3, 4, 5) if major is None else (major,):
        layout = qmd_layout(each)
        if layout.size == len(data) and layout.span("QMD_MAJOR_VERSION").extract(value) == each:
            break
    else:
        raise FormatError(
            f"{len(data)} bytes are no launch descriptor"
            + (f" of version {major}" if major is not None else "")
            + ": version 3 has 256, 4 and 5 have 384"
        )
    numbers = {name: span.extract(value) for name, span in layout.spans.items()}
    reserved = value & ~layout.covered & mask(8 * layout.size - 1)
    return DecodedQmd(layout, {name: n for name, n in numbers.items() if n}, reserved)

"""What CP_LOAD_STATE6 loads for compute kernels: code, constants, descriptors.

Loads are asynchronous: they wait in a queue until a dispatch needs them, and so read memory at some
time in between. HLSQ_INVALIDATE_CMD clears them by kind (a6xx.xml at 0xBB08), so it stands before
the loads of a kernel, never between those and its dispatch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from gpu.autogen.adreno_a6xx import ENUMERATIONS, REGISTERS
from gpu.core.bits import bits
from gpu.sim.kgsl.chip.errors import CpError
from gpu.sim.kgsl.chip.registers import UNSET
from gpu.sim.kgsl.chip.tables import Port
from gpu.sim.record import DebugChannel

_BLOCKS: Final = {number: name for name, number in ENUMERATIONS["a6xx_state_block"].items()}
_TYPES: Final = {number: name for name, number in ENUMERATIONS["a6xx_state_type"].items()}
_DIRECT: Final = ENUMERATIONS["a6xx_state_src"]["SS6_DIRECT"]
_INDIRECT: Final = ENUMERATIONS["a6xx_state_src"]["SS6_INDIRECT"]
_UNITS: Final = {
    ("SB6_CS_SHADER", "ST6_SHADER"): ("code", 32),
    ("SB6_CS_SHADER", "ST6_CONSTANTS"): ("constants", 4),
    ("SB6_CS_SHADER", "ST6_UBO"): ("ubos", 2),
    ("SB6_CS_SHADER", "ST6_IBO"): ("uavs", 16),
    ("SB6_CS_TEX", "ST6_SHADER"): ("samplers", 4),
    ("SB6_CS_TEX", "ST6_CONSTANTS"): ("textures", 16),
}
"""What a block and a type are, and the dwords of a unit (Mesa's fd6_emit and computerator)."""
_GEOMETRY: Final = ("SB6_VS", "SB6_HS", "SB6_DS", "SB6_GS")
_HEAD: Final = 3
_INVALIDATE: Final = REGISTERS["HLSQ_INVALIDATE_CMD"][2]
_CS_STATE: Final = 1 << _INVALIDATE["CS_STATE"][0]
_CS_IBO: Final = 1 << _INVALIDATE["CS_IBO"][0]
POISON: Final = UNSET.to_bytes(4, "little")


class Load(NamedTuple):
    """One load that waits: dwords inline, or where they are in memory."""

    kind: str
    first: int
    units: int
    data: bytes
    address: int


class LoadedState:
    """The state of compute kernels as loads have made it.

    Attributes:
        is_fresh: whether what others have left was cleared.
    """

    def __init__(self, debug: DebugChannel):
        self._debug = debug
        self._pending: list[Load] = []
        self._held: dict[str, dict[int, bytes]] = {kind: {} for kind, _ in _UNITS.values()}
        self.is_fresh = False

    def forget(self) -> None:
        """Other contexts have run: what is loaded, and what waits, is theirs."""
        self._pending.clear()
        for held in self._held.values():
            held.clear()
        self.is_fresh = False

    def invalidate(self, value: int) -> bool:
        """What a write of HLSQ_INVALIDATE_CMD clears; whether that is code, too."""
        cleared = [k for k in self._held if k != "uavs"] if value & _CS_STATE else []
        if value & (_CS_STATE | _CS_IBO):
            cleared.append("uavs")
        for load in self._pending:
            if load.kind in cleared:
                self._debug.violation(
                    f"HLSQ_INVALIDATE_CMD = {value:#x} clears {load.kind} that CP_LOAD_STATE6 has"
                    " just asked for: it stands before the loads, not behind them"
                )
        self._pending = [load for load in self._pending if load.kind not in cleared]
        for kind in cleared:
            self._held[kind].clear()
        self.is_fresh = self.is_fresh or bool(value & _CS_STATE)
        return bool(value & _CS_STATE)

    def load(self, opcode: str, body: Sequence[int]) -> None:
        """A packet CP_LOAD_STATE6. Raises CpError."""
        if len(body) < _HEAD:
            raise CpError(f"{opcode} of {len(body)} dwords; it has {_HEAD} and what it loads")
        head, low, high = body[:_HEAD]
        block, kind = bits(head, 21, 18), bits(head, 15, 14)
        names = _BLOCKS.get(block, f"block {block}"), _TYPES[kind]
        source, units, first = bits(head, 17, 16), bits(head, 31, 22), bits(head, 13, 0)
        if names not in _UNITS:
            is_wrong_packet = names[0].startswith(_GEOMETRY) != opcode.endswith("GEOM")
            detail = ", in the wrong packet" if is_wrong_packet else ""
            raise CpError(f"{opcode} of {' '.join(names)}{detail}: only compute is modelled")
        if opcode.endswith("GEOM"):
            raise CpError(f"{opcode} of {names[0]}: compute has CP_LOAD_STATE6_FRAG")
        what, dwords = _UNITS[names]
        if not units:
            raise CpError(f"{opcode} loads no unit of {what}")
        address = low & ~3 | high << 32
        if source == _DIRECT:
            self._check_inline(opcode, what, units * dwords, len(body) - _HEAD, low | high)
            data = b"".join(word.to_bytes(4, "little") for word in body[_HEAD:])
            self._pending.append(Load(what, first, units, data, 0))
        elif source == _INDIRECT:
            if len(body) != _HEAD or low & 3:
                raise CpError(f"{opcode} of {what}: {len(body)} dwords, address {low:#x}")
            self._pending.append(Load(what, first, units, b"", address))
        else:
            raise CpError(f"{opcode} of {what} from source {source}: only 0 and 2 are modelled")

    def settle(self, port: Port, reads: Callable[[int, int], None]) -> None:
        """Carries out what waits; `reads` is told of ranges that are read. Raises PageFault."""
        for load in self._pending:
            size = next(4 * dwords for kind, dwords in _UNITS.values() if kind == load.kind)
            data = load.data
            if not data:
                reads(load.address, load.units * size)
                data = port.read(load.address, load.units * size)
            held = self._held[load.kind]
            for unit in range(load.units):
                held[load.first + unit] = data[unit * size : (unit + 1) * size]
        self._pending.clear()

    def unit(self, kind: str, index: int) -> bytes | None:
        """What is loaded at an index."""
        return self._held[kind].get(index)

    def count(self, kind: str) -> int:
        """One more than the highest index of what is loaded."""
        return max(self._held[kind], default=-1) + 1

    def constants(self, vectors: int) -> bytes:
        """The first so many constants of 16 bytes; those that nobody loaded are poison."""
        held = self._held["constants"]
        return b"".join(held.get(index, 4 * POISON) for index in range(vectors))

    def _check_inline(self, opcode: str, what: str, wanted: int, given: int, address: int) -> None:
        if wanted != given:
            raise CpError(f"{opcode} of {what}: {given} dwords inline, {wanted} were announced")
        if address:
            self._debug.violation(f"{opcode} of {what} inline has an address, {address:#x}")

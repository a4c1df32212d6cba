"""Machine code as an array of records that the engine runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu.core.errors import FormatError
from gpu.sim.isa import layout, scheduler, tally
from gpu.sim.isa.circles import reached
from gpu.sim.isa.rdna.chip import Chip
from gpu.sim.isa.rdna.decode import LONGEST, Decoder, Instruction, UnknownInstruction
from gpu.sim.isa.rdna.text import text_of
from gpu.sim.isa.rdna.text_scalar import signed16
from gpu.sim.isa.rdna.translate import VECTOR_BASE, Context, Layout, Record, Untranslatable
from gpu.sim.isa.waves import aligned_bytes

_AHEAD: Final = 128
"""Bytes of code that are fetched at a time."""
_ENDS: Final = frozenset(("s_endpgm", "s_branch", "s_setpc_b64", "s_swappc_b64"))
_JUMPS: Final = ("s_branch", "s_cbranch", "s_call")
# What only looks at LDS, or moves values between lanes.
_LDS_READS: Final = ("ds_load", "ds_bpermute", "ds_permute", "ds_swizzle")
_VECTOR: Final = ("vop1", "vop2", "vop3", "vop3p", "vop3sd", "vopc", "vopd", "vinterp", "mai")
_KINDS: Final = {
    **dict.fromkeys(_VECTOR, "valu"),
    **dict.fromkeys(("sop1", "sop2", "sopc", "sopk"), "salu"),
    "smem": "smem",
    "ds": "lds",
}
"""What instructions are counted as, by format."""
_MODE_CHANGES: Final = ("s_setreg", "s_round_mode", "s_denorm_mode")


class Program:
    """The code that is reached from an entry, decoded and translated.

    Attributes:
        base: GPU address of offset 0.
        wave: where the rows of its waves lie.
        run_grid: the address of the loop over them.
        chip: whose code it is.
        rows: rows that a wave needs, header and scalar registers included.
        constants: the words of the constant rows, one row per line.
        problems: code offset -> why the instruction there cannot run.
    """

    def __init__(
        self,
        chip: Chip,
        lanes: int,
        decoder: Decoder,
        fetch: Callable[[int, int], bytes],
        base: int,
        vgprs: int,
        accumulators: int,
        mixed_modes: bool,
        counts: bool,
    ):
        """`lanes` are those of a wave; `fetch(address, size)` gives code bytes, fewer where the
        memory ends. With `counts` waves count what they execute.
        """
        self.chip = chip
        self._engine = chip.engine(lanes)
        self.wave = self._engine.wave
        self.run_grid = self._engine.address(scheduler.NAME)
        self.base = base
        self._vgprs, self._accumulators = vgprs, accumulators
        self._mixed_modes = mixed_modes
        self._counts = counts
        self.instructions: dict[int, Instruction] = {}
        self.problems: dict[int, str] = {}
        self._decode(decoder, fetch)
        self._translate()
        self._pieces = self._code_pieces()

    def record_address(self, offset: int) -> int:
        """The address of the record to start with at a code offset."""
        return self.memory.ctypes.data + self._first[offset] * layout.RECORD.size

    def offset_of(self, record_address: int) -> int:
        """The code offset of a record."""
        index = (record_address - self.memory.ctypes.data) // layout.RECORD.size
        return self._offsets[index]

    def before(self, record_address: int) -> int:
        """How many instructions of the program lie before that of a record."""
        return self._places[self.offset_of(record_address)]

    def text(self, offset: int) -> str:
        """The instruction at a code offset, for messages."""
        found = self.instructions.get(offset)
        return text_of(found) if found else "?"

    def is_same(self, fetch: Callable[[int, int], bytes]) -> bool:
        """Whether code that is fetched now is what was decoded."""
        is_same = True
        for address, code in self._pieces:
            is_same = is_same and fetch(address, len(code)) == code
        return is_same

    def _code_pieces(self) -> list[tuple[int, bytes]]:
        """The decoded bytes in pieces without gaps, by address."""
        pieces: list[tuple[int, bytearray]] = []
        for offset, found in sorted(self.instructions.items()):
            if not pieces or pieces[-1][0] + len(pieces[-1][1]) != offset:
                pieces.append((offset, bytearray()))
            pieces[-1][1].extend(found.code)
        return [(self.base + offset, bytes(code)) for offset, code in pieces]

    def following(self, place: int) -> list[int] | None:
        """The code offsets behind an instruction; None where it ends, or goes anywhere."""
        found = self.instructions.get(place)
        if found is None or (found.name in _ENDS and found.name != "s_branch"):
            return None
        offsets = [] if found.name in _ENDS else [place + found.size]
        if found.name.startswith(_JUMPS):
            offsets.append(_target(place, found))
        return offsets

    def is_endless(self, place: int, vcc: bool) -> bool:
        """Whether no way leads from a place to an end, where VCC is 0 or is not.

        LLVM gives a loop without an end a branch that is always taken, as VCC says.
        """

        def following(each: int) -> list[int] | None:
            found = self.instructions.get(each)
            if found is None or not found.name.startswith("s_cbranch_vcc"):
                return self.following(each)
            is_taken = vcc == (found.name == "s_cbranch_vccnz")
            return [_target(each, found) if is_taken else each + found.size]

        places = reached([place], following)
        return places is not None and all(
            "vcc" not in self.text(each) or self.instructions[each].name.startswith("s_cbranch")
            for each in places
        )

    def is_plain(self, place: int) -> bool:
        """Whether an instruction does what registers and memory say, and writes no memory."""
        found = self.instructions[place]
        name = found.name
        if found.opcode.format == "ds":
            return name.startswith(_LDS_READS)
        writes = "_store" in name or "_atomic" in name
        return not (writes or name.startswith(("s_getreg", "s_sendmsg_rtn")))

    def dump(self) -> str:
        """A line per instruction with its address and bytes."""
        found = sorted(self.instructions.items())
        return "\n".join(text_of(each, self.base + offset) for offset, each in found)

    def _decode(self, decoder: Decoder, fetch: Callable[[int, int], bytes]) -> None:
        waiting, start, ahead = [0], 0, b""
        while waiting:
            offset = waiting.pop()
            if offset in self.instructions or offset in self.problems:
                continue
            if not start <= offset <= start + len(ahead) - LONGEST:
                start, ahead = offset, fetch(self.base + offset, _AHEAD)
            try:
                found = decoder.decode(ahead[offset - start :][:LONGEST])
            except UnknownInstruction as error:
                self.problems[offset] = error.message
                continue
            self.instructions[offset] = found
            if found.name.startswith(_JUMPS):
                waiting.append(_target(offset, found))
            if found.name not in _ENDS:
                waiting.append(offset + found.size)

    def _translate(self) -> None:
        mixed = self._mixed_modes or any(
            found.name.startswith(_MODE_CHANGES) for found in self.instructions.values()
        )
        rows = Layout(self._engine.wave, self._vgprs, self._accumulators)
        records: list[tuple[int, Record]] = []
        self._first: dict[int, int] = {}
        self._places: dict[int, int] = {}
        end = None
        for offset in sorted({*self.instructions, *self.problems}):
            if end is not None and offset < end:
                raise FormatError(f"code offset {offset:#x} lies within another instruction")
            self._places[offset] = len(self._first)
            self._first[offset] = len(records)
            records += [(offset, record) for record in self._records(offset, rows, mixed)]
            known = self.instructions.get(offset)
            end = offset + known.size if known else None
        last = max(self._first)
        records.append((last, Record("unknown")))  # what runs past the end stops there
        self._place(records, rows)

    def _records(self, offset: int, rows: Layout, mixed: bool) -> list[Record]:
        found = self.instructions.get(offset)
        if found is None:
            return [Record("unknown")]
        clears = self.chip.clears_upper
        context = Context(self._engine, rows, found, offset, self.base, mixed, clears)
        try:
            translator = self.chip.translators.get(found.opcode.format)
            if translator is None:
                raise Untranslatable(f"{found.name} has no semantics here")
            translator(context)
        except Untranslatable as error:
            self.problems[offset] = error.message
            return [Record("unknown")]
        if context.stops_where:
            self.problems[offset] = f"{found.name} {context.stops_where}"
        return _counting(found, context.records) if self._counts else context.records

    def _place(self, records: list[tuple[int, Record]], rows: Layout) -> None:
        """Puts vector registers behind the constants, and records into memory."""
        wave = rows.wave
        vectors = wave.constants + rows.rows * wave.row
        self.rows = vectors // wave.row + self._vgprs
        self.vector_offset = vectors
        self.constants = _constant_rows(rows)
        size = layout.RECORD.size
        self.memory = aligned_bytes(len(records) * size, size)
        self._offsets = [offset for offset, _ in records]
        start = self.memory.ctypes.data
        packed = bytearray()
        for offset, record in records:
            fields = (record.d, record.a, record.b, record.c, record.e, record.f)
            placed = (f - VECTOR_BASE + vectors if f >= VECTOR_BASE else f for f in fields)
            target, immediate = 0, record.immediate
            if record.target is not None:
                target = start + self._first[record.target] * size
                immediate = self._places[offset] + 1 - self._places[record.target]
            function = self._engine.address(record.function)
            packed += layout.RECORD.pack(
                *(function, *placed, immediate, target, self._places[offset], record.aux, 0)
            )
        self.memory[:] = np.frombuffer(packed, np.uint8)


def _counting(found: Instruction, records: list[Record]) -> list[Record]:
    """The records of an instruction, which count it and its conflicts in LDS."""
    waits = found.name.startswith("s_wait")
    kind = "others" if waits else _KINDS.get(found.opcode.format, "others")
    counted = [Record(tally.COUNT, immediate=tally.slot(kind))]
    for record in records:
        counted.append(record)
        if record.function == "resolve_lds":
            dwords = max(1, (record.aux & 0xFF) // 4)
            slot = tally.slot("lds_conflicts")
            counted.append(Record(tally.CONFLICTS, d=record.d, immediate=slot, aux=dwords))
    return counted


def _target(offset: int, jump: Instruction) -> int:
    return offset + 4 + 4 * signed16(jump.fields["simm16"])


def _constant_rows(rows: Layout) -> npt.NDArray[np.uint32]:
    table = np.zeros((rows.rows, rows.wave.lanes), np.uint32)
    for key, place in rows.constants.items():
        if key[0] < 0:
            table[place] = key[1:]
        else:
            for number, word in enumerate(key):
                table[place + number] = word
    return table

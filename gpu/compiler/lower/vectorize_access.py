"""Accesses to neighbouring elements as one, where a device moves several as fast as one.

A thread of a GPU asks for up to 16 bytes in an instruction (`Target.access_bytes`). Threads that
have neighbours (`gpu/compiler/opt/analysis/access_width.py`) name them one by one in loops that are
written out; here those that lie side by side become one vector in memory, which is taken apart
behind a load and put together before a store. It begins at a multiple of its size.

Within a stretch without control flow a load moves up to the first of its neighbours and a store
down to the last one. Both stay where something in between may touch the same element: places are
compared as sums of multiples, and two of them are told apart by their constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gpu.compiler.ir.linear import Inst, Program
from gpu.compiler.ir.linear.residue import Residues
from gpu.compiler.ir.linear.rewrite import Rewrite
from gpu.compiler.lower.dce import used

_CONTROL: Final = frozenset({"loop", "end", "if", "endif"})
# What other threads, or copies that land, change in memory of a block.
_EXCHANGES: Final = frozenset({"barrier", "copy", "wait"})


def join(program: Program, nbytes: int) -> Program:
    """The same program with accesses of up to `nbytes`, a power of two."""
    joiner = _Joiner(program, nbytes)
    return program._replace(body=used(tuple(joiner.run())))


class _Place(NamedTuple):
    """An index: multiples of values that are no sums, and what is added."""

    terms: frozenset[tuple[Inst, int]]
    constant: int


class _Access(NamedTuple):
    """A load or store of one element, and where in the stretch it stands."""

    number: int
    inst: Inst
    at: _Place

    @property
    def pointer(self) -> Inst:
        return self.inst.args[0]

    @property
    def is_store(self) -> bool:
        return self.inst.op == "store"

    @property
    def mask(self) -> tuple[Inst, ...]:
        return self.inst.args[3 if self.is_store else 2 :]

    @property
    def like(self) -> tuple[Any, ...]:
        """What accesses have in common that may be one."""
        return self.inst.op, self.pointer, self.at.terms, self.mask, self.inst.attr

    def may_touch(self, other: _Access) -> bool:
        """Whether this, of the same memory, may be of the other's element."""
        return self.at.terms != other.at.terms or self.at.constant == other.at.constant


class _Joiner(Rewrite):
    def __init__(self, program: Program, nbytes: int):
        super().__init__()
        self.program, self.nbytes = program, nbytes
        self.places: dict[Inst, _Place] = {}
        self.residues = Residues()
        self.stands: dict[int, int] = {}  # in this stretch, of accesses that became one with others

    def run(self) -> Iterator[Inst]:
        stretch: list[Inst] = []
        for inst in self.program.body:
            if inst.op not in _CONTROL:
                stretch.append(inst)
                continue
            yield from self.joined(stretch)
            yield self.rebuilt(inst)
            stretch = []
        yield from self.joined(stretch)

    # What becomes one.

    def joined(self, stretch: Sequence[Inst]) -> Iterator[Inst]:
        """A stretch without control flow."""
        groups = dict(self.groups(stretch))
        members = {access.inst for group in groups.values() for access in group}
        for number, inst in enumerate(stretch):
            if number in groups:
                group = groups[number]
                yield from self.stored(group) if group[0].is_store else self.loaded(group)
            elif inst not in members:
                yield self.rebuilt(inst)

    def groups(self, stretch: Sequence[Inst]) -> Iterator[tuple[int, list[_Access]]]:
        """Accesses that become one, in the order of memory, and where that one stands."""
        accesses = [
            _Access(number, inst, self.place(inst.args[1]))
            for number, inst in enumerate(stretch)
            if self.is_single(inst)
        ]
        self.stands = {}
        found: dict[tuple[Any, ...], dict[int, list[_Access]]] = {}
        for access in accesses:
            found.setdefault(access.like, {}).setdefault(access.at.constant, []).append(access)
        for alike in found.values():
            by_place = {at: same[0] for at, same in alike.items() if len(same) == 1}
            while len(by_place) > 1:
                group = self.group(by_place, stretch, accesses)
                for access in group:
                    del by_place[access.at.constant]
                if len(group) > 1:
                    stand = _stand(group)
                    self.stands.update((access.number, stand) for access in group)
                    yield stand, group

    def is_single(self, inst: Inst) -> bool:
        """Whether this is an access to one element of memory, and no pixel's."""
        if inst.op not in ("load", "store") or inst.args[1].lanes > 1:
            return False
        value, pointer = (inst if inst.op == "load" else inst.args[2]), inst.args[0]
        image = pointer.op == "param" and self.program.params[pointer.attr[0]].image
        return value.lanes == 1 and not image

    def group(
        self, by_place: Mapping[int, _Access], stretch: Sequence[Inst], accesses: list[_Access]
    ) -> list[_Access]:
        """The access that is nearest to the beginning of memory, and what becomes one with it."""
        first = by_place[min(by_place)]
        size = self.nbytes // first.pointer.dtype.itemsize
        while size > 1:
            group = [by_place.get(first.at.constant + further) for further in range(size)]
            whole = [access for access in group if access is not None]
            if len(whole) == size and self.may_be_one(whole, stretch, accesses):
                return whole
            size //= 2
        return [first]

    def may_be_one(
        self, group: list[_Access], stretch: Sequence[Inst], accesses: list[_Access]
    ) -> bool:
        """Whether a group begins at a multiple of its size, and may be where it would stand."""
        first, numbers = group[0], [access.number for access in group]
        if self.residues.of(first.inst.args[1], len(group)) != 0:
            return False
        if not first.is_store and numbers[0] != min(numbers):
            return False  # the index of the first is not there before
        if first.pointer.op == "local" and any(
            inst.op in _EXCHANGES for inst in stretch[min(numbers) : max(numbers)]
        ):
            return False
        if first.pointer.op == "param" and not self.program.params[first.pointer.attr[0]].written:
            return True
        others = [
            access
            for access in accesses
            if access.pointer is first.pointer
            and access.number not in numbers
            and (access.is_store or first.is_store)
        ]
        stand = _stand(group)
        return not any(self.passes(one, stand, other) for other in others for one in group)

    def passes(self, one: _Access, stand: int, other: _Access) -> bool:
        """Whether an access that stands elsewhere changes places with one of the same element.

        The other one may have moved too, as part of another group.
        """
        others = self.stands.get(other.number, other.number)
        return (other.number < one.number) != (others < stand) and other.may_touch(one)

    # Instructions.

    def loaded(self, group: list[_Access]) -> Iterator[Inst]:
        """One load, and each element of it."""
        first, lanes = group[0].inst, len(group)
        pointer, index, *mask = (self.new.get(arg, arg) for arg in first.args)
        masks = [Inst("splat", one.dtype, lanes, (one,)) for one in mask]
        yield from masks
        vector = Inst("load", first.dtype, lanes, (pointer, index, *masks))
        yield vector
        for lane, access in enumerate(group):
            element = Inst("extract", first.dtype, 1, (vector,), (lane,))
            self.new[access.inst] = element
            yield element

    def stored(self, group: list[_Access]) -> Iterator[Inst]:
        """One store of all elements."""
        first, lanes = group[0].inst, len(group)
        pointer, index, _, *mask = (self.new.get(arg, arg) for arg in first.args)
        values = tuple(self.new.get(a.inst.args[2], a.inst.args[2]) for a in group)
        vector = Inst("pack", first.dtype, lanes, values)
        masks = [Inst("splat", one.dtype, lanes, (one,)) for one in mask]
        yield from (vector, *masks)
        yield Inst("store", first.dtype, lanes, (pointer, index, vector, *masks), first.attr)

    # Places.

    def place(self, index: Inst) -> _Place:
        """An index taken apart."""
        if index not in self.places:
            self.places[index] = self.taken_apart(index)
        return self.places[index]

    def taken_apart(self, inst: Inst) -> _Place:
        if inst.op == "const":
            return _Place(frozenset(), inst.attr[0])
        if inst.op == "alu" and inst.attr[0] in ("add", "sub", "mul"):
            a, b = (self.place(arg) for arg in inst.args)
            if inst.attr[0] != "mul":
                return _sum(a, b, 1 if inst.attr[0] == "add" else -1)
            for one, other in ((a, b), (b, a)):
                if not other.terms:
                    return _sum(_Place(frozenset(), 0), one, other.constant)
        return _Place(frozenset({(inst, 1)}), 0)


def _stand(group: Sequence[_Access]) -> int:
    """Where in the stretch the one access of a group stands."""
    return max(a.number for a in group) if group[0].is_store else group[0].number


def _sum(a: _Place, b: _Place, factor: int) -> _Place:
    """`a` and `factor` times `b`."""
    terms = dict(a.terms)
    for value, count in b.terms:
        terms[value] = terms.get(value, 0) + count * factor
    kept = frozenset((value, count) for value, count in terms.items() if count)
    return _Place(kept, a.constant + b.constant * factor)

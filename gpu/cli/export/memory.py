"""The buffers of a page: what is in each, and the copies at the beginning and end of a run."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from gpu.cli.export.tracing import Leaf, Traced
from gpu.compiler.ir.graph import Node
from gpu.runtime.execute import storage, without_reshapes
from gpu.tensor.randomness import generator_state
from gpu.tensor.tensor import Tensor

NOWHERE: Final = -1
"""The slot of what has no elements, or is an input that nobody reads."""

_WORD: Final = 4  # bytes: what buffers and copies are multiples of


class Memory:
    """Buffers of a page, numbered as they are asked for.

    Attributes:
        slots: the size of each in bytes.
        weights: the tensors that buffers begin with, by name.
        weight_slots: their buffers.
        before: copies (from, to, bytes) at the beginning of each run.
        after: the same at its end.
    """

    def __init__(self, traced: Traced, names: Mapping[int, str]):
        """`names` are those of weights, by the identity of their tensors."""
        self._traced, self._names = traced, names
        self.slots: list[int] = []
        self.weights: dict[str, Tensor] = {}
        self.weight_slots: dict[str, int] = {}
        self.before: list[tuple[int, int, int]] = []
        self.after: list[tuple[int, int, int]] = []
        self._slot_of: dict[Node, int] = {}
        self._saved: dict[Node, int] = {}
        self._known: dict[tuple[int, bytes], int] = {}
        updates = traced.updates.items()
        self._changing = {leaf for leaf, value in updates if without_reshapes(value) is not leaf}

    @property
    def is_stateful(self) -> bool:
        """Whether a run depends on those before it."""
        return bool(self._changing) or self._traced.random_words > 0

    def new(self, nbytes: int) -> int:
        """A buffer of at least that many bytes."""
        self.slots.append(max(-(-nbytes // _WORD) * _WORD, _WORD))
        return len(self.slots) - 1

    def slot_of(self, leaf: Node) -> int:
        """The buffer of a leaf."""
        if leaf not in self._slot_of:
            about = self._traced.leaves[leaf]
            is_weight = about.kind == "weight"
            self._slot_of[leaf] = self._weight(leaf, about) if is_weight else self.new(leaf.nbytes)
        return self._slot_of[leaf]

    def initial(self, leaf: Node) -> int:
        """A buffer that at the end of a run has what the leaf had at its beginning."""
        return self.copied(leaf) if leaf in self._changing else self.slot_of(leaf)

    def copied(self, leaf: Node) -> int:
        """A buffer of its own into which a run begins by copying the leaf."""
        if leaf not in self._saved:
            source, target = self.slot_of(leaf), self.new(leaf.nbytes)
            self.before.append((source, target, self.slots[target]))
            self._saved[leaf] = target
        return self._saved[leaf]

    def update(self, leaf: Node, slot: int) -> None:
        """A run ends with the value of a leaf being what is in `slot`."""
        own = self.slot_of(leaf)
        if slot not in (own, NOWHERE):
            self.after.append((slot, own, self.slots[own]))

    def inputs(self) -> dict[str, int]:
        """The buffers of inputs that have one."""
        leaves = self._traced.leaves
        return {leaves[n].name: s for n, s in self._slot_of.items() if leaves[n].kind == "input"}

    def random(self) -> dict[str, Any] | None:
        """The states of random numbers as `gpu/cli/export/graph.py` says; None without any."""
        found = [(self._traced.leaves[n], slot) for n, slot in self._slot_of.items()]
        states = [(leaf, slot) for leaf, slot in found if leaf.kind == "random"]
        if not states:
            return None
        seed, given = generator_state()
        return {
            "seed": None if seed is None else str(seed),  # of 64 bits, which JSON's readers round
            "first": given.get(self._traced.random_device, 0),
            "words": self._traced.random_words,
            "states": [[slot, leaf.offset] for leaf, slot in states],
        }

    def _weight(self, leaf: Node, about: Leaf) -> int:
        """The buffer of a weight: one that has the same content already, where neither changes."""
        assert about.source is not None
        content = storage(about.source).copy_out().tobytes()
        key = len(content), blake2b(content, digest_size=32).digest()
        if leaf not in self._changing and key in self._known:
            return self._known[key]
        name = self._names.get(id(about.handle)) or "weight"
        if name in self.weights or name == "weight":
            name = f"{name}_{len(self.weights)}"
        self.weights[name] = Tensor._wrap(about.source)
        slot = self.weight_slots[name] = self.new(leaf.nbytes)
        if leaf not in self._changing:
            self._known[key] = slot
        return slot

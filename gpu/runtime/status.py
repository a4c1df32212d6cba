"""Status words: what was found wrong with a value while it was computed, told when it is read.

A `custom_grad` node of the rule `CHECKED` is a value with the words that belong to it, integers of
which each is 0 or tells what is wrong with one of a batch. They are computed along with what is
made of the value, and the memory of that keeps them: nothing waits for them before somebody reads
it, or what was computed from it later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from gpu.compiler.ir.graph import Node, toposort
from gpu.compiler.ir.graph import build as G
from gpu.core.callsite import CallSite
from gpu.core.linalgerror import LinAlgError
from gpu.runtime.buffer import Buffer, Status
from gpu.runtime.origins import copy_origin, origin_of

CHECKED: Final = "checked"
PROBLEMS: Final = (
    ("cholesky", "is not positive-definite: its leading minor of order {} is not positive"),
    ("lu_factor", "is singular: there is no pivot but 0 in column {}"),
    ("solve", "is singular: there is no pivot but 0 in column {}"),
    ("inv", "is singular: there is no pivot but 0 in column {}"),
    (
        "lstsq",
        "is not of full rank: column {} depends on those before it; driver='gelsd' takes any rank",
    ),
    ("ldl_factor", "is singular: D has a zero in row {}"),
)
"""Operations, and what a word that is not 0 tells of a matrix."""


class _Use:
    """Whether there may be any status word in this process: most programs have none."""

    any = False


def checked(value: Node, word: Node, operation: str, batch: Sequence[int]) -> Node:
    """`value`, of which `word` tells what is wrong with it for `operation`, one of `PROBLEMS`.

    `batch` is the shape that the word has for those who read what is told.
    """
    _Use.any = True
    number = [name for name, _ in PROBLEMS].index(operation)
    return G.custom_grad(CHECKED, value, (word,), number, *batch)


def stacked(value: Node, step: Node, words: Node, steps: int) -> Node:
    """`value`, made by a loop, with the words of each step; `step` is what a step has checked."""
    number, *batch = step.attr[1:]
    result = G.custom_grad(CHECKED, value, (words,), number, steps, *batch)
    copy_origin(step, result)
    return result


def any_words() -> bool:
    """Whether `with_words` may find anything."""
    return _Use.any


def is_checked(node: Node) -> bool:
    """Whether a node is a value with a status word."""
    return node.kind == "custom_grad" and bool(node.attr[0] == CHECKED)


class Words(Status):
    """Status words in memory.

    Attributes:
        buffer: where they are.
        about: the operation by its number, then the shape of the batch.
        line: of the user's code, that asked for the operation.
    """

    def __init__(self, buffer: Buffer, about: tuple[int, ...], line: CallSite | None):
        self.buffer, self.about, self.line = buffer, about, line

    def verify(self) -> None:
        """Raises LinAlgError for the first of the batch with which something is wrong."""
        words = self.buffer.copy_out()
        wrong = words.nonzero()[0]
        if not len(wrong):
            return
        number, *batch = self.about
        operation, problem = PROBLEMS[number]
        place = tuple(int(at) for at in np.unravel_index(wrong[0], batch))
        which = f"matrix {list(place)} of the batch" if place else "the matrix"
        told = problem.format(int(words[wrong[0]]))
        more = f" (and {len(wrong) - 1:,} more of {len(words):,})" if len(wrong) > 1 else ""
        error = LinAlgError(f"{operation}: {which} {told}{more}", operation, place)
        error.call_site = self.line or error.call_site
        raise error


class Word(NamedTuple):
    """Status words that are computed.

    Attributes:
        root: their number among what is computed.
        about, line: see `Words`.
    """

    root: int
    about: tuple[int, ...]
    line: CallSite | None


class Dependence(NamedTuple):
    """The status words that a value depends on.

    Attributes:
        words: those that are computed with it.
        known: those in memory already.
        leaves: what it is computed from, which may have more.
    """

    words: list[Word]
    known: list[Status]
    leaves: list[Node]

    def over(self, computed: Sequence[Buffer]) -> tuple[Status, ...]:
        """All of them but those of leaves, each once, where `computed` is the memory of roots."""
        made = (Words(computed[word.root], word.about, word.line) for word in self.words)
        return tuple(dict.fromkeys((*made, *self.known)))


def with_words(
    roots: list[Node], is_leaf: Callable[[Node], bool], storage: Callable[[Node], Buffer]
) -> list[Dependence]:
    """What each of `roots` depends on; words that are to be computed are added to them."""
    marks: list[Node] = []  # leaves, and values with words, each with a bit of its own
    masks: dict[Node, int] = {}
    for node in toposort(roots, is_leaf):
        mask = 0
        if is_leaf(node) or is_checked(node):
            mask = 1 << len(marks)
            marks.append(node)
        if not is_leaf(node):
            for source in node.src:
                mask |= masks[source]
        masks[node] = mask
    found = []
    for root in roots.copy():
        own = Dependence([], [], [])
        for mark in (mark for bit, mark in enumerate(marks) if masks[root] >> bit & 1):
            if is_leaf(mark):
                own.leaves.append(mark)
                continue
            word, about, line = mark.src[1], mark.attr[1:], origin_of(mark)
            if is_leaf(word):
                own.known.append(Words(storage(word), about, line))
                continue
            if word not in roots:
                roots.append(word)
            own.words.append(Word(roots.index(word), about, line))
        found.append(own)
    return found


def known_words(
    wanted: list[Node], is_leaf: Callable[[Node], bool], storage: Callable[[Node], Buffer]
) -> list[Dependence]:
    """`with_words` without leaves, which may then be written in place, but with their words."""
    result = []
    for found in with_words(wanted, is_leaf, storage):
        theirs = (status for leaf in found.leaves for status in storage(leaf).statuses)
        result.append(Dependence(found.words, [*found.known, *theirs], []))
    return result


def note_statuses(computed: Sequence[Buffer], statuses: Sequence[Dependence]) -> None:
    """Has the memory of what is computed keep the words that each depends on."""
    for buffer, dependence in zip(computed, statuses, strict=False):
        buffer.statuses = dependence.over(computed)

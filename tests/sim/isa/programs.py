"""Random programs that both instruction sets know, and what they do when plainly interpreted.

A wave has four numbers. Statements change them, in loops and under conditions; then the wave leaves
its first number to the wave before it in its workgroup, between two barriers. So what a wave has at
its end depends on all others of its group having kept the order that barriers ask for.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

MASK = 0xFFFFFFFF
OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add": lambda x, y: x + y & MASK,
    "sub": lambda x, y: x - y & MASK,
    "xor": lambda x, y: x ^ y,
    "mul": lambda x, y: x * y & MASK,
}


@dataclass(frozen=True)
class Change:
    """``r[target] = r[target] operation r[source]``."""

    operation: str
    target: int
    source: int


@dataclass(frozen=True)
class Loop:
    """Runs its body ``r[number] % 4 + 1`` times."""

    number: int
    body: list[Statement]


@dataclass(frozen=True)
class Unless:
    """Branches over its body where ``r[left] < r[right]``."""

    left: int
    right: int
    body: list[Statement]


Statement = Change | Loop | Unless


def random_phases(rng: random.Random) -> list[list[Statement]]:
    """Statements up to each exchange, and those behind the last."""
    return [_statements(rng, 0) for _ in range(rng.randint(1, 4))]


def _statements(rng: random.Random, depth: int) -> list[Statement]:
    return [_statement(rng, depth) for _ in range(rng.randint(1, 4))]


def _statement(rng: random.Random, depth: int) -> Statement:
    kind = rng.random() if depth < 3 else 1
    if kind < 0.25:
        return Loop(rng.randrange(4), _statements(rng, depth + 1))
    if kind < 0.45:
        return Unless(rng.randrange(4), rng.randrange(4), _statements(rng, depth + 1))
    return Change(rng.choice(sorted(OPERATIONS)), rng.randrange(4), rng.randrange(4))


@dataclass
class Plain:
    """A wave that is interpreted.

    Attributes:
        numbers: what it has.
        done: how often it did what: a change, entering a loop, its turn, a condition, ...
        branches: that it has taken.
    """

    numbers: list[int]
    done: dict[str, int] = field(default_factory=dict)
    branches: int = 0

    def run(self, statements: list[Statement]) -> None:
        """Does statements one after the other."""
        r = self.numbers
        for each in statements:
            if isinstance(each, Change):
                self.count("change")
                r[each.target] = OPERATIONS[each.operation](r[each.target], r[each.source])
            elif isinstance(each, Loop):
                self.count("loop")
                rounds = r[each.number] % 4 + 1
                for _ in range(rounds):
                    self.run(each.body)
                    self.count("round")
                self.branches += rounds - 1
            else:
                self.count("condition")
                if r[each.left] < r[each.right]:
                    self.branches += 1
                else:
                    self.run(each.body)

    def count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1


def interpret(phases: list[list[Statement]], groups: int, waves: int) -> list[Plain]:
    """All waves of a grid at their end, those of a workgroup one behind the other."""
    found = []
    for group in range(groups):
        members = [Plain(first_numbers(group, wave)) for wave in range(waves)]
        for number, statements in enumerate(phases):
            for wave in members:
                wave.run(statements)
            if number + 1 < len(phases):
                left = [wave.numbers[0] for wave in members]
                for place, wave in enumerate(members):
                    wave.count("exchange")
                    wave.numbers[1] = left[(place + 1) % waves]
        found += members
    return found


def first_numbers(group: int, wave: int) -> list[int]:
    """What a wave begins with: its ids, and two sums of them."""
    return [wave, group, wave + group, wave + group + wave]

"""Dependencies, compared with asking every pair of accesses whether they touch the same bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpu.hcq.deps import DependencyTracker, Range

ranges = st.tuples(st.integers(0, 20), st.integers(0, 8)).map(lambda r: (r[0], r[0] + r[1]))
accesses = st.tuples(
    st.sampled_from("abc"), st.lists(ranges, max_size=3), st.lists(ranges, max_size=2)
)


def _touch(first: list[Range], second: list[Range]) -> bool:
    return any(
        a[0] < b[1] and b[0] < a[1] for a in first for b in second if a[0] < a[1] if b[0] < b[1]
    )


@given(st.lists(accesses, max_size=12))
def test_waits(steps: list[tuple[str, list[Range], list[Range]]]) -> None:
    tracker: DependencyTracker[str] = DependencyTracker()
    # What a submission knows to be done: all before it on its queue, and what those waited for.
    done: list[set[int]] = []
    numbers: list[tuple[str, int]] = []
    for index, (queue, reads, writes) in enumerate(steps):
        value = 1 + sum(q == queue for q, _, _ in steps[:index])
        waits = tracker.access(queue, value, reads, writes)
        assert queue not in waits
        numbers.append((queue, value))
        known: set[int] = set()
        for earlier, (other, reached) in enumerate(numbers[:-1]):
            if other == queue or reached <= waits.get(other, 0):
                known |= done[earlier] | {earlier}
        done.append(known)
        conflicts = {
            earlier
            for earlier, (_, r, w) in enumerate(steps[:index])
            if _touch(writes, w) or _touch(writes, r) or _touch(reads, w)
        }
        assert conflicts <= known
        for other, reached in waits.items():  # each is a conflict, not just a guess
            assert numbers.index((other, reached)) in conflicts

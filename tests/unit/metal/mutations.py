"""Mistakes put into the METAL backend, each with the check that has to find it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu.backends.metal import codes, context, memory, program
from gpu.backends.metal.context import Commands, MetalContext
from gpu.backends.metal.graph import MetalGraph
from gpu.backends.metal.memory import MetalAllocator
from gpu.backends.metal.objc import Handle, ObjC, Pool
from gpu.backends.metal.program import Libraries, MetalProgram, Scratch
from gpu.backends.metal.timer import MetalTimer
from gpu.runtime.allocator import LRUAllocator
from mutating import Mutations, Patcher
from unit.metal.checks import CHECKS

MUTATIONS = Mutations(CHECKS)
mutation = MUTATIONS.found_by


def _gives(value: object) -> Callable[..., Any]:
    return lambda *_, **__: value


_nothing = _gives(None)


def _replacing(patch: Patcher, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
    """Messages of every runtime from now on are what `make` makes of the right ones."""
    real = ObjC.__init__

    def begin(self: ObjC, address: Callable[[str], int]) -> None:
        real(self, address)
        setattr(self, name, make(getattr(self, name)))

    patch.setattr(ObjC, "__init__", begin)


# Messages and what is owned


@mutation("a_launch_is_a_command_buffer")
def pools_are_not_drained(patch: Patcher) -> None:
    patch.setattr(Pool, "__exit__", _nothing)


@mutation("memory_that_is_dropped_is_given_back")
def nothing_is_released(patch: Patcher) -> None:
    patch.setattr(Handle, "__del__", _nothing)


@mutation("a_launch_is_a_command_buffer")
def a_command_buffer_is_not_retained(patch: Patcher) -> None:
    _replacing(patch, "objc_retain", lambda _: lambda owned: owned)


@mutation("a_launch_is_a_command_buffer")
def an_encoder_is_not_ended(patch: Patcher) -> None:
    _replacing(patch, "endEncoding", _gives(_nothing))


@mutation("a_launch_is_a_command_buffer")
def a_launch_is_not_committed(patch: Patcher) -> None:
    _replacing(patch, "commit", _gives(_nothing))


@mutation("a_launch_is_a_command_buffer")
def values_are_not_passed(patch: Patcher) -> None:
    _replacing(patch, "setBytes_length_atIndex_", _gives(_nothing))


@mutation("the_compiler_keeps_to_ieee_754")
def older_systems_are_told_newer_messages(patch: Patcher) -> None:
    patch.setattr(ObjC, "has_method", _gives(True))


@mutation("the_compiler_keeps_to_ieee_754")
def fast_math_is_left_on(patch: Patcher) -> None:
    _replacing(patch, "setFastMathEnabled_", lambda right: lambda at, _: right(at, True))


# Waiting, and what went wrong


@mutation("a_launch_is_a_command_buffer")
def synchronize_does_not_wait(patch: Patcher) -> None:
    patch.setattr(MetalContext, "synchronize", _nothing)


@mutation("memory_is_read_when_what_used_it_is_done")
def the_host_reads_at_once(patch: Patcher) -> None:
    patch.setattr(MetalAllocator, "_wait_for", _nothing)


@mutation("memory_is_read_when_what_used_it_is_done")
def the_host_waits_for_everything(patch: Patcher) -> None:
    patch.setattr(MetalAllocator, "_wait_for", lambda self, _: self._context.synchronize())


@mutation("a_replay_is_one_command_buffer")
def memory_does_not_know_what_used_it(patch: Patcher) -> None:
    real = MetalContext.run

    def run(
        self: MetalContext, encode: Any, what: Any, arguments: Any, touched: Any, *more: Any
    ) -> Commands:
        return real(self, encode, what, arguments, (), *more)

    patch.setattr(MetalContext, "run", run)


@mutation("not_more_is_committed_than_a_queue_has")
def a_queue_is_overfilled(patch: Patcher) -> None:
    patch.setattr(context, "MOST_RUNNING", 1 << 20)


@mutation("the_launch_that_failed_is_named_and_the_next_one_works")
def errors_are_not_looked_at(patch: Patcher) -> None:
    patch.setattr(MetalContext, "_raise", _nothing)


@mutation("the_launch_that_failed_is_named_and_the_next_one_works")
def an_error_is_told_again(patch: Patcher) -> None:
    real = MetalContext._raise

    def tell(self: MetalContext, failed: Commands) -> None:
        self._running.appendleft(failed)
        real(self, failed)

    patch.setattr(MetalContext, "_raise", tell)


@mutation("the_launch_that_failed_is_named_and_the_next_one_works")
def a_page_fault_has_no_type(patch: Patcher) -> None:
    patch.setattr(codes, "FAULTS", {})


@mutation("after_a_loss_everything_says_so")
def a_loss_is_forgotten(patch: Patcher) -> None:
    real = MetalContext.in_pool

    def in_pool(self: MetalContext) -> Pool:
        self._lost = None
        return real(self)

    patch.setattr(MetalContext, "in_pool", in_pool)


@mutation("an_interrupt_in_a_launch_leaves_a_device_that_works")
def what_was_never_committed_is_waited_for(patch: Patcher) -> None:
    real = MetalContext._finish

    def finish(self: MetalContext, first: Commands) -> None:
        self.objc.waitUntilCompleted(first.handle.id)
        real(self, first)

    patch.setattr(MetalContext, "_finish", finish)


@mutation("the_process_ends_when_all_is_done_and_releases_nothing")
def the_process_ends_with_work_in_flight(patch: Patcher) -> None:
    patch.setattr(MetalContext, "close", lambda self: self._lose("it was closed"))


@mutation("a_forked_child_is_told_and_sends_nothing")
def a_fork_goes_unnoticed(patch: Patcher) -> None:
    patch.setattr(MetalContext, "forked", _nothing)


@mutation("a_forked_child_is_told_and_sends_nothing")
def a_forked_child_releases(patch: Patcher) -> None:
    real = MetalContext._lose

    def lose(self: MetalContext, reason: str) -> None:
        real(self, reason)
        self.objc.is_lost = False

    patch.setattr(MetalContext, "_lose", lose)


# Programs and graphs


@mutation("what_a_kernel_takes_is_checked_before_anything_is_sent")
def arguments_are_not_counted(patch: Patcher) -> None:
    patch.setattr(MetalProgram, "check_counts", _nothing)


@mutation("what_a_kernel_takes_is_checked_before_anything_is_sent")
def anything_is_memory(patch: Patcher) -> None:
    patch.setattr(program, "check_memory_of", _nothing)


@mutation("what_a_kernel_takes_is_checked_before_anything_is_sent")
def anything_is_a_value(patch: Patcher) -> None:
    patch.setattr(program, "check_values", lambda name, vals: vals)


@mutation("a_source_is_refused_with_its_line")
def the_line_is_not_told(patch: Patcher) -> None:
    patch.setattr(program, "_with_line", lambda told, source: told)


@mutation("a_source_is_compiled_once")
def a_source_is_compiled_each_time(patch: Patcher) -> None:
    patch.setattr(Libraries, "compile", lambda self, source: self._compile(source.decode()))


@mutation("a_kernel_that_cannot_be_launched_is_refused_when_it_is_loaded")
def another_kernel_is_taken(patch: Patcher) -> None:
    patch.setattr(program, "_count_tables", _gives(3))


@mutation("a_kernel_that_cannot_be_launched_is_refused_when_it_is_loaded")
def the_most_threads_are_not_asked_for(patch: Patcher) -> None:
    _replacing(patch, "maxTotalThreadsPerThreadgroup", _gives(_gives(1 << 20)))


@mutation("a_kernel_that_cannot_be_launched_is_refused_when_it_is_loaded")
def simd_groups_are_of_any_width(patch: Patcher) -> None:
    patch.setattr(program, "SIMD_WIDTH", 16)


@mutation("a_replay_is_one_command_buffer")
def a_replay_is_many_command_buffers(patch: Patcher) -> None:
    def replay(self: MetalGraph, memories: Any, vals: Any = ()) -> None:
        for one, used, taken in self._launches:
            one(*(memories[i] for i in used), vals=[vals[i] for i in taken])

    patch.setattr(MetalGraph, "__call__", replay)


@mutation("a_graph_asks_for_the_most_memory_before_its_first_launch")
def a_graph_asks_for_memory_on_its_way(patch: Patcher) -> None:
    real = MetalGraph.__init__

    def begin(self: MetalGraph, launches: Any, slots: int) -> None:
        real(self, launches, slots)
        self._workspace = 0

    patch.setattr(MetalGraph, "__init__", begin)


@mutation("a_graph_asks_for_the_most_memory_before_its_first_launch")
def memory_that_is_in_use_is_handed_out(patch: Patcher) -> None:
    def at_least(self: Scratch, nbytes: int) -> Any:
        if self._memory is None or self._memory.nbytes < nbytes:
            self._memory = self._allocator.alloc(nbytes)
        return self._memory

    patch.setattr(Scratch, "at_least", at_least)


@mutation("launches_are_timed_when_they_are_done")
def what_runs_is_timed_as_well(patch: Patcher) -> None:
    patch.setattr(MetalContext, "is_done", _gives(True))


@mutation("launches_are_timed_when_they_are_done")
def what_was_timed_is_kept(patch: Patcher) -> None:
    patch.setattr(MetalTimer, "pending", property(_gives(2)))


# Memory


@mutation("memory_has_its_limits")
def too_large_a_buffer_is_asked_for(patch: Patcher) -> None:
    patch.setattr(context.GpuInfo, "most_memory", 1 << 62)


@mutation("whole_pages_are_borrowed")
def what_is_borrowed_is_not_waited_for(patch: Patcher) -> None:
    real = memory.MetalMemory.__init__

    def begin(self: memory.MetalMemory, *arguments: Any, **_: Any) -> None:
        real(self, *arguments)

    patch.setattr(memory.MetalMemory, "__init__", begin)


@mutation("whole_pages_are_borrowed")
def parts_of_pages_are_borrowed(patch: Patcher) -> None:
    patch.setattr(memory, "PAGE", 1)


@mutation("a_copy_is_behind_what_was_launched")
def copies_go_through_the_host(patch: Patcher) -> None:
    patch.setattr(MetalAllocator, "copy", LRUAllocator.copy)

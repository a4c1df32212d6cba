"""Mistakes put into the CUDA backend, each with the test that has to find it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any

from gpu.backends.cuda import codes, graph, launches, program
from gpu.backends.cuda import share as shared
from gpu.backends.cuda.context import CudaContext
from gpu.backends.cuda.exchange import CudaExchange, _Borrowed
from gpu.backends.cuda.graph import CudaGraph, _Made, _Setter
from gpu.backends.cuda.hotcode import IS_SET
from gpu.backends.cuda.launches import Launches
from gpu.backends.cuda.memory import CudaAllocator, CudaMemory, Staging, _Slot
from gpu.backends.cuda.peers import Peers
from gpu.backends.cuda.program import CudaProgram
from gpu.backends.cuda.share import Mapped, Sharing
from gpu.backends.cuda.streams import Event, Streams
from gpu.core.errors import InvalidType, InvalidValue
from libcuda.checks import CHECKS
from mutating import Mutations, Patcher

MUTATIONS = Mutations(CHECKS)
mutation = MUTATIONS.found_by


def _gives(value: object) -> Callable[..., Any]:
    return lambda *_, **__: value


_nothing = _gives(None)

# The context


@mutation("a_thread_with_another_context_gets_ours")
def the_context_of_a_thread_is_left_as_it_is(patch: Patcher) -> None:
    patch.setattr(CudaContext, "enter", _nothing)


@mutation("launches_and_copies_keep_their_order")
def synchronize_does_not_wait(patch: Patcher) -> None:
    patch.setattr(CudaContext, "synchronize", _nothing)
    patch.setattr(Event, "wait", _nothing)


@mutation("after_a_fault_everything_is_lost")
def a_fault_is_forgotten(patch: Patcher) -> None:
    real = CudaContext.check

    def check(self: CudaContext, code: int, what: str) -> None:
        try:
            real(self, code, what)
        finally:
            self.lost = None

    patch.setattr(CudaContext, "check", check)


@mutation("recovery_takes_force")
def recovery_needs_no_force(patch: Patcher) -> None:
    real = CudaContext.recover
    patch.setattr(CudaContext, "recover", lambda self, force=False: real(self, True))


@mutation("after_recovery_programs_run_and_memory_is_gone")
def memory_outlives_a_reset(patch: Patcher) -> None:
    patch.setattr(CudaMemory, "lose", _nothing)


@mutation("a_forked_child_is_told_and_calls_nothing")
def a_fork_goes_unnoticed(patch: Patcher) -> None:
    patch.setattr(CudaContext, "forked", _nothing)


@mutation("closing_gives_everything_back")
def streams_are_left_behind(patch: Patcher) -> None:
    patch.setattr(Streams, "destroy", _nothing)


@mutation("closing_gives_everything_back")
def pinned_memory_is_left_behind(patch: Patcher) -> None:
    patch.setattr(Staging, "close", _nothing)


@mutation("a_module_is_unloaded_when_its_launches_are_done")
def a_module_is_unloaded_at_once(patch: Patcher) -> None:
    patch.setattr(CudaContext, "retire", lambda self, give, handle, ticket=None: give(handle))


@mutation("what_was_retired_is_given_back_when_that_much_is_done_and_nobody_waits")
def what_was_retired_stays_until_someone_waits(patch: Patcher) -> None:
    patch.setattr(CudaContext, "give_back_ended", _nothing)


@mutation("a_fault_names_the_kernel_its_arguments_and_the_line")
def a_fault_names_nothing(patch: Patcher) -> None:
    patch.setattr(Launches, "told", _gives(""))


@mutation("a_fault_names_all_that_may_have_been_it")
def one_launch_is_remembered(patch: Patcher) -> None:
    patch.setattr(launches, "_KEPT", 1)


# Streams


@mutation("streams_do_not_wait_for_the_default_one")
def streams_wait_for_the_default_one(patch: Patcher) -> None:
    patch.setattr(codes, "STREAM_NON_BLOCKING", 0)


@mutation("launches_and_copies_keep_their_order")
def copies_do_not_follow_launches(patch: Patcher) -> None:
    patch.setattr(Streams, "let_copies_follow", _nothing)


@mutation("launches_and_copies_keep_their_order")
def launches_do_not_follow_copies(patch: Patcher) -> None:
    patch.setattr(Streams, "let_launches_follow", _nothing)


@mutation("what_was_retired_is_given_back_when_that_much_is_done_and_nobody_waits")
def an_event_is_said_to_have_come(patch: Patcher) -> None:
    patch.setattr(Event, "has_come", _gives(True))


@mutation("launches_and_copies_keep_their_order")
def nothing_has_a_ticket(patch: Patcher) -> None:
    patch.setattr(Streams, "next_ticket", _gives(0))


# Memory


@mutation("a_slot_is_used_again_when_its_event_was_reached")
def slots_are_used_again_at_once(patch: Patcher) -> None:
    patch.setattr(_Slot, "wait", _nothing)


@mutation("a_failed_copy_leaves_nothing_under_way")
def a_failed_copy_goes_on(patch: Patcher) -> None:
    patch.setattr(Staging, "_settled", _gives(nullcontext()))


@mutation("memory_in_use_is_freed_when_it_is_done")
def memory_is_freed_under_launches(patch: Patcher) -> None:
    patch.setattr(CudaAllocator, "_free", lambda self, memory, nbytes: memory.close())


@mutation("memory_that_was_lent_is_freed_when_all_is_done")
def lent_memory_is_freed_under_others(patch: Patcher) -> None:
    patch.setattr(CudaContext, "synchronize_all", _nothing)


@mutation("a_stream_that_was_destroyed_makes_all_be_waited_for")
def lent_memory_is_used_again_at_once(patch: Patcher) -> None:
    patch.setattr(CudaMemory, "take_back", lambda self: self.users.clear())


@mutation("no_room_says_how_much_there_is")
def no_room_is_all_that_is_said(patch: Patcher) -> None:
    patch.setattr(CudaAllocator, "_left", _gives(""))


@mutation("an_owner_is_kept_while_his_memory_is_used")
def an_owner_is_let_go_at_once(patch: Patcher) -> None:
    patch.setattr(_Borrowed, "__del__", _nothing)


@mutation("memory_of_others_must_be_there_and_long_enough")
def memory_of_others_is_not_looked_at(patch: Patcher) -> None:
    patch.setattr(CudaExchange, "_check", _nothing)


# Programs


@mutation("a_launch_is_given_packed_arguments")
def arguments_are_not_those_that_are_given(patch: Patcher) -> None:
    real = CudaProgram.load

    def load(self: CudaProgram) -> None:
        real(self)
        pack = self._pack
        self._pack = lambda block, *words: pack(block, *(0 for _ in words))

    patch.setattr(CudaProgram, "load", load)


@mutation("wrong_arguments_are_refused")
def wrong_arguments_are_not_looked_at(patch: Patcher) -> None:
    real = CudaProgram.__call__

    def call(self: CudaProgram, *bufs: CudaMemory, **options: Any) -> float | None:
        with suppress(InvalidType, InvalidValue):
            return real(self, *bufs, **options)
        return None

    patch.setattr(CudaProgram, "__call__", call)


@mutation("ptx_is_loaded_where_the_cubin_is_for_another_gpu")
def a_cubin_is_all_that_is_tried(patch: Patcher) -> None:
    patch.setattr(program, "Result", SimpleNamespace(NO_BINARY_FOR_GPU=-1))


# Replays


@mutation("a_call_sets_the_nodes_that_have_other_arguments")
def nodes_keep_their_arguments(patch: Patcher) -> None:
    patch.setattr(_Setter, "pack", _nothing)


@mutation("a_call_sets_the_nodes_that_have_other_arguments")
def all_nodes_are_set_each_time(patch: Patcher) -> None:
    real = _Setter.run

    def forgetful(self: _Setter) -> None:
        self._block.values[IS_SET] = 0
        real(self)

    patch.setattr(_Setter, "run", forgetful)


@mutation("memory_that_coincides_otherwise_is_launched_in_order")
def memory_that_coincides_is_taken_for_apart(patch: Patcher) -> None:
    patch.setattr(_Made, "_coincides", _gives(True))


@mutation("a_replay_orders_what_overlaps")
def nodes_wait_for_none(patch: Patcher) -> None:
    patch.setattr(graph, "dependencies", lambda launches, _: [[] for _ in launches])


@mutation("a_replay_orders_what_overlaps")
def ranges_are_taken_for_apart(patch: Patcher) -> None:
    patch.setattr(graph, "_overlapping", lambda ranges: list(range(len(ranges))))


@mutation("copies_wait_for_replays_on_that_memory")
def memory_that_stands_still_gets_no_ticket(patch: Patcher) -> None:
    patch.setattr(CudaMemory, "is_used_by", _nothing)


@mutation("copies_wait_for_replays_on_that_memory")
def memory_that_moves_gets_no_ticket(patch: Patcher) -> None:
    real = _Made.launch

    def launch(self: _Made, ticket: int) -> None:
        self._moving_memories = []
        real(self, ticket)

    patch.setattr(_Made, "launch", launch)


@mutation("copies_wait_for_replays_on_that_memory")
def a_replay_leaves_no_ticket(patch: Patcher) -> None:
    real = CudaGraph.__call__

    def call(self: CudaGraph, memories: Any, vals: Any = ()) -> None:
        real(self, memories, vals)
        for memory in memories:
            memory.ticket, memory.replays = 0, ()

    patch.setattr(CudaGraph, "__call__", call)


# Peers


@mutation("copies_between_peers_keep_the_order_of_both")
def gpus_do_not_wait_for_each_other(patch: Patcher) -> None:
    patch.setattr(Streams, "follow_event", _gives(0))


@mutation("copies_between_peers_keep_the_order_of_both")
def a_mark_is_never_made(patch: Patcher) -> None:
    patch.setattr(Streams, "mark", lambda self: self._launched)


@mutation("the_source_may_change_when_the_copy_was_asked_for")
def the_source_forgets_the_copy(patch: Patcher) -> None:
    real = Peers.copy

    def copy(self: Peers, target: Any, source: Any, nbytes: int, there: Any) -> bool:
        done = real(self, target, source, nbytes, there)
        source.ticket, source.replays = 0, ()
        return done

    patch.setattr(Peers, "copy", copy)


@mutation("a_context_that_was_made_anew_is_reached_again")
def peers_are_not_enabled(patch: Patcher) -> None:
    patch.setattr(Peers, "_enable", _gives(True))


# Other processes


@mutation("codes_of_sharing_are_errors_and_nothing_is_left_behind")
def what_failed_stays_mapped(patch: Patcher) -> None:
    patch.setattr(Mapped, "close", _nothing)


@mutation("codes_of_sharing_are_errors_and_nothing_is_left_behind")
def addresses_are_kept(patch: Patcher) -> None:
    patch.setattr(
        shared, "_unmap", lambda library, size, address: library.cuMemUnmap(address, size)
    )


@mutation("codes_of_sharing_are_errors_and_nothing_is_left_behind")
def what_cannot_be_shared_is_any_error(patch: Patcher) -> None:
    patch.setattr(Sharing, "_check", lambda self, code, what: self._context.check(code, what))


@mutation("a_handle_of_another_machine_or_gpu_is_not_opened")
def handles_are_opened_anywhere(patch: Patcher) -> None:
    patch.setattr(shared, "boot_id", _gives("another"))


@mutation("a_handle_of_another_machine_or_gpu_is_not_opened")
def codes_of_opening_are_not_told_apart(patch: Patcher) -> None:
    patch.setattr(
        Sharing, "_check_there", lambda self, code, handle: self._context.check(code, "open it")
    )

"""Tests of the CUDA backend as functions of nothing, on a libcuda of their own: for mutations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

from libcuda import (
    test_context,
    test_graph,
    test_memory,
    test_peers,
    test_program,
    test_shared,
    test_simulated,
)
from libcuda.conftest import Opened
from libcuda.stand_in import StandIn

Check = Callable[[], None]


def _on_stand_in(test: Callable[[Opened], None]) -> Check:
    @functools.wraps(test)
    def run() -> None:
        opened = Opened(StandIn())
        test(opened)
        opened.stand_in.fails.clear()
        opened.context.close()

    return run


def _opening(test: Callable[..., None]) -> Check:
    """Of a test that opens contexts itself, by `opens` or not."""

    @functools.wraps(test)
    def run() -> None:
        names = test.__code__.co_varnames[: test.__code__.co_argcount]
        fixtures = {"stand_in": StandIn(), "opens": Opened}
        test(**{name: fixtures[name] for name in names})

    return run


def _simulated(test: Callable[..., None], seeds: int) -> Check:
    @functools.wraps(test)
    def run() -> None:
        for seed in range(seeds):
            made: list[Any] = []

            def make(*args: Any, made: list[Any] = made, **options: Any) -> Any:
                made.append(test_simulated.Simulated(*args, **options))
                return made[-1]

            test(make, seed)
            for one in made:
                one.context.close()
                one.library.check()

    return run


def _peers(test: Callable[..., None], arguments: range) -> Check:
    @functools.wraps(test)
    def run() -> None:
        for argument in arguments:
            with ExitStack() as ends:

                def make(*args: Any, ends: ExitStack = ends) -> test_peers.Machine:
                    made = test_peers.Machine(*args)
                    ends.callback(made.library.check)
                    for context in made.contexts:
                        ends.callback(context.close)
                    return made

                test(make, argument)

    return run


def _named(checks: list[Check]) -> dict[str, Check]:
    return {check.__name__.removeprefix("test_"): check for check in checks}


CHECKS: Final[dict[str, Check]] = _named(
    [
        *map(
            _on_stand_in,
            (
                test_context.test_a_thread_with_another_context_gets_ours,
                test_context.test_a_fault_names_the_kernel_its_arguments_and_the_line,
                test_context.test_a_fault_names_all_that_may_have_been_it,
                test_context.test_after_a_fault_everything_is_lost,
                test_context.test_recovery_takes_force,
                test_context.test_after_recovery_programs_run_and_memory_is_gone,
                test_context.test_a_forked_child_is_told_and_calls_nothing,
                test_context.test_what_was_retired_is_given_back_when_that_much_is_done_and_nobody_waits,
                test_memory.test_a_slot_is_used_again_when_its_event_was_reached,
                test_memory.test_a_failed_copy_leaves_nothing_under_way,
                test_memory.test_memory_in_use_is_freed_when_it_is_done,
                test_memory.test_memory_that_was_lent_is_freed_when_all_is_done,
                test_memory.test_a_stream_that_was_destroyed_makes_all_be_waited_for,
                test_memory.test_no_room_says_how_much_there_is,
                test_memory.test_an_owner_is_kept_while_his_memory_is_used,
                test_memory.test_memory_of_others_must_be_there_and_long_enough,
                test_program.test_a_launch_is_given_packed_arguments,
                test_program.test_ptx_is_loaded_where_the_cubin_is_for_another_gpu,
                test_program.test_wrong_arguments_are_refused,
                test_program.test_a_module_is_unloaded_when_its_launches_are_done,
                test_graph.test_a_call_sets_the_nodes_that_have_other_arguments,
                test_graph.test_memory_that_coincides_otherwise_is_launched_in_order,
                test_graph.test_a_replay_orders_what_overlaps,
                test_graph.test_copies_wait_for_replays_on_that_memory,
                test_shared.test_codes_of_sharing_are_errors_and_nothing_is_left_behind,
                test_shared.test_a_handle_of_another_machine_or_gpu_is_not_opened,
            ),
        ),
        _opening(test_context.test_streams_do_not_wait_for_the_default_one),
        _opening(test_context.test_closing_gives_everything_back),
        _simulated(test_simulated.test_launches_and_copies_keep_their_order, 5),
        _peers(test_peers.test_copies_between_peers_keep_the_order_of_both, range(3)),
        _peers(test_peers.test_the_source_may_change_when_the_copy_was_asked_for, range(5)),
        _peers(test_peers.test_a_context_that_was_made_anew_is_reached_again, range(2)),
    ]
)

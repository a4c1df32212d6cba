"""`gpu boot`: brings a card up without its kernel driver, step by step, and gives it back.

The card must have been handed over (`gpu pci take`); with SIM a model of one is booted.
"""

from __future__ import annotations

import argparse

from gpu.cli.cards import DEVICE_HELP, steps_of, take
from gpu.drivers.boot import Done


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `gpu boot`."""
    parser.add_argument("device", help=DEVICE_HELP)
    parser.add_argument("--list", action="store_true", help="the steps, and nothing else")
    parser.add_argument("--until", metavar="STEP", help="the last step to take")
    parser.add_argument("--step", action="store_true", help="wait for Enter before each step")
    parser.add_argument("--trace", action="store_true", help="each access of a register, by name")


def run(arguments: argparse.Namespace) -> int:
    """Walks the steps. Raises what they raise, with their names."""
    if arguments.list:
        for step in steps_of(arguments.device):
            needs = ", ".join(step.needs) or "nothing"
            print(f"{step.name:10} {step.about}")
            print(f"{'':10} needs {needs}; promises {', '.join(step.promises)}; {step.seconds:g} s")
        return 0
    taken = take(arguments.device)
    try:
        if arguments.trace:
            taken.card.listener = lambda line: print(f"    {line}")
        walked = taken.walk(arguments.until)
        for number, (name, about) in enumerate(taken.headings()):
            if arguments.step:
                input(f"Enter for {name}: {about} ")
            done = next(walked, None)
            if done is None:
                break
            print(_told(number, done, taken.tell(done.name)))
    finally:
        taken.close()
    return 0


def _told(number: int, done: Done, more: str) -> str:
    """A line for a step that was walked."""
    counted = f"{done.accesses} accesses" + (f"  {more}" if more else "")
    return f"{number + 1:2} {done.name:10} {done.seconds * 1000:9.3f} ms  {counted}"

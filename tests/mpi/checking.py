"""What programs of ranks check with, and how each rank tells of it."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def raises(kind: type[Exception], call: Callable[[], Any], *texts: str) -> None:
    """Raises AssertionError unless a call raises an error with all of the texts."""
    try:
        call()
    except kind as error:
        assert all(text in str(error) for text in texts), error
    else:
        raise AssertionError(f"no {kind.__name__}")


def run_checks(rank: int, known: Mapping[str, Any], names: Iterable[str]) -> None:
    """Runs functions ``check_...`` of a program, all where no names are given, up to a failure.

    Prints a line of JSON: for each check what went wrong, "" where nothing did.
    """
    told = {}
    for name in [*names] or [name for name in known if name.startswith("check_")]:
        try:
            known[name]()
            told[name] = ""
        except Exception:
            told[name] = traceback.format_exc()
            break  # others may be elsewhere
    sys.stdout.write(json.dumps({"rank": rank, "told": told}) + "\n")
    sys.stdout.flush()
    if any(told.values()):
        os._exit(0)  # others may wait for this rank for ever

"""The table that a run ends with."""

from __future__ import annotations

from typing import Final

from tools.hw_acceptance.bench.comparison import comparison_lines
from tools.hw_acceptance.model import Outcome, Report, Result

_WIDTH: Final = 120
_REASON: Final = 300  # characters of a reason


def format_table(report: Report) -> str:
    """A line for each trial, grouped, with reasons below what did not pass, and the totals last."""
    lines: list[str] = []
    width = max((len(_title(each)) for each in report.results), default=0)
    group = ""
    for result in report.results:
        if result.group != group:
            group = result.group
            lines.append(f"-- {group}")
        lines.append(f"  {result.outcome:11} {_title(result):{width}} {result.seconds:6.1f} s")
        if result.reason and not (report.stopped and result.outcome is Outcome.NOT_RUN):
            lines += _wrapped(result.reason)
    lines += comparison_lines(report)
    lines.append(_totals(report))
    if report.force or report.options:
        settled = {**report.force, **report.options}
        text = ", ".join(f"{name}: {value}" for name, value in settled.items())
        lines.append(f"variants that served: {text}")
    if report.left_out:
        lines.append(f"too large to bring back: {', '.join(report.left_out)}")
    if report.simulated:
        lines.append(f"a model of {report.simulated} played the GPU: this says nothing about one")
    if report.stopped:
        lines.append(f"STOPPED: {report.stopped}")
    return "\n".join(lines)


def _title(result: Result) -> str:
    return result.step if result.trial == "default" else f"{result.step} [{result.trial}]"


def _wrapped(reason: str) -> list[str]:
    text = " ".join(reason.split())
    text = text if len(text) <= _REASON else text[:_REASON] + "..."
    step = _WIDTH - 16
    return [f"{'':14}{text[at : at + step]}" for at in range(0, len(text), step)]


def _totals(report: Report) -> str:
    counts = dict.fromkeys(Outcome, 0)
    for result in report.results:
        counts[result.outcome] += 1
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)

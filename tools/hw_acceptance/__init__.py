"""Proving the drivers on a real NVIDIA GPU, and bringing back evidence of every step.

A development machine, where this package may fetch tools, prepares a folder; a machine with a GPU,
which may have no network, runs it; what comes back is read by people::

    python -m tools.hw_acceptance prepare
    python -m tools.hw_acceptance run --folder .hw --out results --deadline 540
    python -m tools.hw_acceptance report results/report.json.gz

The list of steps is in `plan`; docs/hardware/README.md tells what the files of a result hold.
"""

"""Proving the drivers on a real GPU, and bringing back evidence of every step.

For AMD's one command does it all, with what is in the tree::

    python -m tools.hw_acceptance run --out results

For NVIDIA's a development machine, where this package may fetch tools, prepares a folder; a machine
with a GPU, which may have no network, runs it::

    python -m tools.hw_acceptance prepare
    python -m tools.hw_acceptance run --folder .hw --out results --deadline 540

What comes back is read by people: ``python -m tools.hw_acceptance report results/report.json.gz``.
The lists of steps are in `plan` and `amd.plan`, what else differs by vendor is a row of `ladders`;
docs/hardware/README.md and docs/hardware/amd.md tell what the files of a result hold.
"""

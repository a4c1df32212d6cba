"""Vendor-neutral command queues: commands, segments, timelines, memory and graphs.

A vendor plugs in below (`gpu.hcq.ports`): an encoder of commands, memory, and queues to publish in.
Everything here needs the standard library and numpy alone. `docs/hcq.md` tells the contracts.
"""

"""Models of GPUs and their kernel drivers: strict, seeded, on virtual time.

`gpu.sim.amd.kfd.world.KfdWorld` and `gpu.sim.nv.world.NvSimWorld` are where to begin;
docs/simulator.md says what is modelled. Models are written from public kernel sources and headers
and share no code with the drivers that run on them.
"""

"""NVIDIA, Ampere to Blackwell, through its kernel driver or on a bare card, without libcuda.

README.md beside this file has the words of this folder and the open sequence as a diagram;
`gpu.drivers.nv.rm.gpu` is an open GPU; `gpu.drivers.nv.nvk.gpu` opens it through the kernel driver,
`gpu.drivers.nv.pci.gpu` on the bus.
"""

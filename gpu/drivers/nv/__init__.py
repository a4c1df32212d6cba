"""NVIDIA, Ampere to Blackwell, through its kernel driver, without libcuda.

README.md beside this file has the words of this folder and the open sequence as a diagram;
`gpu.drivers.nv.rm.gpu` is where to start.
"""

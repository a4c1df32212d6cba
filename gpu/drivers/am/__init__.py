"""AMD, GFX9 to GFX12: packets, kernels and the way through the kernel driver.

README.md beside this file has the words of this folder and which file does what.
"""

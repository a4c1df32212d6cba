"""Qualcomm's Adreno GPUs: the tensor library on the command queue of KGSL."""

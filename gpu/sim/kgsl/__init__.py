"""Machines with Qualcomm's Adreno GPUs behind KGSL, their kernel driver."""

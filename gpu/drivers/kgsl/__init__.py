"""Adreno GPUs behind Qualcomm's KGSL. So far their command streams, and no device."""

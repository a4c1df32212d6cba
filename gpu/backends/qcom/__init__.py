"""Qualcomm's Adreno GPUs by KGSL. So far what makes code for them, and no device."""

"""ir3, the instruction set of Adreno 6xx GPUs: decoder, text and engine."""

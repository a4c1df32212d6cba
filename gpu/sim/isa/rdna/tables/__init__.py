"""Decode tables, one module per chip; made by tools/isa_sweep."""

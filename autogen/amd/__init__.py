"""Registers and command packets of AMD chips, one module per block and version; generated."""
